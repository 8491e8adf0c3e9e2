"""One answer in the making: what its next run needs, and what the logits of that run add to it.

    answer = Answer(request, sequence, detokenizer)
    while not answer.finished:
        (logits,) = engine.run([answer.part()])
        piece = answer.take(logits, engine)

It calls no model itself, so that one run can serve the answers of several texts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from typing import Literal, Protocol

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.language.engine import Engine, Part, Sequence
from lite_runtime.language.kept import common
from lite_runtime.language.sampling import LogProbability, Sampling, Seen, log_probabilities, prepared
from lite_runtime.language.speculation import Proposal, Proposer, verified
from lite_runtime.language.stops import Stops

__all__ = ["Answer", "Constraint", "Detokenizer", "Finish", "Piece", "Request", "Statistics"]

Finish = Literal["stop", "length"]
"""Why an answer ended: an end token, a stop text or a complete constraint; or max_tokens or a full context."""
SPECULATED = 8
"""Tokens proposed for one run, at most."""


class Detokenizer(Protocol):
    """Text from ids as they come."""

    def feed(self, *ids: int) -> str:
        """The text that these ids complete."""

    def finish(self) -> str:
        """The rest, at the end."""


class Constraint(Protocol):
    """What answers may be: each begins one of its own."""

    def begin(self) -> Following:
        """The state of an answer that has no tokens yet."""


class Following(Protocol):
    """What may follow in one answer."""

    def allowed(self) -> Array:
        """Which tokens may follow: bool [vocabulary]."""

    def accept(self, token: int) -> None:
        """A token follows."""

    @property
    def complete(self) -> bool:
        """Whether no token may follow."""


class Statistics(NamedTuple):
    """What an answer took. prompt_tokens: of which `reused` were in the caches already. tokens: of the answer. runs: of
    the model. first, seconds: from the beginning to the first token and to the end. proposed, accepted: tokens of
    speculation."""

    prompt_tokens: int
    reused: int
    tokens: int
    runs: int
    first: float
    seconds: float
    proposed: int
    accepted: int

    @property
    def tokens_per_second(self) -> float:
        """Of the answer, after its first token."""
        return (self.tokens - 1) / (self.seconds - self.first) if self.tokens > 1 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Of the prompt's tokens that were computed."""
        return (self.prompt_tokens - self.reused) / self.first if self.first else 0.0


class Piece(NamedTuple):
    """What one run adds to an answer. text: "" while text is held back, because a character is not complete or a stop
    text may have begun. tokens: without the token that ended the answer. finish_reason, statistics: of the last piece.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[LogProbability, ...]
    finish_reason: Finish | None = None
    statistics: Statistics | None = None

    def joined(self, after: Piece) -> Piece:
        """This piece and the one after it as one."""
        parts = self.text + after.text, self.tokens + after.tokens, self.logprobs + after.logprobs
        return Piece(*parts, after.finish_reason, after.statistics)


class Request(NamedTuple):
    """What is asked for, checked. tokens: of the prompt, at least one. limit: most tokens of the answer. ends: tokens
    that end it. logprobs: how many of the most probable tokens to report with each token; None: no log-probabilities.
    """

    tokens: Items[int]
    limit: int
    ends: frozenset[int] = frozenset()
    stops: Items[str] = ()
    sampling: Sampling = Sampling()
    logprobs: int | None = None
    constraint: Constraint | None = None
    proposer: Proposer | None = None


class Answer:
    """The state of one answer. `sequence` holds the beginning of the prompt, and later what was run."""

    def __init__(self, request: Request, sequence: Sequence, detokenizer: Detokenizer | None) -> None:
        self.request, self.sequence = request, sequence
        self._seen = Seen(request.tokens)
        self.tokens = self._seen.answer
        self._form = None if request.constraint is None else request.constraint.begin()
        self.finished: Finish | None = None
        self._text, self._stops, self._stopped = detokenizer, Stops(request.stops), False
        self._proposal = Proposal()
        self._begin, self._first = time.perf_counter(), 0.0
        self._reused, self._runs, self._proposed, self._accepted = len(sequence), 0, 0, 0

    def part(self) -> Part:
        """What the next run adds to the sequence: the tokens not run yet, and those proposed."""
        rest = self._seen.after(len(self.sequence))
        room = min(SPECULATED, self.request.limit - len(self.tokens) - 1)
        self._proposal = Proposal()
        if self.request.proposer is not None and self.tokens and room > 0:
            self._proposal = self.request.proposer.propose(self._seen, room)
        return Part(self.sequence, [*rest, *self._proposal.tokens], 1 + len(self._proposal.tokens))

    def take(self, logits: Array, engine: Engine) -> Piece:
        """Choose tokens by the run's logits [1 + proposed, vocabulary]; proposed tokens that were not chosen leave the
        sequence again."""
        self._runs += 1
        proposed, before = self._proposal.tokens, len(self.tokens)
        text, found = "", []
        for row, values in enumerate(logits):
            token = self._chosen(row, values)
            if token in self.request.ends:
                self.finished = "stop"
                break
            text += self._added(token)
            if self.request.logprobs is not None:
                found.append(log_probabilities(values, token, self.request.logprobs))
            if self.finished is not None or row == len(proposed) or token != proposed[row]:
                break
        new = tuple(self.tokens[before:])
        accepted = common(new, tuple(proposed))
        self._proposed += len(proposed)
        self._accepted += accepted
        engine.cut(self.sequence, len(self.sequence) - len(proposed) + accepted)
        self._first = self._first or time.perf_counter() - self._begin
        if self.finished is None:
            return Piece(text, new, tuple(found))
        self._form = None
        return Piece(text + self._rest(), new, tuple(found), self.finished, self.statistics())

    def statistics(self) -> Statistics:
        """What the answer took so far."""
        return Statistics(
            prompt_tokens=len(self.request.tokens),
            reused=self._reused,
            tokens=len(self.tokens),
            runs=self._runs,
            first=self._first,
            seconds=time.perf_counter() - self._begin,
            proposed=self._proposed,
            accepted=self._accepted,
        )

    def _chosen(self, row: int, values: Array) -> int:
        """The next token, by the logits of one row."""
        request = self.request
        allowed = None if self._form is None else self._form.allowed()
        ready = prepared(values, request.sampling, self._seen, allowed)
        return verified(self._proposal, row, ready, request.sampling, len(request.tokens) + len(self.tokens))

    def _added(self, token: int) -> str:
        """Append a token; the text that may be passed on. Sets `finished` if the answer ends with this token."""
        self._seen.add(token)
        if self._form is not None:
            self._form.accept(token)
            if self._form.complete:
                self.finished = "stop"
        if len(self.tokens) == self.request.limit:
            self.finished = self.finished or "length"
        return self._passed(self._text.feed(token)) if self._text is not None else ""

    def _passed(self, text: str) -> str:
        if self._stopped:
            return ""
        text, self._stopped = self._stops.feed(text)
        if self._stopped:
            self.finished = "stop"
        return text

    def _rest(self) -> str:
        """The text held back, at the end."""
        text = self._passed(self._text.finish()) if self._text is not None else ""
        return text if self._stopped else text + self._stops.finish()
