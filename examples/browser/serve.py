"""Serves a folder on this machine with the headers of a strict page that may use threads:
`python examples/browser/serve.py FOLDER`. For trials: one request at a time, no encryption."""

from __future__ import annotations

import argparse
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler
from typing import Any

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "connect-src 'self' SERVER; img-src 'self' data:; worker-src 'self'; base-uri 'none'; form-action 'none'",
    "Permissions-Policy": "camera=(self), microphone=(self)",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "no-cache",
}


class Handler(SimpleHTTPRequestHandler):
    """Files, each with HEADERS. server_origin: of a federated run's server, to which pages may connect."""

    def __init__(self, *args: Any, server_origin: str, **options: Any) -> None:
        self._origin = server_origin
        super().__init__(*args, **options)

    def end_headers(self) -> None:
        """Add HEADERS."""
        for name, value in HEADERS.items():
            self.send_header(name, value.replace("SERVER", self._origin))
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what make.py wrote")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--connect", default="http://127.0.0.1:8470", help="the server of a federated run")
    given = parser.parse_args()
    handler = partial(Handler, directory=given.folder, server_origin=given.connect)
    with HTTPServer(("127.0.0.1", given.port), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
