"""Nodes of older opsets rewritten to the pinned opset's semantics: one row per change of meaning in ONNX's history.

Why not `onnx.version_converter`: it is a C++ pass over the protobuf (all weights copied through it), refuses whole
models over one operator it has no adapter for (Upsample 1-8, Scan 8, Dropout masks, Gemm-6 with `broadcast`), stops
short of several opset steps, leaves Softmax's and GroupNormalization's changed meaning to the caller in places, and
reports failures without node names. Rows here name the operator, the opset in which its meaning changed and the rule;
operators without a row only widened their types, so their meaning is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.ir.build import Edit, attr, dims, set_attrs
from lite_runtime.graph import OPSET
from lite_runtime.operators import ONNX, OPERATORS, OURS, find, having

__all__ = ["ML_OPSET", "OPSET", "ROWS", "Row", "ahead", "upgrade"]

ML_OPSET = 5
Rule = Callable[[ir.Node], None]


class Row(NamedTuple):
    """`rule` applies to nodes of `ops` in models whose opset of `domain` is lower than `below`. "*" is every
    operator."""

    ops: tuple[str, ...]
    below: int
    rule: Rule
    domain: str = ""


def upgrade(model: ir.Model) -> int:
    """Rewrite every node in place and set the pinned opsets; the number of rules that applied.

    Needs shapes inferred at the model's own opset. Raises ConvertError where an old form has no modern equivalent.
    """
    opsets = {
        "": model.graph.opset_imports.get("", OPSET),
        "ai.onnx.ml": model.graph.opset_imports.get("ai.onnx.ml", ML_OPSET),
    }
    applied = 0
    for node in build.nodes(model):
        applied += _adopt(node)
        for row in _rows(node, opsets):
            if node.graph is None or (row.ops != ("*",) and node.op_type not in row.ops):
                break
            row.rule(node)
            applied += 1
    for graph in build.graphs(model):
        for domain, oldest in (("", OPSET), ("ai.onnx.ml", ML_OPSET)):
            if domain in graph.opset_imports or (domain == "" and graph is model.graph):
                graph.opset_imports[domain] = max(oldest, graph.opset_imports.get(domain, 0))
    return applied


def ahead(model: ir.Model) -> bool:
    """Whether the model has operators that its opset does not have yet, whose results ONNX's inference only knows after
    the upgrade."""
    version = model.graph.opset_imports.get("", OPSET)
    records = (OPERATORS.get(node.op_type) for node in build.nodes(model) if not node.domain)
    return any(record is not None and record.since > version for record in records)


def _adopt(node: ir.Node) -> bool:
    """Move an operator of a foreign domain to the domain, ONNX's or ours, of its record; returns whether it has one."""
    record = find(node.domain, node.op_type) if node.domain not in (*ONNX, OURS) else None
    if record is None:
        return False
    node.domain = build.domain_of(record.name)
    return True


def _rows(node: ir.Node, opsets: dict[str, int]) -> list[Row]:
    version = opsets.get(node.domain)
    if version is None:
        return []
    record = OPERATORS.get(node.op_type)
    known = record is None or record.since <= version  # what a file's opset does not have yet is in its current form
    rows = (*_BY_OP.get((node.domain, "*"), ()), *(_BY_OP.get((node.domain, node.op_type), ()) if known else ()))
    return [row for row in rows if version < row.below]


def _error(node: ir.Node, what: str) -> ConvertError:
    return ConvertError(f"{node.op_type} {node.name!r}: {what}")


def _drop(*names: str) -> Rule:
    def rule(node: ir.Node) -> None:
        set_attrs(node, **dict.fromkeys(names))

    return rule


def _default(**values: object) -> Rule:
    """Write an old default explicitly where a later opset changed it."""

    def rule(node: ir.Node) -> None:
        set_attrs(node, **{k: v for k, v in values.items() if k not in node.attributes})

    return rule


def _input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if value is None:
        return
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _ints_to_input(name: str, index: int) -> Rule:
    """An integer-list (or integer) attribute became input `index`, an int64 vector."""

    def rule(node: ir.Node) -> None:
        values = attr(node, name, None)
        set_attrs(node, **{name: None})
        if values is not None:
            _input(node, index, Edit(node).ints([values] if isinstance(values, int) else values))

    return rule


