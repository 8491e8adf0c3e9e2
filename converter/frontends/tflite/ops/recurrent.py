"""Recurrent cells: one step (RNN, LSTM, SVDF) and whole sequences.

Sequences become ONNX's own LSTM and RNN where those are equivalent; cells with projection, layer normalisation or a
clipped cell become a Scan of one step. State tensors are variables: read, and written for the next run.

Products by 8-bit weights are LiteRT's: inputs and states are rounded to 8 bits, each row over its own range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import cast, sizes
from converter.frontends.tflite.ops.variables import as_real, as_stored, raw_state, raw_store, state, store
from converter.frontends.tflite.ops.weights import own_scheme, quantized
from converter.ir import build

__all__ = ["Direction", "axis_of_time", "is_basic", "run"]

_UNITS = {1: "Relu", 4: "Tanh"}
"""Activations ONNX's recurrent operators have under a plain name, by the schema's number."""
_NORM_EPSILON = 1e-8
"""What TFLite adds to the variance in layer normalisation."""
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
_BASIC = 1
"""LSTMKernelType BASIC: one weight matrix for all gates."""

Step = Callable[[Op, ir.Value, Sequence[ir.Value]], tuple[ir.Value, ...]]
"""(an op to emit with, input of one time, state) -> new state, its first element the output."""


# sequences


@dataclass(frozen=True)
class Direction:
    """A pass over a sequence: the step, the slots of its state variables, and the direction."""

    step: Step
    states: tuple[int, ...]
    back: bool = False
    stored: bool = False
    """Whether the step works on states as stored, not on real numbers."""


def run(op: Op, x: ir.Value, way: Direction, time_axis: int) -> ir.Value:
    """Every step's output along `time_axis`; final states are stored."""
    shape = build.dims(x) or ()
    now = ir.Value(name="now", type=x.type, shape=ir.Shape([d for i, d in enumerate(shape) if i != time_axis]))
    states = [(raw_state if way.stored else state)(op, i) for i in way.states]

    def body(inner: Op, values: list[ir.Value]) -> list[ir.Value]:
        after = way.step(inner, values[-1], values[:-1])
        return [*after, inner.emit("Identity", [after[0]])]

    attrs = {
        "body": op.graph(body, [*states, now]),
        "num_scan_inputs": 1,
        "scan_input_axes": [time_axis],
        "scan_input_directions": [int(way.back)],
        "scan_output_axes": [time_axis],
        "scan_output_directions": [int(way.back)],
    }
    results = op.emit("Scan", [*states, x], attrs, outputs=len(states) + 1)
    for slot, value in zip(way.states, results[:-1], strict=True):
        (raw_store if way.stored else store)(op, slot, value)
    return results[-1]


def _store(op: Op, slots: Sequence[int], values: Sequence[ir.Value]) -> None:
    for slot, value in zip(slots, values, strict=True):
        store(op, slot, value)


def axis_of_time(op: Op) -> int:
    """The axis of a sequence's times."""
    return 0 if op.option("time_major", False) else 1


def _merged(op: Op, forward: ir.Value, backward: ir.Value) -> list[ir.Value]:
    if op.option("merge_outputs", False):
        return [op.emit("Concat", [forward, backward], {"axis": -1})]
    return [forward, backward]


# plain recurrence


