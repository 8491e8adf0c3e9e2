"""Models in OCI registries: stored, found, followed, authenticated, resumed, and refused where they are not as said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.models.routing import Policy
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.credentials import Access, Credentials
from edge.gateway.sources.oci import BUNDLE_TYPE, MANIFEST_TYPE, Oci, Reference
from edge.gateway.sources.publishing import push
from edge.gateway.sources.registry import Registry
from edge.gateway.sources.web import Web
from tests.edge.gateway.sources.oci_servers import (
    KINDS,
    PASSWORD,
    USER,
    Quiet,
    Spec,
    docker_registry,
    running,
    token_service,
)

Store = Callable[..., AbstractContextManager[str]]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A registry of each kind, as HOST:PORT."""

    @contextmanager
    def started(auth: str = "") -> Iterator[str]:
        with Spec(auth).run() if request.param == "specification" else docker_registry(tmp_path, auth) as host:
            yield host

    return started


@pytest.fixture
def written(tmp_path: Path, make: Any) -> Callable[[float], Path]:
    """A bundle in a file."""

    def write(factor: float) -> Path:
        path = tmp_path / f"{factor}.mslite"
        path.write_bytes(make(factor))
        return path

    return write


def known(host: str, tmp_path: Path, password: str = PASSWORD, **more: Any) -> Credentials:
    (tmp_path / "password").write_text(password + "\n")
    return Credentials({host: Access(user=USER, password_file=str(tmp_path / "password"), **more)})


def registry(address: str, cache: Path, credentials: Credentials | None = None, **more: Any) -> Registry:
    return Registry(Oci(address, Web(credentials or Credentials(), timeout=5)), Cache(cache), moment=30, **more)


def contents(source: Registry, name: str = "m") -> dict[int, bytes]:
    listing = source.scan()[name]
    return {version: Path(found.path).read_bytes() for version, found in listing.versions.items()}


def test_versions_are_tags(store: Store, written: Any, tmp_path: Path) -> None:
    one, two, ten = written(1.0), written(2.0), written(10.0)
    (tmp_path / "config.toml").write_text('versions = "all"\nmax_batch = 3\n')
    with store() as host:
        for tag, path in ((1, one), (2, two), (10, ten)):
            push(path, f"oci://{host}/team/m:{tag}", config=tmp_path / "config.toml")
        push(two, f"oci://{host}/team/m:stable")
        source = registry(f"oci://{host}/team/m", tmp_path / "cache")
        assert contents(source) == {1: one.read_bytes(), 2: two.read_bytes(), 10: ten.read_bytes()}
        config = source.scan()["m"].config
        assert config is not None and config.max_batch == 3 and config.versions == Policy("all")
    after = contents(source)
    assert sorted(after) == [1, 2, 10] and "its last index is used" in source.problem
    assert contents(registry(f"oci://{host}/team/m", tmp_path / "cache")) == after
    with pytest.raises(GatewayError) as caught:
        registry(f"oci://{host}/team/m", tmp_path / "other").scan()
    assert caught.value.status == 503


def test_a_tag_is_followed_and_a_digest_is_not(store: Store, written: Any, tmp_path: Path) -> None:
    one, two = written(1.0), written(2.0)
    with store() as host:
        told = push(one, f"oci://{host}/team/m:stable", version=7)
        moving = registry(f"oci://{host}/team/m:stable", tmp_path / "cache")
        fixed = registry(f"oci://{host}/team/m@{told['manifest']}", tmp_path / "cache")
        assert contents(moving) == contents(fixed) == {7: one.read_bytes()}
        push(two, f"oci://{host}/team/m:stable", version=8)
        assert contents(moving) == {8: two.read_bytes()}
        assert contents(fixed) == {7: one.read_bytes()}


def test_a_password(store: Store, written: Any, tmp_path: Path) -> None:
    path = written(1.0)
    with store("basic") as host:
        address, good = f"oci://{host}/team/m:1", known(host, tmp_path)
        push(path, address, credentials=good)
        assert contents(registry(address, tmp_path / "cache", good)) == {1: path.read_bytes()}
        for wrong in (Credentials(), known(host, tmp_path, "secret-2")):
            with pytest.raises(GatewayError, match=r"401.*repository\.credentials") as caught:
                registry(address, tmp_path / "other", wrong).scan()
            assert "secret" not in str(caught.value)
        (tmp_path / "password").write_text(PASSWORD)  # read for every request, so it can be replaced
        assert contents(registry(address, tmp_path / "third", wrong))


