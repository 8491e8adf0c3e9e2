"""Replies in fewer bytes, for clients that ask for just that."""

from __future__ import annotations

import zlib

__all__ = ["compressed"]

_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
LEVEL = 1


def compressed(payload: bytes, accepted: str) -> tuple[bytes, str]:
    """The payload and how it is coded ("": as it was), given `Accept-Encoding`.

    Only for a client that names one encoding alone, as tritonclient does when told to: lists such as "gzip, deflate"
    are every HTTP library's default, and tensors cost far more time to compress than to send on most networks.
    """
    coding = accepted.strip().lower()
    if coding not in _BITS:
        return payload, ""
    stream = zlib.compressobj(LEVEL, zlib.DEFLATED, _BITS[coding])
    return stream.compress(payload) + stream.flush(), coding
