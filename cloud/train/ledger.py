"""The results of steps, read when the device has finished them, so that the device never waits."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from cloud.train.reports import Evaluation, means_of

__all__ = ["Ledger", "NotFinite", "Packed"]

_LEAST_AHEAD, _MOST_AHEAD, _BYTES_AHEAD = 4, 32, 2**28
"""The most steps that are submitted and not yet read; their batches take device memory."""

_EVERY = 0.1
"""Seconds between checks of which steps are done."""


class NotFinite(Exception):
    """A step's loss is not finite."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(step, loss)
        self.step, self.loss = step, loss


class Packed(NamedTuple):
    """A step's sums as one array [len(names)] on the device."""

    names: Sequence[str]
    vector: Any


class Ledger:
    """Sums of the steps of one epoch. `tell(step, means)` is called for each in order; `first` is the number of steps
    done before. `seconds` were spent waiting for the device."""

    def __init__(self, first: int, tell: Callable[[int, Mapping[str, float]], None] | None) -> None:
        self.steps = first
        self.seconds = 0.0
        self._tell = tell
        self._waiting: deque[Mapping[str, Any] | Packed] = deque()
        self._totals: dict[str, float] = {}
        self._ahead = 0
        self._looked = time.perf_counter()

    def add(self, sums: Mapping[str, Any] | Packed, batch: Any = None) -> None:
        """Add a step that was just submitted with `batch`. Raises NotFinite, perhaps for an earlier step."""
        self._waiting.append(sums)
        self._ahead = self._ahead or _ahead_of(batch)
        if len(self._waiting) >= self._ahead:
            self._read(len(self._waiting) - self._ahead // 2)
        elif time.perf_counter() - self._looked > _EVERY:
            self._read(sum(_is_ready(sums) for sums in self._waiting))

    def close(self) -> Evaluation:
        """Wait for all steps; returns the means over all of them."""
        self.settle()
        return means_of(self._totals)

    def settle(self) -> None:
        """Wait for all steps so far."""
        self._read(len(self._waiting))

    def _read(self, count: int) -> None:
        begun = time.perf_counter()
        if count:
            _wait_for(self._waiting[count - 1])  # once: waking up for each of them costs more than a small step
        found = [_numbers(self._waiting.popleft()) for _ in range(count)]
        self._looked = time.perf_counter()
        self.seconds += self._looked - begun
        for sums in found:
            self._enter(sums)

    def _enter(self, sums: Mapping[str, float]) -> None:
        if not math.isfinite(sums["loss"]):
            raise NotFinite(self.steps + 1, sums["loss"])
        self.steps += 1
        for name, value in sums.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
        if self._tell is not None:
            means = means_of(sums)
            self._tell(self.steps, {"loss": means.loss, **means.metrics, **_others(sums)})


def _ahead_of(batch: Any) -> int:
    size = sum(int(leaf.nbytes) for leaf in jax.tree.leaves(batch))
    return min(_MOST_AHEAD, max(_LEAST_AHEAD, _BYTES_AHEAD // max(size, 1)))


def _is_ready(sums: Mapping[str, Any] | Packed) -> bool:
    array = sums.vector if isinstance(sums, Packed) else sums["loss"]
    return bool(array.is_ready())


def _wait_for(sums: Mapping[str, Any] | Packed) -> None:
    last: Any = sums.vector if isinstance(sums, Packed) else sums["loss"]
    last.block_until_ready()


def _numbers(sums: Mapping[str, Any] | Packed) -> dict[str, float]:
    if isinstance(sums, Packed):
        return dict(zip(sums.names, np.asarray(sums.vector).tolist(), strict=True))
    return {name: float(value) for name, value in jax.device_get(dict(sums)).items()}


def _others(sums: Mapping[str, float]) -> dict[str, float]:
    """Values that are not means: "examples", and "skipped" in float16."""
    return {name: value for name, value in sums.items() if name != "loss" and not name.startswith("metric ")}
