"""Fold BatchNormalization in inference form into the weights before it, if they or its parameters are state.

conv(x, W, b) normalised by (mean, variance, scale, shift) is conv(x, W * s, (b - mean) * s + shift) with
s = scale / sqrt(variance + epsilon): a few operators on weights instead of one on activations. The runtime computes
them once while the state does not change, and the gradients of all four cost only operations on weights. Completely
constant cases were folded before. Only for Conv and Gemm without other readers.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import cleanup

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of BatchNormalizations removed."""
    count = sum(_fold(node) for node in list(model.graph) if build.is_op(node, "BatchNormalization"))
    if count:
        cleanup.fold_constants(model)
    return count


def _fold(node: ir.Node) -> bool:
    x = node.inputs[0]
    producer = None if x is None else x.producer()
    if x is None or producer is None or attr(node, "training_mode", 0) or build.sole_use(x) is not node:
        return False
    if not _foldable(producer) or not all(_still(v) for v in (*producer.inputs[1:3], *node.inputs[1:5])):
        return False
    edit, weight = Edit(producer), producer.inputs[1]
    scale, shift, mean, variance = node.inputs[1:5]
    assert weight is not None and scale is not None and mean is not None and variance is not None
    shape = build.static_dims(weight) or ()
    outer = 0 if producer.op_type == "Conv" or attr(producer, "transB", 0) else len(shape) - 1
    sizes = [n if axis == outer else 1 for axis, n in enumerate(shape)]
    steady = edit.op("Add", [variance, edit.scalar_like(attr(node, "epsilon", 1e-5), variance)], like=variance)
    factor = edit.op("Div", [scale, edit.op("Sqrt", [steady], like=variance)], like=scale)
    spread = edit.op("Reshape", [factor, edit.ints(sizes)], like=scale, shape=sizes)
    weight = edit.op("Mul", [weight, spread], like=weight)
    bias = producer.inputs[2] if len(producer.inputs) > 2 else None
    centred = edit.op("Neg", [mean], like=mean) if bias is None else edit.op("Sub", [bias, mean], like=mean)
    moved = edit.op("Add", [edit.op("Mul", [centred, factor], like=mean), shift], like=mean)
    attrs = dict(producer.attributes)
    y = edit.op(producer.op_type, [producer.inputs[0], weight, moved], attrs, like=producer.outputs[0])
    Edit(node).replace(y)
    graph = producer.graph
    assert graph is not None
    graph.remove(producer, safe=True)
    return True


def _foldable(producer: ir.Node) -> bool:
    if build.is_op(producer, "Conv"):
        return build.static_dims(producer.inputs[1]) is not None
    plain = all(attr(producer, name, 1.0) == 1.0 for name in ("alpha", "beta")) and not attr(producer, "transA", 0)
    bias = producer.inputs[2] if build.is_op(producer, "Gemm") and len(producer.inputs) > 2 else None
    return build.is_op(producer, "Gemm") and plain and (bias is None or build.rank(bias) == 1)


def _still(value: ir.Value | None) -> bool:
    """Whether it is absent, state or constant: the same for a whole batch."""
    return value is None or value.is_graph_input() or value.is_initializer()
