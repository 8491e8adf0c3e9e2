"""Integer contractions: how bytes are packed, and which terms of the zero points are known before a run.

With x' the byte that the kernel reads (x, or x + 128 if x is signed), zx' its zero point, w' the weight as a signed
byte (w, or w - 128 if it is unsigned), zw' its zero point and K the length of the reduction,

    sum (x - zx)(w - zw)  =  sum x' w'  -  zw' sum x'  -  zx' (sum w' - K zw'),

and `weight_sum` is the last bracket, one value per column: it depends only on the weights. The kernel computes the
first sum; the second is needed only if weights have zero points; the third is added to the bias if zx' is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.ops._panels import tile_vectors
from lite_runtime.ops.registry import Binder, NoKernel, Operand
from lite_runtime.reference.fixed_point import multiplier_of, short_multiplier_of
from lite_runtime.reference.qlinear import bounds_of
from lite_runtime.targets import Shape

__all__ = [
    "BYTE",
    "Cut",
    "Result",
    "Terms",
    "block_order",
    "cut",
    "factors",
    "fours_first",
    "full_vectors",
    "moving_operands",
    "narrow_first",
    "panel_bytes",
    "per_column",
    "quantised_panels",
    "result_of",
    "scale_of",
    "settle",
    "signed",
    "sums_of",
    "terms_of",
    "wide_dwords",
]

BYTE, FLOAT, INT, FIXED, TWICE, REAL = range(6)
"""Kinds of result, as named in kernels/qgemm.py."""
_ROUNDED = {"FIXED": FIXED, "TWICE": TWICE, "DOUBLE": TWICE, "LANES": TWICE, "REAL": REAL}
_AWAY = 64
"""The flag of a shift whose second rounding is away from zero, as named in kernels/_dot.py."""
_BYTES = ("int8", "uint8")


class Cut(NamedTuple):
    """A reduction split into dwords: their byte offsets from a row's start, and (dwords, 4 or 2) indices of the
    weights for each, -1 for none. `depth`: elements of a tap. `quick`: how many dwords come first, or groups of four,
    that kernels can sum in a faster way."""

    places: tuple[int, ...]
    source: Array
    depth: int
    quick: int = 0

    @property
    def slack(self) -> bool:
        """Whether a dword may extend beyond its tap."""
        return bool(self.depth < self.source.shape[1])


def cut(taps: Sequence[int], depth: int, size: int = 1) -> Cut:
    """Dwords of taps of `depth` adjacent elements of `size` bytes; taps: offsets in elements. The last dword of a tap
    overlaps the one before it."""
    each = 4 // size
    whole, rest = divmod(depth, each)
    starts = [each * g for g in range(whole)]
    inner = np.arange(each * whole).reshape(whole, each)
    if rest:
        last = np.full((1, each), -1)
        last[0, each - rest if whole else 0 :][:rest] = np.arange(depth - rest, depth)
        starts.append(depth - each if whole else 0)
        inner = np.concatenate([inner, last])
    source = np.concatenate([np.where(inner < 0, -1, inner + t * depth) for t in range(len(taps))])
    return Cut(tuple(size * (tap + start) for tap in taps for start in starts), source, depth)


def fours_first(whole: Cut) -> Cut:
    """The same dwords, those that are adjacent in fours before the others; their sums are the same."""
    places, together, alone, at = whole.places, list[int](), list[int](), 0
    while at < len(places):
        if places[at : at + 4] == tuple(range(places[at], places[at] + 16, 4)):
            together += range(at, at + 4)
            at += 4
        else:
            alone.append(at)
            at += 1
    order = together + alone
    return _ordered(whole, order, len(together) // 4)


def _ordered(whole: Cut, order: Sequence[int], quick: int) -> Cut:
    return whole._replace(places=tuple(whole.places[i] for i in order), source=whole.source[order], quick=quick)


def narrow_first(whole: Cut, wide: Array) -> Cut:
    """The same dwords, those that are not `wide` before the others (`wide_dwords`). Raises ValueError for flags of
    another reduction."""
    if len(wide) != len(whole.places):
        raise ValueError(f"expected a flag for each of {len(whole.places)} dwords, got {len(wide)}")
    return _ordered(whole, np.argsort(wide, kind="stable").tolist(), int((wide == 0).sum()))


def wide_dwords(matrices: Array, source: Array) -> Array:
    """(matrices, k, n) int8 -> (dwords) int8: 1 where two neighbours of some column are -128. Their products with two
    inputs of -128 are the only ones whose sum does not fit 16 bits."""
    lowest = np.zeros((*matrices.shape[:1], matrices.shape[1] + 1, matrices.shape[2]), bool)
    lowest[:, :-1] = matrices == -128
    dwords = lowest[:, source]  # (matrix, dword, 4, column)
    return np.asarray((dwords[:, :, ::2] & dwords[:, :, 1::2]).any((0, 2, 3)), np.int8)


def full_vectors(columns: int, shape: Shape, shifted: bool) -> int:
    """Vectors of a full panel, without its vector of ones."""
    return min(tile_vectors(columns, shape), 3 if shifted else 4)


def quantised_panels(matrix: Array, source: Array, shape: Shape, shifted: bool) -> Array:
    """(k, n) -> the layout for qgemm and qwide: panels of [dword][column][4 bytes], or [dword][4][column] for outer
    products, flat; `shifted`: followed by ones."""
    n, lanes = matrix.shape[1], shape.lanes
    width, padded = full_vectors(n, shape, shifted) * lanes, -(-n // lanes) * lanes
    held = np.zeros((matrix.shape[0] + 1, padded), matrix.dtype)
    held[:-1, :n] = matrix
    dwords = held[source].transpose(0, 2, 1)  # (dword, column, 4 or 2)
    ones = (source >= 0).astype(matrix.dtype)[:, None]
    ones = np.broadcast_to(ones, (len(source), lanes if shifted else 0, source.shape[1]))
    parts = [np.concatenate([dwords[:, at : at + width], ones], 1) for at in range(0, padded, width)]
    return np.concatenate([(part.swapaxes(1, 2) if shape.outer else part).ravel() for part in parts])


def panel_bytes(dwords: int, columns: int, shape: Shape, shifted: bool) -> int:
    """Bytes of the `quantised_panels` of a matrix."""
    lanes = shape.lanes
    padded = -(-columns // lanes) * lanes
    width = full_vectors(columns, shape, shifted) * lanes
    return 4 * dwords * (padded + (-(-padded // width) * lanes if shifted else 0))


def signed(w: Array) -> Array:
    """Weights as signed bytes: 128 is subtracted from unsigned ones."""
    return (w ^ np.uint8(128)).view(np.int8) if w.dtype == np.uint8 else w


def per_column(values: Array, groups: int, lanes: int, dtype: str, filler: float = 0) -> Array:
    """(…, groups * columns) -> (…, groups * columns padded to whole vectors): a table that kernels read by column.
    Integers wrap."""
    values = values.reshape(*values.shape[:-1], groups, -1)
    columns = values.shape[-1]
    table = np.full((*values.shape[:-1], -(-columns // lanes) * lanes), filler, dtype)
    table[..., :columns] = values.astype(dtype)
    return np.ascontiguousarray(table.reshape(*values.shape[:-2], -1))


def block_order(channels: int, lanes: int) -> Array:
    """(blocks, 4, lanes): the channel for each lane of a depthwise block's four sums (see qdepthwise).

    The last block ends at the last channel; if there are fewer channels than a block has, they repeat.
    """
    block = 4 * lanes
    inner = np.arange(block).reshape(lanes // 4, 4, 4).transpose(1, 0, 2).reshape(4, lanes)
    starts = [max(0, min(at, channels - block)) for at in range(0, channels, block)]
    return (np.array(starts)[:, None, None] + inner) % channels


def scale_of(t: Terms) -> Array:
    """float32, the factor for a column's sums: x's scale times w's, divided by y's; w's alone for a real result of
    bytes, whose sums are multiplied with x's first."""
    if t.y_scale is None and not t.wide:
        return t.w_scale
    assert not isinstance(t.x_scale, Operand)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = t.x_scale * t.w_scale
        return scale if t.y_scale is None else scale / t.y_scale


