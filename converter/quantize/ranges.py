"""Which range each tensor gets.

Method "auto" tries every way of `WAYS` and judges it by the model's outputs on rows that its ranges do not know: each
half of the calibration rows is held out in turn. Trials are without the mean error that rounding and clipping cause in
each channel: biases are corrected later, so that shift will be gone from the result. The best way for all tensors is
then changed tensor by tensor where that lowers the noise of both halves.

Trials run in `Simulation`, which is compiled once. The number of rows depends on the cost of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import log10
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.quantize.calibration import calibrate, exact
from converter.quantize.calibration.calibrate import Params, Range
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.lattice import lattice
from converter.quantize.calibration.observe import Runner, Statistics, channel_axis, channels, enough, observe
from converter.quantize.calibration.simulation import Simulation
from converter.quantize.options import Options
from converter.quantize.record import Record
from converter.quantize.rounding.weights import Quantized
from converter.quantize.schemes import Plan, fixed_params, plan
from converter.quantize.state import WAYS, State, Way
from lite_runtime import reference
from lite_runtime.graph import Array, Node

__all__ = ["Noise", "choose", "groups", "noise", "parameters"]

_WORTH = 0.02
"""The least gain of a way for all tensors over the first, in powers of ten: less is chance."""
_WORTH_ONE = 0.004
"""The least gain of another way for one tensor, on the mean of both halves."""
_SECONDS = 4.0
"""The estimated time of all trials of ways, and that of all trials of single tensors; see `effort`."""
_ROWS = 64
_FEWEST = 6
"""Rows from which a trial of one tensor is more than chance."""
_FEW = (Way("mse"), Way("percentile", 1.1), Way("minmax"))
"""The ways that `noise` tries."""
_CORRECTED_ROWS = 8
"""Rows that the mean errors of channels come from."""
_POSITIONS = 2048
"""About as many values of each channel and row are used, evenly spread."""
_EXACT = 12.0
"""Rows with less noise than 10 ** -12 of the signal count as having that much."""
_NEAR = 0.02
"""Ranges that differ by less are not tried both."""

_Assigned = Mapping[ir.Value, Way]
_Ratio = Callable[[tuple[Array, ...], tuple[Array, ...]], float]
"""Of one output's wanted and actual results, row by row: log10(noise / signal)."""


def groups(plan: Plan) -> dict[ir.Value, list[ir.Value]]:
    """The tensors that share parameters, in graph order, by the first of them."""
    found: dict[ir.Value, list[ir.Value]] = {}
    for value, root in plan.tensors.items():
        found.setdefault(root, []).append(value)
    return found


def parameters(root: ir.Value, members: list[ir.Value], state: State, way: Way | None = None) -> Params:
    """The parameters of tensors that share them, in one way (default: the state's)."""
    dtype = "int8" if state.options.mode == "int8" else "int16"
    fit = calibrate.affine if dtype == "int8" else calibrate.symmetric
    params = fixed_params(root.producer(), dtype) or _stepped(members, state, dtype)
    way = way or state.ways.get(root.name or "", state.way)
    if params is not None:
        return params
    return fit(*reduce(_union, (_range(v, state, dtype, way) for v in members if state.plan.enters(v))), dtype)


def _stepped(members: list[ir.Value], state: State, dtype: str) -> Params | None:
    """The parameters of a discrete input (`lattice`), for the tensors that it is only moved to."""
    sources = [v for v in members if state.plan.enters(v)]
    if dtype != "int8" or len(sources) != 1 or not sources[0].is_graph_input() or state.samples is None:
        return None
    return lattice(row[sources[0].name or ""] for row in state.samples)


def _range(value: ir.Value, state: State, dtype: str, way: Way) -> Range:
    seen, open_to = state.statistics.get(value.name or "", Statistics()), state.options.method == "auto"
    behind = _behind(value, state.plan)
    if not open_to or dtype != "int8":
        return calibrate.choose(seen, state.options, dtype, behind)
    low, high = calibrate.choose(seen, replace(state.options, method=way.method), dtype, behind)
    return Range(low * way.margin, high * way.margin)


def _behind(value: ir.Value, plan: Plan) -> calibrate.Function | None:
    """The function of one number that alone reads a tensor, if there is one."""
    node = build.sole_use(value)
    if node is None or node not in plan.integer or plan.integer[node].role != "table":
        return None
    attrs = {name: a.value for name, a in node.attributes.items()}
    lite = Node(node.op_type, ("x", *("" for _ in node.inputs[1:])), ("y",), attrs)

    def evaluate(x: Array) -> Array:
        return np.asarray(reference.evaluate(lite, [x.astype(np.float32)])[0], np.float64)

    return evaluate if len(node.inputs) == 1 else None


