"""HTTPS: certificates from files; changed files are read again without closing connections."""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from edge.gateway.errors import GatewayError
from edge.gateway.operate.settings import Tls

__all__ = ["Certificates", "Pems", "certificate_name"]

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Ciphers for TLS 1.2: forward secrecy and authenticated encryption, as in Mozilla's "intermediate" list without DHE.
All ciphers of TLS 1.3 have both."""


class Pems(NamedTuple):
    """What the files of a server hold, for libraries that do not take a context; client_ca: empty for none."""

    certificate: bytes
    key: bytes
    client_ca: bytes


class Certificates:
    """`context` is for the listening socket, `files` has the same as bytes. Call `refresh` on SIGHUP and periodically:
    later connections use the current files. Raises GatewayError for files that are missing, damaged or do not belong
    together."""

    def __init__(self, tls: Tls) -> None:
        self._tls, self._stamp = tls, _stamp(tls)
        self.expires = _expires(tls)
        """When the certificate in use expires, in seconds since 1970."""
        self._current, self.files = _context(tls), _pems(tls)
        self.context = _context(tls)
        self.context.sni_callback = self._choose

    def refresh(self) -> bool:
        """Read the files again if they changed; returns whether they had. Raises GatewayError, once per change, if they
        are invalid or have expired: then the earlier ones stay in use."""
        stamp = _stamp(self._tls)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        made, files, expires = _context(self._tls), _pems(self._tls), _expires(self._tls)
        if expires < time.time() and expires < self.expires:
            when = datetime.fromtimestamp(expires, UTC).isoformat(sep=" ", timespec="minutes")
            raise GatewayError(500, f"tls: the new certificate in {self._tls.certificate!r} expired at {when}; the one"
                               " before stays in use")  # fmt: skip
        self._current, self.files, self.expires = made, files, expires
        return True

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        """Called for every client's hello, with or without a name: gives each connection the newest context, as the
        listening socket's context cannot be replaced and authorities cannot be removed from a context."""
        connection.context = self._current


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ValueError) as error:
        where = f"{tls.certificate!r} and {tls.key!r}"
        raise GatewayError(500, f"tls: expected a certificate and its key, both PEM, in {where}: {error}") from error
    if tls.client_ca:
        _demand_clients(context, tls.client_ca)
    return context


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The name in a verified client certificate, as `getpeercert` returns it: the first DNS name or URI of its subject
    alternative names, else its common name; "" if there is none."""
    if not certificate:
        return ""
    for kind, text in certificate.get("subjectAltName", ()):
        if kind in ("DNS", "URI"):
            return str(text)
    return next((str(text) for part in certificate.get("subject", ()) for key, text in part if key == "commonName"), "")


def _expires(tls: Tls) -> float:
    """When the first certificate in the file expires, in seconds since 1970."""
    from ssl import _ssl  # type: ignore[attr-defined]  # what the ssl module's own tests decode files with

    try:
        return float(ssl.cert_time_to_seconds(_ssl._test_decode_cert(tls.certificate)["notAfter"]))
    except (OSError, ValueError, KeyError):
        return math.inf


def _demand_clients(context: ssl.SSLContext, authorities: str) -> None:
    try:
        context.load_verify_locations(authorities)
    except OSError as error:
        raise GatewayError(500, f"tls.client_ca: expected PEM certificates in {authorities!r}: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    # A resumed session is not checked again: it would stay valid after its certificate's authority was removed.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0


def _pems(tls: Tls) -> Pems:
    paths = (tls.certificate, tls.key, tls.client_ca)
    try:
        return Pems(*(Path(path).read_bytes() if path else b"" for path in paths))
    except OSError as error:
        raise GatewayError(500, f"tls: cannot read {error.filename!r}: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise ValueError("the key has a password, which cannot be entered; store it without a password (openssl pkey)")


def _stamp(tls: Tls) -> tuple[tuple[int, int, int], ...]:
    """A value that changes when a file does; an inaccessible file is reported when it is read."""
    return tuple(_seen(path) for path in (tls.certificate, tls.key, tls.client_ca) if path)


def _seen(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino
