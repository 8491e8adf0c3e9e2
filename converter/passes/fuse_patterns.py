"""Compositions that exporters write out become the operator that they represent. Rows of (name, pattern, builder)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, dims
from converter.passes.rewrite import Constant, Match, Optional, Row, apply

__all__ = ["ROWS", "run"]


def run(model: ir.Model) -> int:
    """The number of compositions recognised."""
    return apply(model, ROWS)


Build = Callable[[Edit, Match], ir.Value | None]


def _unary(op: str, domain: str = "", **attrs: Any) -> Build:
    def make(edit: Edit, m: Match) -> ir.Value:
        return edit.op(op, [m["x"]], attrs, domain=domain, like=m.output)

    return make


def _max_of_clip(edit: Edit, m: Match) -> ir.Value | None:
    """Clip(Relu(x), low, high) -> Clip(x, max(0, low), high)"""
    low = build.scalar(m.values.get("low")) if "low" in m.values else 0.0
    high = m.values.get("high")
    if low is None or m["x"].dtype is None:
        return None
    return edit.op("Clip", [m["x"], edit.scalar_like(max(0.0, low), m["x"]), high], like=m.output)


def _clip_from(bound: str) -> Build:
    """Min(x, c), Max(x, c) with a constant of one element -> Clip"""

    def make(edit: Edit, m: Match) -> ir.Value | None:
        number = build.scalar(m["c"])
        x = m["x"]
        if number is None or math.isnan(number) or x.dtype not in _FLOATS or not build.same_dims(x, m.output):
            return None
        if bound == "low" and number == 0:
            return edit.op("Relu", [x], like=m.output)
        limit = edit.scalar_like(number, x)
        return edit.op("Clip", [x, limit, None] if bound == "low" else [x, None, limit], like=m.output)

    return make


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_ROOT_HALF, _ROOT_TWO, _TANH_SCALE = math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi)
_ERF_INNER = (("Erf", ("Div", "x", _ROOT_TWO)), ("Erf", ("Mul", "x", _ROOT_HALF)))
_CUBES = (("Pow", "x", 3.0), ("Mul", "x", ("Mul", "x", "x")), ("Mul", ("Pow", "x", 2.0), "x"))
_TANH_ARGUMENTS = (
    *(("Mul", ("Add", "x", ("Mul", cube, 0.044715)), _TANH_SCALE) for cube in _CUBES),
    ("Mul", ("Mul", "x", ("Add", 1.0, ("Mul", ("Mul", "x", "x"), 0.044715))), _TANH_SCALE),
    ("Mul", ("Mul", "x", _TANH_SCALE), ("Add", 1.0, ("Mul", ("Mul", "x", "x"), 0.044715))),
)


def _gelu_rows() -> tuple[Row, ...]:
    rows = []
    for name, inners, approximate in (
        ("gelu", _ERF_INNER, "none"),
        ("gelu by tanh", tuple(("Tanh", a) for a in _TANH_ARGUMENTS), "tanh"),
    ):
        for inner in inners:
            gate = ("Add", inner, 1.0)
            for pattern in (
                ("Mul", ("Mul", "x", gate), 0.5),
                ("Mul", ("Mul", "x", 0.5), gate),
                ("Mul", "x", ("Mul", gate, 0.5)),
            ):
                rows.append(Row(name, pattern, _unary("Gelu", approximate=approximate)))
    return tuple(rows)


_HARD = ("Clip", ("Add", "x", 3.0), 0.0, 6.0)
_HARD_ROWS = (
    Row("hard swish", ("Mul", "x", ("HardSigmoid", "x", {"alpha": 1 / 6, "beta": 0.5})), _unary("HardSwish")),
    Row("hard swish", ("Div", ("Mul", "x", _HARD), 6.0), _unary("HardSwish")),
    Row("hard swish", ("Mul", ("Mul", "x", _HARD), 1 / 6), _unary("HardSwish")),
    Row("hard swish", ("Mul", "x", ("Div", _HARD, 6.0)), _unary("HardSwish")),
    Row("hard swish", ("Mul", "x", ("Mul", _HARD, 1 / 6)), _unary("HardSwish")),
    Row("hard sigmoid", ("Div", _HARD, 6.0), _unary("HardSigmoid", alpha=1 / 6, beta=0.5)),
    Row("hard sigmoid", ("Mul", _HARD, 1 / 6), _unary("HardSigmoid", alpha=1 / 6, beta=0.5)),
)


def _last_axis(m: Match, *names: str) -> bool:
    """Whether the reductions bound under `names` were over the last axis alone."""
    rank = build.rank(m["x"])
    if m.attrs.get("k") not in (None, 1):
        return False
    for name in names:
        axes = build.array(m.values.get(name))
        if rank is None or axes is None or axes.size != 1 or int(axes.reshape(-1)[0]) % rank != rank - 1:
            return False
    return True


def _vector(m: Match, name: str) -> bool:
    """Whether a bound value is a vector over x's last axis."""
    shape, x = dims(m.values.get(name)), dims(m["x"])
    return bool(shape and x) and len(shape or ()) == 1 and (shape or (0,))[-1] == (x or (1,))[-1]