def test_tokens(written: Any, tmp_path: Path) -> None:
    path, spec = written(1.0), Spec("token")
    with spec.run() as host:
        address, good = f"oci://{host}/team/m:1", known(host, tmp_path)
        push(path, address, credentials=good)
        source = registry(address, tmp_path / "cache", good)
        assert contents(source) == {1: path.read_bytes()}
        before = spec.tokens
        assert contents(source) and spec.tokens == before  # a token is used until it expires
        spec.tokens += 1  # or until the registry does not accept it any more
        assert contents(source) and not source.problem
        with pytest.raises(GatewayError, match="401"):
            registry(address, tmp_path / "other").scan()


@pytest.mark.skipif("docker-registry" not in KINDS, reason="docker-registry is not installed")
def test_tokens_of_another_host(written: Any, tmp_path: Path) -> None:
    """Docker's own registry with a token service. The password goes to that host only if it is named."""
    path = written(1.0)
    with token_service(tmp_path) as token, docker_registry(tmp_path, token=token) as host:
        realm = token["realm"].split("/")[2]
        good = known(host, tmp_path, realm=realm)
        push(path, f"oci://{host}/team/m:1", credentials=good)
        assert contents(registry(f"oci://{host}/team/m:1", tmp_path / "cache", good)) == {1: path.read_bytes()}
        with pytest.raises(GatewayError, match=f"gives tokens at '{realm}'.*set `realm`"):
            registry(f"oci://{host}/team/m:1", tmp_path / "other", known(host, tmp_path)).scan()


def test_a_password_is_not_sent_to_another_realm(written: Any, tmp_path: Path) -> None:
    spec, heard = Spec("token"), []

    class Thief(Quiet):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.answer(200, b'{"token": "x"}')

    with running(Thief) as other, spec.run() as host:
        spec.realm = f"http://{other}/token"
        with pytest.raises(GatewayError, match="gives tokens at"):
            registry(f"oci://{host}/team/m:1", tmp_path / "cache", known(host, tmp_path)).scan()
        assert heard == []


def test_blobs_elsewhere_get_no_credentials(written: Any, tmp_path: Path) -> None:
    path, spec, heard = written(1.0), Spec("basic"), []

    class Storage(Quiet):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            self.answer(200, spec.blobs[self.path[1:]])

    with running(Storage) as other, spec.run() as host:
        good = known(host, tmp_path)
        push(path, f"oci://{host}/team/m:1", credentials=good)
        spec.elsewhere = f"http://{other}"
        assert contents(registry(f"oci://{host}/team/m:1", tmp_path / "cache", good)) == {1: path.read_bytes()}
    assert heard and set(heard) == {None}


def test_a_download_goes_on_where_it_was_cut(written: Any, tmp_path: Path) -> None:
    path, spec = written(1.0), Spec()
    with spec.run() as host:
        push(path, f"oci://{host}/team/m:1")
        source = registry(f"oci://{host}/team/m:1", tmp_path / "cache")
        spec.cut = 300
        for _ in range(2):
            listing = source.scan()["m"]
            assert not listing.versions and "cut short" in listing.problem
        (part,) = (tmp_path / "cache").rglob(".*.part")
        assert part.stat().st_size == 600
        spec.cut = None
        assert contents(source) == {1: path.read_bytes()}
    ranges = [asked[2] for asked in spec.asked if asked[0] == "GET" and asked[2]]
    assert ranges == ["bytes=300-", "bytes=600-"] and not list((tmp_path / "cache").rglob(".*.part"))


def test_an_unchanged_manifest_is_not_sent_again(written: Any, tmp_path: Path) -> None:
    path, spec = written(1.0), Spec()
    with spec.run() as host:
        push(path, f"oci://{host}/team/m:1")
        source = registry(f"oci://{host}/team/m:1", tmp_path / "cache")
        for _ in range(3):
            assert contents(source)
        blobs = [asked for asked in spec.asked if "/blobs/sha256" in asked[1] and asked[0] == "GET"]
        assert len(blobs) == 2  # the configuration and the bundle, once each


def test_other_contents_than_the_digest_says(written: Any, make: Any, tmp_path: Path) -> None:
    path, other, spec = written(1.0), make(3.0), Spec()
    with spec.run() as host:
        push(path, f"oci://{host}/team/m:1")
        spec.blobs[f"sha256:{sha256(path.read_bytes()).hexdigest()}"] = other
        listing = registry(f"oci://{host}/team/m:1", tmp_path / "cache").scan()["m"]
        assert not listing.versions and "sha256" in listing.problem
        assert not list((tmp_path / "cache").rglob("*.mslite")) and not list((tmp_path / "cache").rglob(".*.part"))


