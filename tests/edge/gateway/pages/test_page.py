"""Pages have a policy that allows only their own script; a browser renders them with it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edge.gateway.operate.statistics import Statistics
from edge.gateway.pages.openapi import document
from edge.gateway.pages.page import Page, explore_page, status_page
from edge.gateway.pages.status import status

PAGES = {"docs": explore_page, "status": status_page}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "<img src=x onerror=alert(1)>"


def policy(page: Page) -> dict[str, str]:
    return dict(part.split(" ", 1) for part in page.headers["Content-Security-Policy"].split("; "))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("tag", ["script", "style"])
def test_the_policy_allows_exactly_the_pages_contents(name: str, tag: str) -> None:
    page = PAGES[name]()
    (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", page.body.decode(), re.DOTALL)
    digest = b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert policy(page)[f"{tag}-src"] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_allows_nothing_else(name: str) -> None:
    found = policy(PAGES[name]())
    assert found["default-src"] == found["base-uri"] == found["form-action"] == found["frame-ancestors"] == "'none'"
    assert found["connect-src"] == "'self'"


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_complete_and_escape_texts(name: str) -> None:
    text = PAGES[name]().body.decode()
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    assert not re.search(r"<[^>]+ (on\w+|style|src)=", text)
    assert not re.findall(r"</script", text)[1:]


def replies() -> dict[str, tuple[Mapping[str, str], bytes]]:
    """What a gateway with one hostile model answers, by path."""
    json_ = {"Content-Type": "application/json"}
    index = [{"name": HOSTILE, "version": "1", "state": "UNAVAILABLE", "reason": HOSTILE, "labels": ["canary"]}]
    said = status(
        "1.2.3", "ready", 90.0, 0.0, index, Statistics(),
        queued={"jobs": 0, "rows": 4321}, memory={"process": 1 << 20, "models": 0, "limit": None},
    )  # fmt: skip
    found = {f"/{name}": (page().headers, page().body) for name, page in PAGES.items()}
    as_json = {"/status.json": said, "/openapi.json": document("1.2.3"), "/v2/repository/index": index}
    return {**found, **{path: (json_, json.dumps(value).encode()) for path, value in as_json.items()}}


@contextmanager
def serving() -> Iterator[str]:
    known = replies()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers, body = known.get(self.path, ({}, b""))
            self.send_response(200 if self.path in known else 404)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("name", "drawn"),
    [
        ("status", (">4,321<", ">unavailable<", ">canary<", "1.00 MiB", "up 1 min 30 s")),
        ("docs", ('id="infer"', ">/v2/models/{name}/infer<", "InferRequest = {", "1.2.3")),
    ],
)
def test_a_browser_draws_them(name: str, drawn: tuple[str, ...], tmp_path: Path) -> None:
    assert CHROMIUM is not None
    with serving() as where:
        done = subprocess.run(
            [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=3000",
                f"--user-data-dir={tmp_path}", "--enable-logging=stderr", f"{where}/{name}",
            ],
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    assert [words for words in drawn if words not in done.stdout] == []
    assert not re.search(r">\s*<img", done.stdout)
