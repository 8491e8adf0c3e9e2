"""Convolutions, pools and similar operators get their channels-last form, between Transposes that `sink_transposes`
then removes.

Operators in `DATA` with inputs of rank 3, 4 or 5 become ours with layout="NHWC"; `DATA` says which operands are images.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.ir.build import Edit, dims

__all__ = ["DATA", "run", "to_first", "to_last"]

DATA: Mapping[str, tuple[int, ...]] = {
    "Conv": (0, 3),
    "ConvTranspose": (0,),
    "QLinearConv": (0,),
    "QLinearConvTranspose": (0,),
    "MaxPool": (0,),
    "AveragePool": (0,),
    "LpPool": (0,),
    "GlobalAveragePool": (0,),
    "GlobalMaxPool": (0,),
    "DepthToSpace": (0,),
    "SpaceToDepth": (0,),
    "InstanceNormalization": (0,),
    "BatchNormalization": (0,),
    "BatchNormalizationGrad": (0, 1),
    "ConvWeightGrad": (0, 1),
    "MaxPoolGrad": (0, 1),
    "AveragePoolGrad": (0, 1),
}
"""Operator -> operands that carry an image; the others (weights, biases) stay as they are."""
_GIVES: Mapping[str, int] = {"ConvWeightGrad": 0, "BatchNormalization": 5, "BatchNormalizationGrad": 3}
"""Operator -> its number of results, the first of them an image; 0: one result, not an image. Others: one image."""


def run(model: ir.Model) -> int:
    """The number of operators turned channels-last."""
    return sum(_turn(node) for node in build.nodes(model) if node.op_type in DATA and node.domain in ("", build.DOMAIN))


def to_last(rank: int) -> tuple[int, ...]:
    """The permutation from channels-first to channels-last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The permutation from channels-last to channels-first."""
    return (0, rank - 1, *range(1, rank - 1))


def wrong_rank(value: ir.Value, rank: int) -> ConvertError:
    """The error for a declared rank that ONNX's inference could not check, where a pass needs `rank`."""
    return build.contradicted(value, f"with {build.rank(value)} dimensions", rank)


def _turn(node: ir.Node) -> bool:
    rank, gives = build.rank(node.inputs[0]), _GIVES.get(node.op_type, 1)
    wanted = max((i for i, v in enumerate(node.outputs) if v.uses() or v.is_graph_output()), default=0) + 1
    if rank not in (3, 4, 5) or build.get_attr(node, "layout") == "NHWC" or wanted > max(gives, 1):
        return False
    if build.get_attr(node, "storage_order"):
        return False
    edit, inputs = Edit(node), list(node.inputs)
    for index in DATA[node.op_type]:
        if index < len(inputs) and inputs[index] is not None:
            inputs[index] = transposed(edit, inputs[index], to_last(rank))
    attrs = {**dict(node.attributes), "layout": "NHWC"}
    shape = dims(node.outputs[0])
    if gives and shape is not None and len(shape) != rank:
        raise wrong_rank(node.outputs[0], rank)
    last = shape if shape is None or not gives else [shape[p] for p in to_last(rank)]
    results = edit.ops(
        node.op_type, inputs, attrs, domain=build.DOMAIN, outputs=wanted, like=node.outputs[0], shape=last
    )
    if shape is None:
        results[0].shape = None
    for old, new in zip(node.outputs[1:], results[1:], strict=False):
        new.type, new.shape = old.type, old.shape
    edit.replace(transposed(edit, results[0], to_first(rank)) if gives else results[0], *results[1:])
    return True


def transposed(edit: Edit, value: ir.Value | None, perm: tuple[int, ...]) -> ir.Value:
    """Transpose(value, perm), its shape filled in."""
    assert value is not None
    shape = dims(value)
    result = edit.op(
        "Transpose", [value], {"perm": perm}, like=value, shape=None if shape is None else [shape[p] for p in perm]
    )
    if shape is None:
        result.shape = None
    return result
