"""Messages between two processes over a stream socket: on one machine, or over TLS between two organisations.

A message is its length (uint64, big-endian) and its bytes; one end asks, one answers. Addresses are "host:port" or
paths of Unix sockets. Over TCP both ends show a certificate of an authority that the other one trusts; without TLS only
this machine's own addresses are accepted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from federated.errors import FederatedError
from federated.transport.addresses import host_and_port, is_here

__all__ = ["Channel", "Tls", "serve"]

HEAD = struct.Struct(">Q")
MOST = 1 << 32
"""The most bytes of a message."""
PART = 1 << 20
SHAKE = 10.0
"""Seconds within which a connection must complete its TLS handshake."""
STALL = 120.0
"""Seconds within which the next part of a message must come."""
TICK = 0.2
"""Seconds between two looks at whether to go on."""


@dataclass(frozen=True)
class Tls:
    """PEM files: the authority that the other end's certificate must be of, this end's certificate and key."""

    authority: str
    certificate: str
    key: str

    def context(self, server: bool) -> ssl.SSLContext:
        """TLS 1.3 with certificates of both ends. Raises FederatedError for files that cannot be read."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.verify_mode = ssl.CERT_REQUIRED
        try:
            made.load_verify_locations(self.authority)
            made.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            raise FederatedError(
                f"TLS: expected PEM files, an authority, a certificate and its key, got {self.authority}, "
                f"{self.certificate}, {self.key}: {error}"
            ) from error
        return made


class Channel:
    """The end that asks. It connects when it is first used, and again after a failure."""

    def __init__(self, address: str, tls: Tls | None = None, *, wait: float = 30.0) -> None:
        self.address, self._wait = address, wait
        self._tls = _context(address, tls, server=False)
        self._open: socket.socket | None = None

    def ask(self, message: bytes, timeout: float | None = None) -> bytes:
        """The answer. Waits for the other end to listen. Raises FederatedError if it does not, or if the connection
        ends or no answer comes within `timeout` seconds: what was asked may then have been done."""
        try:
            open_ = self._open = self._open or self._connected()
            open_.settimeout(timeout)
            _send(open_, message)
            return _receive(open_)
        except (OSError, EOFError) as error:
            self.close()
            raise FederatedError(f"{self.address}: expected an answer, got none: {_words(error)}") from error

    def close(self) -> None:
        """End the connection."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> Channel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connected(self) -> socket.socket:
        until = time.monotonic() + self._wait
        while True:
            try:
                return self._connection()
            except ssl.SSLError as error:
                raise FederatedError(f"{self.address}: the other end is not trusted: {_words(error)}") from error
            except OSError:
                if time.monotonic() >= until:
                    raise
                time.sleep(TICK)

    def _connection(self) -> socket.socket:
        place = _place(self.address)
        if isinstance(place, str):
            made = socket.socket(socket.AF_UNIX)
            try:
                made.connect(place)
            except OSError:
                made.close()
                raise
            return made
        made = socket.create_connection(place, SHAKE)
        _prompt(made)
        return made if self._tls is None else self._tls.wrap_socket(made, server_hostname=place[0])


def serve(
    address: str,
    answer: Callable[[bytes], bytes],
    done: Callable[[], bool],
    tls: Tls | None = None,
    *,
    listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer messages, one connection after another, until `done()`. Port 0 is a free one; `listening` is called with
    the address. Raises FederatedError if the address cannot be listened on. What `answer` raises ends the connection,
    and is passed on."""
    context = _context(address, tls, server=True)
    with _listener(address) as listener:
        found = listener.getsockname()
        listening(address if isinstance(found, str) else f"{_place(address)[0]}:{found[1]}")
        listener.settimeout(TICK)
        while not done():
            try:
                accepted, _ = listener.accept()
            except TimeoutError:
                continue
            with accepted:
                _converse(accepted, context, answer, done)


def _converse(
    accepted: socket.socket, context: ssl.SSLContext | None, answer: Callable[[bytes], bytes], done: Callable[[], bool]
) -> None:
    """One connection, until its end. Whoever does not complete the handshake is turned away."""
    open_ = accepted
    if accepted.family == socket.AF_INET:
        _prompt(accepted)
    if context is not None:
        accepted.settimeout(SHAKE)
        try:
            open_ = context.wrap_socket(accepted, server_side=True)
        except OSError:
            return
    with open_:
        while True:
            try:
                message = _receive(open_, done)
            except (OSError, EOFError):
                return
            made = answer(message)
            try:
                _send(open_, made)
            except OSError:
                return


@contextlib.contextmanager
def _listener(address: str) -> Iterator[socket.socket]:
    place = _place(address)
    unix = isinstance(place, str)
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as made:
        try:
            if unix:
                _clear(address)
                before = os.umask(0o177)  # for this user alone
                try:
                    made.bind(place)
                finally:
                    os.umask(before)
            else:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.bind(place)
            made.listen()
        except OSError as error:
            raise FederatedError(f"{address}: cannot listen there: {_words(error)}") from error
        try:
            yield made
        finally:
            if unix:
                Path(address).unlink(missing_ok=True)


def _clear(path: str) -> None:
    """Remove the socket of a process that has ended. Raises FederatedError for any other file, and for one that a
    process listens on."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FederatedError(f"{path}: expected no file, or the socket of a process that has ended; choose another")
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
        probe.connect(path)
        raise FederatedError(f"{path}: another process listens there; end it, or choose another path")
    os.unlink(path)


def _place(address: str) -> str | tuple[str, int]:
    """A path, or host and port."""
    if (found := host_and_port(address)) is not None:
        return found
    if "/" not in address:
        raise FederatedError(f"expected HOST:PORT or the path of a socket, got {address!r}")
    return address


def _context(address: str, tls: Tls | None, server: bool) -> ssl.SSLContext | None:
    """How connections are protected. Raises FederatedError for an address beyond this machine without TLS, and for TLS
    on a socket of this machine."""
    place = _place(address)
    if tls is not None:
        if isinstance(place, str):
            raise FederatedError(f"{address}: a socket of this machine has no TLS; omit the certificates")
        return tls.context(server)
    if not (isinstance(place, str) or is_here(place[0])):
        raise FederatedError(f"{address}: expected certificates for an address that is not this machine's, got none")
    return None


def _send(open_: socket.socket, message: bytes) -> None:
    open_.sendall(HEAD.pack(len(message)))
    open_.sendall(message)


def _receive(open_: socket.socket, done: Callable[[], bool] | None = None) -> bytes:
    """A message. With `done`, an idle connection ends when it is true. Raises EOFError at the end of the connection."""
    (size,) = HEAD.unpack(_exactly(open_, HEAD.size, done))
    if size > MOST:
        raise EOFError(f"a message of {size} bytes; {MOST} are allowed")
    return _exactly(open_, size, None)


def _exactly(open_: socket.socket, size: int, done: Callable[[], bool] | None) -> bytes:
    parts, left = [], size
    if done is not None:
        open_.settimeout(TICK)
    while left:
        try:
            part = open_.recv(min(left, PART))
        except TimeoutError:
            if done is None or done():
                raise
            continue
        if not part:
            raise EOFError("the other end has closed the connection")
        parts.append(part)
        left -= len(part)
        if done is not None:
            open_.settimeout(STALL)
            done = None
    return b"".join(parts)


def _prompt(open_: socket.socket) -> None:
    """Small messages leave at once, and an end that has vanished is noticed."""
    open_.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    open_.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
