from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.credentials import Credentials
from edge.gateway.sources.index import Index
from edge.gateway.sources.registry import Registry
from edge.gateway.sources.web import Web
from lite_runtime import bundle
from tests.waiting import until


class Site:
    """A web server of given replies: path -> (status, body, further headers)."""

    def __init__(self) -> None:
        site = self
        self.replies: dict[str, tuple[int, bytes, dict[str, str]]] = {}
        self.asked: list[str] = []
        self.slow: dict[str, threading.Event] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                if self.path in site.slow:
                    site.slow[self.path].wait(60)
                status, body, headers = site.replies.get(self.path, (404, b"", {}))
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *given: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that leaves in the middle of a reply is what some tests are about."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def put(self, path: str, body: bytes | Any, status: int = 200, **headers: str) -> None:
        made = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.replies[path] = (status, made, headers)

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = Site()
    yield made
    made.stop()


def registry_at(
    url: str, cache: os.PathLike[str] | str, *, most: int = 4 << 30, timeout: float = 10, moment: float = 2.0
) -> Registry:
    return Registry(Index(url, Web(Credentials(), timeout=timeout)), Cache(cache), most=most, moment=moment)


def row(data: bytes, **given: Any) -> dict[str, Any]:
    return {"name": "m", "version": 1, "digest": bundle.opened(data).digest, "url": "blobs/m", **given}


def test_a_registry_s_models_are_fetched_once(site: Site, make: Any, tmp_path: Path) -> None:
    one, two = make(1.0), make(2.0)
    site.put("/index", {"models": [row(one, config={"max_batch": 3}), row(two, version="2", url="/two")]})
    site.put("/blobs/m", one)
    site.put("/two", two)
    registry = registry_at(f"{site.url}index", tmp_path / "cache")
    for _ in range(2):
        found = registry.scan()["m"]
        assert sorted(found.versions) == [1, 2] and found.config is not None and found.config.max_batch == 3
        assert Path(found.versions[2].path).read_bytes() == two and not found.problem
    assert sorted(site.asked) == ["/blobs/m", "/index", "/index", "/two"]
    registry_at(f"{site.url}index", tmp_path / "cache").scan()
    assert site.asked.count("/two") == 1


def test_a_model_removed_from_the_index_is_unloaded(site: Site, make: Any, tmp_path: Path) -> None:
    one, two = make(1.0), make(2.0)
    site.put("/blobs/m", one)
    site.put("/", {"models": [row(one)]})
    registry = registry_at(site.url, tmp_path)
    registry.scan()
    site.put("/blobs/m", two)
    site.put("/", {"models": [row(two)]})
    (found,) = registry.scan()["m"].versions.values()
    assert Path(found.path).read_bytes() == two


def test_models_stay_while_the_registry_is_unreachable(site: Site, make: Any, tmp_path: Path) -> None:
    data = make()
    site.put("/", {"models": [row(data)]})
    site.put("/blobs/m", data)
    before = registry_at(site.url, tmp_path).scan()
    site.replies.clear()
    assert registry_at(site.url, tmp_path).scan() == before
    with pytest.raises(GatewayError, match="404") as caught:
        registry_at(site.url, tmp_path / "other").scan()
    assert caught.value.status == 503


def test_a_damaged_file_in_the_cache_is_fetched_again(site: Site, make: Any, tmp_path: Path) -> None:
    data = make()
    site.put("/", {"models": [row(data)]})
    site.put("/blobs/m", data)
    kept = Path(registry_at(site.url, tmp_path).scan()["m"].versions[1].path)
    kept.write_bytes(data[:-1] + b"x")
    registry_at(site.url, tmp_path).scan()
    assert kept.read_bytes() == data


@pytest.mark.parametrize(
    "headers, body, problem",
    [
        ({}, b"", "empty"),
        ({}, b"no bundle", "not a bundle|cut short|expected"),
        ({}, "other", "expected the bundle"),
        ({}, "cut", "cut short"),
        ({"Content-Length": "5000000"}, b"", "at most 100000 bytes"),
        ({}, b"x" * 100_001, "at most 100000 bytes"),
        ({"Location": "file:///etc/passwd"}, 302, "not allowed"),
        ({"Location": "ftp://127.0.0.1/x"}, 302, "begins with http"),
        ({}, 500, "500"),
    ],
)
def test_a_bundle_that_cannot_be_fetched_fails_only_its_version(
    site: Site, make: Any, tmp_path: Path, headers: dict[str, str], body: Any, problem: str
) -> None:
    good = make()
    sent = {"other": make(3.0), "cut": good[:300]}.get(body, body) if not isinstance(body, int) else b""
    if body == "cut":
        headers = {"Content-Length": str(len(good))}
    site.put("/blobs/m", sent, body if isinstance(body, int) else 200, **headers)
    site.put("/good", good)
    site.put("/", {"models": [row(good), row(good, name="other", url="/good")]})
    found = registry_at(site.url, tmp_path, most=100_000, timeout=2).scan()
    assert not found["m"].versions and re.search(problem, found["m"].problem), found["m"].problem
    assert sorted(found["other"].versions) == [1]
    assert not [path for path in tmp_path.rglob(".*") if path.stat().st_size > 300]


