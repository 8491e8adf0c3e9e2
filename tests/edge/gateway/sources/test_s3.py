"""Models in S3-compatible storage: moto's server, which checks the signatures of requests."""

from __future__ import annotations

import json
import logging
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.credentials import Access, Credentials
from edge.gateway.sources.publishing import push
from edge.gateway.sources.registry import Registry
from edge.gateway.sources.s3 import S3


class Storage(NamedTuple):
    """A server of S3's interface. client: boto3's."""

    url: str
    key: str
    secret: str
    client: Any

    def access(self, **more: Any) -> dict[str, Any]:
        return {"endpoint": self.url, "region": "us-east-1"} | more


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    where: Any = {"endpoint_url": f"http://{host}:{port}", "region_name": "us-east-1", "aws_access_key_id": "x",
                  "aws_secret_access_key": "y"}  # fmt: skip
    iam = boto3.client("iam", **where)
    iam.create_user(UserName="gateway")
    made = iam.create_access_key(UserName="gateway")["AccessKey"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}]}
    iam.put_user_policy(UserName="gateway", PolicyName="all", PolicyDocument=json.dumps(policy))
    _demand(where["endpoint_url"], "0")
    where |= {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}
    yield Storage(where["endpoint_url"], made["AccessKeyId"], made["SecretAccessKey"], boto3.client("s3", **where))
    _demand(where["endpoint_url"], "inf")
    server.stop()


def _demand(url: str, after: str) -> None:
    """Check the signatures of requests after so many."""
    asked = urllib.request.Request(
        f"{url}/moto-api/reset-auth", after.encode(), {"Content-Type": "application/json"}, method="POST"
    )
    urllib.request.urlopen(asked, timeout=30).close()


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of whoever runs the tests."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


@pytest.fixture
def bucket(storage: Storage, tmp_path: Path) -> str:
    name = f"b{abs(hash(str(tmp_path)))}"
    storage.client.create_bucket(Bucket=name)
    return name


def credentials(storage: Storage, bucket: str, tmp_path: Path, secret: str = "", **more: Any) -> Credentials:
    (tmp_path / "secret").write_text(secret or storage.secret)
    more = storage.access(**more)
    return Credentials(
        {f"s3://{bucket}": Access(user=storage.key, password_file=str(tmp_path / "secret"), **more)}
    )


def registry(address: str, cache: Path, known: Credentials) -> Registry:
    return Registry(S3(address, known, 5.0), Cache(cache), moment=30)


def contents(source: Registry) -> dict[str, dict[int, bytes]]:
    return {
        name: {version: Path(found.path).read_bytes() for version, found in listing.versions.items()}
        for name, listing in source.scan().items()
    }


def test_objects_are_laid_out_like_a_folder(storage: Storage, bucket: str, make: Any, tmp_path: Path) -> None:
    one, two, known = make(1.0), make(2.0), credentials(storage, bucket, tmp_path)
    for path, data in (
        ("models/a.mslite", one), ("models/b/model.mslite", one), ("models/c/1/model.mslite", one),
        ("models/c/12/model.mslite", two), ("models/c/config.toml", b"max_batch = 3"),
        ("models/a.toml", b"priority = 1"), ("models/c/0/model.mslite", two), ("models/c/x/model.mslite", two),
        ("models/.d.mslite", one), ("models/readme.txt", b"text"), ("other/e.mslite", one),
        ("models/deep/er/1/model.mslite", one),
    ):  # fmt: skip
        storage.client.put_object(Bucket=bucket, Key=path, Body=data)
    source = registry(f"s3://{bucket}/models/", tmp_path / "cache", known)
    assert contents(source) == {"a": {1: one}, "b": {1: one}, "c": {1: one, 12: two}}
    found = source.scan()
    assert found["c"].config is not None and found["c"].config.max_batch == 3
    assert found["a"].config is not None and found["a"].config.priority == 1 and found["b"].config is None
    whole = registry(f"s3://{bucket}", tmp_path / "cache", known)
    assert contents(whole) == {}  # models/a.mslite is no place of a model there


def test_an_object_that_is_written_again(storage: Storage, bucket: str, make: Any, tmp_path: Path) -> None:
    one, two, known = make(1.0), make(2.0), credentials(storage, bucket, tmp_path)
    for data in (one, two):
        path = tmp_path / "m.mslite"
        path.write_bytes(data)
        push(path, f"s3://{bucket}/m/3/model.mslite", credentials=known)
        assert contents(registry(f"s3://{bucket}/", tmp_path / "cache", known)) == {"m": {3: data}}
    storage.client.delete_object(Bucket=bucket, Key="m/3/model.mslite")
    assert contents(registry(f"s3://{bucket}/", tmp_path / "cache", known)) == {}


