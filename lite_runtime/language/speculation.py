"""Proposals for the tokens that follow, which the model then checks in one run.

Lookup   what followed the last few tokens when they occurred before (prompt look-up decoding, Saxena 2023)
Draft    what a smaller model of the same vocabulary says (Leviathan et al. 2023)
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.language.engine import Engine, Part, Sequence
from lite_runtime.language.kept import common
from lite_runtime.language.pages import OutOfPages
from lite_runtime.language.sampling import (
    ACCEPT,
    DRAFT,
    Candidates,
    Sampling,
    Seen,
    candidates,
    choose,
    draw,
    prepared,
    total,
    uniform,
)

__all__ = ["Draft", "Lookup", "Proposal", "Proposer", "verified"]


class Proposal(NamedTuple):
    """Tokens that may follow. drawn: for each what it was drawn from, or none if they were not drawn."""

    tokens: Items[int] = ()
    drawn: Items[Candidates] = ()


class Proposer(Protocol):
    """What proposes tokens for one answer."""

    def propose(self, text: Seen, count: int) -> Proposal:
        """At most `count` tokens that may follow a text; called with texts each of which continues the one before."""

    def close(self) -> None:
        """The answer has ended."""


class Lookup:
    """Proposes what followed when the same few tokens occurred before, the last time."""

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}
        self._text: list[int] = []

    def propose(self, text: Seen, count: int) -> Proposal:
        """What followed the longest match of the text's end."""
        for token in text.after(len(self._text)):
            self._remember()
            self._text.append(token)
        for size in self._sizes:
            start = self._after.get(tuple(self._text[-size:])) if len(self._text) >= size else None
            if start is not None:
                return Proposal(self._text[start : start + count])
        return Proposal()

    def _remember(self) -> None:
        """Store what precedes the place after the text so far, which a token follows now."""
        for size in self._sizes:
            if len(self._text) >= size:
                self._after[tuple(self._text[-size:])] = len(self._text)

    def close(self) -> None:
        """Nothing is held."""


class Draft:
    """Proposes what a smaller model would answer. It has its own caches, and skips its turn where they are full."""

    def __init__(self, engine: Engine, sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self._sequence = Sequence()
        self._seen: Seen | None = None
        """The text, and what was proposed last; of its answer, `_known` tokens are the text's."""
        self._known = 0

    def propose(self, text: Seen, count: int) -> Proposal:
        """Tokens drawn one by one from the smaller model's distributions, with the options of the answer."""
        seen, start = self._followed(text), len(text.prompt) + len(text.answer)
        rest, tokens, drawn = text.after(len(self._sequence)), list[int](), list[Candidates]()
        try:
            for position in range(start, min(start + count, self._engine.context)):
                (logits,) = self._engine.run([Part(self._sequence, rest)])
                drawn.append(candidates(prepared(logits[0], self._sampling, seen), self._sampling))
                rest = [draw(drawn[-1], uniform(self._sampling.seed, position, DRAFT))]
                tokens += rest
                seen.add(rest[0])
        except OutOfPages:
            return Proposal()
        return Proposal(tokens, drawn if self._sampling.temperature else ())

    def _followed(self, text: Seen) -> Seen:
        """The text, counted on; the sequence keeps what it has in common with it, but not the last token."""
        if self._seen is None:
            self._seen = Seen(text.prompt)
        same = min(len(text.prompt) + self._known, len(self._sequence))
        same += common(self._sequence.tokens[same:], text.after(same))
        self._engine.cut(self._sequence, min(same, len(text.prompt) + len(text.answer) - 1))
        self._seen.cut(self._known)
        for token in text.answer[self._known :]:
            self._seen.add(token)
        self._known = len(text.answer)
        return self._seen

    def close(self) -> None:
        """Give back the pages of the draft."""
        self._engine.end(self._sequence)


def verified(proposal: Proposal, row: int, ready: Array, sampling: Sampling, position: int) -> int:
    """The token at a position of the text, given prepared logits [vocabulary]: the proposed one, if it is accepted.

    Tokens that were not drawn are accepted if they are what `choose` chooses, so the text is the same as without them.
    Drawn ones are accepted with probability min(1, p/q); otherwise the token is drawn from max(0, p - q): the text has
    the model's own distribution (Leviathan et al. 2023, theorem in appendix A.1).
    """
    if row >= len(proposal.drawn):
        return choose(ready, sampling, position)
    own, other, token = candidates(ready, sampling), proposal.drawn[row], proposal.tokens[row]
    p, q = own.probability(token), other.probability(token)
    if uniform(sampling.seed, position, ACCEPT) * q < p:
        return token
    shares = own.weights / own.total
    shares -= _shares_of(other, own.ids)
    rest = np.maximum(shares, 0.0)
    return draw(Candidates(own.ids, rest, total(rest)), uniform(sampling.seed, position))


def _shares_of(found: Candidates, ids: Array) -> Array:
    """The probabilities of tokens, 0 for those that are no candidates."""
    order = np.argsort(found.ids)
    places = np.searchsorted(found.ids, ids, sorter=order)
    at = order[np.minimum(places, len(order) - 1)]
    return np.where(found.ids[at] == ids, found.weights[at] / found.total, 0.0)
