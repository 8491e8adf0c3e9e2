"""Operators of onnxruntime (domains com.microsoft and com.microsoft.nchwc, and some of ONNX's) become ONNX's own.

`ENTRIES` is the table, with the rows of `contrib_attention`, `contrib_blocked`, `contrib_crops`, `contrib_experts`,
`contrib_quantized`, `contrib_recurrent` and `qlinear_to_qdq`. An operator whose form has no equivalent here stays, and
the lowering names it. Meaning: onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, operand
from converter.passes import (
    contrib_attention,
    contrib_blocked,
    contrib_crops,
    contrib_experts,
    contrib_quantized,
    contrib_recurrent,
    qlinear_to_qdq,
)
from converter.passes.contrib_attention import activated, summed, used
from converter.passes.qlinear_to_qdq import CONTRIB
from converter.passes.rewrite import Entry, by_operator, leading

__all__ = ["ENTRIES", "run"]

Value = ir.Value | None


def run(model: ir.Model) -> int:
    """The number of operators rewritten. Shape inference must run afterwards for the new values, and then this again:
    shapes behind an operator are known only after it was rewritten."""
    return contrib_blocked.run(model) + by_operator(model, ENTRIES)


def _renamed(op: str, *kept: str) -> Entry:
    """Another name for ONNX's operator with the same operands; `kept`: its attributes."""

    def entry(node: ir.Node) -> bool:
        edit = Edit(node)
        attrs = {name: value for name, value in node.attributes.items() if name in kept}
        edit.replace(*edit.ops(op, list(node.inputs), attrs, outputs=len(node.outputs)))
        return True

    return entry


# activations


def _gelu(approximate: str) -> Entry:
    def entry(node: ir.Node) -> bool:
        edit = Edit(node)
        edit.replace(edit.op("Gelu", [summed(edit, node.inputs[0], operand(node, 1))], {"approximate": approximate}))
        return True

    return entry


# contractions


def _fused_conv(node: ir.Node) -> bool:
    """act(Conv(X, W, B) + Z)."""
    edit = Edit(node)
    window = {k: v for k, v in node.attributes.items() if k not in ("activation", "activation_params")}
    y = edit.op("Conv", list(node.inputs[:3]), window, like=node.outputs[0])
    y.type = y.type or (None if node.inputs[1] is None else node.inputs[1].type)
    name, numbers = str(attr(node, "activation", "")), list(attr(node, "activation_params", ()))
    return _done(edit, activated(edit, summed(edit, y, operand(node, 3)), name, numbers))


def _fused_gemm(node: ir.Node) -> bool:
    edit = Edit(node)
    own = {k: v for k, v in node.attributes.items() if k in ("alpha", "beta", "transA", "transB")}
    y = edit.op("Gemm", list(node.inputs[:3]), own, like=node.outputs[0])
    y.type = y.type or (None if node.inputs[1] is None else node.inputs[1].type)
    numbers = [float(attr(node, key, 0.0)) for key in ("activation_alpha", "activation_beta") if key in node.attributes]
    return _done(edit, activated(edit, y, str(attr(node, "activation", "")), numbers))


def _done(edit: Edit, made: ir.Value | None) -> bool:
    if made is not None:
        edit.replace(made)
    return made is not None


def _fused_matmul(node: ir.Node) -> bool:
    """alpha * A' @ B', with the last two axes swapped on request."""
    alpha = float(attr(node, "alpha", 1.0))
    kind = next((v.type for v in (*node.outputs, *node.inputs) if v is not None and v.dtype is not None), None)
    if kind is None and alpha != 1.0:
        return False
    operands: list[Value] = []
    edit = Edit(node)
    for value, side in zip(node.inputs[:2], "AB", strict=True):
        last, first = attr(node, f"trans{side}", 0), attr(node, f"transBatch{side}", 0)
        rank = build.rank(value)
        if (last or first) and rank is None:
            return False
        perm = list(range(rank or 0))
        if first:  # the first axis goes behind the others of the batch
            perm = [*perm[1:-1], 0, perm[-1]]
        if last and len(perm) > 1:
            perm[-2:] = perm[:-3:-1]
        operands.append(value if perm == sorted(perm) else edit.op("Transpose", [value], {"perm": perm}))
    y = edit.op("MatMul", operands, like=node.outputs[0])
    y.type = kind
    edit.replace(y if alpha == 1.0 else edit.op("Mul", [y, edit.scalar_like(alpha, y)]))
    return True


# normalisation


def _skip_norm(op: str) -> Entry:
    """norm(input + skip + bias), and the sum itself as result 3."""
    bias = 4 if op == "LayerNormalization" else 3

    def entry(node: ir.Node) -> bool:
        if used(node, 1, 2):
            return False
        edit = Edit(node)
        total = summed(edit, node.inputs[0], node.inputs[1], operand(node, bias))
        scales = [node.inputs[2], *([operand(node, 3)] if bias == 4 else [])]
        y = edit.op(op, [total, *scales], {"axis": -1, "epsilon": float(attr(node, "epsilon", 1e-5))})
        edit.replace(y, None, None, total)
        return True

    return entry