def test_a_wrong_secret(storage: Storage, bucket: str, make: Any, tmp_path: Path) -> None:
    storage.client.put_object(Bucket=bucket, Key="m.mslite", Body=make(1.0))
    with pytest.raises(GatewayError, match=r"privileges|Forbidden") as caught:
        registry(f"s3://{bucket}", tmp_path / "a", credentials(storage, bucket, tmp_path, "hunter2")).scan()
    assert caught.value.status == 503 and "hunter2" not in str(caught.value)
    good = registry(f"s3://{bucket}", tmp_path / "a", credentials(storage, bucket, tmp_path))
    before = contents(good)
    (tmp_path / "secret").write_text("hunter2")  # read for every request
    assert contents(good) == before and "its last index is used" in good.problem
    assert good.problem == (good.scan(), good.problem)[1]  # an equal problem has an equal text: it is logged once


def test_credentials_of_amazon_s_tools(
    storage: Storage, bucket: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make(1.0)
    storage.client.put_object(Bucket=bucket, Key="m.mslite", Body=data)
    (tmp_path / "credentials").write_text(
        f"[team]\naws_access_key_id = {storage.key}\naws_secret_access_key = {storage.secret}\n"
    )
    (tmp_path / "config").write_text(f"[profile team]\nregion = us-east-1\nendpoint_url = {storage.url}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert contents(registry(f"s3://{bucket}", tmp_path / "a", Credentials())) == {"m": {1: data}}
    named = Credentials({f"s3://{bucket}": Access(profile="team")})
    monkeypatch.delenv("AWS_PROFILE")
    assert contents(registry(f"s3://{bucket}", tmp_path / "b", named)) == {"m": {1: data}}
    monkeypatch.delenv("AWS_SHARED_CREDENTIALS_FILE")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    for name, value in (("ACCESS_KEY_ID", storage.key), ("SECRET_ACCESS_KEY", storage.secret),
                        ("ENDPOINT_URL", storage.url), ("REGION", "us-east-1")):  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    assert contents(registry(f"s3://{bucket}", tmp_path / "c", Credentials())) == {"m": {1: data}}


def test_a_large_bundle_comes_in_pieces(
    storage: Storage, bucket: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an object that is replaced in between is not put together from two."""
    from edge.gateway.sources import s3

    one, known = make(1.0), credentials(storage, bucket, tmp_path)
    monkeypatch.setattr(s3, "_PIECE", 100)
    storage.client.put_object(Bucket=bucket, Key="m.mslite", Body=one)
    source = registry(f"s3://{bucket}", tmp_path / "cache", known)
    assert contents(source) == {"m": {1: one}}
    catalogue = S3(f"s3://{bucket}", known)
    (row,) = catalogue.read({}).rows
    with catalogue.fetch(row, 200) as got:
        pieces = got.pieces
        assert next(pieces) == one[200:300]
        storage.client.put_object(Bucket=bucket, Key="m.mslite", Body=bytes(len(one)))
        with pytest.raises(GatewayError, match="precondition"):
            list(pieces)


def test_a_configuration_that_is_wrong(storage: Storage, bucket: str, make: Any, tmp_path: Path) -> None:
    data, known = make(1.0), credentials(storage, bucket, tmp_path)
    storage.client.put_object(Bucket=bucket, Key="m/model.mslite", Body=data)
    storage.client.put_object(Bucket=bucket, Key="m/config.toml", Body=b"max_batch = 3")
    source = registry(f"s3://{bucket}", tmp_path / "cache", known)
    assert source.scan()["m"].config.max_batch == 3  # type: ignore[union-attr]
    for wrong in (b"max_batch = ", b"nonsense = 1", b"\xff", b"x" * ((1 << 20) + 1)):
        storage.client.put_object(Bucket=bucket, Key="m/config.toml", Body=wrong)
        found = source.scan()["m"]
        assert "config.toml" in found.problem and found.config is not None and found.config.max_batch == 3


def test_no_such_bucket(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(GatewayError) as caught:
        registry("s3://nothing", tmp_path, credentials(storage, "nothing", tmp_path)).scan()
    assert caught.value.status == 503 and len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["s3://", "s3:///x", "s3://key:secret@bucket/x", "s3://bucket/x?y", "s3://bucket/\n"])
def test_only_addresses_of_buckets(text: str) -> None:
    with pytest.raises(GatewayError, match="expected s3://BUCKET"):
        S3(text, Credentials())