def _layer_norm(edit: Edit, m: Match) -> ir.Value | None:
    x = m["x"]
    width = (dims(x) or (None,))[-1]
    epsilon = build.scalar(m["eps"])
    if not _last_axis(m, "a1", "a2") or epsilon is None or not isinstance(width, int) or x.dtype is None:
        return None
    if ("scale" in m.values and not _vector(m, "scale")) or ("bias" in m.values and not _vector(m, "bias")):
        return None
    scale = m.values.get("scale") or edit.const(np.ones(width, x.dtype.numpy()))
    attrs = {"axis": -1, "epsilon": epsilon}
    return edit.op("LayerNormalization", [x, scale, m.values.get("bias")], attrs, like=m.output)


def _mean(x: Any, axes: str) -> tuple[Any, ...]:
    return ("ReduceMean", x, axes, {"keepdims": "$k"})


def _layer_norm_rows() -> tuple[Row, ...]:
    """The centred x is read twice, so it is bound as a value (`d`) and checked by the builder."""
    rows = []
    for square in (("Pow", "d", 2.0), ("Mul", "d", "d")):
        spread = ("Sqrt", ("Add", _mean(square, "a2"), Constant("eps")))
        for core in (("Div", "d", spread), ("Mul", "d", ("Reciprocal", spread))):
            rows += [
                Row("layer norm", ("Add", ("Mul", core, "scale"), "bias"), _centred(_layer_norm)),
                Row("layer norm", ("Mul", core, "scale"), _centred(_layer_norm)),
                Row("layer norm", core, _centred(_layer_norm)),
            ]
    return tuple(rows)


def _centred(make: Build) -> Build:
    """Match `d = x - mean(x)` and continue with x."""

    def checked(edit: Edit, m: Match) -> ir.Value | None:
        centre = m["d"].producer()
        inner = Match(dict(m.values), dict(m.attrs), list(m.nodes))
        if centre is None or not build.is_op(centre, "Sub") or centre.inputs[1] is None:
            return None
        x, mean = centre.inputs[0], centre.inputs[1].producer()
        if mean is None or not build.is_op(mean, "ReduceMean"):
            return None
        if build.attr(mean, "keepdims", 1) != 1:
            return None
        if x is None or mean.inputs[0] is not x or len(mean.inputs) < 2 or mean.inputs[1] is None:
            return None
        inner.values |= {"x": x, "a1": mean.inputs[1]}
        return make(edit, inner)

    return checked


def _rms_norm(edit: Edit, m: Match) -> ir.Value | None:
    x, epsilon = m["x"], build.scalar(m["eps"])
    if not _last_axis(m, "a") or epsilon is None or not _vector(m, "scale"):
        return None
    return edit.op("RMSNormalization", [x, m["scale"]], {"axis": -1, "epsilon": epsilon}, like=m.output)


def _rms_rows() -> tuple[Row, ...]:
    rows = []
    for square in (("Pow", "x", 2.0), ("Mul", "x", "x")):
        root = ("Sqrt", ("Add", _mean(square, "a"), Constant("eps")))
        for core in (("Div", "x", root), ("Mul", "x", ("Reciprocal", root)), ("Mul", "x", ("Div", 1.0, root))):
            rows.append(Row("rms norm", ("Mul", core, "scale"), _rms_norm))
    return tuple(rows)


