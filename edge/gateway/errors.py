"""The error of the gateway: an HTTP status and a sentence for the client."""

from __future__ import annotations

from lite_runtime.errors import InputError, MsedgeError

__all__ = ["GatewayError", "told"]


class GatewayError(MsedgeError):
    """A request that is refused, or a gateway that cannot start.

    status: the HTTP status, used as by Triton and other servers of the Open Inference Protocol: 400 invalid request,
    401 and 403 missing or insufficient token, 404 not found, 405, 413 too large, 415 unknown encoding, 422 an adapter
    that cannot be used, 429 overloaded (with `retry_after`), 499 the client closed the connection, 500 an internal
    error, 501 not supported, 503 not available now, 504 the deadline passed. retry_after: seconds after which a retry
    makes sense; None: unknown.
    """

    def __init__(self, status: int, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status, self.retry_after = status, retry_after


def told(error: BaseException) -> tuple[int, str, float | None]:
    """What a client is told of an error: the status, the text, and seconds until a retry makes sense."""
    if isinstance(error, GatewayError):
        return error.status, str(error), error.retry_after
    if isinstance(error, InputError):
        return 400, str(error), None
    if isinstance(error, MsedgeError):
        return 500, str(error), None
    return 500, "internal server error; the gateway's log has the details", None
