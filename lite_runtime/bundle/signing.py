"""Makes keys, and signatures of bundles. Needs `cryptography`; what checks them is `keys`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lite_runtime.bundle.keys import TrustError, content, day_of, is_kind, library
from lite_runtime.bundle.layout import BUNDLE, SIGNATURE, Row, cut, digest_of, identity_of, rows_of
from lite_runtime.bundle.opening import Source, opened
from lite_runtime.bundle.refusal import refuse
from lite_runtime.bundle.signatures import MOST_SIGNATURES, Signature, message_of, signatures_of
from lite_runtime.bundle.writing import laid_out

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["new_key", "signed", "with_signatures"]


def new_key(name: str, expires: float = math.inf) -> tuple[bytes, bytes]:
    """A new pair of keys as the contents of two files, the private key's first."""
    ed25519, serialization = library()
    private = ed25519.Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head = f"name: {name}\n" + (f"expires: {day_of(expires)}\n" if expires < math.inf else "")
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ), head.encode() + public


def signed(source: Source, key: str | os.PathLike[str], *, model: str = "", version: int = 0) -> bytes:
    """The bytes of a bundle with a signature by the private key in a file, beside those that it has; one that the same
    key made before is replaced.

    model, version: what the bundle may be served as, "" and 0: anything. Raises TrustError for a key that cannot be
    used, BundleError for a damaged bundle.
    """
    private = _private(key)
    file = opened(source)
    public = private.public_key().public_bytes_raw().hex()
    value = private.sign(message_of(file.digest, model, version)).hex()
    others = [one for one in signatures_of(file) if one.key != public]
    return with_signatures(file.data, [*others, Signature(public, value, model, version)])


def _private(path: str | os.PathLike[str]) -> Ed25519PrivateKey:
    _, serialization = library()
    where = repr(os.fspath(path))
    try:
        found: Any = serialization.load_pem_private_key(content(path), password=None)
    except TypeError:
        raise TrustError(f"{where}: the key has a password; store it without one (openssl pkey)") from None
    except ValueError:
        found = None
    if not is_kind(found, "Ed25519PrivateKey"):
        raise TrustError(f"{where}: expected an Ed25519 private key in PEM, got another file; msedge keygen makes one")
    return found  # type: ignore[no-any-return]


def with_signatures(source: Source, signatures: Sequence[Signature]) -> bytes:
    """The bytes of a bundle with exactly these signatures, unverified; without any, those of the unsigned bundle.

    Its digest does not change. Raises BundleError for a damaged bundle, and for more than MOST_SIGNATURES.
    """
    file = opened(source)
    if len(signatures) > MOST_SIGNATURES:
        refuse("signatures", f"at most {MOST_SIGNATURES} signatures", str(len(signatures)), "msedge sign --remove")
    rows, needs = rows_of(file.data)
    kept = [row for row in rows if row.name != SIGNATURE]
    contents: list[bytes | bytearray | memoryview] = [cut(file.data, file.sections[row.name]) for row in kept]
    if signatures:
        doc = {"signatures": [_plain(one) for one in signatures]}
        raw = json.dumps(doc, sort_keys=True, separators=(",", ":")).encode("ascii")
        kept.append(Row(SIGNATURE, len(raw), 0, needs, digest_of(raw)))
        contents.append(raw)
    made = laid_out(kept, contents, needs, BUNDLE)
    if identity_of(memoryview(made), BUNDLE) != file.digest:
        refuse("section table", "a layout that msedge writes", "another one", "convert the model again")
    return made


def _plain(one: Signature) -> dict[str, object]:
    """The signature's JSON object, without defaults."""
    limits = {name: value for name, value in (("model", one.model), ("version", one.version)) if value}
    return {"key": one.key, "value": one.value, **limits}
