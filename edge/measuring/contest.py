"""Comparison of runtimes on one model with the same inputs: speed and agreement of results.

The table of peers is used by `msedge bench`, `make bench` and the tests. Peers run with their best settings: all
optimisations, as many threads as ours, workers spinning during their turn (`edge/measuring/measure.py`). ONNX Runtime's
bound inputs and outputs are not used: with fresh results in every run, as ours are, they gain 2 % at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

import lite_runtime
from edge.measuring.measure import Ratio, Timing, interleave, ratio
from edge.measuring.parity import compare_all
from edge.measuring.samples import NO_SHAPES, Shapes, draw
from edge.peers.apart import check
from edge.peers.litert import LiteRT, is_tflite
from edge.peers.openvino import OpenVINO
from edge.peers.oracle import Oracle
from edge.peers.stream import carrying, with_initial
from lite_runtime.bundle import Bundle
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Graph
from lite_runtime.reference.support import dtype_of
from lite_runtime.running.profiling import Cost
from lite_runtime.running.session import Model

__all__ = ["OURS", "PEERS", "Absent", "Contest", "Entry", "contest", "forms_of", "is_bundle", "peer_of", "peers_of"]

OURS = "msedge"

T = TypeVar("T")
Inputs = Mapping[str, Array]
Runner = Callable[[Inputs], Mapping[str, Any]]
PEERS: Mapping[str, Callable[[Path, int], Runner]] = {
    "onnxruntime": lambda source, threads: Oracle(source, threads=threads, exact=False).run,
    "litert": lambda source, threads: LiteRT(source, threads=threads).run,
    "openvino": lambda source, threads: OpenVINO(source, threads=threads).run,
}
"""By name: (source model, threads) -> a runner for it."""
_READS = {
    ".onnx": ("onnxruntime", "openvino"),
    ".ort": ("onnxruntime",),
    ".tflite": ("litert", "openvino"),
}
TRIALS = 5
"""Runs to find out which of several forms of a model a peer runs fastest."""


def peers_of(path: Path) -> tuple[str, ...]:
    """The runtimes that read such a file, by its name, the format's own first; none for an unknown format."""
    return _READS.get(path.suffix, ())


def peer_of(path: Path) -> str:
    """The runtime of a file's format, by its name; "" if it is unknown."""
    return next(iter(peers_of(path)), "")


def forms_of(path: Path) -> tuple[Path, ...]:
    """The model and, if it exists, a variant that peers may run faster: `m.peers.onnx` beside `m.onnx`.

    Quantised graphs have many forms, and each runtime fuses its own form best: ONNX Runtime takes 10 ms for a
    MobileNetV2 in our form and 1.6 ms for one quantised by its own tool.
    """
    other = path.with_suffix(f".peers{path.suffix}")
    return (path, other) if other.exists() else (path,)