def _union(a: Range, b: Range) -> Range:
    return Range(min(a.low, b.low), max(a.high, b.high))


# method auto


@dataclass
class _Half:
    """One half of the rows held out: what the other half gives for every group and way, and the float model's outputs
    on the rows held out."""

    params: dict[ir.Value, dict[Way, Params]]
    shifts: dict[ir.Value, dict[Way, Array]]
    """By tensor: the mean errors of its channels."""
    held: Samples
    wanted: list[list[Array]]


def choose(state: State) -> None:
    """Choose `state.way` and `state.ways`."""
    assert state.samples is not None
    known = groups(state.plan)
    parts = [state.samples.part(index, 2) for index in (0, 1)]
    halves = [_half(state, known, *pair) for pair in (parts, reversed(parts))]
    search = _Search(state, known, halves, state.weights)
    state.way = search.for_all()
    state.ways = search.for_each(state.way)
    state.record.notes["ranges"] = {
        "method": state.way.method, "margin": state.way.margin,
        "others": {name: f"{way.method} {way.margin:g}" for name, way in state.ways.items()},
    }  # fmt: skip


class Noise(NamedTuple):
    """log10(noise / signal), the mean over outputs."""

    rows: float
    """The mean over rows: all count the same."""
    total: float
    """Of the sums over rows: those with the largest errors decide."""


def noise(
    model: ir.Model, options: Options, fitted: Samples, held: Samples, reference: ir.Model | None = None
) -> Noise:
    """The noise on rows `held` if `fitted` are the calibration rows, in the best of a few ways for all tensors, against
    the outputs of `reference` (default: the model itself).

    Weights stay float: rounding to the nearest adds more noise than GPTQ will. Means of errors do not count.
    """
    state = State(model, options, fitted, Record("trial"), plan=plan(model, options))
    known = groups(state.plan)
    search = _Search(state, known, [_half(state, known, fitted, held, _FEW, reference)], None)
    errors = search.errors(_FEW, _ratio_by_row)
    best = min(errors, key=lambda way: errors[way])
    return Noise(errors[best], search.errors((best,))[best])


def _half(
    state: State,
    known: Mapping[ir.Value, list[ir.Value]],
    fitted: Samples,
    held: Samples,
    ways: Sequence[Way] = WAYS,
    reference: ir.Model | None = None,
) -> _Half:
    held = held.first(_ROWS)
    trial = State(state.model, state.options, fitted, Record("trial"), plan=state.plan)
    names = {value: value.name or "" for value in state.plan.tensors}
    runner = Runner(state.model, names.values())
    rows = enough(state.model, fitted, names)
    trial.statistics = observe(runner, rows, {name: channel_axis(value) for value, name in names.items()})
    params = {root: {way: parameters(root, members, trial, way) for way in ways} for root, members in known.items()}
    corrected = [v for v in names if state.options.bias_correction and state.plan.enters(v) and channels(v) is not None]
    sums = {value: {way: exact.Mean() for way in ways} for value in corrected}
    for row in rows.first(_CORRECTED_ROWS):
        seen = runner.run(row)
        for value, means in sums.items():
            tried = params[state.plan.tensors[value]]
            _add_errors(seen[names[value]], channel_axis(value), {way: tried[way] for way in means}, means)
    shifts = {value: {w: m.value().astype(np.float32) for w, m in means.items()} for value, means in sums.items()}
    floats = Runner(reference or state.model, ())
    return _Half(params, shifts, held, [_numbers(floats.run(row).values()) for row in held])


