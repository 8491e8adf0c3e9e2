"""Fetching files of a repository: from a folder, and from servers that behave, misbehave and redirect."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from edge.agent.errors import FetchError, MissingError
from edge.agent.fetching import CHUNK, Folder, Https
from edge.agent.trust import Trust
from tests.cloud.hub.world import World

BODY = bytes(range(256)) * 1000


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str | None]]] = []
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        name, wanted = self.path.removeprefix("/fleet/"), self.headers.get("Range")
        self.asked.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if name == "redirected":
            self.reply(302, b"", Location=f"http://{self.headers['Host']}/fleet/whole")
        elif name == "short":
            self.reply(200, BODY, length=len(BODY) + 1)
        elif name == "ranges":
            self.reply(206, BODY[start:], **{"Content-Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"})
        elif name == "wrong-range":
            self.reply(206, BODY[start + 1 :], **{"Content-Range": f"bytes {start + 1}-{len(BODY) - 1}/{len(BODY)}"})
        elif name == "whole":
            self.reply(200, BODY)
        elif name.isdecimal():
            self.reply(int(name), b"")
        elif name in self.files:
            self.reply(200, self.files[name])
        else:
            self.reply(404, b"")

    def reply(self, status: int, data: bytes, length: int | None = None, **fields: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    Handler.asked.clear()
    Handler.files = {}
    yield f"http://127.0.0.1:{made.server_port}/fleet/"
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_http(server: str) -> None:
    files = Https(server)
    assert b"".join(files.open("whole")) == BODY and max(map(len, files.open("whole"))) <= CHUNK
    assert b"".join(files.open("ranges", 1000)) == BODY[1000:] and Handler.asked[-1] == ("ranges", "bytes=1000-")
    assert b"".join(files.open("whole", 1000)) == BODY[1000:]  # a server without ranges


@pytest.mark.parametrize("name", ["404", "403", "410", "nothing"])
def test_what_is_not_there(server: str, name: str) -> None:
    with pytest.raises(MissingError):
        list(Https(server).open(name))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("500", "HTTP 500"),
        ("redirected", "HTTP 302"),
        ("short", "1 bytes early"),
        ("wrong-range", "the bytes from 9 on"),
    ],
)
def test_servers_that_misbehave(server: str, name: str, match: str) -> None:
    with pytest.raises(FetchError, match=match) as caught:
        list(Https(server).open(name, 9))
    assert not isinstance(caught.value, MissingError)


@pytest.mark.parametrize(
    "url", ["ftp://x/y", "file:///etc/passwd", "https://", "https://user@host/", "https://h/?q", ""]
)
def test_addresses(url: str) -> None:
    with pytest.raises(FetchError, match="expected an address"):
        Https(url)


def test_nobody_listens() -> None:
    with pytest.raises(FetchError, match="cannot fetch"):
        list(Https("http://127.0.0.1:9/", timeout=2).open("x"))


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "stick" / "metadata").mkdir(parents=True)
    (tmp_path / "stick" / "metadata" / "a").write_bytes(BODY)
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "stick" / "link").symlink_to(tmp_path / "secret")
    files = Folder(tmp_path / "stick")
    assert b"".join(files.open("metadata/a", 5)) == BODY[5:]
    for name in ("metadata/b", "metadata", "link", "../secret", "/etc/passwd", "metadata/a/b"):
        with pytest.raises(MissingError):
            list(files.open(name))
    with pytest.raises(FetchError):
        list(files.open("a\0b"))


def test_trust_over_http_and_from_a_folder(server: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("1.0", 1)
    Handler.files = world.files().files
    for number, fetch in enumerate((Https(server), Folder(tmp_path / "repository"))):
        device = Trust(tmp_path / f"device {number}", world.root, fetch, lambda: world.now)
        device.refresh()
        assert device.release("keys", "1.0").version == "1.0"
