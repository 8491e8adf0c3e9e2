"""onnxruntime's MoE (domain com.microsoft), a mixture of experts, in ONNX's operators.

    p = softmax(router) of each token's row; its k largest, on request divided by their sum; 0 elsewhere
    y = sum over experts e of p[e] * (W2[e] act(W1[e] x + b1[e]) + b2[e])

Every expert is computed for every token, in products of matrices that the runtime has a kernel for: the time is that of
all experts instead of k, the memory that of all experts' results.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes.contrib_attention import summed
from converter.passes.rewrite import Entry, leading

__all__ = ["ENTRIES"]

_FIRST, _FIRST_BIAS, _SECOND, _SECOND_BIAS, _THIRD, _THIRD_BIAS = range(2, 8)
_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "silu": ("Swish", {}),
    "identity": ("Identity", {}),
}
_END = 2**62


def _mixture(node: ir.Node) -> bool:
    x, router, first = leading(node, 3)
    shape, sizes = build.dims(first), build.dims(operand(node, _SECOND))
    kind, k = str(attr(node, "activation_type", "relu")), int(attr(node, "k", 1))
    fused = kind == "swiglu" and int(attr(node, "swiglu_fusion", 0)) == 1
    known = shape is not None and sizes is not None and all(isinstance(d, int) for d in (*shape, *sizes))
    odd = attr(node, "use_sparse_mixer", 0) or attr(node, "swiglu_limit_after_activation", 0)
    if not known or odd or not (fused or kind in _ACTIVATIONS):
        return False
    if any(operand(node, i) is not None for i in (_THIRD, _THIRD_BIAS)) or x is None or x.dtype != ir.DataType.FLOAT:
        return False
    assert shape is not None
    edit = Edit(node)
    rows = edit.op("Reshape", [x, edit.ints([1, -1, int(shape[2] or 0)])])
    if fused:
        gate, linear = (_product(edit, rows, first, operand(node, _FIRST_BIAS), start) for start in (0, 1))
        hidden = _gated(edit, gate, linear)
    else:
        op, attrs = _ACTIVATIONS[kind]
        hidden = edit.op(op, [_product(edit, rows, first, operand(node, _FIRST_BIAS))], attrs)
    each = _product(edit, hidden, operand(node, _SECOND), operand(node, _SECOND_BIAS))
    weighted = edit.op("Mul", [each, _routes(edit, router, int(shape[0] or 0), k)])
    total = edit.op("ReduceSum", [weighted, edit.ints([0])], {"keepdims": 0})
    edit.replace(edit.op("Reshape", [total, edit.op("Shape", [x])]))
    return True


def _product(
    edit: Edit, x: ir.Value, weights: ir.Value | None, bias: ir.Value | None, start: int | None = None
) -> ir.Value:
    """x [1 or experts, tokens, n] by weights [experts, m, n], plus bias [experts, m]. start: of every second m only."""

    def part(value: ir.Value | None) -> ir.Value | None:
        if value is None or start is None:
            return value
        return edit.op("Slice", [value, edit.ints([start]), edit.ints([_END]), edit.ints([1]), edit.ints([2])])

    y = edit.op("MatMul", [x, edit.op("Transpose", [part(weights)], {"perm": [0, 2, 1]})])
    y.type = ir.TensorType(ir.DataType.FLOAT)
    return y if bias is None else summed(edit, y, edit.op("Unsqueeze", [part(bias), edit.ints([1])]))


def _gated(edit: Edit, gate: ir.Value, linear: ir.Value) -> ir.Value:
    """gate * sigmoid(alpha * gate) * (linear + beta), both within a limit."""
    node = edit.node
    if "swiglu_limit" in node.attributes:
        limit = np.float32(attr(node, "swiglu_limit", 0.0))
        gate = edit.op("Clip", [gate, None, edit.const(limit)])
        linear = edit.op("Clip", [linear, edit.const(-limit), edit.const(limit)])
    alpha, beta = (edit.const(attr(node, f"activation_{name}", default), np.float32) for name, default in _GATE)
    activated = edit.op("Mul", [gate, edit.op("Sigmoid", [edit.op("Mul", [gate, alpha])])])
    return edit.op("Mul", [activated, edit.op("Add", [linear, beta])])


_GATE = (("alpha", 1.0), ("beta", 0.0))


def _routes(edit: Edit, router: ir.Value | None, experts: int, k: int) -> ir.Value:
    """The weight of every expert for every token [experts, tokens, 1]. Of equal ones, the last is chosen first."""
    turned = edit.ints(range(experts - 1, -1, -1))
    shares = edit.op("Gather", [edit.op("Softmax", [router], {"axis": 1}), turned], {"axis": 1})
    best, places = edit.ops("TopK", [shares, edit.ints([k])], {"axis": 1}, outputs=2)
    if attr(edit.node, "normalize_routing_weights", 0):
        best = edit.op("Div", [best, edit.op("ReduceSum", [best, edit.ints([1])], {"keepdims": 1})])
    none = edit.op("Mul", [shares, edit.const(0, np.float32)])
    sparse = edit.op("ScatterElements", [none, places, best], {"axis": 1})
    ordered = edit.op("Transpose", [edit.op("Gather", [sparse, turned], {"axis": 1})], {"perm": [1, 0]})
    return edit.op("Unsqueeze", [ordered, edit.ints([2])])


ENTRIES: Mapping[str, Entry] = {"MoE": _mixture}
