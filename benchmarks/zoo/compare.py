"""One public model in msedge and in the runtime of its format: converted, run on random and extreme inputs, compared.

The comparison is that of `msedge verify`. A model runs in a process of its own, with limits of time and memory, because
a runtime may crash.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.listing import Entry
from edge.measuring.parity import ROUNDING, Difference, compare_all, first_divergence, worst
from edge.measuring.rounding import is_rounding, own_differences
from edge.measuring.samples import draw, ranges_of
from edge.peers.litert import PLAINER, LiteRT
from edge.peers.oracle import Oracle, OracleError, as_array
from edge.peers.stream import Runner, carrying, with_initial
from lite_runtime.bundle import Bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Value

__all__ = ["ABSOLUTE", "LARGE", "RELATIVE", "RESULTS", "STEPS", "Outcome", "apart", "compared"]

RELATIVE, ABSOLUTE, STEPS = 1e-4, ROUNDING, 1
"""The limits of `msedge verify`: of the range of an output, as it is, and in steps of quantised integers."""
RESULTS = ("equal", "rounding", "differs", "refused", "failed")
RANDOM = (0, 1, 4)
"""Which of a case's runs are random. An output's range is that of these runs, or of the compared run if that is larger:
equal inputs may give outputs that hardly differ from each other, and then rounding is much of their range."""
LARGE = 10.0
"""Real inputs of the extreme runs are a standard normal times this."""

Shapes = Mapping[str, Sequence[int]]

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "benchmarks.zoo.compare", "converter.conversion", "converter.frontends.tflite", "onnxruntime", "onnxscript",
        "onnx.reference", "ai_edge_litert.interpreter", "lite_runtime.ops", "lite_runtime.planning.plan",
        "lite_runtime.running.session",
    ]
)  # fmt: skip
"""Every model's process is a copy of one that has imported these and has run nothing."""


@dataclass(frozen=True)
class Outcome:
    """What one model gave. `share`: of the nodes that ran, those with native kernels; `where`: what differs, or the
    error."""

    result: str
    cases: int = 0
    """Numbers of sizes with which it ran; `runs` counts all runs."""
    runs: int = 0
    error: float = 0.0
    """The largest difference relative to an output's range; for integers in steps."""
    where: str = ""
    share: float = 0.0
    reference: tuple[str, ...] = ()
    """Operators that ran without a native kernel."""
    same_bits: bool = True
    """Whether two workers gave the same bits as one."""
    seconds: float = 0.0
    """Of the conversion."""


