"""Models × contenders: the one table behind `make bench`, README's figures and the tests that hold us to them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edge.contest import OURS, PEERS, Contest, Entry, contest, peer_of
from lite_runtime.errors import InputError, MsedgeError

__all__ = ["TOLERANCE", "Failure", "compare", "geometric_mean", "markdown", "models_in", "trouble"]

TOLERANCE = 1e-4
"""The largest difference from a peer, relative to the output's range."""
Failure = tuple[str, MsedgeError]
"""A model's name and why it did not run."""


def models_in(folder: Path) -> list[Path]:
    """Every .onnx and .tflite in `folder`, by name; raises InputError where there is none."""
    found = sorted(path for path in folder.glob("*") if peer_of(path)) if folder.is_dir() else []
    if not found:
        raise InputError(
            f"expected .onnx or .tflite files in {folder}, found none; name a folder that has some: --models DIR"
        )
    return found


def compare(
    models: Iterable[Path],
    *,
    threads: int = 1,
    rounds: int = 25,
    backend: str = "auto",
) -> Iterator[Contest | Failure]:
    """One contest a model against the peer of its format; a model that does not run is a row too, not the end."""
    for path in models:
        try:
            yield contest(path, against=[peer_of(path)], threads=threads, rounds=rounds, backend=backend)
        except MsedgeError as error:
            yield path.name, error


def trouble(result: Contest | Failure) -> str:
    """What is wrong with a row, "" where nothing is: a wrong answer is no answer, however fast."""
    if not isinstance(result, Contest):
        return f"{result[0]} did not run"
    far = [e for e in result.entries if e.difference is not None and not e.difference <= TOLERANCE]
    return f"{result.model} differs from {far[0].name} by {far[0].difference:.0e} of the output's range" if far else ""


def geometric_mean(results: Iterable[Contest | Failure], peer: str) -> float:
    """Of the ratios to `peer`; NaN where there is none."""
    logs = [
        math.log(entry.ratio.median)
        for result in results
        if isinstance(result, Contest)
        for entry in result.entries
        if entry.name == peer and entry.ratio
    ]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


_HEADS = ("model", f"{OURS} µs", "peer", "its µs", "× as fast", "middle half", "difference", "load ms", "first µs",
          "arena KiB", "by reference")  # fmt: skip


def markdown(results: Sequence[Contest | Failure]) -> str:
    """The table, times in µs; a ratio above 1 means ours is faster."""
    lines = [_HEADS, ["---"] + ["---:"] * (len(_HEADS) - 1), *(_row(result) for result in results)]
    found = [name for name in PEERS if any(isinstance(r, Contest) and r.entries[-1].name == name for r in results)]
    means = [f"{name}: {geometric_mean(results, name):.2f}" for name in found]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\nGeometric mean of × as fast, {', '.join(means)}" if means else table


def _row(result: Contest | Failure) -> list[str]:
    if not isinstance(result, Contest):
        name, error = result
        return [name, *["–"] * (len(_HEADS) - 2), str(error).splitlines()[0].replace("|", "\\|")]
    ours, other = result.entries
    cost = result.cost
    return [
        result.model,
        _micro(ours.timing.median),
        other.name,
        *_peer(other),
        f"{ours.load * 1e3:.1f}",
        _micro(ours.timing.first),
        f"{cost.arena_bytes / 1024:.0f}",
        ", ".join(sorted(set(cost.reference))) or "–",
    ]


def _peer(entry: Entry) -> tuple[str, str, str, str]:
    assert entry.ratio is not None
    r = entry.ratio
    return _micro(entry.timing.median), f"{r.median:.2f}", f"{r.low:.2f}–{r.high:.2f}", f"{entry.difference:.0e}"


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-4 else f"{seconds * 1e6:.0f}"
