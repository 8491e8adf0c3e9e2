"""The cost of a runtime's first run: seconds from process start to the first result, and peak memory.

Each measurement is made in a separate process; the runtimes take turns.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from edge.measuring.contest import OURS, Contest
from edge.peers.apart import cold, write_inputs

__all__ = ["BASE", "Footprint", "footprints"]

BASE = "numpy"
"""The name of the baseline, a process that only imports NumPy and reads the inputs."""


_Start = Callable[[], tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """One runtime's start in a new process: medians over several processes."""

    name: str
    seconds: float
    """Seconds from the request for a process to the first result."""
    peak_bytes: int
    """Peak resident memory in bytes, Python and NumPy included."""


def footprints(contest: Contest, source: Path, *, backend: str = "auto", rounds: int = 5) -> tuple[Footprint, ...]:
    """Starts of `BASE` and of the contest's runtimes, with its model and inputs; the peers read `source`."""
    with tempfile.TemporaryDirectory() as folder:
        starts = _starts(contest, source, backend, Path(folder))
        taken: dict[str, list[tuple[float, int]]] = {name: [] for name in starts}
        for _ in range(rounds):
            for name, start in starts.items():
                taken[name].append(start())
    return tuple(
        Footprint(name, statistics.median(t for t, _ in runs), int(statistics.median(b for _, b in runs)))
        for name, runs in taken.items()
    )


def _starts(contest: Contest, source: Path, backend: str, folder: Path) -> dict[str, _Start]:
    bundle = folder / "model.mslite"
    bundle.write_bytes(contest.bundle)
    ours = write_inputs(folder / "inputs.npz", contest.inputs)
    starts: dict[str, _Start] = {BASE: partial(cold, BASE, bundle, contest.threads, ours)}
    for entry in contest.entries:
        if entry.name == OURS:
            starts[OURS] = partial(cold, OURS, bundle, contest.threads, ours, backend=backend)
        else:
            model = source.with_name(entry.form) if entry.form else source
            theirs = write_inputs(folder / f"{entry.name}.npz", contest.inputs, model)
            starts[entry.name] = partial(cold, entry.name, model, contest.threads, theirs)
    return starts