def _simplified_norm(node: ir.Node) -> bool:
    if used(node, 1):
        return False
    edit = Edit(node)
    attrs = {"axis": int(attr(node, "axis", -1)), "epsilon": float(attr(node, "epsilon", 1e-5))}
    edit.replace(edit.op("RMSNormalization", list(node.inputs[:2]), attrs))
    return True


def _embed_norm(node: ir.Node) -> bool:
    """LayerNormalization of the sum of word, position and segment embeddings; the numbers of words as result 1."""
    ids, segments, words, positions, kinds, scale, shift = leading(node, 7)
    mask, chosen = operand(node, 7), operand(node, 8)
    if attr(node, "mask_index_type", 1) != 1 and used(node, 1):
        return False
    edit = Edit(node)
    if chosen is None:
        length = edit.op("Shape", [ids], {"start": 1, "end": 2})
        place = edit.op("Slice", [positions, edit.ints([0]), length, edit.ints([0])])
    else:
        place = edit.op("Gather", [positions, chosen])
    kind = None if segments is None or kinds is None else edit.op("Gather", [kinds, segments])
    total = summed(edit, edit.op("Gather", [words, ids]), place, kind)
    attrs = {"axis": -1, "epsilon": float(attr(node, "epsilon", 1e-12))}
    y = edit.op("LayerNormalization", [total, scale, shift], attrs)
    counts = None
    if used(node, 1):
        if mask is None:
            batch = edit.op("Shape", [ids], {"start": 0, "end": 1})
            counts = edit.op("Expand", [edit.const(0, "int32"), batch])
        else:
            counts = edit.op("ReduceSum", [mask, edit.ints([1])], {"keepdims": 0})
    edit.replace(y, counts, total)
    return True


# others


def _expand_dims(node: ir.Node) -> bool:
    axis = build.array(node.inputs[1])
    if axis is None:
        return False
    edit = Edit(node)
    edit.replace(edit.op("Unsqueeze", [node.inputs[0], edit.ints([int(axis.reshape(-1)[0])])]))
    return True


def _distances(node: ir.Node) -> bool:
    """Between every row of A and every row of B."""
    metric = attr(node, "metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        return False
    edit = Edit(node)
    rows = [edit.op("Unsqueeze", [v, edit.ints([axis])]) for v, axis in zip(node.inputs, (1, 0), strict=True)]
    away = edit.op("Sub", rows)
    sums = edit.op("ReduceSum", [edit.op("Mul", [away, away]), edit.ints([-1])], {"keepdims": 0})
    edit.replace(sums if metric == "sqeuclidean" else edit.op("Sqrt", [sums]))
    return True


def _unfold(node: ir.Node) -> bool:
    """Windows along `dim`, each on a new last axis."""
    shape = build.dims(node.inputs[0])
    axis, size, step = int(attr(node, "dim", -1)), int(attr(node, "size", 1)), int(attr(node, "step", 1))
    if shape is None or not isinstance(shape[axis], int) or not 0 < size <= int(shape[axis] or 0) or step < 1:
        return False
    axis %= len(shape)
    starts = np.arange(0, int(shape[axis] or 0) - size + 1, step)
    edit = Edit(node)
    windows = edit.op("Gather", [node.inputs[0], edit.const(starts[:, None] + np.arange(size))], {"axis": axis})
    rank = len(shape) + 1
    edit.replace(edit.op("Transpose", [windows], {"perm": [a for a in range(rank) if a != axis + 1] + [axis + 1]}))
    return True


def _conv_transpose(node: ir.Node) -> bool:
    """ConvTranspose whose padding is an operand."""
    pads = operand(node, 2)
    found = build.array(pads)
    if pads is not None and found is None:
        return False
    attrs = dict(node.attributes)
    edit = Edit(node)
    if found is not None:
        attrs["pads"] = [int(n) for n in found.reshape(-1)]  # type: ignore[assignment]
    edit.replace(edit.op("ConvTranspose", [*node.inputs[:2], operand(node, 3)], attrs))
    return True


def _unique(node: ir.Node) -> bool:
    """Values in the order of their first occurrence, where each element is among them, how often each occurs."""
    edit = Edit(node)
    values, _, places, counts = edit.ops("Unique", list(node.inputs), {"sorted": 0}, outputs=4)
    edit.replace(values, places, counts)
    return True


def _integer_matmul(node: ir.Node) -> bool:
    """int16 by int16 with sums of int32."""
    edit = Edit(node)
    edit.replace(edit.op("MatMul", [edit.op("Cast", [v], {"to": int(ir.DataType.INT32)}) for v in node.inputs[:2]]))
    return True


def _grid_sample(node: ir.Node) -> bool:
    edit = Edit(node)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name := str(attr(node, "mode", "bilinear")), name)
    attrs = {"mode": mode, **{k: a for k, a in node.attributes.items() if k in ("align_corners", "padding_mode")}}
    edit.replace(edit.op("GridSample", list(node.inputs), attrs))
    return True


