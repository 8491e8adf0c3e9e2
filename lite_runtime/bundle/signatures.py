"""The signatures in a bundle: its optional section `signature`.

    {"signatures": [{"key": HEX, "value": HEX, "model": "digits", "version": 3}]}

`key` is an Ed25519 public key (RFC 8032), 32 bytes; `value` its signature, 64 bytes, of `message_of`. The section is no
part of the contents: a bundle's digest is the same with and without it, so signing changes nothing else, and a bundle
can be signed again by another key. `model` and `version`, if given, are what the bundle may be served as: otherwise
somebody who can write to a registry could publish one signed bundle in the place of another.

Nothing here decides whether to trust a signature (`keys`), or makes one (`signing`), and nothing needs cryptography.
"""

from __future__ import annotations

import json

from lite_runtime.bundle.layout import SIGNATURE, File, cut
from lite_runtime.bundle.refusal import list_of, mapping_of, refuse, show, string_of
from lite_runtime.frozen import NamedTuple

__all__ = ["MOST_SIGNATURES", "Signature", "message_of", "signatures_of"]

MOST_SIGNATURES, MOST_BYTES, MOST_NAME = 16, 1 << 16, 255
_WHERE = f"section {SIGNATURE!r}"
_DIGITS = frozenset("0123456789abcdef")
_DOMAIN = b"msedge bundle signature 1\0"
"""Precedes what is signed, so that a signature means nothing elsewhere."""


class Signature(NamedTuple):
    """One signature: `key` and `value` in hex; the model's name and version that it is limited to, "" and 0: any."""

    key: str
    value: str
    model: str = ""
    version: int = 0


def message_of(digest: str, model: str, version: int) -> bytes:
    """What is signed: a bundle's digest, and what it may be served as."""
    return _DOMAIN + bytes.fromhex(digest) + f"{version}\0{model}".encode()


def signatures_of(file: File) -> tuple[Signature, ...]:
    """The signatures of a bundle, unverified. Raises BundleError for a malformed section."""
    if SIGNATURE not in file.sections:
        return ()
    raw = bytes(cut(file.data, file.sections[SIGNATURE]))
    if len(raw) > MOST_BYTES:
        refuse(_WHERE, f"at most {MOST_BYTES} bytes", str(len(raw)))
    try:
        doc = json.loads(raw)
    except (ValueError, RecursionError):
        refuse(_WHERE, "JSON", "other contents")
    given = list_of(mapping_of(doc, _WHERE).get("signatures"), _WHERE)
    if len(given) > MOST_SIGNATURES:
        refuse(_WHERE, f"at most {MOST_SIGNATURES} signatures", str(len(given)))
    return tuple(map(_signature, given))


def _signature(given: object) -> Signature:
    doc = mapping_of(given, _WHERE)
    model, version = string_of(doc.get("model", ""), _WHERE), doc.get("version", 0)
    if type(version) is not int or not 0 <= version < 10**18 or len(model) > MOST_NAME or not model.isprintable():
        refuse(_WHERE, "a model's name and a whole number", f"{show(model)} and {show(version)}")
    return Signature(_hex(doc.get("key"), 64), _hex(doc.get("value"), 128), model, version)


def _hex(value: object, length: int) -> str:
    text = string_of(value, _WHERE)
    if len(text) != length or not _DIGITS.issuperset(text):
        refuse(_WHERE, f"{length} digits of 0-9 a-f", show(text))
    return text