def factors(b: Binder, t: Terms, kind: int, real_bias: Array, groups: int) -> tuple[Array, Array]:
    """The tables `scale` and `shift` of a kernel: float32 factors and real biases. From FIXED on: int32 multipliers and
    shifts, or the words of float64 factors, in their place."""
    if kind < FIXED:
        return per_column(scale_of(t), groups, b.lanes, "float32"), per_column(real_bias, groups, b.lanes, "float32")
    assert not isinstance(t.x_scale, Operand) and t.y_scale is not None
    reals = np.float64(t.x_scale) * t.w_scale.astype(np.float64) / np.float64(t.y_scale)
    if not (np.isfinite(reals) & (reals >= 0)).all():
        raise NoKernel("factors that are negative or not finite")
    if kind == REAL:
        tables = np.ascontiguousarray(reals).view(np.int32).reshape(-1, 2).T
    else:
        multiplier = short_multiplier_of if kind == FIXED else multiplier_of
        tables = np.array([multiplier(float(real)) for real in reals]).T
        count, rounding = len(reals), b.attr("rounding", "")
        tables[1, {"DOUBLE": 0, "LANES": count // 8 * 8}.get(rounding, count) :] += _AWAY
    scale, shift = (per_column(table, groups, b.lanes, "int32", 1).view(np.float32) for table in tables)
    return scale, shift


def sums_of(b: Binder, r: Result, out: Operand) -> Operand:
    """Where the step of a product writes: the result, or memory for sums and a vector after them."""
    return b.scratch("int32", (out.size + b.lanes,)) if r.settled else out


def settle(b: Binder, t: Terms, r: Result, sums: Operand, out: Operand) -> None:
    """Append the step that rounds the sums, if there is one."""
    if not r.settled:
        return
    columns = len(t.w_zero)
    tables = factors(b, t, r.settled, np.zeros(columns), 1)
    b.emit(
        steps.SettleSums(
            x=sums,
            multipliers=b.constant(tables[0]),
            shifts=b.constant(tables[1]),
            y=out,
            rows=out.size // columns,
            columns=columns,
            zero=r.zero,
            low=int(r.low) + r.zero,
            high=int(r.high) + r.zero,
        )
    )


if TYPE_CHECKING:

    class Moving(TypedDict):
        """A kernel's operands for x: zero points computed at run time or None, scales (for real results), the flip
        mask."""

        zeros: Operand | None
        scales: Operand
        flip: Operand

else:
    Moving = dict


def moving_operands(b: Binder, t: Terms) -> Moving:
    """The operands for x."""
    return Moving(
        zeros=t.x_zero if isinstance(t.x_zero, Operand) else None,
        scales=t.x_scale if isinstance(t.x_scale, Operand) else b.constant(np.full(t.moving, t.x_scale, np.float32)),
        flip=b.constant(np.full(4 * b.lanes, t.flip, np.uint8)),
    )


class Result(NamedTuple):
    """How a sum becomes a result: its kind, bytes per result, zero point, bounds minus the zero point; the mask that
    makes a byte unsigned, and whether a scaled sum can reach 2**31."""

    kind: int
    size: int
    zero: int
    low: float
    high: float
    turn: int = 0
    wild: bool = False
    settled: int = 0
    """TWICE: the step's results are sums, which a second step rounds."""


def _clamp(b: Binder) -> dict[str, float | str]:
    name = b.attr("activation", "")
    if name not in ("", "Relu", "Clip"):
        raise NoKernel(f"activation {name}")
    ends = {key: float(b.attr(key)) for key in ("activation_min", "activation_max") if b.attr(key) is not None}
    return {"activation": name, **(ends if name == "Clip" else {})}


def result_of(b: Binder, t: Terms, out: Operand) -> Result:
    """The conversion of this node's sums to its result."""
    if out.dtype == "int32":
        return Result(INT, 4, 0, 0.0, 0.0)
    clamp = _clamp(b)
    if out.dtype == "float32":
        ends = (float(clamp.get("activation_min", -np.inf)), float(clamp.get("activation_max", np.inf)))
        low, high = (0.0, np.inf) if clamp["activation"] == "Relu" else ends
        if not low <= high:
            raise NoKernel(f"a clamp to [{low}, {high}]")
        return Result(FLOAT, 4, 0, low, high)
    assert t.y_scale is not None
    dtype, turn = np.dtype(out.dtype), 128 if out.dtype == "int8" else 0
    least, most = bounds_of(dtype, float(t.y_scale), t.y_zero, **clamp)  # type: ignore[arg-type]
    bounds = float(least - t.y_zero), float(most - t.y_zero)
    kind = _ROUNDED.get(b.attr("rounding", ""), BYTE)
    if kind in (FIXED, REAL) and not t.wide:
        raise NoKernel("sums of 64 bits, of bytes")
    if kind != BYTE and not t.wide:
        return Result(INT, 4, t.y_zero, *bounds, settled=kind)
    return Result(kind, dtype.itemsize, t.y_zero, *bounds, turn, not (np.abs(scale_of(t)) < 1).all())


@dataclass(frozen=True)
class Terms:
    """A contraction's operands other than its two tensors, with known values extracted.

    x_scale, x_zero: known scalars, or operands with one value per image or row (`moving` of them).
    """

    x: Operand
    w: Operand
    x_scale: np.float32 | Operand
    x_zero: int | Operand
    moving: int
    w_scale: Array
    w_zero: Array
    y_scale: np.float32 | None
    y_zero: int
    bias: Operand | None
    signed: bool
    """Whether the target multiplies signed bytes of activations; otherwise unsigned ones."""

    @property
    def flip(self) -> int:
        """The mask by which the activations' bytes are flipped."""
        return 128 if self.size == 1 and (self.x.dtype == "int8") != self.signed else 0

    @property
    def known_zero(self) -> int:
        """The known part of zx', the zero point of the activations as the kernel reads them: flipping adds 128 to
        signed ones and subtracts it from unsigned ones."""
        moved = self.flip if self.x.dtype == "int8" else -self.flip
        return moved + (self.x_zero if isinstance(self.x_zero, int) else 0)

    @property
    def wide(self) -> bool:
        """Whether activations are int16: weights are then int16 with zero points subtracted, and sums are int64."""
        return self.x.dtype == "int16"

    @property
    def deep(self) -> bool:
        """Whether weights are int16, too."""
        return self.w.dtype == "int16"

    @property
    def size(self) -> int:
        """Bytes per activation."""
        return 2 if self.wide else 1

    @property
    def shifted(self) -> bool:
        """Whether weights have zero points that a kernel must handle."""
        return not self.wide and bool(self.w_zero.any())

    def known(self) -> Array:
        """x's zero point as an array for kernels that fill borders with it; 0 if it is known only at run time."""
        return np.array([0 if isinstance(self.x_zero, Operand) else self.x_zero], self.x.dtype)


_PLACES = {
    "QLinearConv": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "QLinearMatMul": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    "ConvInteger": (0, None, 2, 1, None, 3, None, None, None),
    "MatMulInteger": (0, None, 2, 1, None, 3, None, None, None),
}
"""Operand positions of x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias."""


def terms_of(b: Binder, columns: int) -> Terms:
    """Read a node's operands; raises NoKernel for types and run-time values that kernels do not support."""
    found = (None if i is None or i >= len(b.inputs) else b.inputs[i] for i in _PLACES[b.node.op])
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = found
    out = b.outputs[0]
    assert x is not None and w is not None and out is not None
    allowed = _BYTES if x.dtype != "int16" else (*_BYTES, "int16") if w.value is not None else ("int16",)
    if x.dtype not in (*_BYTES, "int16") or w.dtype not in allowed or (w.dtype == "int16" and "Conv" in b.node.op):
        raise NoKernel(f"{x.dtype} times {w.dtype}")
    if out.dtype not in (("int16", "float32") if x.dtype == "int16" else (*_BYTES, "int32", "float32")):
        raise NoKernel(f"{x.dtype} to {out.dtype}")
    if x_zero is not None and x_zero.dtype != x.dtype:
        raise NoKernel(f"a zero point of {x_zero.dtype} for {x.dtype}")
    step, zero = _scalar(x_scale, 1.0), _scalar(x_zero, 0)
    if x.dtype == "int16" and (step is None or zero is None):
        raise NoKernel("int16 with scales and zero points computed at run time")
    moving = {o.size for o, known in ((x_scale, step), (x_zero, zero)) if known is None and o is not None}
    if len(moving) > 1 or (moving and out.dtype not in ("float32", "int32")):
        raise NoKernel("scales and zero points computed at run time with a quantised result")
    if any(o is not None and o.dtype != "float32" for o in (x_scale, w_scale, y_scale)):
        raise NoKernel("scales that are not float32")
    return Terms(
        x=x,
        w=w,
        x_scale=np.float32(step) if step is not None else _there(x_scale),
        x_zero=int(zero) if zero is not None else _there(x_zero),
        moving=max(moving, default=1),
        w_scale=_column_values(w_scale, columns, 1.0).astype(np.float32),
        w_zero=_column_values(w_zero, columns, 0).astype(np.int64) - (128 if w.dtype == "uint8" else 0),
        y_scale=None if y_scale is None else np.float32(_fixed(y_scale)),
        y_zero=0 if y_zero is None else int(_fixed(y_zero)),
        bias=bias if bias is not None and bias.size else None,
        signed=b.target.signed,
    )


def _there(operand: Operand | None) -> Operand:
    assert operand is not None
    return operand


def _scalar(operand: Operand | None, default: float) -> float | None:
    """The only value of a constant; None if it has several or is not known yet."""
    if operand is None:
        return default
    known = operand.value is not None and operand.size == 1
    return np.asarray(operand.value).reshape(()).item() if known else None


def _fixed(operand: Operand) -> float:
    value = _scalar(operand, 0)
    if value is None:
        raise NoKernel("a result whose scale or zero point is computed")
    return value


def _column_values(operand: Operand | None, columns: int, default: float) -> Array:
    """One value per column from a constant with one value or one per column."""
    if operand is None:
        return np.full(columns, default)
    if operand.value is None or operand.size not in (1, columns) or len(operand.shape) > 1:
        raise NoKernel(f"a scale or zero point of the weights of shape {list(operand.shape)}, or computed")
    return np.broadcast_to(operand.value.reshape(-1), columns)