def _scaled_silu(node: ir.Node) -> bool:
    edit = Edit(node)
    x, scale = node.inputs[0], operand(node, 1)
    if scale is None:
        scale = edit.const(float(attr(node, "alpha", 1.0)), "float32")
    scaled = edit.op("Mul", [x, edit.op("CastLike", [edit.op("Reshape", [scale, edit.ints([])]), x])])
    edit.replace(edit.op("Mul", [scaled, edit.op("Sigmoid", [scaled])]))
    return True


# operators of ONNX's experimental past, which onnxruntime still runs under ONNX's own domain


def _affine(outer: tuple[str, float], inner: tuple[str, float], op: str | None = None) -> Entry:
    """outer * op(inner * x), or outer * x + inner without `op`. outer, inner: an attribute and its default."""

    def entry(node: ir.Node) -> bool:
        x = node.inputs[0]
        if x is None or x.dtype is None:
            return False
        edit = Edit(node)
        a, b = (edit.scalar_like(float(attr(node, name, default)), x) for name, default in (outer, inner))
        if op is None:
            edit.replace(edit.op("Add", [edit.op("Mul", [x, a]), b]))
        else:
            edit.replace(edit.op("Mul", [edit.op(op, [edit.op("Mul", [x, b])]), a]))
        return True

    return entry


def _scale(node: ir.Node) -> bool:
    x = node.inputs[0]
    if x is None or x.dtype is None:
        return False
    edit = Edit(node)
    edit.replace(edit.op("Mul", [x, edit.scalar_like(float(attr(node, "scale", 1.0)), x)]))
    return True


def _image_scaler(node: ir.Node) -> bool:
    """scale * x + a number of each channel."""
    x = node.inputs[0]
    if x is None or x.dtype is None:
        return False
    edit = Edit(node)
    bias = np.array(attr(node, "bias", (0.0,)), x.dtype.numpy()).reshape(1, -1, 1, 1)
    scaled = edit.op("Mul", [x, edit.scalar_like(float(attr(node, "scale", 1.0)), x)])
    edit.replace(edit.op("Add", [scaled, edit.const(bias)]))
    return True


def _crop(node: ir.Node) -> bool:
    """What is left of images without borders at the left, top, right and bottom; `scale`: its height and width."""
    border, size = [list(map(int, attr(node, name, ()))) for name in ("border", "scale")]
    if len(border) != 4 or len(size) not in (0, 2):
        return False
    left, top, right, bottom = border
    ends = [top + size[0], left + size[1]] if size else [-bottom or _END, -right or _END]
    edit = Edit(node)
    edit.replace(edit.op("Slice", [node.inputs[0], edit.ints([top, left]), edit.ints(ends), edit.ints([2, 3])]))
    return True


_END = 2**62


_OWN: Mapping[str, Entry] = {
    "BiasGelu": _gelu("none"),
    "CDist": _distances,
    "ConvTransposeWithDynamicPads": _conv_transpose,
    "EmbedLayerNormalization": _embed_norm,
    "ExpandDims": _expand_dims,
    "FastGelu": _gelu("tanh"),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "GatherND": _renamed("GatherND"),
    "GridSample": _grid_sample,
    "MatMulInteger16": _integer_matmul,
    "Pad": _renamed("Pad", "mode"),
    "Range": _renamed("Range"),
    "ScaledSiLU": _scaled_silu,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm("LayerNormalization"),
    "SkipSimplifiedLayerNormalization": _skip_norm("RMSNormalization"),
    "TransposeMatMul": _fused_matmul,
    "Trilu": _renamed("Trilu", "upper"),
    "UnfoldTensor": _unfold,
    "Unique": _unique,
    **contrib_attention.ENTRIES,
    **contrib_crops.ENTRIES,
    **contrib_experts.ENTRIES,
    **contrib_quantized.ENTRIES,
    **contrib_recurrent.ENTRIES,
}

_ONNX: Mapping[str, Entry] = {
    "Affine": _affine(("alpha", 1.0), ("beta", 0.0)),
    "Crop": _crop,
    "DynamicSlice": _renamed("Slice"),
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _affine(("alpha", 1.0), ("beta", 1.0), "Softplus"),
    "Scale": _scale,
    "ScaledTanh": _affine(("alpha", 1.0), ("beta", 1.0), "Tanh"),
    "SimplifiedLayerNormalization": _simplified_norm,
}

ENTRIES: Mapping[tuple[str, str], Entry] = {
    **{("", op): entry for op, entry in _ONNX.items()},
    **{(CONTRIB, op): entry for op, entry in _OWN.items()},
    **{key: entry for key, entry in qlinear_to_qdq.ENTRIES.items() if key[0] == CONTRIB},
}
"""By domain and operator."""