def _manifest(**given: Any) -> dict[str, Any]:
    blob = {"mediaType": BUNDLE_TYPE, "digest": f"sha256:{'0' * 64}", "size": 5}
    empty = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": f"sha256:{'1' * 64}", "size": 2}
    return {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": empty, "layers": [blob]} | given


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (b"", "JSON"), (b"[" * 100_000, "JSON"), (b" " * ((4 << 20) + 1), "at most"), ([], "manifest"),
        (_manifest(layers=[]), "expected one layer"), (_manifest(schemaVersion=1), "schemaVersion"),
        (_manifest(layers=[{"mediaType": "application/x", "digest": f"sha256:{'0' * 64}", "size": 5}]), "got applicat"),
        (_manifest(layers=[{"mediaType": BUNDLE_TYPE, "digest": "sha256:../../etc/passwd", "size": 5}]), "digest"),
        (_manifest(layers=[{"mediaType": BUNDLE_TYPE, "digest": f"sha256:{'0' * 64}", "size": -1}]), "size"),
        (_manifest(layers=[{"mediaType": BUNDLE_TYPE, "digest": f"sha256:{'0' * 64}", "size": 1 << 49}]), "at most"),
        (_manifest(), "404"),
    ],
)  # fmt: skip
def test_a_manifest_that_is_no_model(tmp_path: Path, manifest: Any, problem: str) -> None:
    spec = Spec()
    spec.manifests["1"] = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    with spec.run() as host:
        source = registry(f"oci://{host}/team/m:1", tmp_path / "cache")
        try:
            found = source.scan()["m"]
        except GatewayError as error:
            text = str(error)
        else:
            assert not found.versions
            text = found.problem
        assert problem in text and len(text) < 800


def test_a_tag_that_breaks_keeps_its_version(written: Any, tmp_path: Path) -> None:
    path, spec = written(1.0), Spec()
    with spec.run() as host:
        push(path, f"oci://{host}/team/m:1")
        push(path, f"oci://{host}/team/m:2")
        source = registry(f"oci://{host}/team/m", tmp_path / "cache")
        before = contents(source)
        spec.manifests["2"] = b"{}"
        assert contents(source) == before
        assert "2: manifest" in source.problem and "2: manifest" in source.scan()["m"].problem
        del spec.manifests["2"]
        assert sorted(contents(source)) == [1] and not source.problem


@pytest.mark.parametrize(
    "text",
    [
        "oci://", "oci://host", "oci://host/", "oci://host/Upper", "oci://host/a//b", "oci://host/a:", "oci://host/a:b/c",
        "oci://host/a@sha256:12", "oci://user:secret@host/a", "oci://host/../a", "oci://host:x/a", "oci://host/a b",
        "oci://host/a\n", "oci://host/a?x=secret", "https://host/a",
    ],
)  # fmt: skip
def test_only_addresses_of_repositories(text: str) -> None:
    with pytest.raises(GatewayError, match="expected oci://HOST/PATH") as caught:
        Reference.of(text)
    assert caught.value.status == 400


def test_addresses() -> None:
    digest = f"sha256:{'a1' * 32}"
    for text, parts in (
        ("oci://host/a", ("host", "a", "")), ("oci://host:5000/a/b-c:v1", ("host:5000", "a/b-c", "v1")),
        (f"oci://[::1]:5000/a@{digest}", ("[::1]:5000", "a", digest)),
    ):  # fmt: skip
        assert Reference.of(text) == parts and Reference.of(text).text == text


def test_a_model_of_another_name(written: Any, tmp_path: Path) -> None:
    path = written(1.0)
    with Spec().run() as host:
        push(path, f"oci://{host}/team/m:1")
        source = Registry(Oci(f"oci://{host}/team/m:1", Web(Credentials()), "digits"), Cache(tmp_path / "c"), moment=30)
        assert list(source.scan()) == ["digits"]


@pytest.mark.parametrize("address", ["oci://127.0.0.1:1/m", "ftp://host/m:1", "s3://bucket/m/1/", "s3://m.mslite?x"])
def test_pushing_needs_an_address(written: Any, address: str) -> None:
    with pytest.raises(GatewayError, match="expected"):
        push(written(1.0), address)