def _clip(node: ir.Node) -> None:
    for index, name in ((1, "min"), (2, "max")):
        bound = attr(node, name, None)
        set_attrs(node, **{name: None})
        if bound is not None:
            like = node.inputs[0]
            if like is None or like.dtype is None:
                raise _error(node, "its input's element type is unknown; run onnx.shape_inference first")
            _input(node, index, Edit(node).scalar_like(bound, like))


def _dropout(node: ir.Node) -> None:
    """Opsets 1-11: the ratio is an attribute; nothing else says whether the node is in training."""
    ratio = attr(node, "ratio", 0.5)
    set_attrs(node, ratio=None)
    _input(node, 1, Edit(node).const(ratio, np.float32))


def _broadcast_axis(node: ir.Node) -> None:
    """Opsets 1-6: `b` spans a run of `a`'s axes from `axis` on; later: NumPy's rule, aligned at the end."""
    axis = attr(node, "axis", None)
    set_attrs(node, axis=None, broadcast=None)
    if axis is None:
        return
    a, b = node.inputs[0], node.inputs[1]
    ranks = build.rank(a), build.rank(b)
    if ranks[0] is None or ranks[1] is None:
        raise _error(node, f"axis={axis} needs the ranks of both inputs; give input_shapes")
    trailing = ranks[0] - (axis % ranks[0] if axis < 0 else axis) - ranks[1]
    if trailing > 0:
        edit = Edit(node)
        axes = edit.ints(range(ranks[1], ranks[1] + trailing))
        shape = (*(dims(b) or ()), *[1] * trailing)
        node.replace_input_with(1, edit.op("Unsqueeze", [b, axes], like=b, shape=shape))


def _prelu(node: ir.Node) -> None:
    """Opsets 1-6: a slope of [C] belongs to axis 1 whatever the rank."""
    x, slope = node.inputs[0], node.inputs[1]
    rank, size = build.rank(x), build.rank(slope)
    if size == 1 and rank is not None and rank > 2:
        edit = Edit(node)
        shape = (*(dims(slope) or ()), *[1] * (rank - 2))
        node.replace_input_with(
            1, edit.op("Unsqueeze", [slope, edit.ints(range(1, rank - 1))], like=slope, shape=shape)
        )


def _softmax(node: ir.Node) -> None:
    """Opsets 1-12: axes from `axis` (default 1) on are one; later: that axis alone (default -1)."""
    x, axis = node.inputs[0], attr(node, "axis", 1)
    shape = dims(x)
    if shape is not None:
        axis = axis % len(shape) if shape else 0
        if all(d == 1 for d in shape[axis + 1 :]):
            set_attrs(node, axis=axis)
            return
    edit = Edit(node)
    flat = edit.op("Flatten", [x], {"axis": axis}, like=x, shape=(None, None))
    soft = edit.op(node.op_type, [flat], {"axis": -1}, like=x, shape=(None, None))
    size = edit.op("Shape", [x])
    edit.replace(edit.op("Reshape", [soft, size], like=node.outputs[0]))


def _cast(node: ir.Node) -> None:
    to = attr(node, "to", None)
    if isinstance(to, str):
        if to.upper() not in set(onnx.TensorProto.DataType.keys()):
            raise _error(node, f"expected an ONNX element type as `to`, got {to!r}")
        set_attrs(node, to=onnx.TensorProto.DataType.Value(to.upper()))


def _tile(node: ir.Node) -> None:
    """Opset 1: inputs x, tiles (scalar), axis (scalar)."""
    tiles, axis, rank = build.scalar(node.inputs[1]), build.scalar(node.inputs[2]), build.rank(node.inputs[0])
    if tiles is None or axis is None or rank is None:
        raise _error(node, "opset 1 Tile needs constant tiles and axis and an input of known rank")
    repeats = [1] * rank
    repeats[int(axis)] = int(tiles)
    node.resize_inputs(2)
    node.replace_input_with(1, Edit(node).ints(repeats))


def _pad_1(node: ir.Node) -> None:
    set_attrs(node, pads=attr(node, "paddings", None), paddings=None)


def _pad(node: ir.Node) -> None:
    value = attr(node, "value", 0.0)
    _ints_to_input("pads", 1)(node)
    set_attrs(node, value=None)
    if attr(node, "mode", "constant") == "constant" and value:
        x = node.inputs[0]
        if x is None:
            raise ConvertError(f"Pad {node.name!r}: expected an input to pad, got none; repair the model")
        _input(node, 2, Edit(node).scalar_like(value, x) if x.dtype else Edit(node).const(value, np.float32))


