"""A request to a language model from arrival to its last token, on the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from edge.gateway.exchange import Ask
from edge.gateway.language.arrival import Arrival, Gateway
from edge.gateway.language.host import News, Ticket
from edge.gateway.language.replies import DONE, Chat, Completion, Form
from edge.gateway.language.wish import Wish, wish_of_chat, wish_of_completion
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving

__all__ = ["Asking"]

KINDS = {
    "/v1/chat/completions": (wish_of_chat, Chat),
    "/v1/completions": (wish_of_completion, Completion),
}
"""By path: how a request is read, and the form of its reply."""


class Asking(Arrival):
    """One request: call `begin`, then `events` or `whole`, and in any case `end`."""

    def __init__(self, gateway: Gateway, ask: Ask, path: str) -> None:
        """ask: without body. path: one of `KINDS`."""
        super().__init__(gateway, ask, path)
        self._read, self._reply = KINDS[path]
        self._tickets: list[Ticket] = []
        self._news: asyncio.Queue[tuple[int, list[News]]] = asyncio.Queue()
        self._times: dict[int, float] = {}
        """By answer, when its latest token came."""
        self._generated = 0

    async def begin(self, given: Mapping[str, Any]) -> None:
        """Accept the request with that body. Raises GatewayError: 400, 401, 403, 404, 429, 503."""
        gateway, served = self._gateway, await self._routed(given)
        host = served.language
        assert host is not None
        wish = await gateway.aside(partial(self._read, model=host.model, capacity=host.capacity), given)
        self._wish: Wish = wish
        answers = sum(map(len, wish.requests))
        self._left, self._figures = answers, gateway.languages.figures(served.name, served.version)
        tokenizer, template = host.model.tokenizer, None
        if wish.tools:
            template = host.model.about.get("template") or (tokenizer.chat_template if tokenizer is not None else "")
        self._form: Form = self._reply(served.name, answers, wish.top, tokenizer, template)
        timeout = served.config.timeout or gateway.settings.batching.timeout or inf
        owner, first = gateway.owner(self._ask), 0
        for requests in wish.requests:
            tell = partial(self._tell, first)
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
            first, news = await self._news.get()
            data = b"".join([self._event(first, one) for one in news])
            if data:
                yield data
        for ticket in self._tickets:
            self._figures.prompt += len(ticket.requests[0].tokens)
            self._figures.reused += ticket.text.reused
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

    def _tell(self, first: int, news: list[News]) -> None:
        self._news.put_nowait((first, news))

    def _event(self, first: int, news: News) -> bytes:
        """Take what a run adds; the event for it. first: the number of the first answer to this prompt."""
        if news.error is not None:
            raise news.error
        piece, number, now = news.piece, first + news.number, perf_counter()
        assert piece is not None
        before = self._times.get(number)
        if before is None:
            self._figures.first.add(now - self._arrived)
        else:
            self._figures.each.add(now - before)
        self._times[number] = now
        self._generated += len(piece.tokens)
        self._figures.generated += len(piece.tokens)
        self._left -= piece.finish_reason is not None
        return self._form.add(number, piece)

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(ticket.requests[0].tokens) for ticket in self._tickets)
        return {
            "prompt_tokens": prompt, "completion_tokens": self._generated, "total_tokens": prompt + self._generated,
            "prompt_tokens_details": {"cached_tokens": sum(ticket.text.reused for ticket in self._tickets)},
        }  # fmt: skip
