"""What a client is told when a request cannot be answered: a status of HTTP and a sentence."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = ["GatewayError"]


class GatewayError(MsedgeError):
    """A request that is refused, or a gateway that cannot start.

    status: of HTTP; those the Open Inference Protocol's servers use, with Triton's reading of them: 400 the request is
    wrong, 401 and 403 who asks, 404 no such thing, 405, 413 too large, 415 unknown encoding, 429 too much work (with
    `retry_after`), 499 the client left, 500 a bug, 501 not supported, 503 not now, 504 the deadline passed.
    retry_after: seconds after which another attempt makes sense; None: says nothing.
    """

    def __init__(self, status: int, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after
