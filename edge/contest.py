"""One model, several runtimes, the same inputs: who is how fast, and do they agree?

The table of peers here feeds `msedge bench`, `make bench` and the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import lite_runtime
from edge.litert import LiteRT
from edge.measure import Ratio, Timing, interleave, ratio
from edge.oracle import Oracle
from edge.parity import compare_all
from edge.samples import NO_SHAPES, Shapes, draw
from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.session import Cost, Model

__all__ = ["OURS", "PEERS", "Contest", "Entry", "contest", "is_bundle", "peer_of"]

OURS = "msedge"

Inputs = Mapping[str, Array]
Runner = Callable[[Inputs], Mapping[str, Any]]
PEERS: Mapping[str, Callable[[Path, int], Runner]] = {
    "onnxruntime": lambda source, threads: Oracle(source, threads=threads).run,
    "litert": lambda source, threads: LiteRT(source, threads=threads).run,
}
"""By name: (source model, threads) -> something that runs it."""
_READS = {".onnx": "onnxruntime", ".tflite": "litert"}


def peer_of(path: Path) -> str:
    """The runtime that a file's name says it is for; "" for none we know."""
    return _READS.get(path.suffix, "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One runtime's figures, in seconds. `load` is from the file (ours: from the bundle) to ready for inputs."""

    name: str
    load: float
    timing: Timing
    ratio: Ratio | None
    """Of this peer's time to ours; None for ourselves."""
    difference: float | None
    """Largest difference of its outputs from ours, relative to their range, rounding aside; None for ourselves."""

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values, in seconds."""
        return {
            "name": self.name,
            "seconds": self.timing.median,
            "rounds": self.timing.rounds,
            "first_seconds": self.timing.first,
            "load_seconds": self.load,
            "ratio": self.ratio and asdict(self.ratio),
            "difference": self.difference,
        }


@dataclass(frozen=True, slots=True)
class Contest:
    """All entries on one model; ours comes first."""

    model: str
    threads: int
    entries: tuple[Entry, ...]
    cost: Cost
    runtime: Model
    inputs: Inputs

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values, seconds and bytes."""
        return {
            "model": self.model,
            "threads": self.threads,
            "contenders": [entry.as_dict() for entry in self.entries],
            "cost": self.cost._asdict(),
        }


def contest(
    path: Path,
    *,
    against: Sequence[str] = (),
    source: Path | None = None,
    threads: int = 1,
    backend: str = "auto",
    shapes: Shapes = NO_SHAPES,
    seed: int = 0,
    rounds: int = 25,
    seconds: float = 10.0,
) -> Contest:
    """Time `path` (a bundle, or a model converted here) and its peers on random inputs, taking turns.

    Peers run `source`, which is `path` itself unless that is a bundle.
    """
    origin = _origin(path, source, against)
    loads: dict[str, float] = {}
    bundle = path.read_bytes() if is_bundle(path) else _convert(path, shapes)
    model: Model = _timed(loads, OURS, partial(lite_runtime.load, bundle, threads=threads, backend=backend))
    inputs = draw(model.inputs("predict"), np.random.default_rng(seed), shapes)
    runners: dict[str, Runner] = {OURS: model.run}
    for name in against:
        assert origin is not None
        runners[name] = _timed(loads, name, partial(PEERS[name], origin, threads))
    timings = interleave({n: partial(run, inputs) for n, run in runners.items()}, rounds=rounds, seconds=seconds)
    ours = model.run(inputs)
    return Contest(
        path.name,
        threads,
        tuple(_entry(n, loads[n], timings, ours, None if n == OURS else run(inputs)) for n, run in runners.items()),
        model.cost(inputs),
        model,
        inputs,
    )


def is_bundle(path: Path) -> bool:
    """Whether the file begins as a bundle does; its name does not matter."""
    from lite_runtime.bundle import MAGIC

    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _origin(path: Path, source: Path | None, against: Sequence[str]) -> Path | None:
    if source is not None or not against or not is_bundle(path):
        return source or path
    raise InputError(f"{', '.join(against)} cannot run a bundle; name the model it was made from: --source MODEL.onnx")


def _convert(path: Path, shapes: Shapes) -> bytes:
    from converter import convert

    return convert(path, input_shapes=shapes or None).bundle


def _timed(loads: dict[str, float], name: str, load: Callable[[], Any]) -> Any:
    start = perf_counter()
    loaded = load()
    loads[name] = perf_counter() - start
    return loaded


def _entry(
    name: str, load: float, timings: Mapping[str, Timing], ours: Inputs, theirs: Mapping[str, Any] | None
) -> Entry:
    if theirs is None:
        return Entry(name, load, timings[name], None, None)
    far = max((d.significant for d in compare_all(ours, theirs, steps=1)), default=0.0)
    return Entry(name, load, timings[name], ratio(timings[OURS], timings[name]), far)
