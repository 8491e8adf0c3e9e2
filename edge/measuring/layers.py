"""Comparison of two forms of a model, layer by layer: signal-to-noise ratio and cosine of values with the same name.

values_of(source, inputs) -> {name: real array}      for ONNX, TFLite and bundles
layers(reference, other)  -> one row per shared value, in the reference's order
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converter.report import Sums
from edge.measuring.contest import is_bundle
from edge.measuring.describe import inferred
from edge.peers.litert import LiteRT, is_tflite
from edge.peers.oracle import Oracle, as_array
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.operators import having

__all__ = ["Layer", "layers", "parting", "values_of"]

Values = Mapping[str, tuple[str, Array]]
"""By name: the operator that computes the value, and the value as real numbers."""
FALL = 6.0
"""Two models diverge at a layer that is at least so many decibels worse than all layers before it."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One value with the same name in both models. `snr` in decibels, 200 if the values are equal."""

    name: str
    reference_op: str
    other_op: str
    snr: float
    cosine: float


def values_of(source: Path, inputs: Mapping[str, Array], *, threads: int = 1, backend: str = "auto") -> Values:
    """All named values of a model for these inputs."""
    if is_bundle(source):
        return _of_bundle(source, inputs, threads, backend)
    return (_of_tflite if is_tflite(source) else _of_onnx)(source, inputs, threads)


def layers(reference: Values, other: Values) -> Iterator[Layer]:
    """A row for every value that both have under the same name with the same shape (in either layout of images)."""
    named: dict[str, list[str]] = {}
    for name in other:
        named.setdefault(name.partition("~")[0], []).append(name)
    for name, (op, wanted) in reference.items():
        same = [name] if name in other else named.get(name.partition("~")[0], [])
        found = [row for n in same if wanted.dtype.kind == "f" and (row := _likest(name, op, wanted, *other[n]))]
        if found:
            yield max(found, key=lambda row: row.snr)


def _likest(name: str, op: str, wanted: Array, other_op: str, got: Array) -> Layer | None:
    """The row of two values in the layout and scaling that is closest; None if their shapes differ."""
    forms = (form for form in _layouts(got) if form.shape == wanted.shape)
    found = [_sums(wanted, scaled) for form in forms for scaled in _unequalised(wanted, form)]
    best = max(found, key=lambda s: s.snr, default=None)
    return None if best is None else Layer(name, op, other_op, best.snr, best.cosine)


def parting(rows: list[Layer]) -> Layer | None:
    """The layer where the two models diverge: the one with the largest drop of the signal-to-noise ratio below all
    layers before it, if the drop is at least `FALL`."""
    worst, found, deepest = 60.0, None, FALL
    for row in rows:
        if worst - row.snr >= deepest:
            found, deepest = row, worst - row.snr
        worst = min(worst, row.snr)
    return found


def _sums(wanted: Array, got: Array) -> Sums:
    sums = Sums()
    sums.add(wanted, got)
    return sums


def _unequalised(wanted: Array, got: Array) -> Iterator[Array]:
    """The values unchanged, and with their channels scaled back where equalisation scaled them: by a factor that is not
    near 1 and explains all but 1 % of the channel's power. What it leaves is noise, or a wrong channel."""
    yield got
    for axis in {1, got.ndim - 1} if got.ndim > 1 else ():
        others = tuple(k for k in range(got.ndim) if k != axis)
        x, y = wanted.astype(np.float64), got.astype(np.float64)
        power, wanted_power, common = (v.sum(others, keepdims=True) for v in (y * y, x * x, x * y))
        explained = (common > 0) & (np.square(common) >= 0.99 * power * wanted_power)
        factors = np.divide(common, power, where=explained, out=np.ones_like(power))
        factors = np.where(np.abs(np.log2(factors)) > 0.1, factors, 1.0)
        if (factors != 1).any():
            yield (y * factors).astype(np.float32)


def _layouts(x: Array) -> Iterator[Array]:
    yield x
    if x.ndim > 2:
        yield np.moveaxis(x, -1, 1)
        yield np.moveaxis(x, 1, -1)


# -- ONNX -------------------------------------------------------------------------------------------------------------


