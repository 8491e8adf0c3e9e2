"""The error of each layer of a quantised model against the float one, on real data.

Both models run side by side; every tensor that the float model names and the quantised one stores or computes is
compared over all samples. Signal to noise is 10 log10(sum of x^2 / sum of (x - y)^2) in dB; cosine is that of the two
tensors as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from converter.ir.build import source_of, title
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from converter.quantize.calibration.data import Row
    from converter.quantize.record import Record, TensorParams

__all__ = ["PERFECT", "Layer", "Sums", "measure"]

PERFECT = 200.0
"""Decibels reported for equal tensors."""


@dataclass(frozen=True)
class Layer:
    """One node's result in the quantised model compared with the float one."""

    name: str
    """The tensor."""
    op: str
    status: str
    """integer, weights, dynamic or float; "" for an input."""
    snr: float
    """Decibels; `PERFECT` if nothing differs."""
    cosine: float
    dtype: str = "float32"
    source: str = ""
    """The node's location in its author's code, if the file has it."""


@dataclass
class Sums:
    """The sums for signal to noise and cosine, collected over samples in float64."""

    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    cross: float = 0.0

    def add(self, expected: Array, got: Array) -> None:
        """Add a pair of tensors of one shape."""
        x, y = expected.astype(np.float64).ravel(), got.astype(np.float64).ravel()
        self.signal += float(x @ x)
        self.other += float(y @ y)
        self.cross += float(x @ y)
        self.noise += float(np.square(x - y).sum())

    @property
    def snr(self) -> float:
        """Decibels."""
        if self.noise == 0:
            return PERFECT
        return 10 * math.log10(self.signal / self.noise) if self.signal else -PERFECT

    @property
    def cosine(self) -> float:
        """1 for two zero vectors."""
        scale = math.sqrt(self.signal * self.other)
        return self.cross / scale if scale else float(self.signal == self.other)


def measure(before: ir.Model, after: ir.Model, record: Record, rows: Iterable[Row]) -> tuple[list[Layer], list[Layer]]:
    """(layers in order of computation, outputs) of the quantised model `after` against the float model `before`.

    A tensor that `after` stores as integers is compared as it is stored, times its scale. Neither model is changed.
    """
    from converter.quantize.calibration.observe import Runner

    taps = _taps(before, after)
    sums = {name: Sums() for name in taps}
    expected, got = Runner(before, taps), Runner(after, taps.values())
    for row in rows:
        wanted, have = expected.run(row), got.run(row)
        for name, tap in taps.items():
            values = _real(have[tap], record.tensors.get(name))
            if name in sums and values.shape == wanted[name].shape:
                sums[name].add(wanted[name], values)
            else:
                sums.pop(name, None)
    described = _nodes(before, record)
    results = {v.name or "": v for v in before.graph.outputs}
    layers = [_layer(name, found, described, record) for name, found in sums.items() if name not in results]
    return layers, [_layer(name, found, described, record) for name, found in sums.items() if name in results]


def _taps(before: ir.Model, after: ir.Model) -> dict[str, str]:
    """Tensors of the float model -> the tensors of `after`, in stored form if they are quantised."""
    there = {v.name: v for node in after.graph for v in node.outputs if v.name}
    outputs = {v.name for v in after.graph.outputs}
    found = {}
    for node in before.graph:
        value = node.outputs[0]
        if value.name not in there or value.dtype != ir.DataType.FLOAT or node.op_type == "Constant":
            continue
        quantizers = [u.node for u in there[value.name].uses() if u.node.op_type == "QuantizeLinear" and u.idx == 0]
        stored = quantizers[0].outputs[0].name if quantizers and value.name not in outputs else None
        found[value.name] = stored or value.name
    return found


def _real(stored: Array, params: TensorParams | None) -> Array:
    if stored.dtype.kind not in "iu" or params is None:
        return stored
    return (stored.astype(np.float64) - params.zero_point[0]) * params.scale[0]


def _nodes(model: ir.Model, record: Record) -> dict[str, tuple[str, str, str]]:
    """Tensor -> operator, precision, and source location."""

    status = {node.name: node.status for node in record.nodes}
    return {
        node.outputs[0].name or "": (node.op_type, status.get(title(node), ""), source_of(node)) for node in model.graph
    }


def _layer(name: str, sums: Sums, described: Mapping[str, tuple[str, str, str]], record: Record) -> Layer:
    op, status, source = described.get(name, ("", "", ""))
    params = record.tensors.get(name)
    return Layer(name, op, status, sums.snr, sums.cosine, params.dtype if params else "float32", source)
