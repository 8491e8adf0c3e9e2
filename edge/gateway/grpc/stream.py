"""ModelStreamInfer: requests and replies of one call, both as streams.

Requests are read while earlier ones are computed. Replies are sent in the order of requests, as Triton does for models
that give one reply per request; so those of each sequence are in order too. Requests of one sequence begin one after
the other, whatever each of them has to wait for. A failed request is answered inside the stream, by `error_message`,
and the stream goes on; with the metadata `triton_grpc_error: true` the call ends with the error's code instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Answer, Ask
from edge.gateway.gateway import Gateway
from edge.gateway.grpc.calls import Caller, refuse
from edge.gateway.grpc.inference import InferForm
from edge.gateway.grpc.messages import message
from edge.gateway.grpc.reading import Reads
from edge.gateway.operate.room import Held

__all__ = ["Opened", "Stream"]

Opened = Callable[[bytes, Held], Awaitable[Ask]]
"""Makes a request of a message, for which it reserves memory. Raises GatewayError."""
_FATAL = "triton_grpc_error"
_LEAVING = "the server is shutting down; use another one"


class _Turn:
    """One request: its message's share of memory, and its answer."""

    __slots__ = ("answer", "cancel", "held", "id")

    def __init__(self, held: Held) -> None:
        self.held, self.id = held, ""
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.cancel: Callable[[], None] | None = None

    def settle(self, answer: Answer) -> None:
        """Set the answer, unless the stream has ended."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def close(self) -> None:
        """The answer was sent, or is not needed any more."""
        self.held.__exit__()
        self.answer.cancel()  # does nothing to one that is there
        if self.answer.cancelled() and self.cancel is not None:
            self.cancel()


class Stream:
    """One call; `run` serves it until its end. `leave` ends it after the requests that were already read."""

    def __init__(self, gateway: Gateway, context: Any, caller: Caller, opened: Opened, reads: Reads) -> None:
        self._gateway, self._context, self._caller, self._opened = gateway, context, caller, opened
        self._reads = reads
        self._turns: asyncio.Queue[_Turn | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(gateway.settings.grpc.stream_requests)
        self._latest: dict[tuple[str, Any], _Turn] = {}
        """The last request of each sequence."""
        self._fatal = caller.fields.get(_FATAL, "").lower() == "true"

    async def run(self) -> None:
        """Serve the call."""
        self._reader = asyncio.get_running_loop().create_task(self._read())
        self._reader.add_done_callback(lambda done: done.cancelled() or done.exception())  # raised below, or not needed
        turn: _Turn | None = None
        try:
            while (turn := await self._turns.get()) is not None:
                await self._reply(turn, await turn.answer)
                turn.close()
                self._slots.release()
            if not self._reader.cancelled() and (failure := self._reader.exception()) is not None:
                raise failure
        finally:
            self._reader.cancel()
            while turn is not None:
                turn.close()
                turn = None if self._turns.empty() else self._turns.get_nowait()
        if self._gateway.leaving:
            await refuse(self._context, 503, _LEAVING)

    def leave(self) -> None:
        """Read no more requests."""
        self._reader.cancel()

    async def _read(self) -> None:
        """Read requests and begin them, as many as may wait for their replies."""
        try:
            while True:
                await self._slots.acquire()
                data = await self._reads.next(self._context, inf)
                if data is None:  # the client sends no more
                    return
                turn = _Turn(self._gateway.room.enter(self._caller.peer, self._gateway.settings.limits.body_seconds))
                self._turns.put_nowait(turn)
                await self._begin(turn, data)
        finally:
            self._turns.put_nowait(None)

    async def _begin(self, turn: _Turn, data: bytes) -> None:
        try:
            turn.held.reach(len(data))
            ask = await self._opened(data, turn.held)
        except GatewayError as error:
            self._gateway.statistics.refused["infer", error.status] += 1
            turn.settle(Answer(error.status, [str(error).encode()], None, ()))
            return
        except asyncio.CancelledError:
            turn.settle(Answer(503, [_LEAVING.encode()], None, ()))
            raise
        assert isinstance(ask.form, InferForm)
        turn.id, key = ask.form.id, (ask.model, ask.form.sequence)
        before = self._latest.get(key)
        if key[1]:
            self._latest[key] = turn
            turn.answer.add_done_callback(partial(self._forget, key, turn))
        if before is None or before.answer.done():
            self._start(turn, ask)
        else:
            before.answer.add_done_callback(partial(self._start, turn, ask))

    def _start(self, turn: _Turn, ask: Ask, _: object = None) -> None:
        if not turn.answer.done():
            turn.cancel = self._gateway.infer(ask, turn.settle)

    def _forget(self, key: tuple[str, Any], turn: _Turn, _: object) -> None:
        if self._latest.get(key) is turn:
            del self._latest[key]

    async def _reply(self, turn: _Turn, answer: Answer) -> None:
        payload = b"".join(answer.parts)
        if answer.status != 200:
            text = payload.decode()
            if self._fatal:
                await refuse(self._context, answer.status, text, answer.fields)
            failed = message("ModelStreamInferResponse")(error_message=text)
            failed.infer_response.id = turn.id
            payload = failed.SerializeToString()
        patience = self._gateway.settings.limits.body_seconds
        try:
            async with asyncio.timeout(patience):
                await self._context.write(payload)
        except TimeoutError:
            await refuse(self._context, 408, f"the client read no reply for {patience:g} s")
