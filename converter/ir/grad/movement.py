"""Operators that only move elements: their gradients move them back, adding up what was copied."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, composed, refuse, rule
from converter.ir.grad.tape import Operand, Term

__all__ = ["scatter_rows"]

_END = np.iinfo(np.int64).max


def scatter_rows(g: Term, rows: Term, like: Term, axis: int) -> Term:
    """Zeros of the shape of `like`, the slices of `g` along `axis` added at the places `rows` (a vector) names."""
    perm = [axis, *(i for i in range(like.rank) if i != axis)]
    back = [int(i) for i in np.argsort(perm)]
    zeros = like.tape.zeros_like(like).transpose(perm)
    added = zeros.op("ScatterND", rows.unsqueeze(1), g.transpose(perm), reduction="add")
    return added.transpose(back)


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(n: At) -> Gradients:
    return [n.g.reshape_like(n.x)]


@rule("Transpose")
def _transpose(n: At) -> Gradients:
    perm = n.attr("perm", None) or range(n.x.rank)[::-1]
    return [n.g.transpose([int(i) for i in np.argsort(perm)])]


@rule("Expand")
def _expand(n: At) -> Gradients:
    return [n.g.reduce_to(n.x)]


@rule("Concat")
def _concat(n: At) -> Gradients:
    axis = n.axis(0)
    parts = [n.input(i) for i in range(len(n.inputs))]
    if len(parts) == 1:
        return [n.g]
    known = [p.shape[axis] for p in parts]
    if all(isinstance(k, int) for k in known):
        sizes = n.tape.ints([k for k in known if isinstance(k, int)])
    else:
        sizes = n.tape.op("Concat", *(p.op("Shape", start=axis, end=axis + 1 or None) for p in parts), axis=0)
    found = n.tape.ops("Split", [n.g, sizes], len(parts), axis=axis)
    for part, g in zip(parts, found, strict=True):
        g.value.shape = ir.Shape(part.shape)
    return found


@rule("Split")
def _split(n: At) -> Gradients:
    parts = [n.tape.zeros_like(y) if g is None else g for g, y in zip(n.grads, n.outputs, strict=True)]
    return [n.tape.op("Concat", *parts, axis=n.attr("axis", 0), shape=n.x.shape)]


# -- slices and borders -----------------------------------------------------------------------------------------------


def _slices(node: ir.Node) -> tuple[list[int], ...] | None:
    """(starts, ends, axes, steps) as constants; None if they are known only at run time."""
    found = [build.array(v) for v in node.inputs[1:]]
    absent = [v is None for v in node.inputs[1:]]
    if any(a is None and not gone for a, gone in zip(found, absent, strict=True)) or len(found) < 2:
        return None
    lists = [[] if a is None else [int(v) for v in a.ravel()] for a in found]
    count = len(lists[0])
    axes = lists[2] if len(lists) > 2 and lists[2] else list(range(count))
    steps = lists[3] if len(lists) > 3 and lists[3] else [1] * count
    return lists[0], lists[1], axes, steps


@refuse("Slice")
def _slice_refusal(node: ir.Node) -> str:
    slices, shape = _slices(node), build.dims(node.inputs[0])
    if slices is None or shape is None:
        return "its starts, ends, axes and steps must be constants"
    fits = all(isinstance(shape[a], int) or (s >= 0 and t == 1) for s, _, a, t in zip(*slices, strict=True))
    return "" if fits else "it takes steps, or counts from the end, along an axis whose size is known only at run time"


@rule("Slice")
def _slice(n: At) -> Gradients:
    """Zeros around the slice; with steps other than 1 the elements are scattered."""
    slices = _slices(n.node)
    assert slices is not None, "refused"
    g, x = n.g, n.x
    for start, end, axis, step in zip(*slices, strict=True):
        axis %= x.rank
        wide = [*g.shape[:axis], x.shape[axis], *g.shape[axis + 1 :]]
        if step == 1:
            g = _bordered(g, x, start, axis, wide)
            continue
        like = n.tape.op("Expand", n.tape.const(0, x.dtype.numpy()), _sizes(g, x, axis), shape=wide)
        rows = np.arange(x.size(axis))[slice(start, end if end >= -x.size(axis) else None, step)]
        g = scatter_rows(g, n.tape.ints(rows.tolist()), like, axis)
    return [g]


def _sizes(g: Term, x: Term, axis: int) -> Term:
    """The sizes of `g`, except along one axis, which has that of `x`."""
    known = build.static_dims(g.value)
    if known is not None:
        return g.tape.ints([*known[:axis], x.size(axis), *known[axis + 1 :]])
    parts = [g.op("Shape", end=axis)] if axis else []
    parts += [g.tape.ints([x.size(axis)])]
    parts += [g.op("Shape", start=axis + 1)] if axis + 1 < g.rank else []
    return g.tape.op("Concat", *parts, axis=0)


def _bordered(g: Term, x: Term, start: int, axis: int, wide: build.Shape) -> Term:
    """`g` with zeros before and after along an axis, as long as `x`."""
    size, taken = x.shape[axis], g.shape[axis]
    if size == taken and size is not None:
        return g
    if isinstance(size, int):
        start = max(0, start + size) if start < 0 else min(start, size)
    if isinstance(size, int) and isinstance(taken, int):
        borders = g.tape.ints([start, size - taken - start])
    else:
        whole, part = (t.op("Shape", start=axis, end=axis + 1 or None) for t in (x, g))
        behind = whole - part - g.tape.ints([start])
        borders = g.tape.op("Concat", g.tape.ints([start]), behind, axis=0)
    return g.op("Pad", borders, None, g.tape.ints([axis]), shape=wide)


@refuse("Pad")
def _pad_refusal(node: ir.Node) -> str:
    given = [build.array(v) for v in (node.inputs[1], *node.inputs[3:]) if v is not None]
    if any(a is None for a in given):
        return "its pads and axes must be constants"
    known = build.attr(node, "mode", "constant") == "constant" or build.static_dims(node.inputs[0]) is not None
    return "" if known else "mode other than constant, over sizes known only at run time"


@rule("Pad")
def _pad(n: At) -> Gradients:
    """The part that was not padding; elements repeated by the border also get the gradients of their copies."""
    pads = [int(p) for p in n.constant(1, "pads").ravel()]
    axes = [int(a) % n.x.rank for a in n.constant(3, "axes").ravel()] if n.has(3) else list(range(n.x.rank))
    begins, ends = pads[: len(axes)], pads[len(axes) :]
    mode, g = n.attr("mode", "constant"), n.g
    borders = [(a, b, e) for a, b, e in zip(axes, begins, ends, strict=True) if b or e]
    if mode == "constant":
        if not borders:
            return [g]
        turned = [-b for _, b, _ in borders] + [-e for _, _, e in borders]
        if min(turned) < 0 < max(turned) or max(turned) > 0:
            return [g.op("Pad", n.tape.ints(turned), None, n.tape.ints([a for a, _, _ in borders]), shape=n.x.shape)]
        starts, stops = [b for _, b, _ in borders], [-e or _END for _, _, e in borders]
        axes_ = n.tape.ints([a for a, _, _ in borders])
        return [n.tape.op("Slice", g, n.tape.ints(starts), n.tape.ints(stops), axes_, shape=n.x.shape)]
    for axis, before, behind in borders:
        size = n.x.size(axis)
        cut = slice(max(0, -before), size - max(0, -behind))
        places = np.pad(np.arange(size)[cut], (max(0, before), max(0, behind)), mode)
        wide = [*g.shape[:axis], size, *g.shape[axis + 1 :]]
        like = n.tape.op("Expand", n.tape.const(0, g.dtype.numpy()), _sizes(g, n.x, axis), shape=wide)
        g = scatter_rows(g, n.tape.ints(places.tolist()), like, axis)
    return [g]


# -- copies and rearrangements ----------------------------------------------------------------------------------------


@refuse("Tile")
def _tile_refusal(node: ir.Node) -> str:
    repeats, shape = build.array(node.inputs[1]), build.dims(node.inputs[0])
    if repeats is None or shape is None:
        return "its repeats must be constants"
    open_ended = [r for r, d in zip(repeats.ravel(), shape, strict=True) if not isinstance(d, int)]
    return "" if len(open_ended) < 2 else "more than one size is known only at run time"


@rule("Tile")
def _tile(n: At) -> Gradients:
    """Every axis as (copies, size), summed over copies."""
    repeats = [int(r) for r in n.constant(1, "repeats").ravel()]
    split = [v for r, d in zip(repeats, n.x.shape, strict=True) for v in (r, d if isinstance(d, int) else -1)]
    return [n.g.reshape(split).sum(range(0, 2 * n.x.rank, 2)).reshape_like(n.x), None]


@rule("Trilu")
def _trilu(n: At) -> Gradients:
    return [n.g.op("Trilu", n.input(1) if n.has(1) else None, upper=n.attr("upper", 1)), None]


@rule("ReverseSequence")
def _reverse(n: At) -> Gradients:
    attrs = {"batch_axis": n.attr("batch_axis", 1), "time_axis": n.attr("time_axis", 0)}
    return [n.g.op("ReverseSequence", n.input(1), **attrs), None]


@rule("CenterCropPad")
def _center_crop_pad(n: At) -> Gradients:
    """Back to the operand's sizes: what cropping cuts off and what padding adds begin at the same places."""
    axes = [int(axis) for axis in n.attr("axes", None) or range(n.x.rank)]
    return [n.g.op("CenterCropPad", n.tape.ints([n.x.size(axis) for axis in axes]), axes=axes), None]


@composed("DepthToSpace")
def _depth_to_space(n: At) -> Sequence[Operand]:
    b, (channels, h, w) = n.attr("blocksize", 1), (n.x.size(i) for i in (1, 2, 3))
    deep = channels // (b * b)
    if n.attr("mode", "DCR") == "DCR":
        blocks = n.x.reshape([-1, b, b, deep, h, w]).transpose([0, 3, 4, 1, 5, 2])
    else:
        blocks = n.x.reshape([-1, deep, b, b, h, w]).transpose([0, 1, 4, 2, 5, 3])
    return [blocks.reshape([-1, deep, h * b, w * b])]


@composed("SpaceToDepth")
def _space_to_depth(n: At) -> Sequence[Operand]:
    b, (channels, h, w) = n.attr("blocksize", 1), (n.x.size(i) for i in (1, 2, 3))
    blocks = n.x.reshape([-1, channels, h // b, b, w // b, b]).transpose([0, 3, 5, 1, 2, 4])
    return [blocks.reshape([-1, channels * b * b, h // b, w // b])]