def apart(entry: Entry, model: Path, *, seconds: float, gigabytes: float) -> Outcome:
    """`compared` in a process of its own; "failed" if that crashes or exceeds a limit."""
    receive, send = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_send, args=(send, entry.as_dict(), str(model), gigabytes))
    process.start()
    send.close()
    try:
        if not receive.poll(seconds):
            return Outcome("failed", where=f"took more than {seconds:g} s")
        found: Outcome = receive.recv()
        return found
    except EOFError:
        process.join()
        return Outcome("failed", where=f"the process ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receive.close()


def _send(send: Connection, entry: Mapping[str, Any], model: str, gigabytes: float) -> None:
    limit = int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    try:
        done = compared(Entry.reader.read(Entry, entry), Path(model))
    except MemoryError:
        done = Outcome("failed", where=f"needs more than {gigabytes:g} GiB")
    except Exception as error:  # library: the peers promise no type of error; the table has a row for every model
        done = Outcome("failed", where=f"{type(error).__name__}: {error}"[:400])
    send.send(done)


def compared(entry: Entry, model: Path) -> Outcome:
    """Convert a model with default settings, run it and its peer on the same inputs, and compare every output."""
    from converter import ConvertError, convert

    peer = _peer(entry, model)
    begin = time.perf_counter()
    try:
        converted = convert(model, state=entry.state or None)
    except ConvertError as error:
        return Outcome("failed" if "bug in msedge" in str(error) else "refused", where=str(error)[:400])
    done = Outcome("equal", seconds=time.perf_counter() - begin)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "model.mslite"
        bundle.write_bytes(converted.bundle)
        try:
            return _all_cases(entry, peer, model, bundle, done)
        except MsedgeError as error:
            return replace(done, result="failed", where=f"{type(error).__name__}: {error}"[:400])


def _peer(entry: Entry, model: Path, *, plain: bool = False) -> Any:
    """plain: without what makes it fast."""
    if entry.format != "tflite":
        return Oracle(model, optimised=not plain)
    peer = LiteRT(model)
    return LiteRT(model, kernels=PLAINER[peer.kernels]) if plain else peer


def _all_cases(entry: Entry, peer: Any, model: Path, bundle: Path, done: Outcome) -> Outcome:
    import lite_runtime

    inputs = lite_runtime.load(bundle).bundle.at_first("predict").inputs
    for shapes in entry.sizes or _sizes(inputs, tied=bool(entry.state)):
        try:
            done = _one_case(entry, peer, model, bundle, shapes, done)
        except OracleError:
            if not done.runs:  # the peer must take the first sizes
                raise
        if done.result not in RESULTS[:2]:
            break
    return done


def _sizes(inputs: Sequence[Value], tied: bool) -> list[Shapes]:
    """1 for every open dimension; then 3 for open first dimensions, unless state fixes how many there are."""
    given: list[Shapes] = [{}]
    several = {
        v.name: (3, *(d if isinstance(d, int) else 1 for d in v.shape[1:]))
        for v in inputs
        if v.shape and not isinstance(v.shape[0], int)
    }
    return given if tied or not several else [*given, several]


def _one_case(entry: Entry, peer: Any, model: Path, bundle: Path, shapes: Shapes, done: Outcome) -> Outcome:
    """One size of inputs: a fresh state, then five runs of which each continues the one before."""
    import lite_runtime

    one, two = lite_runtime.load(bundle, threads=1), lite_runtime.load(bundle, threads=2)
    graph = one.bundle.at_first("predict")
    rows = _inputs(graph.inputs, shapes, {**ranges_of(graph), **entry.ranges})
    names = frozenset(v.name for v in peer.inputs) if isinstance(peer, Oracle) else frozenset()
    wanted = carrying(peer.run, one.bundle, names)
    ours, theirs, same = [], [], True
    for row in rows:
        theirs.append(wanted(row))
        ours.append(one.run(row))
        other = two.run(row)
        same = same and all(np.array_equal(x, other[n], equal_nan=_real(x)) for n, x in ours[-1].items())
    spans = {name: _span([as_array(theirs[i][name]) for i in RANDOM]) for name in theirs[0]}
    pairs = zip(ours, theirs, strict=True)
    compare = [[_over(d, spans[d.name]) for d in compare_all(x, y, steps=STEPS)] for x, y in pairs]
    cost = one.cost(rows[0])
    found = max(worst(compare), key=lambda d: (not d.within(RELATIVE, ABSOLUTE), _figure(d)))
    failed = next((i for i, run in enumerate(compare) if not all(d.within(RELATIVE, ABSOLUTE) for d in run)), None)
    count = cost.native + len(cost.reference)
    done = replace(
        done, cases=done.cases + 1, runs=done.runs + len(rows), error=max(done.error, _figure(found)),
        share=cost.native / count if count else 1.0, reference=tuple(sorted(set(cost.reference))),
        same_bits=done.same_bits and same,
    )  # fmt: skip
    if failed is None:
        return done if same else replace(done, result="differs", where="two workers give other bits than one")
    where = f"run {failed + 1}, {_shown(found)}"
    far = [d for run in compare for d in run if not d.within(RELATIVE, ABSOLUTE)]
    ways = [partial(_start, entry, model, one.bundle, names, plain) for plain in (False, True)]
    own = own_differences(ways[0], rows, ways[1:])
    if same and is_rounding(far, own):
        where += f"; the outputs of {entry.peer} alone {_moved(far, own, spans)}"
        return replace(done, result="rounding", where=where[:400])
    if isinstance(peer, Oracle):
        given = with_initial(rows[failed], one.bundle, names)
        at = first_divergence(peer.model, graph, rows[failed], RELATIVE, given=given, threads=1, backend="auto")
        where += f"; first at {at.source_op} {at.difference.name}: {at.difference.why}" if at else ""
    return replace(done, result="differs", where=where[:400])


def _moved(far: Sequence[Difference], own: Mapping[str, float], spans: Mapping[str, float]) -> str:
    """How far the peer's outputs move: in shares of their ranges, and of elements where they are not real."""
    real = [own[d.name] / (spans[d.name] or 1.0) for d in far if not d.unequal]
    whole = [own[d.name] for d in far if d.unequal]
    said = [f"move by up to {max(real):.2g}"] if real else []
    return " and ".join([*said, *([f"differ in up to {max(whole):.2%} of the elements"] if whole else [])])


def _start(entry: Entry, model: Path, held: Bundle, names: frozenset[str], plain: bool) -> Runner:
    return carrying(_peer(entry, model, plain=plain).run, held, names)


Ranges = Mapping[str, tuple[float, float]]


def _inputs(values: Sequence[Value], shapes: Shapes, ranges: Ranges) -> list[dict[str, Array]]:
    """Two random runs, the lowest values (zeros for reals), the highest (large reals), and a random one again."""
    rng = np.random.default_rng(0)
    first, second, last = (draw(values, rng, shapes, ranges) for _ in range(3))
    low = {name: np.full_like(x, _limit(name, x, ranges, 0)) for name, x in first.items()}
    high = {
        name: np.full_like(x, _limit(name, x, ranges, 1)) if name in ranges or not _real(x) else _large(x)
        for name, x in second.items()
    }
    return [first, second, low, high, last]


def _large(x: Array) -> Array:
    return np.asarray(x * x.dtype.type(LARGE))  # a product of arrays without dimensions is no array


def _limit(name: str, x: Array, ranges: Ranges, side: int) -> Any:
    if name in ranges:
        return ranges[name][side]
    if x.dtype.kind in "iu" and x.dtype.itemsize == 1:
        limits = np.iinfo(x.dtype)
        return (limits.min, limits.max)[side]
    return side if x.dtype.kind in "iub" else 0


def _span(arrays: Sequence[Array]) -> float:
    """The range of an output's finite values over several runs; 0 if it has no real numbers."""
    found = [x[np.isfinite(x)] for x in arrays if _real(x)]
    values = np.concatenate([x.ravel() for x in found]) if found else np.zeros(0)
    return float(np.ptp(values.astype(np.float64))) if values.size else 0.0


def _over(found: Difference, span: float) -> Difference:
    """The difference relative to `span` if that is more than the output's range in this run."""
    if not 0 < found.relative < np.inf:
        return found
    return replace(found, relative=min(found.relative, found.largest / span if span else np.inf))


def _real(x: Array) -> bool:
    return x.dtype.kind == "f"


def _figure(found: Difference) -> float:
    """Steps for integers, the share of the range for reals; what cannot be compared is infinite."""
    exact = found.dtype.startswith(("int", "uint", "bool", "string"))
    return found.largest if exact else found.significant


def _shown(found: Difference) -> str:
    return f"{found.name} at {list(found.at)}: {found.why or f'{found.relative:.2g} of the range'}"
