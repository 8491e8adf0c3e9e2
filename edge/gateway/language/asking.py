"""A request to a language model from arrival to its last token, on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.exchange import Ask
from edge.gateway.language.adapters import parted
from edge.gateway.language.arrival import Arrival, Gateway
from edge.gateway.language.host import News, Ticket
from edge.gateway.language.replies import DONE, Chat, Completion, Form
from edge.gateway.language.wish import Wish, wish_of_chat, wish_of_completion
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from lite_runtime.language.answer import Piece

__all__ = ["Asking"]

KINDS = {
    "/v1/chat/completions": (wish_of_chat, Chat),
    "/v1/completions": (wish_of_completion, Completion),
}
"""By path: how a request is read, and the form of its reply."""
BEHIND = 256
"""Pieces that may wait for a client one by one."""


class Asking(Arrival):
    """One request: call `begin`, then `events` or `whole`, and in any case `end`."""

    def __init__(self, gateway: Gateway, ask: Ask, path: str) -> None:
        """ask: without body. path: one of `KINDS`."""
        super().__init__(gateway, ask, path)
        self._read, self._reply = KINDS[path]
        self._tickets: list[Ticket] = []
        self._news, self._failed = asyncio.Event(), list[GatewayError]()
        self._waiting, self._late = list[tuple[int, Piece]](), dict[int, Piece]()
        """What was written since the client last took something, by answer; beyond `BEHIND` pieces those of an answer
        are one, so that what waits for a client that reads slowly is never much more than the answers are."""
        self._times: dict[int, float] = {}
        """By answer, when its latest token came."""
        self._generated = 0

    async def begin(self, given: Mapping[str, Any]) -> None:
        """Accept the request with that body. Raises GatewayError: 400, 401, 403, 404, 422, 429, 503."""
        gateway, name, person = self._gateway, given.get("model"), None
        if isinstance(name, str):
            name, person = parted(name)
        served = await self._routed({**given, "model": name}, person)
        host, adapter = served.language, None
        assert host is not None
        if person is not None:
            adapters = gateway.languages.adapters
            adapter = await gateway.aside(partial(adapters.load, served.name, engine=host.engine), person)
        wish = await gateway.aside(partial(self._read, model=host.model, capacity=host.capacity), given)
        self._wish: Wish = wish
        answers = sum(map(len, wish.requests))
        self._left, self._figures = answers, gateway.languages.figures(served.name, served.version)
        template = host.model.about.get("template") if wish.tools else None
        called = served.name if person is None else f"{served.name}:{person}"
        self._form: Form = self._reply(called, answers, wish.top, host.model.tokenizer, template)
        timeout = served.config.timeout or gateway.settings.batching.timeout or inf
        owner, first = gateway.owner(self._ask), 0
        for requests in wish.requests:
            tell = partial(self._tell, len(self._tickets), first)
            deadline = self._arrived + timeout
            self._tickets.append(Ticket(requests, tell, owner=owner, deadline=deadline, adapter=adapter))
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
        """See `Arrival`."""
        for ticket in self._tickets:
            ticket.cancel()
        super().end(status)

    def _refusal(self, served: Serving) -> str:
        if isinstance(served, Served) and served.language is not None:
            return ""
        of_texts = isinstance(served, Served) and served.embedder is not None
        other = "/v1/embeddings" if of_texts else f"/v2/models/{served.name}/infer"
        return f"is not a language model; ask it at {other}"


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