def _add_errors(values: Array, axis: int, tried: Mapping[Way, Params], means: Mapping[Way, exact.Mean]) -> None:
    """Add the errors of `values` [..., channels, ...] by every parameters to the means."""
    rows = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    rows = rows[:: max(1, len(rows) // _POSITIONS)]
    errors = {params: calibrate.fake(rows, params) - rows for params in set(tried.values())}
    for way, params in tried.items():
        means[way].add(errors[params])


class _Search:
    """Trials of ranges on both halves of the rows."""

    def __init__(
        self,
        state: State,
        known: Mapping[ir.Value, list[ir.Value]],
        halves: list[_Half],
        weights: Mapping[str, Quantized] | None,
    ) -> None:
        self._plan, self._known, self._halves = state.plan, known, halves
        self._simulation = Simulation(state.model, state.plan, weights)
        self._runs = int(_SECONDS / max(4 * run_seconds(state.model), 1e-3))

    def errors(self, ways: Iterable[Way], ratio: _Ratio | None = None) -> dict[Way, float]:
        """The noise of these ways for all tensors, without those that give the same ranges as an earlier one."""
        found: list[Way] = []
        for way in ways:
            if not any(self._alike(way, other) for other in found):
                found.append(way)
        rows = affordable(self._runs, len(self._halves) * len(found), 2, _ROWS)
        return {w: float(np.mean(self._noise(dict.fromkeys(self._known, w), rows, ratio))) for w in found}

    def for_all(self) -> Way:
        """The way with the least noise for all tensors, if it is worth it."""
        errors = self.errors(WAYS)
        best = min(errors, key=lambda way: errors[way])
        return best if errors[best] < errors[WAYS[0]] - _WORTH else WAYS[0]

    def for_each(self, usual: Way) -> dict[str, Way]:
        """The tensors, by name, for which another way than `usual` is better, one after the other in graph order."""
        tried = {root: self._candidates(root, usual) for root in self._known}
        rows = affordable(self._runs, 2 * max(1, sum(map(len, tried.values()))), 0, _ROWS)
        if rows < _FEWEST:
            return {}
        assigned: dict[ir.Value, Way] = dict.fromkeys(self._known, usual)
        least = self._noise(assigned, rows)
        for root, ways in tried.items():
            for way in ways:
                trial = assigned | {root: way}
                noise = self._noise(trial, rows)
                gains = [old - new for old, new in zip(least, noise, strict=True)]
                if min(gains) > 0 and sum(gains) / 2 > _WORTH_ONE:
                    least, assigned = noise, trial
        return {root.name or "": way for root, way in assigned.items() if way != usual}

    def _candidates(self, root: ir.Value, usual: Way) -> list[Way]:
        """Other methods, with no margin or the usual one, that give this tensor another range."""
        found = [usual]
        for way in WAYS:
            if way.margin in (1.0, usual.margin) and not any(self._near(root, way, other) for other in found):
                found.append(way)
        return found[1:]

    def _near(self, root: ir.Value, way: Way, other: Way) -> bool:
        pairs = [(half.params[root][way], half.params[root][other]) for half in self._halves]
        return all(
            max(abs(a.low - b.low), abs(a.high - b.high)) < _NEAR * max(a.high - a.low, b.high - b.low)
            for a, b in pairs
        )

    def _alike(self, way: Way, other: Way) -> bool:
        return all(half.params[root][way] == half.params[root][other] for half in self._halves for root in self._known)

    def _noise(self, assigned: _Assigned, rows: int, ratio: _Ratio | None = None) -> list[float]:
        """For each half, the mean over outputs of log10(noise / signal)."""
        found = []
        for half in self._halves:
            ways = {value: assigned[root] for value, root in self._plan.tensors.items()}
            params = {value: half.params[root][ways[value]] for value, root in self._plan.tensors.items()}
            shifts = {value: means[ways[value]] for value, means in half.shifts.items()}
            results = [_numbers(self._simulation.run(row, params, shifts)) for row in half.held.first(rows)]
            wanted = half.wanted[: len(results)]
            pairs = zip(zip(*wanted, strict=True), zip(*results, strict=True), strict=True)
            errors = [(ratio or _ratio)(want, got) for want, got in pairs]
            found.append(sum(errors) / max(len(errors), 1))
        return found


def _numbers(outputs: Iterable[Any]) -> list[Array]:
    """Those outputs that noise can be measured in: no sequences, optional values or texts."""
    return [a for a in outputs if isinstance(a, np.ndarray) and a.dtype.kind in "biuf"]


def _ratio(wanted: tuple[Array, ...], got: tuple[Array, ...]) -> float:
    """log10(noise / signal) of one output over rows; a result of another size than wanted is all noise."""
    exactly = [w.astype(np.float64) for w in wanted]
    power = sum(float(np.square(w).sum()) for w in exactly)
    errors = (w - g if w.shape == g.shape else w for w, g in zip(exactly, got, strict=True))
    error = sum(float(np.square(e).sum()) for e in errors)
    return log10(max(error / (power or 1.0), 1e-30))


def _ratio_by_row(wanted: tuple[Array, ...], got: tuple[Array, ...]) -> float:
    """The mean of the single rows' log10(noise / signal)."""
    return float(np.mean([max(_ratio((w,), (g,)), -_EXACT) for w, g in zip(wanted, got, strict=True)]))