@dataclass(frozen=True, slots=True)
class Entry:
    """One runtime's results, in seconds. `load`: the time until the file (ours: the bundle) is ready for inputs."""

    name: str
    load: float
    first: float
    timing: Timing
    ratio: Ratio | None
    """The ratio of this peer's time to ours; None for ourselves."""
    difference: float | None
    """Largest difference of its outputs from ours, relative to their range, with rounding errors ignored; None for
    ourselves and for a peer that ran another form of the model."""
    form: str = ""
    """The file it ran, if that is not the model itself."""

    def as_dict(self) -> dict[str, Any]:
        """The results as plain values, in seconds."""
        return {
            "name": self.name,
            "form": self.form,
            "seconds": self.timing.median,
            "rounds": self.timing.rounds,
            "first_seconds": self.first,
            "load_seconds": self.load,
            "ratio": self.ratio and asdict(self.ratio),
            "difference": self.difference,
        }


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that could not run the model, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Contest:
    """The results for one model; ours come first."""

    model: str
    threads: int
    entries: tuple[Entry, ...]
    absent: tuple[Absent, ...]
    cost: Cost
    runtime: Model
    inputs: Inputs
    bundle: bytes

    @property
    def best(self) -> Entry | None:
        """The fastest peer's entry; None if no peer ran."""
        return min(self.entries[1:], key=lambda e: e.ratio.median if e.ratio else 0.0, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The results as plain values, in seconds and bytes."""
        return {
            "model": self.model,
            "threads": self.threads,
            "contenders": [entry.as_dict() for entry in self.entries],
            "absent": [asdict(peer) for peer in self.absent],
            "cost": self.cost._asdict(),
        }


@dataclass(frozen=True, slots=True)
class _Ready:
    """A runtime that has run the model once; the seconds for loading and for that run, and its results: those of later
    runs differ if the model keeps state."""

    run: Runner
    load: float
    first: float
    form: str
    outputs: Mapping[str, Any]


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

    Peers run `source`, which is `path` itself unless that is a bundle. A peer that cannot is listed with the reason.
    """
    origin = _origin(path, source, against)
    bundle = path.read_bytes() if is_bundle(path) else _convert(path, shapes)
    model, load = _timed(partial(lite_runtime.load, bundle, threads=threads, backend=backend))
    predict = model.bundle.at_first("predict")
    inputs = draw(predict.inputs, np.random.default_rng(seed), shapes, _index_ranges(predict))
    ours, first = _timed(partial(model.run, inputs))
    found = {name: _enter(name, origin, threads, inputs, model.bundle) for name in against}
    ready = {OURS: _Ready(model.run, load, first, "", ours)}
    ready.update((name, peer) for name, peer in found.items() if isinstance(peer, _Ready))
    calls = {name: partial(contender.run, inputs) for name, contender in ready.items()}
    timings = interleave(calls, rounds=rounds, seconds=seconds)
    entries = tuple(_entry(name, contender, timings, ours) for name, contender in ready.items())
    absent = tuple(peer for peer in found.values() if isinstance(peer, Absent))
    return Contest(path.name, threads, entries, absent, model.cost(inputs), model, inputs, bundle)


def is_bundle(path: Path) -> bool:
    """Whether the file begins as a bundle does; its name does not matter."""
    from lite_runtime.bundle import MAGIC

    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _origin(path: Path, source: Path | None, against: Sequence[str]) -> Path:
    if source is not None or not against or not is_bundle(path):
        return source or path
    raise InputError(f"{', '.join(against)} cannot run a bundle; give its source model: --source MODEL.onnx")


def _convert(path: Path, shapes: Shapes) -> bytes:
    from converter import convert

    return convert(path, input_shapes=shapes or None).bundle


def _index_ranges(graph: Graph) -> dict[str, tuple[float, float]]:
    """Ranges for float inputs that are cast to integers, which are indices or masks: [0, 2), as for integers."""
    casts = (n for n in graph.nodes if n.op == "Cast")
    whole = {n.inputs[0] for n in casts if dtype_of(n.attrs["to"]).kind in "iu"}  # type: ignore[arg-type]
    return {v.name: (0.0, 2.0) for v in graph.inputs if v.name in whole and v.dtype.startswith("float")}


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start = perf_counter()
    made = call()
    return made, perf_counter() - start


def _enter(name: str, origin: Path, threads: int, inputs: Inputs, bundle: Bundle) -> _Ready | Absent:
    """The peer, with the form of the model that it runs fastest. It carries the state that its model does not keep."""
    ready, reasons = [], []
    use = bundle.uses.get("predict")
    names = frozenset() if use is None or is_tflite(origin) else frozenset(use.reads)
    for form in forms_of(origin):
        try:
            check(name, form, threads, with_initial(inputs, bundle, names))
            made, load = _timed(partial(PEERS[name], form, threads))
            runner = carrying(made, bundle, names)
            outputs, first = _timed(partial(runner, inputs))
            ready.append(_Ready(runner, load, first, "" if form == origin else form.name, outputs))
        except MsedgeError as error:
            reasons.append(str(error).splitlines()[0])
    if not ready:
        return Absent(name, reasons[0])
    return min(ready, key=lambda peer: _trial(peer.run, inputs)) if len(ready) > 1 else ready[0]


def _trial(run: Runner, inputs: Inputs) -> float:
    return min(_timed(partial(run, inputs))[1] for _ in range(TRIALS))


def _entry(name: str, contender: _Ready, timings: Mapping[str, Timing], ours: Inputs) -> Entry:
    timing, times, far = timings[name], None, None
    if name != OURS:
        times = ratio(timings[OURS], timing)
        far = None if contender.form else _difference(ours, contender.outputs)
    return Entry(name, contender.load, contender.first, timing, times, far, contender.form)


def _difference(ours: Inputs, theirs: Mapping[str, Any]) -> float:
    return max((d.significant for d in compare_all(ours, theirs, steps=1)), default=0.0)
