"""LiteRT's LSTM of 8-bit weights and 16-bit cell in integers (LstmStepInteger8x8_16 in kernels/lstm_eval.cc).

Gates have 16 bits in units of 2**-12, sigmoid and tanh results 15 fractional bits. Before layer normalisation gates
have the file's scales (PortableApplyLayerNorm in kernels/internal/reference/portable_tensor_utils.cc).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, integers
from converter.frontends.tflite.ops.fixed_cells import (
    ONE,
    basic_lstm,
    is_stored,
    plus,
    product,
    real_scale,
    shifted,
    times,
    unit,
)
from converter.frontends.tflite.ops.fixed_point import Factor, factor, narrowed, rescaled, scale_of, zero_of
from converter.frontends.tflite.ops.operands import cast
from converter.frontends.tflite.ops.recurrent import Direction, axis_of_time, is_basic, run
from converter.frontends.tflite.ops.variables import raw_state, raw_store
from converter.ir import build

__all__: list[str] = []

_T = ir.DataType
_GATE = np.float32(2.0**-12)
"""What a unit of a gate means, of one with layer normalisation after it."""
_INTERMEDIATES = 5
"""Of the cell with 16-bit gates: the gates', and the hidden state's. LiteRT's other integer cell has 12."""
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)


def _normalised(op: Op, x: ir.Value, weights: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> ir.Value:
    """int16 rows [batch, gates, units] less their means, over their deviations, times `weights` [gates, units] in units
    of `scale` [gates, 1], plus `bias` in units of scale / 2**10; in units of 2**-12. Means and deviations have 10
    fractional bits."""
    axis, count = op.constant([-1]), weights.shape[-1]
    one, ten = (op.constant(np.asarray(v, np.int32)) for v in (1, 10))
    wide = cast(op, x, _T.INT32)

    def total(y: ir.Value) -> ir.Value:
        return op.emit("ReduceSum", [cast(op, y, _T.INT64), axis], {"keepdims": 1})

    def whole(kind: str, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return op.emit(kind, [a, op.constant(np.asarray(b, np.int64)) if isinstance(b, int) else b])

    mean = whole("Div", whole("Mul", total(wide), 1 << 10), count)
    squares = whole("Mul", total(op.emit("Mul", [wide, wide])), (1 << 20) // count)
    variance = whole("Div", whole("Sub", squares, whole("Mul", mean, mean)), 1 << 20)
    guard = op.constant(np.maximum(1, np.float32(10000) * scale).astype(np.int64))
    variance = op.emit("Where", [whole("Less", variance, 1), guard, variance])
    root = [
        op.emit("FixedPointRsqrt", [cast(op, variance, _T.INT32)], {"part": part}, domain=build.DOMAIN)
        for part in ("MULTIPLIER", "SHIFT")
    ]
    zero = op.constant(np.asarray(0, np.int32))
    apart = op.emit(
        "Sub", [op.emit("Mul", [wide, op.constant(np.asarray(1 << 10, np.int32))]), cast(op, mean, _T.INT32)]
    )
    apart = op.emit("Rescale", [apart, *root, zero], {"rounding": "DOUBLE"}, domain=build.DOMAIN)
    weighted = op.emit("Add", [op.emit("Mul", [apart, op.constant(weights.astype(np.int32))]), op.constant(bias)])
    weighted = op.emit("Rescale", [weighted, one, ten, zero], {"rounding": "AWAY"}, domain=build.DOMAIN)
    return rescaled(op, weighted, factor(scale * np.float32(1 << 12)), _T.INT16)


@dataclass(frozen=True)
class _Lstm:
    """Slots of the cell: of the first weights, recurrent weights, peephole weights, bias, projection, layer
    normalisation's coefficients; its states."""

    weights: int
    recurrent: int
    peephole: int
    bias: int
    projection: int
    norm: int
    states: tuple[int, int]

    def fits(self, op: Op) -> bool:
        """Whether LiteRT computes the cell in integers, and in a form that is known here."""
        h, c, hidden = op.tensor(self.states[0]), op.tensor(self.states[1]), op.intermediate(4)
        states = is_stored(op.tensor(0), _T.INT8) and is_stored(h, _T.INT8) and is_stored(c, _T.INT16)
        if not states or scale_of(hidden) is None or len(op.operator.intermediates) != _INTERMEDIATES:
            return False
        gates, norm = self._gates(op), self._normed(op)
        slots = [s + g for s in (self.weights, self.recurrent) for g in gates]
        slots += [self.projection] if op.has(self.projection) else []
        peepholes = [self.peephole + k for k in range(3) if op.has(self.peephole + k)]
        across = peepholes + [self.norm + g for g in gates if norm]
        weights = all(is_stored(op.tensor(i), _T.INT8) and op.const(i) is not None for i in slots)
        short = all(is_stored(op.tensor(i), _T.INT16) and op.const(i) is not None for i in across)
        known = not norm or all(scale_of(op.intermediate(g)) is not None for g in gates)
        biases = [self.bias + g for g in gates] + [self.projection + 1] * op.has(self.projection + 1)
        whole = all((found := op.const(i)) is not None and found.dtype == np.int32 for i in biases)
        inside = self._sized(op, [*across, *(self.bias + g for g in gates)])
        inside = inside and (not peepholes or self._counted(op, peepholes) is not None)
        bits = np.log2(real_scale(c))
        return weights and short and known and whole and inside and bits == np.rint(bits) and -15 <= bits <= -9

    def _sized(self, op: Op, slots: Sequence[int]) -> bool:
        """Whether vectors have a number for each cell, and a projection is a matrix, with a number for each output."""
        flat = all(op.tensor(i).shape == op.tensor(self.states[1]).shape[1:] for i in slots)
        if not op.has(self.projection):
            return flat
        outputs = op.tensor(self.projection).shape[:1]
        biased = not op.has(self.projection + 1) or op.tensor(self.projection + 1).shape == outputs
        return flat and biased and op.tensor(self.projection).rank == 2

    def _counted(self, op: Op, peepholes: Sequence[int]) -> np.ndarray | None:
        """Which peephole weight LiteRT takes for each cell [batch or 1, units], -1 for none: it counts the cells and
        weights of rows by outputs. With the batch first it computes each row by itself. None for weights of another
        form, or if it reads beyond them."""
        shapes = [op.tensor(i).shape for i in self.states]
        if any(len(shape) != 2 for shape in shapes):
            return None
        (batch, outputs), (_, units) = shapes
        if outputs > units or any(op.tensor(i).shape != (units,) for i in peepholes):
            return None
        rows = batch if outputs < units and (op.name == "LSTM" or axis_of_time(op) == 0) else 1
        found = np.full(rows * units, -1)
        found[: rows * outputs] = np.tile(np.arange(outputs), rows)
        return found.reshape(rows, units)

    def _gates(self, op: Op) -> list[int]:
        """The gates that the file has, in the order of their columns; no input gate: it is coupled."""
        return [_FORGET, _OUTPUT, _CELL] if not op.has(self.weights) else [_FORGET, _INPUT, _OUTPUT, _CELL]

    def _normed(self, op: Op) -> bool:
        return op.has(self.norm + _FORGET)

    def entered(self, op: Op) -> ir.Value:
        """The input's part of all gates at all times, int16."""
        x = op.tensor(0)
        total = product(op, op.raw(0), self._stacked(op, self.weights), zero_of(x))
        if not self._normed(op):
            total = op.emit("Add", [total, op.constant(self._stacked(op, self.bias))])
        return rescaled(op, total, self._factor(op, self.weights, real_scale(x)), _T.INT16)

    def step(self, op: Op, entered: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The new (h, c) of one time."""
        h, c = before
        state = op.tensor(self.states[0])
        total = product(op, h, self._stacked(op, self.recurrent), zero_of(state))
        total = rescaled(op, total, self._factor(op, self.recurrent, real_scale(state)), _T.INT32)
        total = narrowed(op, plus(op, total, entered), _T.INT16)
        order = self._gates(op)
        if self._normed(op) and not self._peeps(op):
            total = self._normal(op, total, order)
        parts = op.emit("Split", [total], {"axis": -1, "num_outputs": len(order)}, outputs=len(order))
        gates = dict(zip(order, parts, strict=True))
        bits = int(np.log2(real_scale(op.tensor(self.states[1]))))
        forget = unit(op, "FixedPointSigmoid", self._gate(op, _FORGET, gates, c))
        if _INPUT in gates:
            opened = unit(op, "FixedPointSigmoid", self._gate(op, _INPUT, gates, c))
        else:
            opened = op.emit("Sub", [op.constant(np.asarray(ONE, np.int16)), forget])
        kept = shifted(op, times(op, forget, c), 15)
        news = shifted(op, times(op, opened, unit(op, "FixedPointTanh", self._gate(op, _CELL, gates, None))), 30 + bits)
        most = self._clip(op, "cell_clip", real_scale(op.tensor(self.states[1])), ONE)
        c = narrowed(op, plus(op, kept, news), _T.INT16, *((-most, most) if most else ()))
        out = unit(op, "FixedPointSigmoid", self._gate(op, _OUTPUT, gates, c))
        return self._projected(op, times(op, out, unit(op, "FixedPointTanh", c, 15 + bits))), c

    def _const(self, op: Op, i: int) -> np.ndarray:
        found = op.const(i)
        if found is None:
            op.fail(f"expected constant input {i}, got a computed one")
        return found

    def _stacked(self, op: Op, slot: int) -> np.ndarray:
        found = [self._const(op, slot + g) for g in self._gates(op)]
        shapes = {a.shape for a in found}
        if len(shapes) > 1:
            op.fail(f"expected constants of one shape for all gates, got {', '.join(map(str, sorted(shapes)))}")
        return np.concatenate(found)

    def _factor(self, op: Op, slot: int, scale: np.float32) -> Factor:
        """Per column of all gates."""
        reals = [real_scale(op.tensor(slot + g)) * scale / self._gate_scale(op, g) for g in self._gates(op)]
        return factor(np.repeat(reals, len(self._const(op, slot + _FORGET))))

    def _gate_scale(self, op: Op, gate: int) -> np.float32:
        """What a unit of a gate's sums means."""
        found = scale_of(op.intermediate(gate)) if self._normed(op) else None
        return _GATE if found is None else found

    def _gate(self, op: Op, gate: int, gates: dict[int, ir.Value], c: ir.Value | None) -> ir.Value:
        """The gate's sum with the cell's part if there are peepholes, then normalised if the file says so."""
        if not self._peeps(op):
            return gates[gate]
        total = gates[gate] if c is None else self._peeped(op, gate, gates[gate], c)
        return self._normal(op, total, [gate]) if self._normed(op) else total

    def _peeps(self, op: Op) -> bool:
        return any(op.has(self.peephole + k) for k in range(3))

    def _normal(self, op: Op, total: ir.Value, gates: Sequence[int]) -> ir.Value:
        """Sums [batch, gates * units], each gate's normalised."""
        weights, bias = (np.stack([self._const(op, slot + g) for g in gates]) for slot in (self.norm, self.bias))
        scale = np.array([[real_scale(op.tensor(self.norm + g))] for g in gates], np.float32)
        apart = op.emit("Reshape", [total, op.constant([0, *weights.shape])])
        return op.emit("Reshape", [_normalised(op, apart, weights, bias, scale), op.constant([0, weights.size])])

    def _peeped(self, op: Op, gate: int, total: ir.Value, c: ir.Value) -> ir.Value:
        slot = self.peephole + {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}[gate]
        if not op.has(slot):
            return total
        real = real_scale(op.tensor(self.states[1])) * real_scale(op.tensor(slot)) / self._gate_scale(op, gate)
        counted = self._counted(op, [slot])
        if counted is None:
            op.fail("expected a peephole weight for each cell, and no more outputs than cells")
        weights = np.where(counted < 0, 0, self._const(op, slot).astype(np.int32)[counted])
        seen = op.emit("Mul", [cast(op, c, _T.INT32), op.constant(weights)])
        return narrowed(op, plus(op, rescaled(op, seen, factor(real), _T.INT32), total), _T.INT16)

    def _projected(self, op: Op, h: ir.Value) -> ir.Value:
        """The output: the hidden state, or its projection."""
        hidden, state = op.intermediate(4), op.tensor(self.states[0])
        if hidden is None:
            op.fail("expected an intermediate tensor with the hidden state's scale, got none")
        real = np.float32(2.0**-15 / np.float64(real_scale(hidden)) * 2.0**-15)
        if not op.has(self.projection):
            return rescaled(op, h, factor(real), _T.INT8, zero_of(hidden))
        # The projection's operand has the other sign of the zero point, which may be 128.
        h = narrowed(op, rescaled(op, h, factor(real), _T.INT32, -zero_of(hidden)), _T.INT8)
        weights = self._const(op, self.projection)
        added = zero_of(hidden) * weights.sum(1, dtype=np.int32)
        if op.has(self.projection + 1):
            added += self._const(op, self.projection + 1)
        total = op.emit("Add", [product(op, h, weights, 0), op.constant(added)])
        real = real_scale(op.tensor(self.projection)) * real_scale(hidden) / real_scale(state)
        h = rescaled(op, total, factor(real), _T.INT8, zero_of(state))
        most = self._clip(op, "proj_clip", real_scale(op.output()), 127)
        return op.emit("Clip", [h, *(op.constant(np.asarray(v, np.int8)) for v in (-most, most))]) if most else h

    def _clip(self, op: Op, option: str, scale: np.float32, most: int) -> int:
        bound = np.float32(op.option(option, 0.0))
        return int(min(bound / scale, np.float32(most)))


_LSTM = _Lstm(weights=1, recurrent=5, peephole=9, bias=12, projection=16, norm=20, states=(18, 19))


@integers("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(op: Op) -> ir.Value | None:
    """None for a cell that is not all integers."""
    if not _LSTM.fits(op):
        return None
    return run(op, _LSTM.entered(op), Direction(_LSTM.step, _LSTM.states, stored=True), axis_of_time(op))


@integers("LSTM")
def lstm(op: Op) -> Sequence[ir.Value | None] | None:
    """One step over a batch."""
    if is_basic(op):
        return basic_lstm(op)
    if not _LSTM.fits(op):
        return None
    h, c = _LSTM.step(op, _LSTM.entered(op), [raw_state(op, i) for i in _LSTM.states])
    for slot, value in zip(_LSTM.states, (h, c), strict=True):
        raw_store(op, slot, value)
    return [*[None] * (op.count_outputs - 1), h]
