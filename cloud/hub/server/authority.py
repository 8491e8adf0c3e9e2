"""The hub's own authority: certificates of devices' keys, for mutual TLS. Its key is one file, for its owner alone."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cloud.hub.errors import HubError
from lite_runtime._files import write_atomically
from lite_runtime.errors import MissingExtraError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as _error:
    raise MissingExtraError("cryptography", "sign", "a hub checks devices' keys and certifies them with it") from _error

__all__ = ["Authority"]

_YEARS, _LATE = timedelta(days=3653), timedelta(days=365)
"""For how long the authority's own certificate is good, and how much of that is left when a start makes it anew."""
_EARLY = timedelta(minutes=5)
"""Certificates begin a little before they are made: clocks differ."""
PEM = serialization.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """An Ed25519 key and its own certificate, both in the file `path`, which is made if there is none. Raises HubError
    for another file."""

    def __init__(self, path: str | os.PathLike[str], hub: str) -> None:
        file = Path(path)
        if not file.exists():
            write_atomically(file, _made(hub), HubError, mode=0o600)
        try:
            raw = file.read_bytes()
            key = serialization.load_pem_private_key(raw, password=None)
            self._certificate = _certificate_in(raw)
        except (OSError, ValueError, TypeError) as problem:
            raise HubError(f"{str(file)!r}: expected the key and certificate of a hub's authority: {problem}") from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise HubError(f"{str(file)!r}: expected an Ed25519 key, got another kind")
        if self._certificate.not_valid_after_utc - datetime.now(UTC) < _LATE:
            # The same key under the same name: certificates of devices that it has signed go on.
            raw = _made(hub, key)
            write_atomically(file, raw, HubError, mode=0o600)
            self._certificate = _certificate_in(raw)
        self._key = key
        self.pem = self._certificate.public_bytes(PEM).decode()
        """The authority's certificate, which devices get and a server checks theirs by."""

    def certify(self, device: str, key: str, seconds: float, now: float) -> str:
        """A certificate in PEM that this key (hex) is a device's."""
        begins = datetime.fromtimestamp(now, UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(device))
            .issuer_name(self._certificate.subject)
            .public_key(ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)))
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins - _EARLY)
            .not_valid_after(begins + timedelta(seconds=seconds))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, None)
        )
        return made.public_bytes(PEM).decode()


def _certificate_in(raw: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(raw[raw.index(b"-----BEGIN CERTIFICATE") :])


def _made(hub: str, key: ed25519.Ed25519PrivateKey | None = None) -> bytes:
    key = key or ed25519.Ed25519PrivateKey.generate()
    begins = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(f"msedge hub {hub}"))
        .issuer_name(_name(f"msedge hub {hub}"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _EARLY)
        .not_valid_after(begins + _YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
    )
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private + certificate.public_bytes(PEM)