@pytest.mark.parametrize(
    "index", [b"", b"{", b"[]", b"[" * 100_000, {"models": {}}, {"models": [{}] * 10_001}, b" " * ((8 << 20) + 1)]
)
def test_an_invalid_index_is_refused(site: Site, tmp_path: Path, index: Any) -> None:
    site.put("/", index)
    with pytest.raises(GatewayError) as caught:
        registry_at(site.url, tmp_path).scan()
    assert caught.value.status in (400, 503) and len(str(caught.value)) < 1000
    assert not list(tmp_path.rglob("index.json"))


@pytest.mark.parametrize(
    "wrong",
    [
        5, {}, {"name": "m"},
        *({"name": "m", "version": 1, "digest": "0" * 64, "url": "x"} | one for one in (
            {"name": "../m"}, {"name": 5}, {"name": ".m"}, {"version": 0}, {"version": "x"}, {"version": True},
            {"digest": "../../etc/passwd"}, {"digest": "0" * 63}, {"digest": "A" * 64}, {"digest": "0" * 64 + "\n"},
            {"url": 5}, {"url": "file:///etc/passwd"}, {"url": "https://"}, {"config": 5}, {"config": {"x": 1}},
        )),
    ],
)  # fmt: skip
def test_a_malformed_row_affects_only_its_version(site: Site, make: Any, tmp_path: Path, wrong: Any) -> None:
    """One such row, published beside a new version, once kept all models of a registry as they were, silently."""
    good = make()
    site.put("/blobs/m", good)
    site.put("/", {"models": [row(good), wrong, row(good, name="other")]})
    registry = registry_at(site.url, tmp_path)
    found = registry.scan()
    assert sorted(found["m"].versions) == sorted(found["other"].versions) == [1]
    assert "index, models[1]" in registry.problem and not found["other"].problem
    named = isinstance(wrong, dict) and wrong.get("name") == "m"
    assert ("index, models[1]" in found["m"].problem) == named


def test_a_row_that_becomes_malformed_keeps_its_version(site: Site, make: Any, tmp_path: Path) -> None:
    good = make()
    site.put("/blobs/m", good)
    site.put("/", {"models": [row(good)]})
    registry = registry_at(site.url, tmp_path)
    before = registry.scan()["m"]
    site.put("/", {"models": [row(good, digest="?")]})
    found = registry.scan()["m"]
    assert found.versions == before.versions and "digest" in found.problem


def test_a_version_listed_twice(site: Site, make: Any, tmp_path: Path) -> None:
    good, other = make(), make(2.0)
    site.put("/blobs/m", good)
    site.put("/", {"models": [row(good), row(other)]})
    found = registry_at(site.url, tmp_path).scan()["m"]
    assert Path(found.versions[1].path).read_bytes() == good and "once" in found.problem


def test_the_state_of_a_registry(site: Site, make: Any, tmp_path: Path) -> None:
    good = make()
    site.put("/blobs/m", good)
    site.put("/", {"models": [row(good)]})
    registry = registry_at(site.url, tmp_path)
    before = registry.scan()
    read = registry.read
    assert read > 0 and not registry.problem
    del site.replies["/"]
    assert registry.scan() == before
    assert "404" in registry.problem and "its last index is used" in registry.problem and registry.read <= read + 1


def test_a_slow_download_delays_neither_a_scan_nor_other_models(site: Site, make: Any, tmp_path: Path) -> None:
    good, other = make(), make(2.0)
    site.slow["/blobs/m"] = threading.Event()
    site.put("/blobs/m", good)
    site.put("/other", other)
    site.put("/", {"models": [row(good), row(other, name="other", url="/other")]})
    registry = registry_at(site.url, tmp_path, moment=0.3)
    found = registry.scan()
    assert sorted(found["other"].versions) == [1]
    assert not found["m"].versions and "being downloaded" in found["m"].problem
    assert registry.scan() == found
    site.slow["/blobs/m"].set()
    until(lambda: registry.scan()["m"].versions)
    assert site.asked.count("/blobs/m") == 1


def test_what_killed_downloads_left_is_removed(site: Site, tmp_path: Path) -> None:
    site.put("/", {"models": []})
    registry = registry_at(site.url, tmp_path)
    registry.scan()
    (folder,) = tmp_path.iterdir()
    old, new = folder / ".0.part", folder / ".1.part"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (1e9, 1e9))
    registry.scan()
    assert not old.exists() and new.exists()


def test_credentials_are_not_shown(site: Site, make: Any, tmp_path: Path) -> None:
    """Clients can read in the index why a version is missing; it must not show the signature of a signed URL."""
    site.put("/index?key=hunter2", {"models": [row(make(1.0), url="/gone?signature=hunter3")]})
    problem = registry_at(f"{site.url}index?key=hunter2", tmp_path / "cache").scan()["m"].problem
    assert f"cannot fetch '{site.url}gone'" in problem and "hunter" not in problem
    with pytest.raises(GatewayError) as caught:
        registry_at(f"{site.url}other?key=hunter2", tmp_path / "another").scan()
    assert "hunter" not in str(caught.value)


def test_no_passwords_in_urls(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="must not have a password") as caught:
        registry_at("http://me:secret@localhost/x", tmp_path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["file:///etc", "ftp://x/y", "//x", "x", "http://", "http:///x"])
def test_only_http(url: str, tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="expected a URL"):
        registry_at(url, os.fspath(tmp_path))
