"""A device that checks in: `python -m federated.transport.checkin.device URL TOKEN-FILE key=value …`.

The keys are those of a SuperNode's `--node-config` (`federated.client.nodes`): device, bundle, data, state and more.
The token is read from a file, so that it is not in the list of processes. Only the standard library is used for HTTP.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import ssl
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit

from federated.errors import FederatedError
from federated.server.gathering import Answering
from federated.transport.addresses import is_here
from lite_runtime.errors import MsedgeError

__all__ = ["Asks", "Lost", "Server", "work"]

PROTOCOL = 1
WAIT = 20
"""Seconds to wait for work in one request."""
TIMEOUT = 90.0
FIRST, LONGEST = 0.5, 30.0
"""Seconds until a request is tried again: doubled from the first to the longest, each a random part of it."""


class Lost(FederatedError):
    """The server cannot be reached, for now."""


class Server:
    """Requests to a server, over one connection that is opened again when it breaks.

    `authority`: a PEM file of the authority that the server's certificate must be of; "": the system's. Raises
    FederatedError for a URL without TLS that is not of this machine.
    """

    def __init__(self, url: str, token: str, authority: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or port == -1:
            raise FederatedError(f"expected a server's URL, such as https://example.org:8443, got {url!r}")
        if parts.scheme == "http" and not is_here(parts.hostname):
            raise FederatedError(f"{url}: expected https; without it the token and the model can be read on the way")
        self._host, self._port, self._token = parts.hostname, port, token
        self._tls = _trust(authority) if parts.scheme == "https" else None
        self._open: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the answer. Raises Lost if there is none, FederatedError where the server refuses
        this device."""
        try:
            if self._open is None:
                self._open = self._connection()
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/octet-stream"}
            self._open.request(method, path, body if method == "POST" else None, headers)
            answer = self._open.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            raise Lost(f"{self._host}: no answer: {problem or type(problem).__name__}") from problem
        if answer.status in (401, 403):
            raise FederatedError(f"{self._host}: {_said(content)}")
        if answer.status >= 500:
            raise Lost(f"{self._host}: status {answer.status}: {_said(content)}")
        return answer.status, dict(answer.headers.items()), content

    def close(self) -> None:
        """End the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def another(self) -> Server:
        """For another thread: the same, over a connection of its own."""
        made = object.__new__(Server)
        made.__dict__.update(self.__dict__, _open=None)
        return made

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT)
        return http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT, context=self._tls)


class Asks(Protocol):
    """What a device asks for work: a `Server`, or one place of a hub (`edge.agent.learning`)."""

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """See `Server.ask`."""

    def another(self) -> AbstractContextManager[Asks]:
        """For another thread: the same, over a connection of its own, which ends with the block."""


def work(
    server: Asks, node: Answering, *, patience: float = 600.0, watch: Callable[[str], None] = lambda line: None
) -> None:
    """Check in and answer messages until the run is over. Raises FederatedError if the server refuses this device or is
    of another protocol, and Lost if it cannot be reached for `patience` seconds."""
    device, heartbeat = _checked_in(_patiently(lambda: server.ask("POST", "/v1/check-in", b""), patience, watch)[2])
    watch(f"checked in as {device}")
    with server.another() as own, _alive(own, heartbeat):
        while True:
            status, headers, message = _patiently(lambda: server.ask("GET", f"/v1/work?wait={WAIT}"), patience, watch)
            if status == 410:
                return
            if status == 200:
                _answer(server, node, headers["Msedge-Ticket"], message, patience, watch)
            elif status != 204:
                raise FederatedError(f"expected work, or none, got status {status}: {_said(message)}")


def _checked_in(content: bytes) -> tuple[str, float]:
    """This device's name, and the seconds between two signs of life."""
    try:
        facts = json.loads(content)
        protocol, device, heartbeat = facts["protocol"], str(facts["device"]), float(facts["heartbeat"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FederatedError("expected a server that devices check in at, got another one; check the URL") from None
    if protocol != PROTOCOL:
        raise FederatedError(
            f"expected a server of check-in protocol {PROTOCOL}, got {protocol!r}; both ends need the same release"
        )
    return device, max(heartbeat, 0.05)


def _answer(
    server: Asks, node: Answering, ticket: str, message: bytes, patience: float, watch: Callable[[str], None]
) -> None:
    """Work on a message and hand the reply in, or the reason why there is none."""
    path = f"/v1/work/{ticket}"
    try:
        body = node.answer(message)
    except MsedgeError as problem:
        path, body = f"{path}/failure", json.dumps({"why": str(problem)[:500]}).encode()
    status, _, said = _patiently(lambda: server.ask("POST", path, body), patience, watch)
    watch("answered" if status == 204 else f"the reply was not taken: {_said(said)}")


@contextlib.contextmanager
def _alive(server: Asks, every: float) -> Iterator[None]:
    """Signs of life in a thread of their own, also while the device computes."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every):
            with contextlib.suppress(FederatedError):  # the requests for work notice it
                server.ask("POST", "/v1/heartbeat", b"")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _patiently(
    ask: Callable[[], tuple[int, Mapping[str, str], bytes]], patience: float, watch: Callable[[str], None]
) -> tuple[int, Mapping[str, str], bytes]:
    """The answer, when the server can be reached again."""
    until, pause = time.monotonic() + patience, FIRST
    while True:
        try:
            return ask()
        except Lost as problem:
            if time.monotonic() + pause > until:
                raise
            watch(f"{problem}; again within {pause:g} s")
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST)


def _trust(authority: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as problem:
        raise FederatedError(f"TLS: expected a PEM file of an authority, got {authority!r}: {problem}") from problem


def _said(content: bytes) -> str:
    """The text of an error, of any server."""
    try:
        return str(json.loads(content)["error"])[:500]
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:200].decode("utf-8", "replace") or "no reason"


def main(words: Sequence[str]) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m federated.transport.checkin.device", description=__doc__)
    parser.add_argument("url", help="of the server that msedge federate --listen shows")
    parser.add_argument("token", type=Path, help="the file with this device's token")
    parser.add_argument("words", nargs="+", metavar="key=value", help="device, bundle, data, state and more")
    parser.add_argument("--authority", default="", metavar="CA.crt", help="of the server's certificate")
    parser.add_argument("--patience", type=float, default=600.0, metavar="SECONDS", help="without the server")
    args = parser.parse_args(words)
    from federated.client.nodes import node_from

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        pairs = [word.partition("=") for word in args.words]
        if wrong := [name for name, mark, _ in pairs if not mark]:
            raise FederatedError(f"expected key=value, got {wrong[0]!r}")
        node = node_from({name: _value(text) for name, _, text in pairs})
        with Server(args.url, _token(args.token), args.authority) as server:
            work(server, node, patience=args.patience, watch=say)
    except MsedgeError as problem:
        say(f"error: {problem}")
        return 1
    return 0


def _value(text: str) -> object:
    """A number or a truth value as in TOML; anything else is text."""
    try:
        found = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return found if isinstance(found, (bool, int, float)) else text


def _token(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise FederatedError(f"cannot read the token in {str(path)!r}: {problem}") from problem


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
