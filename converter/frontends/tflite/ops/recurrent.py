"""Recurrent cells: one step (RNN, LSTM, SVDF) and whole sequences.

Sequences become ONNX's own LSTM and RNN where those are equivalent; cells with projection, layer normalisation or a
clipped cell become a Scan of one step. State tensors are variables: read, and written for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import cast, sizes
from converter.frontends.tflite.ops.recurrent_integer import IntegerLstm, integer_lstm, integer_svdf
from converter.frontends.tflite.ops.variables import as_real, as_stored, raw_state, raw_store, state, store
from converter.ir import build

__all__: list[str] = []

_UNITS = {1: "Relu", 4: "Tanh"}
"""Activations ONNX's recurrent operators have under a plain name, by the schema's number."""
_NORM_EPSILON = 1e-8
"""What TFLite adds to the variance in layer normalisation."""
_BASIC = 1
"""LSTMKernelType BASIC: one weight matrix for all gates."""

Step = Callable[[Op, ir.Value, Sequence[ir.Value]], tuple[ir.Value, ...]]
"""(an op to emit with, input of one time, state) -> new state, its first element the output."""


# sequences


@dataclass(frozen=True)
class _Direction:
    """A pass over a sequence: the step, the slots of its state variables, and the direction."""

    step: Step
    states: tuple[int, ...]
    back: bool = False
    stored: bool = False
    """Whether the step works on states as stored, not on real numbers."""


def _run(op: Op, x: ir.Value, way: _Direction, time_axis: int) -> ir.Value:
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


def _time_axis(op: Op) -> int:
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

    def step(self, op: Op, x: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """activation(x W' + h R' + b)."""
        total = op.emit("Add", [_product(op, x, self.weights), _product(op, before[0], self.recurrent)])
        return (op.activation(op.emit("Add", [total, op.real(self.bias)])),)


def _product(op: Op, x: ir.Value, slot: int) -> ir.Value:
    return op.emit("MatMul", [x, op.permuted(slot, (1, 0))])


@translate("RNN")
def rnn(op: Op) -> ir.Value:
    """One step over a batch; the output is the new state."""
    cell = _Rnn(1, 2, 3, 4)
    (h,) = cell.step(op, op.real(0), [state(op, cell.state)])
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
    x, time_axis = op.real(0), _time_axis(op)
    unit = _UNITS.get(int(op.option("fused_activation_function", 0)))
    if unit is None:
        return _run(op, x, _Direction(cell.step, (cell.state,), back), time_axis)
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
    tensors = [op.tensor(i) for i in slots]
    signs = [-1 if k in negate else 1 for k in range(len(slots))]
    quants = [t.quant for t in tensors]
    symmetric = [
        q for t, q in zip(tensors, quants, strict=True)
        if q is not None and t.array is not None and t.array.dtype == np.int8 and not (q.block or q.axis)
        and not np.any(q.zero_point) and t.array.min(initial=0) > -128
    ]  # fmt: skip
    if len(symmetric) == len(tensors):
        stored = [sign * t.array for sign, t in zip(signs, tensors, strict=True) if t.array is not None]
        scales = [np.broadcast_to(q.scale, len(a)) for q, a in zip(symmetric, stored, strict=True)]
        weights = op.constant(np.concatenate(stored).astype(np.int8)[None])
        return op.emit("DequantizeLinear", [weights, op.constant(np.concatenate(scales))], {"axis": 1})
    parts = [op.real(i) for i in slots]
    parts = [op.emit("Neg", [p]) if sign < 0 else p for p, sign in zip(parts, signs, strict=True)]
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

    def step(self, op: Op, x: ir.Value, before: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The new (h, c) of one time."""
        h, c = before
        forget = op.emit("Sigmoid", [self._gate(op, 1, x, h, c)])
        if self.coupled(op):
            opened = op.emit("Sub", [cast(op, op.constant(1.0), forget.dtype), forget])
        else:
            opened = op.emit("Sigmoid", [self._gate(op, 0, x, h, c)])
        news = op.emit("Mul", [opened, op.activation(self._gate(op, 2, x, h, None))])
        c = _clipped(op, op.emit("Add", [op.emit("Mul", [forget, c]), news]), "cell_clip")
        out = op.emit("Sigmoid", [self._gate(op, 3, x, h, c)])
        h = op.emit("Mul", [out, op.activation(c)])
        return self._projected(op, h), c

    def _gate(self, op: Op, gate: int, x: ir.Value, h: ir.Value, c: ir.Value | None) -> ir.Value:
        total = op.emit("Add", [_product(op, x, self.weights + gate), _product(op, h, self.recurrent + gate)])
        peephole = self.peephole + {0: 0, 1: 1, 3: 2}.get(gate, 0)
        if c is not None and op.has(peephole):
            total = op.emit("Add", [total, op.emit("Mul", [c, op.real(peephole)])])
        if self.norm is not None and op.has(self.norm + gate):
            attrs = {"axis": -1, "epsilon": _NORM_EPSILON}
            return op.emit("LayerNormalization", [total, op.real(self.norm + gate), op.real(self.bias + gate)], attrs)
        return op.emit("Add", [total, op.real(self.bias + gate)])

    def _projected(self, op: Op, h: ir.Value) -> ir.Value:
        if not op.has(self.projection):
            return h
        h = _product(op, h, self.projection)
        if op.has(self.projection + 1):
            h = op.emit("Add", [h, op.real(self.projection + 1)])
        return _clipped(op, h, "proj_clip")

    def sequence(self, op: Op, back: bool = False) -> ir.Value:
        """All outputs over the sequence in operand 0."""
        if not self.plain(op):
            return _run(op, op.real(0), _Direction(self.step, self.states, back), _time_axis(op))
        return self._whole(op, back)

    def _whole(self, op: Op, back: bool) -> ir.Value:
        """ONNX's LSTM: gates in the order input, output, forget, cell. A coupled input gate gets the forget gate's
        negated weights, since sigmoid(-z) = 1 - sigmoid(z)."""
        coupled, hidden, first = self.coupled(op), _units(op, self.recurrent + 1), op.constant([0])
        gates = [1 if coupled else 0, 3, 1, 2]
        negate = [0] if coupled else []
        x, time_axis = op.real(0), _time_axis(op)
        operands = [
            _in_order(op, x, time_axis),
            _stack(op, [self.weights + g for g in gates], negate),
            _stack(op, [self.recurrent + g for g in gates], negate),
            self._biases(op, gates, negate, hidden),
            None,
            *(op.emit("Unsqueeze", [state(op, i), first]) for i in self.states),
        ]
        if op.has(self.peephole + 2):
            slots = [self.peephole + (1 if coupled else 0), self.peephole + 2, self.peephole + 1]
            operands.append(op.emit("Unsqueeze", [_joined(op, slots, negate), first]))
        unit = _UNITS[int(op.option("fused_activation_function"))]
        attrs = {"activations": ["Sigmoid", unit, unit], "hidden_size": hidden, "direction": _way(back)}
        y, h, c = op.emit("LSTM", operands, attrs, outputs=3)
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


