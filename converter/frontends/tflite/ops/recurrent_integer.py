"""LiteRT's integer recurrent cells, in its own arithmetic: the LSTM of 8-bit weights and 16-bit cell, and SVDF.

The formulas are those of kernels/lstm_eval.cc (LstmStepInteger8x8_16) and kernels/internal/reference/svdf.h. Gates have
16 bits in units of 2**-12, sigmoid and tanh results 15 fractional bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Tensor
from converter.frontends.tflite.op import Op
from converter.frontends.tflite.ops.fixed_point import Factor, factor, narrowed, rescaled, scale_of, typed, zero_of
from converter.frontends.tflite.ops.operands import cast, sizes
from converter.frontends.tflite.ops.variables import raw_state, raw_store
from converter.ir import build

__all__ = ["IntegerLstm", "integer_lstm", "integer_svdf"]

_T = ir.DataType
_GATE = np.float32(2.0**-12)
"""What a unit of a gate means."""
_ONE = (1 << 15) - 1
_INTERMEDIATES = 5
"""Of the cell with 16-bit gates: the gates', and the hidden state's. LiteRT's other integer cell has 12."""
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)


def _is(tensor: Tensor | None, dtype: ir.DataType) -> bool:
    return tensor is not None and tensor.dtype == dtype and scale_of(tensor) is not None


def _scale(tensor: Tensor) -> np.float32:
    found = scale_of(tensor)
    if found is None:
        raise ConvertError(f"tensor {tensor.name!r}: expected a scale, got none")
    return found


def _product(op: Op, x: ir.Value, stored: np.ndarray, x_zero: int) -> ir.Value:
    """(x - zero) @ stored.T, in int32."""
    weights = op.constant(np.ascontiguousarray(stored.T))
    inputs = [x, weights] + ([op.constant(np.asarray(x_zero, np.int8))] if x_zero else [])
    return op.emit("MatMulInteger", inputs)


