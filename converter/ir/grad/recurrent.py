"""LSTM and GRU: our own operators do backpropagation through time."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import DOMAIN
from converter.ir.grad.rules import At, Gradients, refuse, rule

__all__: list[str] = []

_DEFAULTS: Mapping[str, tuple[str, ...]] = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
_STATES: Mapping[str, int] = {"LSTM": 2, "GRU": 1}


@refuse("LSTM", "GRU")
def _special(node: ir.Node) -> str:
    count = 2 if build.attr(node, "direction", "forward") == "bidirectional" else 1
    units = build.get_attr(node, "activations")
    if units and tuple(u.lower() for u in units) != _DEFAULTS[node.op_type] * count:
        return f"activations {', '.join(units)}"
    if build.get_attr(node, "clip") is not None or build.attr(node, "input_forget", 0):
        return "clip, or input_forget"
    return "peepholes, or an integer R" if any(v is not None for v in node.inputs[5 + _STATES[node.op_type] :]) else ""


@rule("LSTM", "GRU")
def _recurrence(n: At) -> Gradients:
    states, x = _STATES[n.node.op_type], n.x
    layout, hidden = n.attr("layout", 0), n.input(2).shape[2]
    batch, time = (x.shape[0], x.shape[1]) if layout else (x.shape[1], x.shape[0])
    count = n.input(1).shape[0]
    shape = (batch, time, count, hidden) if layout else (time, count, batch, hidden)
    y = n.output(0, x.dtype, shape)
    after = [*n.inputs[4 : 5 + states], *[None] * 3][: 1 + states]
    arriving = [*n.grads, None, None, None][: 1 + states]
    b = n.inputs[3] if n.has(3) else None
    kept = {name: n.attr(name, None) for name in ("direction", "hidden_size", "layout", "linear_before_reset")}
    attrs = {name: value for name, value in kept.items() if value is not None}
    operands = [x, n.input(1), n.input(2), y, b, *after, *arriving]
    found = n.tape.ops(f"{n.node.op_type}Grad", operands, 4 + states, domain=DOMAIN, **attrs)
    return [*found[:4], None, *found[4:]]
