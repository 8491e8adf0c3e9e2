"""Texts whose pages stay in the caches after their end, for texts that begin alike: a pure data structure."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from lite_runtime.language.engine import Sequence

__all__ = ["Kept", "common"]

_MOST = 64
"""Texts kept at once: each is compared with every new prompt."""


class Forks(Protocol):
    """What divides and ends sequences: an `Engine`."""

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that begins like this one."""

    def cut(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens after the first `length`."""

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence."""


class Kept:
    """Finished sequences, the least recently used first."""

    def __init__(self, engine: Forks) -> None:
        self._engine = engine
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def take(self, tokens: Items[int], adapter: int = -1) -> Sequence:
        """A sequence of its own for a text of these tokens with this adapter: it holds those that it has in common with
        a kept text with the same one, but never the last one, whose logits are needed. Pages are shared, not copied."""
        lengths = [common(one.tokens, tokens) if one.adapter == adapter else 0 for one in self._sequences]
        best = max(range(len(lengths)), key=lengths.__getitem__, default=None)
        if best is None or not (length := min(lengths[best], len(tokens) - 1)):
            return Sequence(adapter=adapter)
        found = self._sequences.pop(best)
        self._sequences.append(found)
        made = self._engine.fork(found)
        self._engine.cut(made, length)
        return made

    def add(self, sequence: Sequence) -> None:
        """Keep a sequence, which nobody else uses from now on. Of two texts of which one begins with the other, only
        the longer is kept."""
        alike = [one for one in self._sequences if one.adapter == sequence.adapter]
        longer = next((one for one in alike if common(one.tokens, sequence.tokens) == len(sequence)), None)
        kept = sequence if longer is None else longer
        rest = [one for one in (*self._sequences, sequence) if one is not kept]
        covered = [one for one in rest if one.adapter == kept.adapter and common(one.tokens, kept.tokens) == len(one)]
        self._sequences = [one for one in rest if one not in covered]
        for one in covered:
            self._engine.end(one)
        self._sequences.append(kept)
        if len(self._sequences) > _MOST:
            self.drop()

    def forget(self, adapter: int) -> None:
        """Give back the pages of all texts with this adapter."""
        for one in [one for one in self._sequences if one.adapter == adapter]:
            self._sequences.remove(one)
            self._engine.end(one)

    def drop(self) -> bool:
        """Give back the pages of the text that was not used for longest; False if none is kept."""
        if not self._sequences:
            return False
        self._engine.end(self._sequences.pop(0))
        return True


def common(a: Items[int], b: Items[int]) -> int:
    """How many tokens two texts begin with in common."""
    length, step = 0, 1024
    most = min(len(a), len(b))
    while length < most:
        if a[length : length + step] == b[length : length + step]:
            length = min(length + step, most)
            continue
        if step == 1:
            break
        step //= 2
    return length
