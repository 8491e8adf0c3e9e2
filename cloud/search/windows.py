"""Windows of series and what follows each of them, for forecasts; no step is in two parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from cloud.errors import SearchError
from cloud.search.goal import Forecast, Part
from cloud.search.task import TaskTable
from lite_runtime.graph import Array

__all__ = ["check_offsets", "forecasts"]

PARTS = ("training", "validation", "test")


def forecasts(
    said: TaskTable, x: Array, offsets: Array, names: Sequence[str] | None
) -> tuple[dict[str, Part], Forecast]:
    """x (steps,) or (steps, channels), recordings between `offsets`. A part is of the recordings that `names` gives to
    it; None: training, validation and test follow one another in time, and a recording across a border is cut there.
    Returns the parts, (n, channels, 1, window) and (n, channels, horizon) float32, and their goal."""
    if x.dtype.kind not in "iuf" or x.ndim not in (1, 2) or 0 in x.shape:
        raise SearchError(f"task.x: expected numbers (steps,) or (steps, channels), got {x.dtype}{list(x.shape)}")
    series = np.asarray(x if x.ndim == 2 else x[:, None], np.float32)
    if not np.isfinite(series).all():
        raise SearchError(f"task.x: step {int(np.flatnonzero(~np.isfinite(series).all(1))[0])} is not finite")
    if said.season > said.window:
        raise SearchError(f"task.season: expected at most the window of {said.window} steps, got {said.season}")
    starts: dict[str, list[Array]] = {part: [] for part in PARTS}
    seen = np.zeros(len(series), bool)
    for part, begin, end in _stretches(said, len(series), offsets, names):
        starts[part].append(np.arange(begin, end - said.window - said.horizon + 1, said.hop))
        seen[begin:end] |= part == PARTS[0]
    made = {part: _cut(series, said, np.concatenate([*found, np.zeros(0, np.intp)]), part)
            for part, found in starts.items()}  # fmt: skip
    spread = series[seen].std(0, dtype=np.float64) if seen.any() else np.ones(series.shape[1])
    goals = [Forecast(said.horizon, tuple(float(s) or 1.0 for s in spread), n) for n in (1, said.season) if n]
    return made, min(goals, key=lambda goal: goal.scale(made[PARTS[0]]) if len(made[PARTS[0]][1]) else 0.0)


def check_offsets(offsets: Array, steps: int) -> None:
    """Raise SearchError unless recordings lie between them, one after the other, within so many steps."""
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or len(offsets) < 2:
        raise SearchError(f"task.offsets: expected whole numbers (recordings + 1,), got {offsets.dtype}"
                          f"{list(offsets.shape)}")  # fmt: skip
    if int(offsets.min()) < 0 or int(offsets.max()) > steps or (np.diff(offsets.astype(np.int64)) < 1).any():
        raise SearchError(f"task.offsets: expected rising places in {steps} steps")


def _cut(series: Array, said: TaskTable, starts: Array, part: str) -> Part:
    if part == PARTS[0] and said.most and len(starts) > said.most:
        starts = starts[np.linspace(0, len(starts) - 1, said.most).astype(np.intp)]
    rows = starts.astype(np.intp)[:, None] + np.arange(said.window + said.horizon)
    both = np.ascontiguousarray(series[rows].transpose(0, 2, 1))  # [n, channels, window + horizon]
    return np.ascontiguousarray(both[:, :, None, : said.window]), np.ascontiguousarray(both[:, :, said.window :])


def _stretches(
    said: TaskTable, steps: int, offsets: Array, names: Sequence[str] | None
) -> Iterator[tuple[str, int, int]]:
    """The part, the first step and the end of what windows are cut from."""
    check_offsets(offsets, steps)
    test = round((1 - said.test_share) * steps)
    borders = (0, round((1 - said.validation_share) * test), test, steps)
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        if names is not None:
            yield names[number], begin, end
            continue
        for part, (low, high) in zip(PARTS, pairwise(borders), strict=True):
            if max(begin, low) < min(end, high):
                yield part, max(begin, low), min(end, high)
