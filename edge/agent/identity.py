"""Who a device is: its Ed25519 key, and what the hub said when it enrolled. The only module here that signs.

A folder has `key.pem` (PKCS 8, for its owner alone), `hub.json` (the device's and the hub's ids) and, for hubs that ask
for it, `certificate.pem`. The key is made on the device and never leaves it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from edge.agent.errors import AgentError
from lite_runtime._files import write_atomically
from lite_runtime.bundle.keys import is_kind, library
from lite_runtime.updates.enrolment import Enrolled, Enrolment, Greeting, enrolment_text, session_text

__all__ = ["Identity"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Identity:
    """The identity in a folder; the key is made if there is none. Raises AgentError for a key that cannot be used or
    that others can read, and MissingExtraError without cryptography."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._key = _key(self.folder / "key.pem")
        self.public: str = self._key.public_key().public_bytes_raw().hex()
        """The public key, in hex."""
        self.enrolled = _enrolled(self.folder / "hub.json")
        """The hub's answer to the enrolment; None before that."""

    @property
    def certificate(self) -> Path | None:
        """The file with the device's certificate and key, as `ssl.SSLContext.load_cert_chain` takes it; None: none."""
        path = self.folder / "certificate.pem"
        return path if path.exists() else None

    def enrolment(self, token: str, attributes: dict[str, str]) -> Enrolment:
        """The message that asks for enrolment."""
        return Enrolment(token, self.public, self._key.sign(enrolment_text(token, self.public)).hex(), attributes)

    def keep(self, enrolled: Enrolled) -> None:
        """Store the hub's answer. Raises AgentError."""
        if enrolled.certificate:
            self.certify(enrolled.certificate)
        words = json.dumps({"device": enrolled.device, "hub": enrolled.hub}, sort_keys=True)
        write_atomically(self.folder / "hub.json", words.encode(), AgentError)
        self.enrolled = enrolled

    def certify(self, certificate: str) -> None:
        """Store a certificate of the device's key, beside the key: both in one file are always of each other. Raises
        AgentError for one of another key, which would keep this device from the hub."""
        _, serialization = library()
        from cryptography import x509

        try:
            public: Any = x509.load_pem_x509_certificate(certificate.encode()).public_key()
            fits = public.public_bytes_raw().hex() == self.public
        except (ValueError, AttributeError):
            fits = False
        if not fits:
            raise AgentError("expected a certificate of this device's key, got another text; the one before stays")
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_atomically(self.folder / "certificate.pem", key + certificate.encode(), AgentError, mode=0o600)

    def answer(self, challenge: str) -> Greeting:
        """The answer to a challenge of the hub. Raises AgentError before the enrolment."""
        if self.enrolled is None:
            raise AgentError("expected an enrolled device, got a new one; enrol it with a token of the hub")
        device = self.enrolled.device
        return Greeting(device, challenge, self._key.sign(session_text(self.enrolled.hub, device, challenge)).hex())


def _key(path: Path) -> Any:
    ed25519, serialization = library()
    if not path.exists():
        made = ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, made, AgentError, mode=0o600)
    try:
        mode, raw = path.stat().st_mode, path.read_bytes()
    except OSError as problem:
        raise AgentError(f"cannot read the device's key {str(path)!r}: {problem.strerror}; check permissions") from None
    if os.name == "posix" and mode & _OTHERS:
        raise AgentError(f"{str(path)!r}: expected a key that its owner alone can read, got mode {mode & 0o777:o}; "
                         f"chmod 600 {path}")  # fmt: skip
    try:
        found = serialization.load_pem_private_key(raw, password=None)
    except (ValueError, TypeError):
        found = None
    if not is_kind(found, "Ed25519PrivateKey"):
        raise AgentError(f"{str(path)!r}: expected an Ed25519 private key in PEM, got another file; remove it, and"
                         " enrol this device again")  # fmt: skip
    return found


def _enrolled(path: Path) -> Enrolled | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        device, hub = found["device"], found["hub"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise AgentError(f"{str(path)!r}: expected the ids of device and hub, got another file; enrol again") from None
    if not isinstance(device, str) or not isinstance(hub, str):
        raise AgentError(f"{str(path)!r}: expected the ids of device and hub, got another file; enrol again")
    return Enrolled(device, hub)