_INTEGER = IntegerLstm(weights=1, recurrent=5, peephole=9, bias=12, projection=16, states=(18, 19))
_FULL = partial(_Lstm, weights=1, recurrent=5, peephole=9, bias=12, projection=16)


@translate("UNIDIRECTIONAL_SEQUENCE_LSTM")
def sequence_lstm(op: Op) -> ir.Value:
    """A sequence, batch or time first."""
    if integer_lstm(op, _INTEGER):
        way = _Direction(_INTEGER.step, _INTEGER.states, stored=True)
        return _run(op, _INTEGER.entered(op), way, _time_axis(op))
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
    if int(op.option("kernel_type", 0)) == _BASIC:
        return _basic_lstm(op)
    if integer_lstm(op, _INTEGER):
        h, c = _INTEGER.step(op, _INTEGER.entered(op), [raw_state(op, i) for i in _INTEGER.states])
        for slot, value in zip(_INTEGER.states, (h, c), strict=True):
            raw_store(op, slot, value)
        return [*[None] * (op.count_outputs - 1), h]
    cell = _FULL(states=(18, 19), norm=20)
    h, c = cell.step(op, op.real(0), [state(op, i) for i in cell.states])
    _store(op, cell.states, [h, c])
    return [*[None] * (op.count_outputs - 1), h]


def _basic_lstm(op: Op) -> list[ir.Value]:
    """One matrix over [x, h], gates in the order input, cell, forget, output. The last two results are scratch."""
    joint = op.emit("Concat", [op.real(0), op.real(1)], {"axis": -1})
    total = op.emit("Add", [_product(op, joint, 2), op.real(3)])
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
    found = integer_svdf(op)
    if found is not None:
        return found
    line = op.emit("Reshape", [raw_state(op, 4), op.constant([-1, features, memory])])
    newest = op.emit("Unsqueeze", [as_stored(op, 4, _product(op, op.real(0), 1)), op.constant([2])])
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