def _attention(edit: Edit, m: Match) -> ir.Value | None:
    """softmax(q kT * scale + mask) v over [batch, heads, length, width] -> Attention"""
    perm = tuple(m.attrs["kt"] or ())
    q, k, v = (dims(m[name]) for name in ("q", "k", "v"))
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == len(perm) == 4:
        return None
    back = (perm[0], perm[1], perm[3], perm[2])
    key = tuple(k[p] for p in back)
    heads = q[:2] == key[:2] == v[:2] and None not in q[:2] and q[3] == key[3] and isinstance(q[3], int)
    scale = _attention_scale(m)
    if not heads or m["q"].dtype != ir.DataType.FLOAT or scale is None or m.attrs["axis"] not in (-1, 3, None):
        return None
    mask = m.values.get("mask")
    if mask is not None and not _is_mask(mask, m["q"], (q[2], key[2])):
        return None
    keys = m["k"] if back == (0, 1, 2, 3) else edit.op("Transpose", [m["k"]], {"perm": back}, like=m["k"], shape=key)
    inputs = [m["q"], keys, m["v"]] if mask is None else [m["q"], keys, m["v"], mask]
    return edit.op("Attention", inputs, {"scale": scale}, like=m.output)


def _attention_scale(m: Match) -> float | None:
    scale = 1.0
    for name, power in (("factor", 1), ("divisor", -1)):
        if name in m.values:
            number = build.scalar(m[name])
            if number is None or number <= 0:
                return None
            scale *= number**power
    return scale


def _is_mask(mask: ir.Value, q: ir.Value, lengths: tuple[Any, Any]) -> bool:
    """Its last two sizes are the query's and key's lengths: Attention broadcasts only the leading ones."""
    shape = dims(mask) or ()
    return mask.dtype == q.dtype and len(shape) in (2, 3, 4) and shape[-2:] == lengths and None not in lengths


def _attention_rows() -> tuple[Row, ...]:
    scores = ("MatMul", "q", ("Transpose", "k", {"perm": "$kt"}))
    scaled = (scores, ("Mul", scores, Constant("factor")), ("Div", scores, Constant("divisor")))
    rows = []
    for score in scaled:
        for logits in (score, ("Add", score, "mask")):
            rows.append(Row("attention", ("MatMul", ("Softmax", logits, {"axis": "$axis"}), "v"), _attention))
    return tuple(rows)


def _depth_to_space(edit: Edit, m: Match) -> ir.Value | None:
    """Reshape to six axes, Transpose, Reshape: the form in which exporters write PixelShuffle."""
    x, wide, result = dims(m["x"]), dims(m.nodes[1].inputs[0]), dims(m.output)
    modes = {(0, 1, 4, 2, 5, 3): ("CRD", 1, (2, 3)), (0, 3, 4, 1, 5, 2): ("DCR", 3, (1, 2))}
    found = modes.get(tuple(m.attrs["perm"] or ()))
    if (
        found is None
        or x is None
        or wide is None
        or result is None
        or len(wide) != 6
        or len(x) != 4
        or len(result) != 4
    ):
        return None
    mode, channel, blocks = found
    block = wide[blocks[0]]
    if not isinstance(block, int) or block != wide[blocks[1]] or not isinstance(wide[channel], int):
        return None
    if x[1] != wide[channel] * block * block or x[2:] != wide[4:] or result[1] != wide[channel]:  # type: ignore[operator]
        return None
    if not all(isinstance(d, int) for d in x[2:]) or result[2:] != tuple(d * block for d in x[2:]):  # type: ignore[operator]
        return None
    return edit.op("DepthToSpace", [m["x"]], {"mode": mode, "blocksize": block}, like=m.output)


def _expand(edit: Edit, m: Match) -> ir.Value | None:
    """ConstantOfShape(s) of zeros + c -> Expand(c, s)"""
    value = m.attrs["value"]
    if value is not None and value.numpy().any():
        return None
    return edit.op("Expand", [m["c"], m["s"]], like=m.output)


ROWS: tuple[Row, ...] = (
    *_gelu_rows(),
    *_HARD_ROWS,
    Row("silu", ("Mul", "x", ("Sigmoid", "x")), _unary("Silu", build.DOMAIN)),  # x * sigmoid(x) -> Silu(x)
    Row("clip of relu", ("Clip", ("Relu", "x"), Optional(Constant("low")), Optional(Constant("high"))), _max_of_clip),
    Row("min", ("Min", "x", Constant("c")), _clip_from("high")),
    Row("max", ("Max", "x", Constant("c")), _clip_from("low")),
    Row("expand", ("Add", ("ConstantOfShape", "s", {"value": "$value"}), Constant("c")), _expand),
    *_layer_norm_rows(),
    *_rms_rows(),
    *_attention_rows(),
    Row(
        "depth to space",
        ("Reshape", ("Transpose", ("Reshape", "x", "s1"), {"perm": "$perm"}), "s2"),
        _depth_to_space,
    ),
)
