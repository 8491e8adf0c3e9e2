"""The desk of a front: takes requests of its connections, and has them answered by the process that computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.fronts.channel import ANSWER, ASK, CANCEL, LEAVE, Channel
from edge.gateway.fronts.coding import Coded, coded, decoded
from edge.gateway.operate.settings import Limits
from edge.gateway.protocol.layout import LIMITS

__all__ = ["WORTH", "RemoteDesk"]

WORTH = 1024
"""Bytes of JSON from which a front reads it; what is shorter is read as fast as its binary form is."""
_LENGTH = "inference-header-content-length"


class _Waiting(NamedTuple):
    """A request that was sent on. `way`: how it was coded; None: it went as it came."""

    ask: Ask
    reply: Callable[[Answer], None]
    way: Coded | None


class RemoteDesk:
    """See `exchange.Desk`. Everything on the loop's thread. `leave` is called when the front is told to end."""

    def __init__(self, limits: Limits, leave: Callable[[], None]) -> None:
        self._limits, self._leave = limits, leave
        self._waiting: dict[int, _Waiting] = {}
        self._last = 0
        self.channel: Channel | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._waiting)

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        """See `exchange.Desk`; never answers before it returns."""
        self._last = number = (self._last + 1) & 0xFFFFFFFF
        way = coded(ask.body) if WORTH <= len(ask.body) <= LIMITS.json and _plain(ask.fields) else None
        if way is not None and sum(map(len, way.parts)) > self._limits.body:
            way = None
        self._send(number, ask, reply, way)
        return partial(self._cancel, number)

    def take(self, kind: int, number: int, text: bytes, payload: bytes) -> None:
        """A message came."""
        if kind == LEAVE:
            self._leave()
        elif kind == ANSWER:
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                self._answer(number, waiting, orjson.loads(text), payload)

    def _send(self, number: int, ask: Ask, reply: Callable[[Answer], None], way: Coded | None) -> None:
        assert self.channel is not None
        self._waiting[number] = _Waiting(ask, reply, way)
        fields: Mapping[str, str] = ask.fields
        parts: Sequence[bytes | memoryview] = (ask.body,)
        if way is not None:
            fields, parts = {**fields, _LENGTH: str(way.length)}, way.parts
        self.channel.send(ASK, number, orjson.dumps((ask.model, ask.version, fields, ask.peer)), parts)

    def _answer(self, number: int, waiting: _Waiting, said: Sequence[Any], payload: bytes) -> None:
        status, length, fields = said
        ask, reply, way = waiting
        parts: Sequence[bytes | memoryview] = (payload,)
        if way is not None and status == 200 and length is not None:
            try:
                parts, length = decoded(way, payload, length)
                if sum(map(len, parts)) > self._limits.reply:
                    raise GatewayError(413, "larger than a reply may be")
            except GatewayError:  # who refuses is the one who computes, in its words
                self._send(number, ask, reply, None)
                return
        reply(Answer(status, parts, length, fields))

    def _cancel(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None and self.channel is not None:
            self.channel.send(CANCEL, number)


def _plain(fields: Mapping[str, str]) -> bool:
    """Whether a body is all JSON, as far as its header says."""
    return _LENGTH not in fields and not fields.get("content-type", "").startswith(("image/", "audio/"))