def _of_onnx(source: Path, inputs: Mapping[str, Array], threads: int) -> Values:
    oracle = Oracle(source, threads=threads)
    made = {name: node for node in oracle.model.graph.node for name in node.output if name}
    results = Oracle(oracle.model, threads=threads, taps=list(made)).run(inputs)
    arrays = {name: as_array(results[name]) for name in made if isinstance(results.get(name), np.ndarray)}
    return {name: (made[name].op_type, array) for name, array in arrays.items()}


# -- TFLite -----------------------------------------------------------------------------------------------------------


def _of_tflite(source: Path, inputs: Mapping[str, Array], threads: int) -> Values:
    peer = LiteRT(source, threads=threads, keep=True)
    names = [v.name for v in peer.inputs]
    peer.run(inputs if set(inputs) == set(names) else dict(zip(names, inputs.values(), strict=True)))
    return peer.values()


# -- bundles ----------------------------------------------------------------------------------------------------------


def _of_bundle(source: Path, inputs: Mapping[str, Array], threads: int, backend: str) -> Values:
    import lite_runtime
    from lite_runtime import bundle
    from lite_runtime.running.interpreter import scales_of

    held = bundle.read(source)
    graph = held.at_first("predict")
    types = {n: dtype for n, (dtype, _) in inferred(graph, {n: x.shape for n, x in inputs.items()}).items()}
    made = {name: node for node in graph.nodes for name in node.outputs if name and name in types}
    outputs = tuple(Value(name, types[name]) for name in made)
    tapped = bundle.write(None, {"predict": graph.replace(outputs=outputs)})
    results = lite_runtime.load(tapped, threads=threads, backend=backend).run(inputs)
    steps = _steps(graph, scales_of(held, "predict"))
    return {name: (made[name].op, _scaled(array, steps.get(name))) for name, array in results.items()}


Step = tuple[float, int]
"""Scale and zero point of a tensor."""
_QUANTISED = having("quantised")
_OF_TWO = having("accumulates", "quantised") | {"QLinearAdd", "QLinearMul", "QLinearSub"}
"""Their inputs: two operands and the result's, each with scale and zero point."""
_MOVES = having("movement") | {"Concat", "MaxPool", "Pad", "QLinearResize", "Resize"}


def _steps(graph: Graph, declared: Mapping[str, Mapping[str, Any]]) -> dict[str, Step]:
    """Scale and zero point of every tensor stored as integers: of inputs and outputs as `declared`, of others from the
    operators that write or read them."""
    single = {name: row for name, row in declared.items() if len(row["scales"]) == 1}
    found: dict[str, Step] = {name: (row["scales"][0], row["zero_points"][0]) for name, row in single.items()}
    for node in graph.nodes:
        for name in node.outputs:
            step = _written(node, graph.constants, found)
            if step is not None:
                found.setdefault(name, step)
    for node in reversed(graph.nodes):
        if node.op == "DequantizeLinear" or node.op in _QUANTISED:
            for k in (0, 3) if node.op in _OF_TWO else (0,):
                step = _pair(node, k + 1, k + 2, graph.constants)
                if step is not None:
                    found.setdefault(node.inputs[k], step)
        elif node.op in _MOVES and node.outputs[0] in found:
            found.setdefault(node.inputs[0], found[node.outputs[0]])
    return found


def _written(node: Node, constants: Mapping[str, Array], found: Mapping[str, Step]) -> Step | None:
    if node.op == "QuantizeLinear":
        return _pair(node, 1, 2, constants)
    if node.op in _OF_TWO:
        return _pair(node, 6, 7, constants)
    if node.op in _QUANTISED:
        return _pair(node, 3, 4, constants)
    return found.get(node.inputs[0]) if node.op in _MOVES and node.inputs else None


def _pair(node: Node, scale: int, zero: int, constants: Mapping[str, Array]) -> Step | None:
    if len(node.inputs) <= scale or node.inputs[scale] not in constants:
        return None
    factor = constants[node.inputs[scale]]
    offset = constants.get(node.inputs[zero]) if len(node.inputs) > zero else None
    return (
        (float(factor.reshape(-1)[0]), 0 if offset is None else int(offset.reshape(-1)[0]))
        if factor.size == 1
        else None
    )


def _scaled(array: Array, step: Step | None) -> Array:
    if step is None or array.dtype.kind not in "iu":
        return array
    return ((array.astype(np.float64) - step[1]) * step[0]).astype(np.float32)