@dataclass(frozen=True)
class _Rnn:
    """Slots of a plain recurrent cell."""

    weights: int
    recurrent: int
    bias: int
    state: int

    def entered(self, op: Op) -> ir.Value:
        """x W' + b"""
        return op.emit("Add", [_product(op, op.real(0), [self.weights]), op.real(self.bias)])

    def step(self, op: Op, entered: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """activation(entered + h R')."""
        return (op.activation(op.emit("Add", [entered, _product(op, before[0], [self.recurrent])])),)


def _product(op: Op, x: ir.Value, slots: Sequence[int]) -> ir.Value:
    """x times the transposed matrices of `slots`, side by side."""
    found = _stored(op, slots)
    if found is None:
        parts = [op.permuted(slot, (1, 0)) for slot in slots]
        return op.emit("MatMul", [x, parts[0] if len(parts) == 1 else op.emit("Concat", parts, {"axis": 1})])
    scales = op.constant(found.scales)
    if op.litert:
        operands = [*_rounded(op, x), op.constant(found.weights), scales, op.constant(np.int8(0))]
        return op.emit("QLinearMatMul", operands, {"transB": 1}, domain=build.DOMAIN)
    weights = op.constant(np.ascontiguousarray(found.weights.T))
    return op.emit("MatMul", [x, op.emit("DequantizeLinear", [weights, scales], {"axis": 1})])


def _rounded(op: Op, x: ir.Value) -> tuple[ir.Value, ...]:
    """Rows as int8, their scales and zero points."""
    rank = build.rank(x)
    if not rank:
        op.fail("expected an input of known rank, at least 1")
    return quantized(op, x, rank - 1, own_scheme(op))


def _rounded_real(op: Op, x: ir.Value) -> ir.Value:
    """The real numbers that the rows then are."""
    q, step, zero = _rounded(op, x)
    whole = cast(op, q, ir.DataType.FLOAT)
    if own_scheme(op) == "ASYMMETRIC":
        whole = op.emit("Sub", [whole, cast(op, zero, ir.DataType.FLOAT)])
    return op.emit("Mul", [whole, step])


def _rounds(op: Op, *slots: int) -> bool:
    """Whether LiteRT rounds what it multiplies by these matrices."""
    return op.litert and all(_stored(op, [slot]) is not None for slot in slots)


class _Stored(NamedTuple):
    """Matrices of int8 stacked by rows, and a scale for each row."""

    weights: np.ndarray
    scales: np.ndarray


def _stored(op: Op, slots: Sequence[int], negate: Sequence[int] = ()) -> _Stored | None:
    """Matrices without zero points, quantised by tensor or by row; those at positions `negate` are negated."""
    stored, scales = [], []
    for k, tensor in enumerate(op.tensor(i) for i in slots):
        quant, array = tensor.quant, tensor.array
        if quant is None or array is None or array.dtype != np.int8 or quant.block or quant.axis:
            return None
        if array.ndim != 2 or np.size(quant.scale) not in (1, len(array)):
            return None
        if np.any(quant.zero_point) or array.min(initial=0) == -128:
            return None
        stored.append(-array if k in negate else array)
        scales.append(np.broadcast_to(quant.scale, len(array)))
    if len({array.shape[1] for array in stored}) != 1:
        return None
    return _Stored(np.concatenate(stored), np.concatenate(scales))


@translate("RNN")
def rnn(op: Op) -> ir.Value:
    """One step over a batch; the output is the new state."""
    cell = _Rnn(1, 2, 3, 4)
    (h,) = cell.step(op, cell.entered(op), [state(op, cell.state)])
    store(op, cell.state, h)
    return h


@translate("UNIDIRECTIONAL_SEQUENCE_RNN")
def sequence_rnn(op: Op) -> ir.Value:
    """A sequence, batch or time first."""
    return _rnn_pass(op, _Rnn(1, 2, 3, 4), back=False)


@translate("BIDIRECTIONAL_SEQUENCE_RNN")
def bidirectional_rnn(op: Op) -> list[ir.Value]:
    """Both directions over a sequence. Auxiliary inputs are not supported."""
    if any(op.has(i) for i in range(9, op.count_inputs)):
        op.fail("expected no auxiliary input, got one; export the model without stacked bidirectional cells")
    return _merged(op, _rnn_pass(op, _Rnn(1, 2, 3, 4), back=False), _rnn_pass(op, _Rnn(5, 6, 7, 8), back=True))


def _rnn_pass(op: Op, cell: _Rnn, back: bool) -> ir.Value:
    x, time_axis = op.real(0), axis_of_time(op)
    unit = _UNITS.get(int(op.option("fused_activation_function", 0)))
    if unit is None or _rounds(op, cell.weights, cell.recurrent):
        return run(op, cell.entered(op), Direction(cell.step, (cell.state,), back), time_axis)
    bias = op.emit(
        "Concat", [op.real(cell.bias), op.constant(np.zeros(_units(op, cell.recurrent), np.float32))], {"axis": 0}
    )
    first = op.constant([0])
    operands = [
        x if time_axis == 0 else op.emit("Transpose", [x], {"perm": [1, 0, 2]}),
        _stack(op, [cell.weights]),
        _stack(op, [cell.recurrent]),
        op.emit("Unsqueeze", [bias, first]),
        None,
        op.emit("Unsqueeze", [state(op, cell.state), first]),
    ]
    attrs = {"activations": [unit], "hidden_size": _units(op, cell.recurrent), "direction": _way(back)}
    y, h = op.emit("RNN", operands, attrs, outputs=2)
    store(op, cell.state, op.emit("Squeeze", [h, first]))
    return _in_order(op, op.emit("Squeeze", [y, op.constant([1])]), time_axis)


def _in_order(op: Op, y: ir.Value, time_axis: int) -> ir.Value:
    return y if time_axis == 0 else op.emit("Transpose", [y], {"perm": [1, 0, 2]})


def _way(back: bool) -> str:
    return "reverse" if back else "forward"


def _units(op: Op, slot: int) -> int:
    size = sizes(op, slot)[0]
    if size is None:
        op.fail(f"expected weights {op.tensor(slot).name!r} of known size")
    return size


def _stack(op: Op, slots: Sequence[int], negate: Sequence[int] = ()) -> ir.Value:
    """Weight matrices stacked by rows, as ONNX's recurrent operators need them: [1, rows, columns].

    Constants quantised by tensor or by row stay integers: their rows share one DequantizeLinear. Matrices at positions
    `negate` are negated.
    """
    found = _stored(op, slots, negate)
    if found is not None:
        return op.emit("DequantizeLinear", [op.constant(found.weights[None]), op.constant(found.scales)], {"axis": 1})
    parts = [op.emit("Neg", [op.real(i)]) if k in negate else op.real(i) for k, i in enumerate(slots)]
    whole = parts[0] if len(parts) == 1 else op.emit("Concat", parts, {"axis": 0})
    return op.emit("Unsqueeze", [whole, op.constant([0])])


# long short-term memory


@dataclass(frozen=True)
class _Lstm:
    """Slots of an LSTM cell. Gates are in the order input, forget, cell, output; an absent input gate is coupled:
    one minus the forget gate."""

    weights: int
    recurrent: int
    peephole: int
    bias: int
    projection: int
    states: tuple[int, int]
    norm: int | None = None

    def coupled(self, op: Op) -> bool:
        """Whether the cell has no separate input gate."""
        return not op.has(self.weights)

    def plain(self, op: Op) -> bool:
        """Whether ONNX's LSTM is the same cell."""
        fancy = op.has(self.projection) or (self.norm is not None and op.has(self.norm + 1))
        known = int(op.option("fused_activation_function", 0)) in _UNITS
        return known and not fancy and not op.option("cell_clip", 0.0)

    def _gates(self, op: Op) -> list[int]:
        """The gates that the file has."""
        return [_FORGET, _CELL, _OUTPUT] if self.coupled(op) else [_INPUT, _FORGET, _CELL, _OUTPUT]

    def entered(self, op: Op) -> ir.Value:
        """The input's part of all gates at all times."""
        return _product(op, op.real(0), [self.weights + g for g in self._gates(op)])

    def step(self, op: Op, entered: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The new (h, c) of one time."""
        h, c = before
        order = self._gates(op)
        total = op.emit("Add", [entered, _product(op, h, [self.recurrent + g for g in order])])
        parts = op.emit("Split", [total], {"axis": -1, "num_outputs": len(order)}, outputs=len(order))
        gates = dict(zip(order, parts, strict=True))
        forget = op.emit("Sigmoid", [self._gate(op, _FORGET, gates, c)])
        if self.coupled(op):
            opened = op.emit("Sub", [cast(op, op.constant(1.0), forget.dtype), forget])
        else:
            opened = op.emit("Sigmoid", [self._gate(op, _INPUT, gates, c)])
        news = op.emit("Mul", [opened, op.activation(self._gate(op, _CELL, gates, None))])
        c = _clipped(op, op.emit("Add", [op.emit("Mul", [forget, c]), news]), "cell_clip")
        out = op.emit("Sigmoid", [self._gate(op, _OUTPUT, gates, c)])
        h = op.emit("Mul", [out, op.activation(c)])
        return self._projected(op, h), c

    def _gate(self, op: Op, gate: int, gates: Mapping[int, ir.Value], c: ir.Value | None) -> ir.Value:
        total = gates[gate]
        peephole = self.peephole + {_INPUT: 0, _FORGET: 1, _OUTPUT: 2}.get(gate, 0)
        if c is not None and op.has(peephole):
            total = op.emit("Add", [total, op.emit("Mul", [c, op.real(peephole)])])
        if self.norm is not None and op.has(self.norm + gate):
            attrs = {"axis": -1, "epsilon": _NORM_EPSILON}
            return op.emit("LayerNormalization", [total, op.real(self.norm + gate), op.real(self.bias + gate)], attrs)
        return op.emit("Add", [total, op.real(self.bias + gate)])

    def _projected(self, op: Op, h: ir.Value) -> ir.Value:
        if not op.has(self.projection):
            return h
        h = _product(op, h, [self.projection])
        if op.has(self.projection + 1):
            h = op.emit("Add", [h, op.real(self.projection + 1)])
        return _clipped(op, h, "proj_clip")

    def sequence(self, op: Op, back: bool = False) -> ir.Value:
        """All outputs over the sequence in operand 0."""
        if not self.plain(op):
            return run(op, self.entered(op), Direction(self.step, self.states, back), axis_of_time(op))
        return self._whole(op, back)

    def _whole(self, op: Op, back: bool) -> ir.Value:
        """ONNX's LSTM: gates in the order input, output, forget, cell. A coupled input gate gets the forget gate's
        negated weights, since sigmoid(-z) = 1 - sigmoid(z). By 8-bit weights it is our own, which rounds h."""
        coupled, hidden, first = self.coupled(op), _units(op, self.recurrent + 1), op.constant([0])
        gates = [1 if coupled else 0, 3, 1, 2]
        negate = [0] if coupled else []
        x, time_axis = op.real(0), axis_of_time(op)
        slots = [self.recurrent + g for g in gates]
        stored = _stored(op, slots, negate) if _rounds(op, *slots, *(self.weights + g for g in gates)) else None
        operands = [
            _in_order(op, x if stored is None else _rounded_real(op, x), time_axis),
            _stack(op, [self.weights + g for g in gates], negate),
            _stack(op, slots, negate) if stored is None else op.constant(stored.weights[None]),
            self._biases(op, gates, negate, hidden),
            None,
            *(op.emit("Unsqueeze", [state(op, i), first]) for i in self.states),
        ]
        if op.has(self.peephole + 2):
            slots = [self.peephole + (1 if coupled else 0), self.peephole + 2, self.peephole + 1]
            operands.append(op.emit("Unsqueeze", [_joined(op, slots, negate), first]))
        unit = _UNITS[int(op.option("fused_activation_function"))]
        attrs = {"activations": ["Sigmoid", unit, unit], "hidden_size": hidden, "direction": _way(back)}
        if stored is not None:
            operands += [None] * (8 - len(operands)) + [op.constant(stored.scales.reshape(1, -1, 1))]
            attrs |= {"block_size": hidden, "rounding": own_scheme(op)}
        y, h, c = op.emit("LSTM", operands, attrs, outputs=3, domain=build.DOMAIN if stored is not None else "")
        _store(op, self.states, [op.emit("Squeeze", [v, first]) for v in (h, c)])
        return _in_order(op, op.emit("Squeeze", [y, op.constant([1])]), time_axis)

    def _biases(self, op: Op, gates: Sequence[int], negate: Sequence[int], hidden: int) -> ir.Value:
        own = _joined(op, [self.bias + g for g in gates], negate)
        both = op.emit("Concat", [own, op.constant(np.zeros(4 * hidden, np.float32))], {"axis": 0})
        return op.emit("Unsqueeze", [both, op.constant([0])])


def _joined(op: Op, slots: Sequence[int], negate: Sequence[int]) -> ir.Value:
    parts = [op.emit("Neg", [op.real(i)]) if k in negate else op.real(i) for k, i in enumerate(slots)]
    return op.emit("Concat", parts, {"axis": 0})


def _clipped(op: Op, value: ir.Value, option: str) -> ir.Value:
    bound = float(op.option(option, 0.0))
    if not bound:
        return value
    return op.emit("Clip", [value, *(cast(op, op.constant(v), value.dtype) for v in (-bound, bound))])


_FULL = partial(_Lstm, weights=1, recurrent=5, peephole=9, bias=12, projection=16)


@translate("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(op: Op) -> ir.Value:
    """A sequence, batch or time first."""
    return _FULL(states=(18, 19), norm=20).sequence(op)


@translate("BIDIRECTIONAL_SEQUENCE_LSTM")
def bidirectional_lstm(op: Op) -> list[ir.Value]:
    """Both directions over a sequence. Auxiliary inputs are not supported."""
    if any(op.has(i) for i in range(39, op.count_inputs)):
        op.fail("expected no auxiliary input, got one; export the model without stacked bidirectional cells")
    backward = _Lstm(18, 22, 26, 29, 33, (37, 38))
    return _merged(op, _FULL(states=(35, 36)).sequence(op), backward.sequence(op, back=True))


@translate("LSTM")
def lstm(op: Op) -> Sequence[ir.Value | None]:
    """One step over a batch; a basic cell carries its state through outputs, a full one in variables."""
    if is_basic(op):
        return _basic_lstm(op)
    cell = _FULL(states=(18, 19), norm=20)
    h, c = cell.step(op, cell.entered(op), [state(op, i) for i in cell.states])
    _store(op, cell.states, [h, c])
    return [*[None] * (op.count_outputs - 1), h]


def is_basic(op: Op) -> bool:
    """Whether an LSTM has one weight matrix for all gates, and its state in operands and results."""
    return int(op.option("kernel_type", 0)) == _BASIC


def _basic_lstm(op: Op) -> list[ir.Value]:
    """One matrix over [x, h], gates in the order input, cell, forget, output. The last two results are scratch."""
    joint = op.emit("Concat", [op.real(0), op.real(1)], {"axis": -1})
    total = op.emit("Add", [op.emit("MatMul", [joint, op.permuted(2, (1, 0))]), op.real(3)])
    opened, news, forget, out = op.emit("Split", [total], {"axis": -1, "num_outputs": 4}, outputs=4)
    kept = op.emit("Mul", [op.emit("Sigmoid", [forget]), op.real(4)])
    c = op.emit("Add", [kept, op.emit("Mul", [op.emit("Sigmoid", [opened]), op.emit("Tanh", [news])])])
    h = op.emit("Mul", [op.emit("Sigmoid", [out]), op.emit("Tanh", [c])])
    return [h, c, joint, total][: op.count_outputs]


# singular value decomposition filter


@translate("SVDF")
def svdf(op: Op) -> ir.Value:
    """A rank-`rank` filter over the last `memory` steps: features enter a shift register, weighted over time.

    A quantised register is shifted as integers: the newest features are rounded when they enter it.
    """
    features, memory = sizes(op, 2) if len(sizes(op, 2)) == 2 else (None, None)
    if features is None or memory is None:
        op.fail("expected time weights of a known shape [filters, memory]")
    rank = int(op.option("rank", 1))
    line = op.emit("Reshape", [raw_state(op, 4), op.constant([-1, features, memory])])
    newest = op.emit("Unsqueeze", [as_stored(op, 4, _product(op, op.real(0), [1])), op.constant([2])])
    older = op.emit("Slice", [line, *(op.constant([v]) for v in (1, memory, 2))])
    line = op.emit("Concat", [older, newest], {"axis": 2})
    raw_store(op, 4, op.emit("Reshape", [line, op.constant([-1, features * memory])]))
    weighted = op.emit("Mul", [as_real(op, 4, line), op.real(2)])
    seen = op.emit("ReduceSum", [weighted, op.constant([2])], {"keepdims": 0})
    if rank > 1:
        grouped = op.emit("Reshape", [seen, op.constant([-1, features // rank, rank])])
        seen = op.emit("ReduceSum", [grouped, op.constant([2])], {"keepdims": 0})
    if op.has(3):
        seen = op.emit("Add", [seen, op.real(3)])
    return op.activation(seen)
