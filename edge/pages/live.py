"""The page of runs while they train: served on 127.0.0.1 from the store, kept up to date by a script of its own.

The server only reads the store, so it runs in the training process or in any other one.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from os import PathLike

from cloud.errors import TrackError
from cloud.track.store import Store
from converter.report.html import document
from edge.pages.model_graph import STYLE
from edge.pages.runs_page import runs_sections
from lite_runtime.errors import InputError, MsedgeError

__all__ = ["HOST", "LivePage", "serving"]

HOST = "127.0.0.1"
REST = 20.0
"""After the page was made, it is made again only after so many times the seconds that this took: at most 5 % of a core
are spent on it."""
LEAST = 0.5
"""Seconds for which an answer is kept at least."""
LINGER, WATCHED = 4.0, 6.0
"""When serving ends, a reader who asked within the last WATCHED seconds gets LINGER seconds to see the last state."""
_BAR = """<p class="live"><button id="pause" type="button" aria-pressed="false">Pause</button>
<span id="live" role="status" class="soft">loading …</span></p><noscript><p>This page needs JavaScript.</p></noscript>
<main></main>"""
_CSS = """<style>
.live { display: flex; gap: .8rem; align-items: center; position: sticky; top: 0; z-index: 1; background: var(--paper);
  margin: 0 0 .8rem; padding: .4rem 0; max-width: none }
.live button { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: .4rem; padding: .25rem .8rem; min-width: 5rem; min-height: 2rem; cursor: pointer }
.live button:focus-visible { outline: 2px solid var(--bar) }
</style>"""


class LivePage:
    """What is served: the runs in the store at `path` that `names()` gives at the time, by id or name, as "latest"."""

    def __init__(self, path: str | PathLike[str], names: Callable[[], Sequence[str]]) -> None:
        self._path, self._names = path, names
        self._lock = threading.Lock()
        self._until = self._asked = 0.0
        self._state: bytes = b""
        self._sections: dict[str, bytes] = {}

    @cached_property
    def shell(self) -> bytes:
        """The page around the sections."""
        script = resources.files("edge.pages").joinpath("live.js").read_text(encoding="utf-8")
        body = f"{STYLE}{_CSS}{_BAR}<script>{script}</script>"
        return document("runs", body, "live, from the record of the run").encode()

    @cached_property
    def policy(self) -> str:
        """The content security policy: the page's own styles and script, and nothing else."""
        text = self.shell.decode()
        digests = {
            tag: " ".join(_digest(inside) for inside in re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL))
            for tag in ("style", "script")
        }
        return (
            f"default-src 'none'; style-src {digests['style']}; script-src {digests['script']}; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def answer(self, path: str) -> tuple[bytes, str] | None:
        """Content and its type for a path; None if there is nothing. Raises TrackError."""
        if path == "/":
            return self.shell, "text/html"
        with self._lock:
            self._asked = time.monotonic()
            if path == "/state.json":
                if time.monotonic() >= self._until:
                    self.refresh()
                return self._state, "application/json"
            found = self._sections.get(path.removeprefix("/section/")) if path.startswith("/section/") else None
        return None if found is None else (found, "text/html")

    def is_watched(self) -> bool:
        """Whether somebody is looking at it."""
        return time.monotonic() - self._asked < WATCHED

    def expire(self) -> None:
        """The next question is answered anew."""
        with self._lock:
            self._until = 0.0

    def refresh(self) -> None:
        """Read the store. Raises TrackError if it, or a run, is not there."""
        begun = time.monotonic()
        if not self._names():
            raise TrackError("the run has not begun yet")
        with Store(self._path) as store:
            runs = [store.run(name) for name in self._names()]
            made = runs_sections(store, runs)
        self._sections = {name: text.encode() for name, text in made.items()}
        digests = [[name, hashlib.blake2b(data, digest_size=8).hexdigest()] for name, data in self._sections.items()]
        title = " · ".join(run.name or run.id for run in runs)
        state = ", ".join(dict.fromkeys(run.state for run in runs))
        self._state = json.dumps({"title": title, "state": state, "sections": digests}).encode()
        self._until = time.monotonic() + max(LEAST, REST * (time.monotonic() - begun))


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Handler(BaseHTTPRequestHandler):
    """Answers of the server's page, to readers on this machine who ask for this address by name or number."""

    server: _Server
    server_version = "msedge"
    sys_version = ""

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._send(421, f"expected the host {HOST}:{port}".encode(), "text/plain")
            return
        try:
            found = self.server.page.answer(self.path)
        except MsedgeError as error:
            self._send(503, str(error).encode(), "text/plain")
            return
        if found is None:
            self._send(404, b"there is no such page; / is the only one", "text/plain")
        else:
            self._send(200, *found)

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.page.policy, "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the terminal shows the run."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int, page: LivePage) -> None:
        self.page = page
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader who went away is no error."""


@contextmanager
def serving(page: LivePage, port: int = 0) -> Iterator[str]:
    """Serve `page` at `port` of 127.0.0.1 (0: one that is free) in a thread of its own; gives the address. At the end
    somebody who is looking gets the time to see the last state. Raises InputError for a port that is taken."""
    try:
        server = _Server(port, page)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot serve at {HOST}:{port}: {error}; choose another port, or 0 for a free one") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="live page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
        if page.is_watched():
            page.expire()
            time.sleep(LINGER)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
