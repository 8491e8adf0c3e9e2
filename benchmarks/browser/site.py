"""A server on 127.0.0.1 for pages that may share memory with workers: files of some folders.

It records what a page fetched, and its size as a server would send it: compressed by gzip where that is smaller.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Fetched", "Site", "serving"]

Fetched = Mapping[str, int]
"""Bytes as sent, compressed, by the address's path."""
Rewrite = Callable[[bytes], bytes]
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript",
    ".json": "application/json",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
}


class Site:
    """folders: by the first part of the path. rewrites: of a file's bytes, by its path's end. origin: the address."""

    def __init__(self, folders: Mapping[str, Path], rewrites: Mapping[str, Rewrite]) -> None:
        self.folders, self.rewrites, self.origin = folders, rewrites, ""
        self._sizes = dict[str, int]()
        self._paths = list[str]()

    def content(self, path: str) -> bytes | None:
        """A file's bytes; None if there is none in the folders."""
        first, _, rest = path.lstrip("/").partition("/")
        if first not in self.folders:
            return None
        folder = self.folders[first].resolve()
        file = (folder / rest).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            return None
        content = file.read_bytes()
        for end, rewrite in self.rewrites.items():
            content = rewrite(content) if path.endswith(end) else content
        self._paths.append(path)
        return content

    def fetched(self) -> Fetched:
        """What was fetched since the last call."""
        paths, self._paths = self._paths, []
        for path in paths:
            if path not in self._sizes:
                content = self.content(path) or b""
                self._sizes[path] = min(len(content), len(gzip.compress(content, 9)))
        self._paths.clear()
        return {path: self._sizes[path] for path in paths}


@contextmanager
def serving(
    folders: Mapping[str, Path], rewrites: Mapping[str, Rewrite], *, policy: str = "", isolated: bool = True
) -> Iterator[Site]:
    """A site while it is served. policy: a Content-Security-Policy; isolated: pages may share memory with workers."""
    headers = {"Content-Security-Policy": policy} if policy else {}
    if isolated:
        headers |= {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
    site = Site(folders, rewrites)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            content = site.content(path)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("Content-Type", _TYPES.get(Path(path).suffix, "application/octet-stream"))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        site.origin = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
