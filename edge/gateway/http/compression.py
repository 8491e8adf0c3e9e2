"""Compression of replies, for clients that explicitly ask for it."""

from __future__ import annotations

import zlib

__all__ = ["compressed"]

_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
LEVEL = 1


def compressed(payload: bytes, accepted: str) -> tuple[bytes, str]:
    """The payload and its content coding ("": unchanged), given `Accept-Encoding`.

    Replies are compressed only for a client that names a single encoding, as tritonclient does on request. Lists such
    as "gzip, deflate" are the default of HTTP libraries, and on most networks compressing tensors takes far longer
    than sending them.
    """
    coding = accepted.strip().lower()
    if coding not in _BITS:
        return payload, ""
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, _BITS[coding])
    return stream.compress(payload) + stream.flush(), coding
