"""A request to a language model from arrival to its last token, on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from math import inf
from time import perf_counter
from typing import Any, Protocol

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Ask
from edge.gateway.infer import LABEL
from edge.gateway.infer import Host as Desk
from edge.gateway.language.body import ParameterError
from edge.gateway.language.host import Host, News, Ticket
from edge.gateway.language.replies import DONE, Chat, Completion, Form
from edge.gateway.language.service import Languages
from edge.gateway.language.wish import Wish, wish_of_chat, wish_of_completion
from edge.gateway.models.entry import Asleep
from edge.gateway.models.served import Served
from edge.gateway.protocol.body import Body
from lite_runtime.language.answer import Piece

__all__ = ["Asking"]

KINDS = {
    "/v1/chat/completions": (wish_of_chat, Chat),
    "/v1/completions": (wish_of_completion, Completion),
}
"""By path: how a request is read, and the form of its reply."""
BEHIND = 256
"""Pieces that may wait for a client one by one."""


class _Logged(Body):
    """What the log calls such a request."""

    def __init__(self, path: str) -> None:
        self._path = path

    def call(self, model: str) -> tuple[str, str]:
        """Method and path."""
        return "POST", self._path


class Gateway(Desk, Protocol):
    """What it needs from the gateway."""

    languages: Languages

    def owner(self, ask: Ask) -> str:
        """Who a request belongs to."""
        raise NotImplementedError


class Asking:
    """One request: call `begin`, then `events` or `whole`, and in any case `end`."""

    def __init__(self, gateway: Gateway, ask: Ask, path: str) -> None:
        """ask: without body. path: one of `KINDS`."""
        self._gateway, self._ask, self._arrived = gateway, ask._replace(form=_Logged(path)), perf_counter()
        self._read, self._reply = KINDS[path]
        self.identity = gateway.ids.of(ask.fields.get("x-request-id"))
        self._served: Served | None = None
        self._tickets: list[Ticket] = []
        self._news, self._failed = asyncio.Event(), list[GatewayError]()
        self._waiting, self._late = list[tuple[int, Piece]](), dict[int, Piece]()
        """What was written since the client last took something, by answer; beyond `BEHIND` pieces those of an answer
        are one, so that what waits for a client that reads slowly is never much more than the answers are."""
        self._times: dict[int, float] = {}
        """By answer, when its latest token came."""
        self._generated = 0
        gateway.under_way += 1

    async def begin(self, given: Mapping[str, Any]) -> None:
        """Accept the request with that body. Raises GatewayError: 400, 401, 403, 404, 429, 503."""
        gateway, name = self._gateway, given.get("model")
        if isinstance(name, str):
            self._ask = self._ask._replace(model=name, body=memoryview(b"{}"))
            gateway.admit_inference(self._ask)
        served, host = await self._routed(name)
        wish = await gateway.aside(partial(self._read, model=host.model, capacity=host.capacity), given)
        self._wish: Wish = wish
        answers = sum(map(len, wish.requests))
        self._left, self._figures = answers, gateway.languages.figures(served.name, served.version)
        template = host.model.about.get("template") if wish.tools else None
        self._form: Form = self._reply(served.name, answers, wish.top, host.model.tokenizer, template)
        timeout = served.config.timeout or gateway.settings.batching.timeout or inf
        owner, first = gateway.owner(self._ask), 0
        for requests in wish.requests:
            tell = partial(self._tell, len(self._tickets), first)
            self._tickets.append(Ticket(requests, tell, owner=owner, deadline=self._arrived + timeout))
            host.submit(self._tickets[-1])
            first += len(requests)

    @property
    def stream(self) -> bool:
        """Whether the client wants events."""
        return self._wish.stream

    async def whole(self) -> dict[str, Any]:
        """The reply, when all answers are complete. Raises GatewayError if there is none."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return self._form.whole(self._usage())

    async def events(self) -> AsyncGenerator[bytes]:
        """The reply as events of a stream. Raises GatewayError if an answer fails."""
        while self._left:
            await self._news.wait()
            self._news.clear()
            pieces, self._waiting, self._late = [*self._waiting, *self._late.items()], [], {}
            self._left -= sum(piece.finish_reason is not None for _, piece in pieces)
            data = b"".join([self._form.add(number, piece) for number, piece in pieces])
            if data:
                yield data
            if self._failed:
                raise self._failed[0]
        yield (self._form.usage(self._usage()) if self._wish.usage else b"") + DONE

    def end(self, status: int) -> None:
        """The request was answered with that status, or its client has left (499)."""
        gateway, served, now = self._gateway, self._served, perf_counter()
        for ticket in self._tickets:
            ticket.cancel()
        gateway.under_way -= 1
        if served is not None:
            statistics = gateway.statistics.of(served.name, served.version)
            if status == 200:
                statistics.answered(now - self._arrived, now)
            else:
                statistics.fail(None, status, now)
            served.release()
        if status not in (200, 499):
            gateway.statistics.refused["infer", status] += 1
        if gateway.watching or status == 500:
            gateway.ended(self._ask, self.identity, status, now - self._arrived, None, served)

    async def _routed(self, name: Any) -> tuple[Served, Host]:
        """The version that answers, which is held until `end`."""
        if not isinstance(name, str) or not name:
            raise ParameterError("model", "model: expected the name of a model, got none", "missing_required_parameter")
        route = partial(
            self._gateway.repository.route,
            name,
            "",
            self._ask.fields.get(LABEL, ""),
            self._ask.fields.get("x-request-id", ""),
        )
        try:
            served = route()
        except Asleep:
            await self._gateway.repository.wake(name)
            served = route()
        if not isinstance(served, Served) or served.language is None:
            text = f"model {name!r} is not a language model; ask it at /v2/models/{name}/infer"
            raise ParameterError("model", text, "model_not_supported")
        served.acquire(self._arrived)
        self._served = served
        return served, served.language

    def _tell(self, index: int, first: int, news: list[News]) -> None:
        """Take what a run adds. index: of the ticket; first: the number of the first answer to its prompt."""
        for one in news:
            if one.error is not None:
                self._failed.append(one.error)
            if one.piece is not None:
                number = first + one.number
                self._count(self._tickets[index], number, one.piece)
                if len(self._waiting) < BEHIND:
                    self._waiting.append((number, one.piece))
                else:
                    late = self._late.get(number)
                    self._late[number] = one.piece if late is None else late.joined(one.piece)
        self._news.set()

    def _count(self, ticket: Ticket, number: int, piece: Piece) -> None:
        """Add a piece to the figures, when it was written, whether or not the client reads it."""
        figures, now, before = self._figures, perf_counter(), self._times.get(number)
        if before is not None:
            figures.each.add(now - before)
        else:
            figures.first.add(now - self._arrived)
            if not ticket.begun:
                ticket.begun = True
                figures.prompt += len(ticket.requests[0].tokens)
                figures.reused += ticket.text.reused
        self._times[number] = now
        self._generated += len(piece.tokens)
        figures.generated += len(piece.tokens)

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(ticket.requests[0].tokens) for ticket in self._tickets)
        return {
            "prompt_tokens": prompt, "completion_tokens": self._generated, "total_tokens": prompt + self._generated,
            "prompt_tokens_details": {"cached_tokens": sum(ticket.text.reused for ticket in self._tickets)},
        }  # fmt: skip
