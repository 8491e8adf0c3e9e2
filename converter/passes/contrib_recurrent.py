"""onnxruntime's DynamicQuantizeLSTM (domain com.microsoft): an LSTM whose inputs and states are rounded to 8 bits.

    q(x) = DynamicQuantizeLinear of all steps at once, q(h) = that of the state before a step
    gates = q(x) W + q(h) R + bias, with integer products; then ONNX's LSTM

It becomes one product for all steps and a Scan over the rest. A form that the Scan does not have (lengths of sequences,
peepholes, other functions, a clip) becomes an LSTM over real states with the same weights, which is close.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.rewrite import Entry

__all__ = ["ENTRIES"]

_FLOAT = ir.DataType.FLOAT
_DIRECTIONS = {"forward": (0,), "reverse": (1,), "bidirectional": (0, 1)}
_FUNCTIONS = ["Sigmoid", "Tanh", "Tanh"]
_LENGTHS, _PEEPHOLES = 4, 7
"""Operands that only the LSTM has."""


class _Weights(NamedTuple):
    """`q` [directions, k, 4 * hidden]; a scale and a zero point for each direction, or for each of its columns."""

    q: np.ndarray
    scale: np.ndarray
    zero: np.ndarray


def _dynamic_lstm(node: ir.Node) -> bool:
    """X, W and R as [directions, k, 4 * hidden], B, lengths, h, c, P, scale and zero point of W, and of R"""
    w, r = (_weights(node, index, first) for index, first in ((1, 8), (2, 10)))
    if w is None or r is None:
        return False
    edit = Edit(node)
    edit.replace(*(_stepwise(edit, w, r) if _plain(node, r) else _over_real_states(edit, w, r)))
    return True


ENTRIES: Mapping[str, Entry] = {"DynamicQuantizeLSTM": _dynamic_lstm}


def _weights(node: ir.Node, index: int, first: int) -> _Weights | None:
    q, scale, zero = (build.array(operand(node, i)) for i in (index, first, first + 1))
    return None if q is None or scale is None or zero is None or q.ndim != 3 else _Weights(q, scale, zero)


def _plain(node: ir.Node, r: _Weights) -> bool:
    """Whether the Scan has this form."""
    directions = len(r.q)
    known = operand(node, 3) is None or build.array(operand(node, 3)) is not None
    absent = all(operand(node, i) is None for i in (_LENGTHS, _PEEPHOLES))
    named = list(attr(node, "activations", _FUNCTIONS * directions)) == _FUNCTIONS * directions
    options = any(attr(node, key, 0) for key in ("clip", "input_forget", "layout"))
    direction = _DIRECTIONS.get(str(attr(node, "direction", "forward")), ())
    return known and absent and named and not options and len(direction) == directions


def _over_real_states(edit: Edit, w: _Weights, r: _Weights) -> tuple[ir.Value, ...]:
    node, made = edit.node, list[ir.Value | None]()
    for q, scale, zero in (w, r):
        columns = (q.shape[0], q.shape[2], 1)
        spread = [v.reshape(*v.shape, *[1] * (3 - v.ndim)) if v.ndim else v for v in (scale, zero)]
        parts = (q.transpose(0, 2, 1), *(np.broadcast_to(v, columns) for v in spread))
        operands = [np.ascontiguousarray(v) for v in parts]
        weight = edit.op("DequantizeLinear", [edit.const(v) for v in operands], {"axis": 2, "block_size": q.shape[1]})
        weight.type, weight.shape = ir.TensorType(_FLOAT), ir.Shape((q.shape[0], q.shape[2], q.shape[1]))
        made.append(weight)
    inputs = [node.inputs[0], *made, *(operand(node, i) for i in range(3, 8))]
    return edit.ops("LSTM", inputs, dict(node.attributes), outputs=len(node.outputs))


def _stepwise(edit: Edit, w: _Weights, r: _Weights) -> tuple[ir.Value, ...]:
    """Y [time, directions, batch, hidden], and the last h and c [directions, batch, hidden]."""
    node, hidden = edit.node, r.q.shape[1]
    entered = edit.ops("DynamicQuantizeLinear", [node.inputs[0]], outputs=3)
    bias = build.array(operand(node, 3))
    both = np.zeros((len(r.q), 8 * hidden), np.float32) if bias is None else bias
    found: list[list[ir.Value]] = [[], [], []]
    for i, reverse in enumerate(_DIRECTIONS[str(attr(node, "direction", "forward"))]):
        gates = _product(edit, entered, w, i)
        added = edit.const(both[i, : 4 * hidden] + both[i, 4 * hidden :])
        states = [_initial(edit, operand(node, k), i, hidden) for k in (5, 6)]
        body = _body(edit, r, i, added)
        attrs = {"body": body, "num_scan_inputs": 1}
        attrs |= {f"scan_{side}_directions": [reverse] for side in ("input", "output")}
        last_h, last_c, y = edit.ops("Scan", [*states, gates], attrs, outputs=3)
        for values, value, axis in zip(found, (y, last_h, last_c), (1, 0, 0), strict=True):
            values.append(edit.op("Unsqueeze", [value, edit.ints([axis])]))
    axes = (1, 0, 0)
    joined = (v[0] if len(v) == 1 else edit.op("Concat", v, {"axis": a}) for v, a in zip(found, axes, strict=True))
    return tuple(joined)[: len(node.outputs)]


def _product(edit: Edit, rounded: tuple[ir.Value, ...], weights: _Weights, i: int) -> ir.Value:
    """The product with direction `i` of the weights, as real numbers. rounded: integers, their scale and zero point."""
    q, step, zero = rounded
    operands = [edit.const(weights.q[i]), edit.const(weights.scale[i]), edit.const(weights.zero[i])]
    total = edit.op("MatMulInteger", [q, operands[0], zero, operands[2]])
    real = edit.op("Cast", [total], {"to": int(_FLOAT)})
    return edit.op("Mul", [real, edit.op("Mul", [step, operands[1]])])


def _initial(edit: Edit, given: ir.Value | None, i: int, hidden: int) -> ir.Value:
    """A state [batch, hidden] before the first step."""
    if given is not None:
        return edit.op("Gather", [given, edit.ints(i)], {"axis": 0})
    batch = edit.op("Shape", [edit.node.inputs[0]], {"start": 1, "end": 2})
    sizes = edit.op("Concat", [batch, edit.ints([hidden])], {"axis": 0})
    return edit.op("Expand", [edit.const(np.zeros((1, hidden), np.float32)), sizes])


def _body(edit: Edit, r: _Weights, i: int, bias: ir.Value) -> ir.Graph:
    """One step: (h, c, the input's part of the gates) to (h, c, h)."""
    tape = Tape()

    def named(hint: str) -> str:
        return build.fresh(edit.graph, hint)

    def op(kind: str, *inputs: ir.Value, outputs: int = 1, **attrs: int) -> tuple[ir.Value, ...]:
        made = tape.op_multi_out(kind, inputs, attrs, num_outputs=outputs)
        for value in made:
            value.name = named(kind.lower())
        tape.nodes[-1].name = named(kind)
        return tuple(made)

    weights, scale, zero = (edit.const(part[i]) for part in r)
    kind = ir.TensorType(_FLOAT)
    h, c, gates = entries = [ir.Value(name=named(name), type=kind) for name in ("h", "c", "gates")]
    q, step, middle = op("DynamicQuantizeLinear", h, outputs=3)
    (total,) = op("MatMulInteger", q, weights, middle, zero)
    (factor,) = op("Mul", step, scale)
    (recurrent,) = op("Mul", *op("Cast", total, to=int(_FLOAT)), factor)
    (summed,) = op("Add", *op("Add", gates, recurrent), bias)
    opened, shown, kept, new = op("Split", summed, outputs=4, axis=-1, num_outputs=4)
    (old,) = op("Mul", *op("Sigmoid", kept), c)
    (news,) = op("Mul", *op("Sigmoid", opened), *op("Tanh", new))
    (after,) = op("Add", old, news)
    (made,) = op("Mul", *op("Sigmoid", shown), *op("Tanh", after))
    (again,) = op("Identity", made)
    return build.inner_graph(edit.graph, entries, [made, after, again], tape.nodes, "step")
