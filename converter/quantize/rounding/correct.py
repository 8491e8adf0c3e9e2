"""Bias correction, after Nagel et al., "Data-free quantization" (2019), by measurement.

Rounded weights and clipped activations do not only add noise: they shift the mean of every channel, and shifts add up
layer by layer. So layers are processed in order; for each, the mean of its result on calibration data is compared
between the float and the quantised model (with the layers before it already corrected), and the difference is added to
its bias.

The quantised model is compiled once, with every layer's correction as an input. Means are `exact.Mean`: the order of
samples does not matter. If the corrected model's outputs are not closer to the float model's, nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.quantize.calibration import exact
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.effort import affordable, run_seconds
from converter.quantize.calibration.observe import Runner
from converter.quantize.rounding import bias

__all__ = ["run"]

Array = np.ndarray[Any, np.dtype[Any]]
_RUNS = 2048
"""The approximate number of runs of the whole model that the corrections of all layers may use."""
_FEWEST = 16
"""The fewest samples of a mean, unless a run takes long."""
_SECONDS = 15.0
"""The estimated time of all runs."""


@dataclass(frozen=True)
class _Layer:
    """A contraction with integer weights, and the place of its bias."""

    node: ir.Node
    place: bias.Place

    @property
    def name(self) -> str:
        return self.node.name or ""

    @property
    def axis(self) -> int:
        return bias.AXES[self.node.op_type]

    @property
    def result(self) -> str:
        return self.node.outputs[0].name or ""


def run(model: ir.Model, reference: ir.Model, samples: Samples, *, threads: int = 0) -> int:
    """Correct the biases of the QDQ form `model` in place; the number of layers that changed.

    `reference`: the float model that `model` was made from; layers correspond if their nodes have the same name.
    """
    names = {node.name for node in reference.graph if node.name}
    layers = [layer for layer in _layers(model) if layer.node.name in names]
    if not layers or not len(samples):
        return 0
    most = max(_FEWEST, _RUNS // len(layers))
    used = samples.first(affordable(_SECONDS, len(layers) * run_seconds(reference), 2, most))
    wanted = _means(reference, layers, used, threads)
    trial = _Trial(model, layers, threads)
    none = {name: np.zeros_like(mean, np.float32) for name, mean in wanted.items()}
    shifts = dict(none)
    for layer in layers:
        mean = exact.Mean()
        for sample in used:
            mean.add(_channels(trial.measure(layer, sample, shifts), layer.axis))
        shifts[layer.name] = (wanted[layer.name] - mean.value()).astype(np.float32)
    floats = Runner(reference, (), threads=threads)
    goal = [list(floats.run(sample).values()) for sample in used]
    after, before = ([trial.outputs(sample, s) for sample in used] for s in (shifts, none))
    if not _distance(goal, after) < _distance(goal, before):
        return 0
    return sum(layer.place.add(shifts[layer.name]) for layer in layers)


def _layers(model: ir.Model) -> Iterator[_Layer]:
    """Contractions of the main graph whose weights are integers and whose bias is a constant, or could be one."""
    build.adopt(model)
    for node in model.graph:
        if node.name and node.op_type in bias.AXES and bias.integers(node.inputs[1]) is not None:
            place = bias.place(node)
            if place is not None:
                yield _Layer(node, place)


def _channels(values: Array, axis: int) -> Array:
    """[rows, channels]"""
    return np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])


def _means(reference: ir.Model, layers: list[_Layer], samples: Samples, threads: int) -> dict[str, Array]:
    """By node name, the mean result of each layer in the float model, [channels]."""
    results = {node.name: node.outputs[0].name or "" for node in reference.graph if node.name}
    means = {layer.name: exact.Mean() for layer in layers}
    runner = Runner(reference, [results[name] for name in means], threads=threads)
    for sample in samples:
        seen = runner.run(sample)
        for layer in layers:
            name = layer.name
            means[name].add(_channels(seen[results[name]], layer.axis))
    return {name: mean.value() for name, mean in means.items()}


class _Trial:
    """A compiled copy of the quantised model that takes each layer's correction, by its node's name, as an input."""

    def __init__(self, model: ir.Model, layers: list[_Layer], threads: int) -> None:
        copy = model.clone()
        build.adopt(copy)
        found = {node.name: node for node in copy.graph if node.name}
        self._outputs = len(copy.graph.outputs)
        self._given: dict[str, tuple[str, list[int]]] = {}
        self._behind: dict[str, str] = {}
        for layer in layers:
            self._insert(copy, found[layer.name], layer)
        self._runner = Runner(copy, self._behind.values(), threads=threads)

    def _insert(self, copy: ir.Model, node: ir.Node, layer: _Layer) -> None:
        result = node.outputs[0]
        shape = [_width(layer)] + [1] * ((build.rank(result) or 2) - 2 if layer.axis == 1 else 0)
        given = ir.Value(
            name=build.fresh(copy.graph, "correction"), type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape)
        )
        copy.graph.inputs.append(given)
        behind = ir.Value(name=build.fresh(copy.graph, "corrected"), type=result.type, shape=result.shape)
        result.replace_all_uses_with(behind, replace_graph_outputs=True)
        added = ir.Node("", "Add", [result, given], outputs=[behind], name=build.fresh(copy.graph, "correct"))
        copy.graph.insert_after(node, added)
        self._given[layer.name] = given.name or "", shape
        self._behind[layer.name] = behind.name or ""

    def _run(self, sample: Mapping[str, Array], shifts: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: shifts[layer].reshape(shape) for layer, (name, shape) in self._given.items()}
        return self._runner.run({**sample, **given})

    def measure(self, layer: _Layer, sample: Mapping[str, Array], shifts: Mapping[str, Array]) -> Array:
        """The mean result of the layer with these corrections."""
        return self._run(sample, shifts)[self._behind[layer.name]]

    def outputs(self, sample: Mapping[str, Array], shifts: Mapping[str, Array]) -> list[Array]:
        """The model's own outputs, in order."""
        return list(self._run(sample, shifts).values())[: self._outputs]


def _width(layer: _Layer) -> int:
    """The number of channels of the layer's result."""
    node = layer.node
    found = bias.integers(node.inputs[1])
    assert found is not None, "layers have integer weights"
    integers, _ = found
    if node.op_type == "ConvTranspose":
        return int(integers.shape[1] * build.attr(node, "group", 1))
    if node.op_type == "Conv":
        return int(integers.shape[0])
    return int(integers.shape[0 if build.attr(node, "transB", 0) else -1])


def _distance(floats: list[list[Array]], results: list[list[Array]]) -> float:
    """Squared error of all outputs, each relative to its own power."""
    total = 0.0
    for index in range(len(floats[0])):
        pairs = [
            (f[index].astype(np.float64), r[index].astype(np.float64)) for f, r in zip(floats, results, strict=True)
        ]
        power = sum(float(np.square(f).sum()) for f, _ in pairs)
        total += sum(float(np.square(f - r).sum()) for f, r in pairs) / (power or 1.0)
    return total
