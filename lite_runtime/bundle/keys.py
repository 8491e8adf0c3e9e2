"""Checking the signatures of bundles against the keys that are trusted. Needs `cryptography`.

Keys are Ed25519 (RFC 8032) in PEM files, as OpenSSL reads and writes them: private ones in PKCS 8, public ones as
SubjectPublicKeyInfo. Text before the BEGIN line of a public key (RFC 7468, section 2) gives its name and the day from
which it is not trusted any more:

    name: release-2026
    expires: 2027-11-30
    -----BEGIN PUBLIC KEY-----
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from lite_runtime.bundle.layout import File
from lite_runtime.bundle.signatures import Signature, message_of, signatures_of
from lite_runtime.errors import MissingExtraError, MsedgeError
from lite_runtime.frozen import NamedTuple

__all__ = ["PublicKey", "TrustError", "check", "content", "day_of", "is_kind", "library", "public_key", "short"]

MOST_KEY = 1 << 16
"""Most bytes of a key's file."""


class TrustError(MsedgeError):
    """A bundle that no trusted key has signed, or a key that cannot be used."""


class PublicKey(NamedTuple):
    """A key that is trusted: its name, its 32 bytes in hex, when it expires in seconds since 1970."""

    name: str
    key: str
    expires: float = math.inf


def short(key: str) -> str:
    """A public key as people compare it: the first 16 of its 64 digits."""
    return f"ed25519:{key[:16]}"


# -- checking ----------------------------------------------------------------------------------------------------------


def check(file: File, keys: Sequence[PublicKey], now: float, model: str = "", version: int = 0) -> PublicKey:
    """The first of `keys` that has signed a bundle, and is valid at `now`.

    model, version: what the bundle shall be served as; a signature that is limited to others does not count. "" and 0:
    not known, so any. Raises TrustError, which says why each signature does not count, and BundleError for a malformed
    section of signatures.
    """
    given = signatures_of(file)
    if not given:
        raise TrustError("expected a bundle that a trusted key has signed, got one without a signature; msedge sign")
    known = {key.key: key for key in keys}
    reasons = []
    for one in given:
        reason = _refusal(one, known.get(one.key), file.digest, now, model, version)
        if not reason:
            return known[one.key]
        reasons.append(reason)
    raise TrustError(f"expected a signature by a trusted key, got {'; '.join(reasons)}")


def _refusal(one: Signature, key: PublicKey | None, digest: str, now: float, model: str, version: int) -> str:
    """Why a signature does not count; "" if it does."""
    if key is None:
        return f"one by {short(one.key)}, which is not trusted"
    if not _fits(one, digest):
        return f"one by {key.name!r} that is not of this bundle: it was changed, or the signature is another bundle's"
    if now >= key.expires:
        return f"one by {key.name!r}, which expired at {day_of(key.expires)}; sign it with a newer key"
    if (model and one.model not in ("", model)) or (version and one.version not in (0, version)):
        limits = f"{repr(one.model) if one.model else ''}{f' version {one.version}' if one.version else ''}".strip()
        return f"one by {key.name!r} for {limits} alone"
    return ""


def _fits(one: Signature, digest: str) -> bool:
    """Whether the key made this signature, of a bundle with this digest."""
    ed25519, _ = library()
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(one.key))
        public.verify(bytes.fromhex(one.value), message_of(digest, one.model, one.version))
    except (InvalidSignature, ValueError):
        return False
    return True


# -- keys --------------------------------------------------------------------------------------------------------------


def public_key(path: str | os.PathLike[str]) -> PublicKey:
    """A public key from its file; its name is the file's unless the file has one. Raises TrustError."""
    _, serialization = library()
    raw, where = content(path), repr(os.fspath(path))
    head, mark, _ = raw.partition(b"-----BEGIN")
    words = _words(head.decode("utf-8", "replace"), where)
    try:
        found = serialization.load_pem_public_key(raw[len(head) :]) if mark else None
        key = found.public_bytes_raw().hex() if is_kind(found, "Ed25519PublicKey") else ""  # type: ignore[union-attr]
    except ValueError:
        key = ""
    if not key:
        raise TrustError(f"{where}: expected an Ed25519 public key in PEM, got another file; msedge keygen makes one")
    name = words.get("name") or os.path.basename(os.fspath(path)).partition(".")[0]
    return PublicKey(name, key, _expiry(words["expires"], where) if "expires" in words else math.inf)


def _words(text: str, where: str) -> dict[str, str]:
    """The lines `word: value` before a key."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, mark, value = line.partition(":")
        if word not in ("name", "expires") or not mark:
            raise TrustError(f"{where}: expected name: or expires: before the key, got {line[:60]!r}; remove the line")
        found[word] = value.strip()
    return found


def _expiry(text: str, where: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TrustError(f"{where}: expires: expected a day such as 2027-11-30, got {text[:60]!r}") from None


def day_of(seconds: float) -> str:
    """A time as its day."""
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()


def is_kind(key: object, kind: str) -> bool:
    """Whether a key is of a class of the library's."""
    ed25519, _ = library()
    return isinstance(key, getattr(ed25519, kind))


def content(path: str | os.PathLike[str]) -> bytes:
    """The content of a key's file. Raises TrustError."""
    where = repr(os.fspath(path))
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_KEY + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrustError(f"cannot read the key {where}: {reason}; check the path and its permissions") from None
    if len(raw) > MOST_KEY:
        raise TrustError(f"{where}: expected a key of at most {MOST_KEY} bytes, got more")
    return raw


def library() -> tuple[Any, Any]:
    """The modules `ed25519` and `serialization` of cryptography. Raises MissingExtraError."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise MissingExtraError("cryptography", "sign", "bundles are signed and checked with it") from None
    return ed25519, serialization