def _split(node: ir.Node) -> None:
    """Without sizes: equal parts, whose number is given by `num_outputs` since opset 18."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        set_attrs(node, num_outputs=len(node.outputs))


def _slice(node: ir.Node) -> None:
    for index, name in ((1, "starts"), (2, "ends"), (3, "axes")):
        _ints_to_input(name, index)(node)


def _batch_norm_spatial(node: ir.Node) -> None:
    """Opsets 1-8, spatial=0: statistics per element instead of per channel; written out."""
    spatial = attr(node, "spatial", 1)
    set_attrs(node, spatial=None)
    if spatial:
        return
    x, scale, bias, mean, var = node.inputs[:5]
    edit = Edit(node)
    if x is None or x.dtype is None:
        raise ConvertError(
            f"BatchNormalization {node.name!r} with spatial=0: expected an input of a known element type, got none; "
            "run onnx.shape_inference.infer_shapes on the model"
        )
    spread = edit.op("Add", [var, edit.scalar_like(attr(node, "epsilon", 1e-5), x)])
    normal = edit.op("Div", [edit.op("Sub", [x, mean]), edit.op("Sqrt", [spread])])
    edit.replace(edit.op("Add", [edit.op("Mul", [normal, scale]), bias], like=node.outputs[0]))


def _batch_norm(node: ir.Node) -> None:
    """Opsets 1-13: five results, training if more than the first is used; later three and `training_mode`."""
    used = [bool(v.uses() or v.is_graph_output()) for v in node.outputs]
    if any(used[3:]):
        raise _error(node, "its saved_mean and saved_var results (opset 13 and older) have no modern equivalent")
    if any(used[1:]):
        node.resize_outputs(3)
        set_attrs(node, training_mode=1)
    else:
        node.resize_outputs(1)


def _upsample(node: ir.Node) -> None:
    """Always asymmetric, rounding down; `bilinear` is today's `linear`."""
    x, edit = node.inputs[0], Edit(node)
    scales = attr(node, "scales", None)
    if "height_scale" in node.attributes:
        scales = [1.0, 1.0, attr(node, "height_scale", 1.0), attr(node, "width_scale", 1.0)]
    given = edit.const(scales, np.float32) if scales is not None else node.inputs[1]
    mode = attr(node, "mode", "nearest").lower()
    attrs = {
        "mode": "linear" if mode == "bilinear" else mode,
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    edit.replace(edit.op("Resize", [x, None, given], attrs, like=node.outputs[0]))


def _resize_10(node: ir.Node) -> None:
    """Asymmetric; nearest rounds down when enlarging and up when shrinking (ONNX's own opset 10 cases)."""
    scales = node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, None)
    node.replace_input_with(2, scales)
    known = build.array(scales)
    shrinks = known is not None and bool((known < 1).any()) and not bool((known > 1).any())
    set_attrs(node, coordinate_transformation_mode="asymmetric", nearest_mode="ceil" if shrinks else "floor")


