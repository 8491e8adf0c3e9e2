"""Runs one language model for many requests: a thread makes one run after the other, and texts join and leave between
two runs. `Scheduler` decides what a run continues."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple

from edge.gateway.errors import GatewayError, told
from edge.gateway.language.forecast import Load, Pace, wait
from edge.gateway.language.scheduler import Scheduler, Text, Work
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.language.adapters import Adapter
from lite_runtime.language.answer import Answer, Piece, Request
from lite_runtime.language.engine import Part
from lite_runtime.language.generation import LanguageModel
from lite_runtime.language.pages import needed

__all__ = ["Host", "News", "Ticket"]

Bug = Callable[[BaseException, str], None]
"""Reports an internal error; called on the event loop's thread."""
Send = Callable[[Callable[[], None]], object]
"""Calls a function on the event loop's thread, such as `loop.call_soon_threadsafe`."""


class News(NamedTuple):
    """What a run adds to one answer of a request, by its number: a piece of it, or why there is none."""

    number: int
    piece: Piece | None
    error: GatewayError | None = None


class Ticket:
    """A request: answers to one prompt.

    tell: called with news of the answers, on the event loop's thread. deadline: the time of `time.perf_counter` by
    which the first token is wanted.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        tell: Callable[[list[News]], None],
        *,
        owner: str = "",
        deadline: float = inf,
        adapter: Adapter | None = None,
    ) -> None:
        """requests: one for each answer, with the same prompt. adapter: it must fit the model."""
        self.requests, self.tell, self.deadline = requests, tell, deadline
        self.text = Text(
            requests[0].tokens, forks=len(requests) - 1, owner=owner, arrived=perf_counter(), adapter=adapter
        )
        self.cancelled = self.begun = False
        """begun: whether its prompt is among the figures."""

    def cancel(self) -> None:
        """Nobody waits for it any more: its texts end at the next run, and `tell` is not called again."""
        self.cancelled = True


class _Place(NamedTuple):
    """Whose answer a text is."""

    ticket: Ticket
    number: int
    answer: Answer


class Host:
    """An engine and its thread. Methods are called on the event loop's thread."""

    def __init__(self, model: LanguageModel, pace: Pace, send: Send, bug: Bug, *, most: int, queue: int) -> None:
        """pace: what is known of the seconds of runs. most: texts at once. queue: requests that may wait."""
        self.model, self.engine, self.pace = model, model.engine, pace
        self._send, self._bug, self._queue = send, bug, queue
        self._scheduler = Scheduler(self.engine, most)
        self._places: dict[Text, _Place] = {}
        self._turn = threading.Condition()
        """Held while texts are added, and while the next run is decided."""
        self._closing, self._why = False, "the model is being unloaded"
        self._thread: threading.Thread | None = None

    @property
    def capacity(self) -> int:
        """Tokens that a text may have, prompt and answer together."""
        return min(self.engine.context, self._scheduler.capacity)

    @property
    def most(self) -> int:
        """Texts that may run at once."""
        return self._scheduler.most

    def figures(self) -> dict[str, int]:
        """The texts that run and wait, pages and adapters, and how often a text was interrupted."""
        with self._turn:
            of = self._scheduler
            return {
                "running": len(of.running), "waiting": len(of.waiting), "interrupted_total": of.interrupted,
                "pages": self.engine.pages.count, "free_pages": self.engine.pages.free,
                "adapters": len(of.slots),
            }  # fmt: skip

    def submit(self, ticket: Ticket) -> None:
        """Accept a request. Raises GatewayError: 429 if it would wait for too long, 503 if the model is unloaded."""
        with self._turn:
            if self._closing:
                raise GatewayError(503, self._why, retry_after=1.0)
            seconds = self._wait(ticket)
            late = perf_counter() + seconds - ticket.deadline
            if len(self._scheduler.waiting) >= self._queue or late > 0:
                text = f"overloaded: the first token would come after about {seconds:.3g} s; try again later"
                raise GatewayError(429, text, retry_after=max(1.0, seconds / 2 if late <= 0 else late))
            self._scheduler.add(ticket.text)
            self._places[ticket.text] = self._place(ticket, 0)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="msedge-language", daemon=True)
                self._thread.start()
            self._turn.notify()

    def close(self) -> None:
        """Accept nothing more, and end the thread when the accepted requests are answered."""
        with self._turn:
            self._closing = True
            self._turn.notify()

    def stop(self) -> None:
        """Cancel what is left, and wait for the end of the thread; any thread."""
        with self._turn:
            for place in self._places.values():
                place.ticket.cancel()
        self.close()
        if self._thread is not None:
            self._thread.join()

    def _wait(self, ticket: Ticket) -> float:
        """Seconds until the first token of a request, see `forecast.wait`."""
        of, pages = self._scheduler, self.engine.pages
        held = {text: needed(len(text.sequence)) for text in of.running}
        load = Load(
            sum(text.missing for text in (*of.running, *of.waiting)),
            max(pages.free, pages.count - sum(held.values())),
            of.most - sum(1 + text.forks for text in of.running),
            [(self._left(text), held[text], 1 + text.forks) for text in of.running],
            (sum(needed(text.missing) for text in of.waiting), sum(1 + text.forks for text in of.waiting)),
        )
        text = ticket.text
        return wait(load, text.missing, needed(text.missing), 1 + text.forks, self.pace)

    def _left(self, text: Text) -> float:
        """Tokens that a running text will probably still have."""
        answer = self._places[text].answer
        written = len(answer.tokens)
        return min(answer.request.limit - written, max(self.pace.answer - written, 1.0))

    def _place(self, ticket: Ticket, index: int) -> _Place:
        return _Place(ticket, index, self.model.answer(ticket.requests[index], ticket.text.sequence))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while work := self._next():
                self._run(work)
        except Exception as error:  # thread: nobody is left waiting, and new requests are refused
            with self._turn:
                self._closing, self._why = True, "the model stopped after an internal error; load it again"
                self._deliver(self._failed(list(self._places), error))
                self._places.clear()
        self._scheduler.clear()

    def _next(self) -> list[Work]:
        """The next run; waits until there is one, and is empty at the end."""
        with self._turn:
            while True:
                self._end_texts()
                if work := self._scheduler.step(self.pace.beside()):
                    return work
                if self._closing:
                    return []
                self._turn.wait()

    def _end_texts(self) -> None:
        """Remove texts that were finished or cancelled, or that have waited for too long."""
        now = perf_counter()
        for text, (ticket, number, _) in list(self._places.items()):
            if ticket.deadline < now and not text.started and not ticket.cancelled:
                error = GatewayError(504, "the deadline passed while the request waited for its first token")
                self._deliver({ticket: [News(number, None, error)]})
                ticket.cancel()
            if ticket.cancelled:
                text.ended = True
            if text.ended:
                del self._places[text]
        self._scheduler.sweep()

    def _run(self, work: list[Work]) -> None:
        parts = [
            Part(text.sequence, text.tokens[len(text.sequence) :][:count], int(count == text.missing))
            for text, count in work
        ]
        written = [one.text for one in work if one.last]
        writing = sum(one.text.missing == 1 for one in work)
        begun = perf_counter()
        try:
            found = [logits for logits in self.engine.run(parts, lent=True) if len(logits)]
        except Exception as error:  # request: the texts of this run fail; others go on
            self._deliver(self._failed([one.text for one in work], error))
            return
        self.pace.ran(writing, sum(one.tokens for one in work) - writing, perf_counter() - begun)
        news: dict[Ticket, list[News]] = defaultdict(list)
        for text, logits in zip(written, found, strict=True):
            for each in (text, *self._forks(text)):
                news[self._places[each].ticket].append(self._written(each, logits))
        self._deliver(news)

    def _forks(self, text: Text) -> list[Text]:
        """The further texts of a request whose prompt was computed."""
        if not text.forks:
            return []
        with self._turn:
            ticket, made = self._places[text].ticket, self._scheduler.fork(text)
            for index, other in enumerate(made, 1):
                self._places[other] = self._place(ticket, index)
        return made

    def _written(self, text: Text, logits: Array) -> News:
        """Choose a text's next token."""
        _, number, answer = self._places[text]
        answer.sequence = text.sequence
        try:
            piece = answer.take(logits, self.engine)
        except Exception as error:  # request: this answer fails; others go on
            text.ended = True
            return News(number, None, self._refusal(error))
        text.tokens += piece.tokens
        if piece.finish_reason is not None:
            text.ended = True
            self.pace.wrote(len(answer.tokens))
        return News(number, piece)

    def _failed(self, texts: Sequence[Text], error: Exception) -> dict[Ticket, list[News]]:
        news: dict[Ticket, list[News]] = {}
        refusal = self._refusal(error)
        for text in texts:
            ticket, number, _ = self._places[text]
            news.setdefault(ticket, []).append(News(number, None, refusal))
            text.ended = True
        return news

    def _deliver(self, news: dict[Ticket, list[News]]) -> None:
        """Hand news over to the event loop."""

        def tell() -> None:
            for ticket, of in news.items():
                if not ticket.cancelled or of[-1].error is not None:
                    ticket.tell(of)

        self._later(tell)

    def _refusal(self, error: Exception) -> GatewayError:
        if not isinstance(error, MsedgeError):
            self._later(lambda: self._bug(error, "language model"))
        status, text, _ = told(error)
        return error if isinstance(error, GatewayError) else GatewayError(status, text)

    def _later(self, what: Callable[[], None]) -> None:
        try:
            self._send(what)
        except RuntimeError:  # the loop is closed: nobody waits
            return