def _times(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    return op.emit("Mul", [cast(op, a, _T.INT32), cast(op, b, _T.INT32)])


def _plus(op: Op, a: ir.Value, b: ir.Value) -> ir.Value:
    return op.emit("Add", [cast(op, a, _T.INT32), cast(op, b, _T.INT32)])


def _shifted(op: Op, x: ir.Value, bits: int) -> ir.Value:
    """x / 2**bits, halves away from zero, as int16."""
    by = Factor(np.asarray(1, np.int32), np.asarray(bits, np.int32), "AWAY")
    return rescaled(op, x, by, _T.INT16)


def _unit(op: Op, kind: str, x: ir.Value, integer_bits: int = 3) -> ir.Value:
    made = op.emit(kind, [x], {"integer_bits": integer_bits}, domain=build.DOMAIN)
    return typed(made, _T.INT16, x)


@dataclass(frozen=True)
class IntegerLstm:
    """Slots of the cell: of the first weights, recurrent weights, peephole weights, bias, projection; its states."""

    weights: int
    recurrent: int
    peephole: int
    bias: int
    projection: int
    states: tuple[int, int]

    def fits(self, op: Op) -> bool:
        """Whether LiteRT computes the cell in integers, and in a form that is known here."""
        h, c, hidden = op.tensor(self.states[0]), op.tensor(self.states[1]), op.intermediate(4)
        states = _is(op.tensor(0), _T.INT8) and _is(h, _T.INT8) and _is(c, _T.INT16)
        if not states or scale_of(hidden) is None or len(op.operator.intermediates) != _INTERMEDIATES:
            return False
        slots = [s + g for s in (self.weights, self.recurrent) for g in self._gates(op)]
        slots += [self.projection] if op.has(self.projection) else []
        peepholes = [self.peephole + k for k in range(3) if op.has(self.peephole + k)]
        weights = all(_is(op.tensor(i), _T.INT8) and op.const(i) is not None for i in slots)
        across = all(_is(op.tensor(i), _T.INT16) and op.const(i) is not None for i in peepholes)
        biases = [self.bias + g for g in self._gates(op)] + [self.projection + 1] * op.has(self.projection + 1)
        whole = all((found := op.const(i)) is not None and found.dtype == np.int32 for i in biases)
        # LiteRT counts peephole weights by outputs, not cells.
        square = not peepholes or not op.has(self.projection)
        bits = np.log2(_scale(c))
        return weights and across and whole and square and bits == np.rint(bits) and -15 <= bits <= -9

    def _gates(self, op: Op) -> list[int]:
        """The gates that the file has, in the order of their columns; no input gate: it is coupled."""
        return [_FORGET, _OUTPUT, _CELL] if not op.has(self.weights) else [_FORGET, _INPUT, _OUTPUT, _CELL]

    def entered(self, op: Op) -> ir.Value:
        """The input's part of all gates at all times, int16."""
        x = op.tensor(0)
        total = _product(op, op.raw(0), self._stacked(op, self.weights), zero_of(x))
        total = op.emit("Add", [total, op.constant(self._stacked(op, self.bias))])
        return rescaled(op, total, self._factor(op, self.weights, _scale(x)), _T.INT16)

    def step(self, op: Op, entered: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The new (h, c) of one time."""
        h, c = before
        state = op.tensor(self.states[0])
        total = _product(op, h, self._stacked(op, self.recurrent), zero_of(state))
        total = rescaled(op, total, self._factor(op, self.recurrent, _scale(state)), _T.INT32)
        total = narrowed(op, _plus(op, total, entered), _T.INT16)
        order = self._gates(op)
        parts = op.emit("Split", [total], {"axis": -1, "num_outputs": len(order)}, outputs=len(order))
        gates = dict(zip(order, parts, strict=True))
        bits = int(np.log2(_scale(op.tensor(self.states[1]))))
        forget = _unit(op, "FixedPointSigmoid", self._peeped(op, _FORGET, gates, c))
        if _INPUT in gates:
            opened = _unit(op, "FixedPointSigmoid", self._peeped(op, _INPUT, gates, c))
        else:
            opened = op.emit("Sub", [op.constant(np.asarray(_ONE, np.int16)), forget])
        kept = _shifted(op, _times(op, forget, c), 15)
        news = _shifted(op, _times(op, opened, _unit(op, "FixedPointTanh", gates[_CELL])), 30 + bits)
        most = self._clip(op, "cell_clip", _scale(op.tensor(self.states[1])), _ONE)
        c = narrowed(op, _plus(op, kept, news), _T.INT16, *((-most, most) if most else ()))
        out = _unit(op, "FixedPointSigmoid", self._peeped(op, _OUTPUT, gates, c))
        return self._projected(op, _times(op, out, _unit(op, "FixedPointTanh", c, 15 + bits))), c

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
        reals = [_scale(op.tensor(slot + g)) * scale / _GATE for g in self._gates(op)]
        return factor(np.repeat(reals, len(self._const(op, slot + _FORGET))))

    def _peeped(self, op: Op, gate: int, gates: dict[int, ir.Value], c: ir.Value) -> ir.Value:
        """The gate, with the cell's part if there are peepholes."""
        slot = self.peephole + {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}[gate]
        if not op.has(slot):
            return gates[gate]
        real = _scale(op.tensor(self.states[1])) * _scale(op.tensor(slot)) / _GATE
        seen = op.emit("Mul", [cast(op, c, _T.INT32), op.constant(self._const(op, slot).astype(np.int32))])
        return narrowed(op, _plus(op, rescaled(op, seen, factor(real), _T.INT32), gates[gate]), _T.INT16)

    def _projected(self, op: Op, h: ir.Value) -> ir.Value:
        """The output: the hidden state, or its projection."""
        hidden, state = op.intermediate(4), op.tensor(self.states[0])
        if hidden is None:
            op.fail("expected an intermediate tensor with the hidden state's scale, got none")
        real = np.float32(2.0**-15 / np.float64(_scale(hidden)) * 2.0**-15)
        h = rescaled(op, h, factor(real), _T.INT8, zero_of(hidden))
        if not op.has(self.projection):
            return h
        total = _product(op, h, self._const(op, self.projection), zero_of(hidden))
        if op.has(self.projection + 1):
            total = op.emit("Add", [total, op.constant(self._const(op, self.projection + 1))])
        real = _scale(op.tensor(self.projection)) * _scale(hidden) / _scale(state)
        h = rescaled(op, total, factor(real), _T.INT8, zero_of(state))
        most = self._clip(op, "proj_clip", _scale(op.output()), 127)
        return op.emit("Clip", [h, *(op.constant(np.asarray(v, np.int8)) for v in (-most, most))]) if most else h

    def _clip(self, op: Op, option: str, scale: np.float32, most: int) -> int:
        bound = np.float32(op.option(option, 0.0))
        return int(min(bound / scale, np.float32(most)))


def integer_lstm(op: Op, cell: IntegerLstm) -> bool:
    """Whether an LSTM is computed as LiteRT's integer cell: not one with layer normalisation."""
    return op.litert and cell.fits(op) and not any(op.has(i) for i in range(20, 24))


def integer_svdf(op: Op) -> ir.Value | None:
    """SVDF of 8-bit input, 16-bit state and 16-bit time weights; None for any other, which LiteRT refuses.

    LiteRT applies no activation: saturation at the output's least integer is the Relu.
    """
    features, memory = sizes(op, 2)
    x, by, over, line, out = op.tensor(0), op.tensor(1), op.tensor(2), op.tensor(4), op.output()
    typed_so = _is(x, _T.INT8) and _is(by, _T.INT8) and _is(over, _T.INT16) and _is(line, _T.INT16)
    stored, weights = op.const(1), op.const(2)
    if not (op.litert and typed_so and _is(out, _T.INT8)) or stored is None or weights is None:
        return None
    rank = int(op.option("rank", 1))
    if features is None or memory is None:
        op.fail("expected time weights of known size")
    entered = _product(op, op.raw(0), stored, zero_of(x))
    newest = rescaled(op, entered, factor(_scale(x) * _scale(by) / _scale(line)), _T.INT16)
    state = op.emit("Reshape", [raw_state(op, 4), op.constant([-1, features, memory])])
    older = op.emit("Slice", [state, *(op.constant([v]) for v in (1, memory, 2))])
    state = op.emit("Concat", [older, op.emit("Unsqueeze", [newest, op.constant([2])])], {"axis": 2})
    raw_store(op, 4, op.emit("Reshape", [state, op.constant([-1, features * memory])]))
    seen = op.emit("Mul", [cast(op, state, _T.INT32), op.constant(weights.astype(np.int32))])
    seen = op.emit("Reshape", [seen, op.constant([-1, features // rank, rank * memory])])
    total = op.emit("ReduceSum", [seen, op.constant([2])], {"keepdims": 0})
    if op.has(3):
        total = op.emit("Add", [total, op.raw(3)])
    return rescaled(op, total, factor(_scale(line) * _scale(over) / _scale(out)), _T.INT8, zero_of(out))