def _resize_11(node: ir.Node) -> None:
    """floor((i + 0.5) / s) is round-half-up of (i + 0.5) / s - 0.5."""
    if attr(node, "coordinate_transformation_mode", "half_pixel") != "tf_half_pixel_for_nn":
        return
    if attr(node, "mode", "nearest") != "nearest" or attr(node, "nearest_mode", "round_prefer_floor") != "floor":
        raise _error(node, "tf_half_pixel_for_nn is defined for nearest_mode=floor only; export with opset 13 or later")
    set_attrs(node, coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")


def _scatter(node: ir.Node) -> None:
    edit = Edit(node)
    attrs = {"axis": attr(node, "axis", 0)}
    edit.replace(edit.op("ScatterElements", list(node.inputs), attrs, like=node.outputs[0]))


def _group_norm(node: ir.Node) -> None:
    """Opset 18: scale and bias per group; later per channel."""
    groups = attr(node, "num_groups", None)
    shape = dims(node.inputs[0])
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or not groups or shape[1] % groups:
        raise _error(node, "opset 18 GroupNormalization needs a known number of channels, a multiple of num_groups")
    channels, edit = shape[1], Edit(node)
    for index in (1, 2):
        column = edit.op(
            "Reshape", [node.inputs[index], edit.ints([groups, 1])], like=node.inputs[index], shape=(groups, 1)
        )
        wide = edit.op(
            "Expand", [column, edit.ints([groups, channels // groups])], like=column, shape=(groups, channels // groups)
        )
        flat = edit.op("Reshape", [wide, edit.ints([channels])], like=wide, shape=(channels,))
        node.replace_input_with(index, flat)


def _dft(node: ir.Node) -> None:
    axis = attr(node, "axis", 1)
    set_attrs(node, axis=None)
    _input(node, 2, Edit(node).ints(axis))


def _grid_sample(node: ir.Node) -> None:
    mode = attr(node, "mode", "bilinear")
    set_attrs(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _float_p(node: ir.Node) -> None:
    p = attr(node, "p", None)
    if p is not None:
        set_attrs(node, p=int(p))


def _scan_8(node: ir.Node) -> None:
    raise _error(node, "Scan of opset 8 (with a batch axis) was withdrawn from ONNX; export with opset 9 or later")


def _label_encoder(node: ir.Node) -> None:
    """ml opset 1: one list of classes, indexed or looked up according to the input's type."""
    classes: Sequence[str] = attr(node, "classes_strings", ())
    text, number = attr(node, "default_string", "_Unused"), attr(node, "default_int64", -1)
    set_attrs(node, classes_strings=None, default_string=None, default_int64=None)
    x = node.inputs[0]
    numbers = list(range(len(classes)))
    names = ir.AttrStrings
    if x is not None and x.dtype == ir.DataType.STRING:
        set_attrs(node, keys_strings=names("keys_strings", classes), values_int64s=numbers, default_int64=number)
    else:
        set_attrs(node, keys_int64s=numbers, values_strings=names("values_strings", classes), default_string=text)


_BINARY = tuple(
    op for op in sorted(having("broadcasts"))
    if OPERATORS[op].since < 7 and OPERATORS[op].inputs == (2, 2) and not OPERATORS[op].domain
)  # fmt: skip
_REDUCTIONS = tuple(sorted(having("reduction") - {"ReduceSum"}))

ROWS: tuple[Row, ...] = (
    Row(("*",), 6, _drop("consumed_inputs")),
    Row(("Dropout", "BatchNormalization"), 7, _drop("is_test")),
    Row(_BINARY, 7, _broadcast_axis),
    Row(("Gemm",), 7, _drop("broadcast")),
    Row(("PRelu",), 7, _prelu),
    Row(tuple(sorted(having("recurrent"))), 7, _drop("output_sequence")),
    Row(("Cast",), 9, _cast),
    Row(("Reshape",), 5, _ints_to_input("shape", 1)),
    Row(("Tile",), 6, _tile),
    Row(("Selu",), 6, _default(alpha=1.6732, gamma=1.0507)),
    Row(("LpPool", "GlobalLpPool", "LpNormalization"), 2, _float_p),
    Row(("Pad",), 2, _pad_1),
    Row(("Pad",), 11, _pad),
    Row(("Split",), 13, _ints_to_input("split", 1)),
    Row(("Split",), 18, _split),
    Row(("BatchNormalization",), 14, _batch_norm),
    Row(("BatchNormalization",), 9, _batch_norm_spatial),
    Row(("Scan",), 9, _scan_8),
    Row(("Slice",), 10, _slice),
    Row(("TopK",), 10, _ints_to_input("k", 1)),
    Row(("Upsample",), 10, _upsample),
    Row(("Resize",), 11, _resize_10),
    Row(("Resize",), 13, _resize_11),
    Row(("Scatter",), 11, _scatter),
    Row(("Clip",), 11, _clip),
    Row(("Dropout",), 12, _dropout),
    Row(("Squeeze", "Unsqueeze", "ReduceSum"), 13, _ints_to_input("axes", 1)),
    Row(("Softmax", "LogSoftmax", "Hardmax"), 13, _softmax),
    Row(("RoiAlign",), 16, _default(coordinate_transformation_mode="output_half_pixel")),
    Row(_REDUCTIONS, 18, _ints_to_input("axes", 1)),
    Row(("DFT",), 20, _dft),
    Row(("GridSample",), 20, _grid_sample),
    Row(("GroupNormalization",), 21, _group_norm),
    Row(("LabelEncoder",), 2, _label_encoder, "ai.onnx.ml"),
)

_BY_OP: dict[tuple[str, str], list[Row]] = {}
for _row in ROWS:
    for _op in _row.ops:
        _BY_OP.setdefault((_row.domain, _op), []).append(_row)
