"""Storage of repositories: the same tests in a folder and in a bucket of S3's interface (moto's server)."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from cloud.hub.errors import StorageError
from cloud.hub.repository.status import status
from cloud.hub.storage import CHUNK, Storage, storage_at
from cloud.hub.storage import s3 as s3_module
from tests.cloud.hub.world import World


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "folder":
        return storage_at(tmp_path / "repository")
    return bucket(request.getfixturevalue("server"), tmp_path, monkeypatch)


def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    said = {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y", "REGION": "us-east-1", "ENDPOINT_URL": server}
    for name, value in said.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    name = f"b{abs(hash(str(tmp_path)))}"
    client: Any = boto3.client(
        "s3", endpoint_url=server, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
    )
    client.create_bucket(Bucket=name)
    return storage_at(f"s3://{name}/fleet/one")


def test_files(storage: Storage, tmp_path: Path) -> None:
    assert storage.size("a/b") is None is storage.age("a/b") and list(storage.names()) == []
    for read in (lambda: storage.read("a/b"), lambda: list(storage.open("a/b"))):
        with pytest.raises(StorageError, match="there is no 'a/b'"):
            read()
    storage.write("a/b", b"content")
    storage.write("a/b", b"another")  # of the same size: it is never changed
    assert storage.read("a/b") == b"content" and storage.size("a/b") == 7
    with pytest.raises(StorageError, match="has 7 bytes, expected 3"):
        storage.write("a/b", b"new")
    assert 0 <= (storage.age("a/b") or 0) < 60
    storage.replace("a/b", b"new")
    storage.replace("a/c", b"")
    assert storage.read("a/b") == b"new" and storage.read("a/c") == b"" and list(storage.open("a/c")) == []
    assert storage.create("a/d", b"first") and not storage.create("a/d", b"second")
    assert storage.read("a/d") == b"first"
    large = os.urandom(2 * CHUNK + 5)
    (tmp_path / "large").write_bytes(large)
    storage.write("pieces/x", tmp_path / "large")
    storage.write("pieces/y", memoryview(large)[:9])
    (tmp_path / "empty").write_bytes(b"")
    storage.write("pieces/z", tmp_path / "empty")
    assert b"".join(storage.open("pieces/x", 7)) == large[7:] and max(map(len, storage.open("pieces/x"))) <= CHUNK
    assert storage.read("pieces/y") == large[:9] and storage.size("pieces/z") == 0
    assert sorted(storage.names()) == ["a/b", "a/c", "a/d", "pieces/x", "pieces/y", "pieces/z"]
    assert sorted(storage.names("pieces/")) == ["pieces/x", "pieces/y", "pieces/z"]
    assert sorted(storage.names("a/b")) == ["a/b"] and list(storage.names("none/")) == []
    storage.delete("a/b")
    storage.delete("a/b")
    assert storage.size("a/b") is None


def test_names_stay_inside(tmp_path: Path) -> None:
    storage = storage_at(tmp_path / "repository")
    for name in ("../x", "a/../../x", "/etc/passwd", "a\0b"):
        with pytest.raises(StorageError, match="expected the name of a file in it"):
            storage.write(name, b"")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("address", ["s3://", "s3:///x", "s3://user@bucket/x", "s3://bucket/x?y", "s3://buc\nket"])
def test_addresses(address: str) -> None:
    with pytest.raises(StorageError, match="expected s3://BUCKET/PREFIX"):
        storage_at(address)


def test_one_at_a_time(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(3):
            with storage.lock():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.01)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and list(storage.names()) == []
    with pytest.raises(RuntimeError), storage.lock():
        raise RuntimeError
    with storage.lock():  # an error gives it back
        pass


def test_a_lock_that_stays(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = bucket(server, tmp_path, monkeypatch)
    assert storage.create("lock", b"of a process that was killed")
    monkeypatch.setattr(s3_module, "_WAIT", 0.3)
    with pytest.raises(StorageError, match="delete its object lock"), storage.lock():
        pass
    monkeypatch.setattr(s3_module, "_STALE", -1.0)
    with storage.lock():
        pass
    assert not list(storage.names())


def test_a_bucket_that_is_not_there(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket(server, tmp_path, monkeypatch)
    other = storage_at("s3://no-such-bucket/x")
    with pytest.raises(StorageError, match="no-such-bucket"):
        other.write("a", b"b")


def test_a_repository(storage: Storage, tmp_path: Path) -> None:
    """The whole life of one, in both."""
    world = World(tmp_path, storage)
    world.add("1.0", 1, 2)
    made = world.add("2.0", 1, 3)
    assert made.saved >= 40_000
    world.releases.promote("keys", "2.0", "stable")
    for role in ("root", "targets", "snapshot", "timestamp", "keys"):
        world.repository.rotate(role)
    world.releases.remove("keys", "1.0")
    world.releases.prune(0.0)
    device = world.device(world.files())
    device.refresh()
    release = device.release("keys", "2.0")
    assert device.channel("keys", "stable").versions == ("2.0",)
    content = b"".join(world.releases.content(release.files["model.mslite"]))
    assert content == world.bundle(1, 3).read_bytes()
    assert status(world.repository, content=True).problems == ()
