"""Running the float model on calibration rows and watching its tensors.

`Runner` gives the values of any tensors for one row; `observe` makes two passes over all rows with it, first the
ranges, then counts in fixed bins between them. Minima, maxima and counts are exact, so the order of rows does not
matter, and never more than one row's activations are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.lowering import lower
from converter.passes import channels_last
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.running import session

__all__ = ["BINS", "Runner", "Statistics", "channel_axis", "channels", "enough", "observable", "observe"]

BINS = 4096
_LONG = 0.01
"""Estimated seconds of a run from which a second thread is worth its start."""
_SECONDS = 10.0
"""The estimated time that the two passes of `observe` may take."""
_STATISTICS = 2.5e7
"""Elements in a second whose statistics are taken, only an estimate."""
_CHANNELS_FIRST = frozenset(channels_last.DATA) | {"Resize"}


class Runner:
    """The model, compiled with the tensors called `names` as further outputs.

    `model` is not changed. `threads` 0: two for a model whose runs take long, else one; results are the same. Raises
    QuantizeError for a name that is not a tensor of the model's main graph.
    """

    def __init__(self, model: ir.Model, names: Iterable[str], *, threads: int = 0) -> None:
        from converter.pass_lists import optimize  # imported here, since it imports quantisation

        copy = model.clone()
        threads = threads or (2 if run_seconds(model) > _LONG and (os.cpu_count() or 1) > 1 else 1)
        self.names = tuple(dict.fromkeys(names))
        """The requested tensors, in that order."""
        self._inputs = _expose(copy, self.names)
        optimize(copy, checked=False)
        held = bundle.write(None, {"predict": lower(copy)})
        self._model = session.load(held, threads=threads)

    def run(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """Every requested tensor and every output of the model, by name, for one row of inputs.

        Shapes and layouts are those the tensors have in the model. Raises InputError for inputs that do not fit.
        """
        results = self._model.run(sample)
        return results | {name: np.asarray(sample[name]) for name in self._inputs}


def observable(model: ir.Model) -> dict[str, ir.Value]:
    """The tensors a `Runner` can show: inputs and results of the main graph's nodes, by name."""
    found = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    return {v.name: v for v in found if v.name}


def _expose(model: ir.Model, names: Sequence[str]) -> tuple[str, ...]:
    """Make the named tensors graph outputs; the names among them that are graph inputs, which stay as they are."""
    known, inputs = observable(model), {v.name for v in model.graph.inputs}
    for name in names:
        if name not in known:
            raise QuantizeError(f"cannot observe {name!r}: it is not a tensor of the model's main graph")
        value = known[name]
        if name not in inputs and not value.is_graph_output():
            model.graph.outputs.append(value)
    return tuple(name for name in names if name in inputs)


def channel_axis(value: ir.Value) -> int:
    """The channel axis: 1 next to convolutions and pools and in four dimensions, else the last."""
    nodes = [use.node for use in value.uses() if use.idx == 0]
    producer = value.producer()
    near = any(node.op_type in _CHANNELS_FIRST for node in (*nodes, *([producer] if producer is not None else ())))
    rank = build.rank(value) or 0
    return 1 if rank > 1 and (near or rank > 3) else -1


def channels(value: ir.Value) -> int | None:
    """The number of channels, if it is the same in every run."""
    dims = build.dims(value)
    found = dims[channel_axis(value)] if dims else None
    return found if isinstance(found, int) else None


@dataclass
class Statistics:
    """Statistics of one tensor over all rows."""

    low: float = np.inf
    high: float = -np.inf
    axis: int = -1
    """The axis of `channel_low`, `channel_high` and `channel_mean`."""
    channel_low: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    channel_high: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    channel_mean: Array = field(default_factory=lambda: np.zeros(0, np.float64))
    """Per channel, [C]; empty if rows differ in their number of channels or the tensor is a scalar."""
    elements: int = 0
    counts: Array = field(default_factory=lambda: np.zeros(BINS, np.int64))
    """[BINS] int64 over equal bins between `low` and `high`; each value counted once."""

    @property
    def constant(self) -> bool:
        """Whether all values were one number (or there were none)."""
        return not self.low < self.high


def enough(model: ir.Model, samples: Samples, values: Iterable[ir.Value]) -> Samples:
    """The samples that `observe` of these tensors should use: all, or fewer where that would take long."""
    elements = sum(prod(d if isinstance(d, int) else 1 for d in build.dims(v) or ()) for v in values)
    each = 2 * run_seconds(model) + elements / _STATISTICS
    return samples.first(affordable(_SECONDS, each, 4, len(samples)))


def observe(runner: Runner, samples: Samples, axes: Mapping[str, int] | None = None) -> dict[str, Statistics]:
    """Statistics of every floating tensor of `runner.names`. Raises QuantizeError if one is NaN or infinite."""
    found = {name: Statistics(axis=(axes or {}).get(name, -1)) for name in runner.names}
    sums: dict[str, Array | None] = {}
    for sample in samples:
        results = runner.run(sample)
        for name, statistics in found.items():
            if results[name].dtype.kind == "f":
                _extend(statistics, results[name], name, sums)
    for name, total in sums.items():
        if total is not None:
            per_channel = found[name].elements // max(1, total.size)
            found[name].channel_mean = total / max(1, per_channel)
    for sample in samples:
        results = runner.run(sample)
        for name, statistics in found.items():
            if results[name].dtype.kind == "f" and not statistics.constant:
                _count(statistics, results[name])
    return {name: statistics for name, statistics in found.items() if statistics.elements}


def _extend(statistics: Statistics, values: Array, name: str, sums: dict[str, Array | None]) -> None:
    if not values.size:
        return
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise QuantizeError(
            f"tensor {name!r} becomes NaN or infinite on the calibration data; check that the data is scaled as the "
            "model expects"
        )
    statistics.low, statistics.high = min(statistics.low, low), max(statistics.high, high)
    first, statistics.elements = statistics.elements == 0, statistics.elements + values.size
    if not values.ndim:
        return
    rows = np.moveaxis(values, statistics.axis, -1).reshape(-1, values.shape[statistics.axis])
    total = rows.sum(axis=0, dtype=np.float64)
    least, most = rows.min(axis=0).astype(np.float32), rows.max(axis=0).astype(np.float32)
    known = sums.get(name)
    if first:
        statistics.channel_low, statistics.channel_high, sums[name] = least, most, total
    elif known is None or known.shape != total.shape:
        sums[name] = None
        statistics.channel_low = statistics.channel_high = np.zeros(0, np.float32)
    else:
        statistics.channel_low = np.minimum(statistics.channel_low, least)
        statistics.channel_high = np.maximum(statistics.channel_high, most)
        sums[name] = known + total


def _count(statistics: Statistics, values: Array) -> None:
    """Add the values to the bins: bin i holds low + [i, i+1) * width, the last one `high` too."""
    scale = BINS / (statistics.high - statistics.low)
    where = ((values.reshape(-1).astype(np.float64) - statistics.low) * scale).astype(np.int64)
    statistics.counts += np.bincount(np.minimum(where, BINS - 1), minlength=BINS)
