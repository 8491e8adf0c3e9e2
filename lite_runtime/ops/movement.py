"""Operators that move elements: each one is a few strided copies, or none if a view is enough."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array
from lite_runtime.ops._checks import INDEX_TYPES, axes_of, axis_of, broadcast, choice, dense_strides, one_of
from lite_runtime.ops._copy import (
    Dim,
    copy_whole,
    element_size,
    emit_copy,
    fill_operand,
    is_window,
    view_or_copy,
)
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

MAX_BOXES = 256
"""Greatest number of copies for one Pad."""
MAX_MAP = 1 << 22
"""Greatest number of elements along an axis whose border repeats the inside."""


def _first(b: Binder) -> tuple[Operand, Operand]:
    """The data operand and the result."""
    source, target = b.inputs[0], b.outputs[0]
    assert source is not None and target is not None
    return source, target


# -- transposes -------------------------------------------------------------------------------------------------------


@infer("Transpose")
def _transpose(n: Inference) -> list[Spec]:
    data = n.spec(0)
    rank = len(data.shape)
    perm = n.attr("perm", tuple(range(rank))[::-1])
    if sorted(perm) != list(range(rank)):
        raise n.error(f"expected a permutation of {rank} axes, got {tuple(perm)}")
    return [Spec(data.dtype, tuple(data.shape[i] for i in perm))]


@bind("Transpose")
def _bind_transpose(b: Binder) -> None:
    source, target = _first(b)
    perm = b.attr("perm", tuple(range(len(source.shape)))[::-1])
    steps = dense_strides(source.shape)
    _permute(b, source, target, [steps[i] for i in perm], [source.shape[i] for i in perm])


def _permute(b: Binder, source: Operand, target: Operand, steps: Sequence[int], shape: Sequence[int]) -> None:
    """Copy to a row-major target whose axes step through the source by `steps`; a view if that is dense."""
    dims = [Dim(*d) for d in zip(shape, steps, dense_strides(shape), strict=True)]
    if is_window(dims):
        view_or_copy(b, 0, source)
    else:
        emit_copy(b, source, target, dims)


@infer("DepthToSpace", "SpaceToDepth")
def _blocks(n: Inference) -> list[Spec]:
    data = n.spec(0)
    if len(data.shape) != 4:
        raise n.error(f"expected an image batch of rank 4, got shape {data.shape}")
    choice(n, "mode", "DCR", ("DCR", "CRD"))
    last = choice(n, "layout", "NCHW", ("NCHW", "NHWC")) == "NHWC"
    size = n.attr("blocksize", 0)
    if size < 1:
        raise n.error(f"expected blocksize of 1 or more, got {size}")
    batch, channels, height, width = (data.shape[i] for i in ((0, 3, 1, 2) if last else (0, 1, 2, 3)))
    if n.node.op == "DepthToSpace":
        if channels % (size * size):
            raise n.error(f"expected channels divisible by {size * size}, got {channels}")
        channels, height, width = channels // (size * size), height * size, width * size
    else:
        if height % size or width % size:
            raise n.error(f"expected height and width divisible by {size}, got {height} and {width}")
        channels, height, width = channels * size * size, height // size, width // size
    return [Spec(data.dtype, (batch, height, width, channels) if last else (batch, channels, height, width))]


@bind("DepthToSpace", "SpaceToDepth")
def _bind_blocks(b: Binder) -> None:
    source, target = _first(b)
    last = b.attr("layout", "NCHW") == "NHWC"
    to_space = b.node.op == "DepthToSpace"
    size = b.attr("blocksize")
    small, large = (source, target) if to_space else (target, source)
    batch, height, width = small.shape[0], *(small.shape[1:3] if last else small.shape[2:4])
    channels = large.shape[3 if last else 1]
    extents = {"n": batch, "c": channels, "h": height, "w": width, "b": size, "B": size}
    deep = "bBc" if b.attr("mode", "DCR") == "DCR" else "cbB"
    small_axes = f"nhw{deep}" if last else f"n{deep}hw"
    large_axes = "nhbwBc" if last else "nchbwB"
    source_axes, target_axes = (small_axes, large_axes) if to_space else (large_axes, small_axes)
    steps = dict(zip(source_axes, dense_strides([extents[a] for a in source_axes]), strict=True))
    shape = [extents[a] for a in target_axes]
    _permute(b, source, target, [steps[a] for a in target_axes], shape)


# -- joining and cutting ----------------------------------------------------------------------------------------------


@infer("Concat")
def _concat(n: Inference) -> list[Spec]:
    parts = [n.spec(i) for i in range(len(n.specs))]
    if not parts:
        raise n.error("expected at least one input, got none")
    axis = axis_of(n, n.attr("axis"), len(parts[0].shape))
    rests = {(p.dtype, p.shape[:axis], p.shape[axis + 1 :]) for p in parts}
    if len(rests) > 1 or len({len(p.shape) for p in parts}) > 1:
        shapes = ", ".join(f"{p.dtype}{list(p.shape)}" for p in parts)
        raise n.error(f"expected inputs of one type whose shapes differ at axis {axis} only, got {shapes}")
    shape = parts[0].shape
    return [Spec(parts[0].dtype, (*shape[:axis], sum(p.shape[axis] for p in parts), *shape[axis + 1 :]))]


@bind("Concat")
def _bind_concat(b: Binder) -> None:
    target = b.outputs[0]
    assert target is not None
    parts = [p for p in b.inputs if p is not None and p.size]
    if len(parts) == 1:
        return view_or_copy(b, 0, parts[0])
    axis = b.attr("axis") % len(target.shape)
    outer, whole = prod(target.shape[:axis]), prod(target.shape[axis:])
    at = 0
    for i, part in enumerate(b.inputs):
        if part is None or part.size == 0:
            continue
        run = part.size // outer
        if outer == 1:
            copy_whole(b, part, target.at(at * element_size(target.dtype), part.shape))
        elif axis < len(target.shape) - 1 or not b.place(i, target, at, whole):
            emit_copy(b, part, target, [Dim(outer, run, whole), Dim(run, 1, 1)], 0, at)
        at += run
    return None


@infer("Split")
def _split(n: Inference) -> list[Spec]:
    data = n.spec(0)
    axis = axis_of(n, n.attr("axis", 0), len(data.shape))
    size = data.shape[axis]
    if n.has(1):
        sizes = n.ints(1)
    else:
        parts = n.attr("num_outputs") or len(n.node.outputs)
        if not 1 <= parts <= max(len(n.node.outputs), 1):
            raise n.error(f"expected num_outputs of {len(n.node.outputs)}, got {parts}")
        chunk = -(-size // parts)
        sizes = tuple(max(0, min(chunk, size - i * chunk)) for i in range(parts))
    if any(s < 0 for s in sizes) or sum(sizes) != size:
        raise n.error(f"expected sizes of 0 or more that add up to {size} along axis {axis}, got {sizes}")
    if len(sizes) != len(n.node.outputs):
        raise n.error(f"expected {len(n.node.outputs)} sizes, one for each output, got {len(sizes)}")
    return [Spec(data.dtype, (*data.shape[:axis], s, *data.shape[axis + 1 :])) for s in sizes]


@bind("Split")
def _bind_split(b: Binder) -> None:
    source = b.inputs[0]
    assert source is not None
    axis = b.attr("axis", 0) % len(source.shape)
    outer, whole, inner = prod(source.shape[:axis]), prod(source.shape[axis:]), prod(source.shape[axis + 1 :])
    sizes = _split_sizes(b, source.shape[axis])
    at = 0
    for i, size in enumerate(sizes):
        target = b.outputs[i]
        run = size * inner
        if target is not None and target.size:
            if outer == 1:
                view_or_copy(b, i, source, at)
            else:
                emit_copy(b, source, target, [Dim(outer, whole, run), Dim(run, 1, 1)], at)
        at += run


def _split_sizes(b: Binder, size: int) -> list[int]:
    """Sizes along the axis, including those of unused outputs."""
    given = b.inputs[1] if len(b.inputs) > 1 else None
    if given is not None:
        if given.value is None:
            raise NoKernel("sizes that only a run knows")
        return [int(s) for s in np.ravel(given.value)]
    parts = b.attr("num_outputs") or len(b.outputs)
    chunk = -(-size // parts)
    return [max(0, min(chunk, size - i * chunk)) for i in range(parts)]


def _ranges(n: Inference) -> list[tuple[int, int, int]]:
    """Slice's range along each axis: first index, number of indices, step."""
    data = n.spec(0)
    starts, ends = n.ints(1), n.ints(2)
    given = n.ints(3) if n.has(3) else tuple(range(len(starts)))
    axes = axes_of(n, given, len(data.shape))
    steps = n.ints(4) if n.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise n.error(f"expected as many starts, ends, axes and steps, got {starts}, {ends}, {axes}, {steps}")
    cuts = [(0, size, 1) for size in data.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise n.error("expected steps other than 0")
        size = data.shape[axis]
        start, end = start + size if start < 0 else start, end + size if end < 0 else end
        if step > 0:
            start, end = min(max(start, 0), size), min(max(end, 0), size)
        else:
            start, end = min(max(start, 0), size - 1), min(max(end, -1), size - 1)
        cuts[axis] = (start, len(range(start, end, step)), step)
    return cuts


@infer("Slice")
def _slice(n: Inference) -> list[Spec]:
    for i in range(1, 5):
        if n.has(i) and len(one_of(n, i, INDEX_TYPES).shape) != 1:
            raise n.error(f"expected input {i} to be a vector, got shape {n.spec(i).shape}")
    return [Spec(n.spec(0).dtype, tuple(count for _, count, _ in _ranges(n)))]


@bind("Slice")
def _bind_slice(b: Binder) -> None:
    source, target = _first(b)
    cuts = _ranges(_inference(b))
    steps = dense_strides(source.shape)
    at = sum(start * step for (start, _, _), step in zip(cuts, steps, strict=True))
    dims = [
        Dim(count, stride * step, to)
        for (_, count, stride), step, to in zip(cuts, steps, dense_strides(target.shape), strict=True)
    ]
    if is_window(dims):
        view_or_copy(b, 0, source, at)
    else:
        emit_copy(b, source, target, dims, at)


def _inference(b: Binder) -> Inference:
    """The operands as the infer rule saw them; raises NoKernel if it needs a value that is not known."""
    if any(o is not None and o.value is None for o in b.inputs[1:]):
        raise NoKernel("operands that only a run knows")
    return Inference(
        b.node,
        [None if o is None else o.spec for o in b.inputs],
        [None if o is None else o.value for o in b.inputs],
    )


# -- repeating --------------------------------------------------------------------------------------------------------


@infer("Expand")
def _expand(n: Inference) -> list[Spec]:
    data, shape = n.spec(0), n.ints(1)
    if any(size < 0 for size in shape):
        raise n.error(f"expected sizes of 0 or more, got {shape}")
    return [Spec(data.dtype, broadcast(n, data.shape, shape))]


@bind("Expand")
def _bind_expand(b: Binder) -> None:
    source, target = _first(b)
    if source.size == target.size:
        return view_or_copy(b, 0, source)
    shape = (1,) * (len(target.shape) - len(source.shape)) + source.shape
    steps = [0 if size == 1 else step for size, step in zip(shape, dense_strides(shape), strict=True)]
    return emit_copy(
        b, source, target, [Dim(*d) for d in zip(target.shape, steps, dense_strides(target.shape), strict=True)]
    )


@infer("Tile")
def _tile(n: Inference) -> list[Spec]:
    data, repeats = n.spec(0), n.ints(1)
    if len(repeats) != len(data.shape) or any(r < 0 for r in repeats):
        raise n.error(f"expected {len(data.shape)} repeats of 0 or more, got {repeats}")
    return [Spec(data.dtype, tuple(size * r for size, r in zip(data.shape, repeats, strict=True)))]


@bind("Tile")
def _bind_tile(b: Binder) -> None:
    source, target = _first(b)
    if source.size == target.size:
        return view_or_copy(b, 0, source)
    dims = []
    steps = zip(source.shape, target.shape, dense_strides(source.shape), dense_strides(target.shape), strict=True)
    for size, tiled, step, to in steps:
        dims += [Dim(tiled // size, 0, size * to), Dim(size, step, to)]
    return emit_copy(b, source, target, dims)


# -- padding ----------------------------------------------------------------------------------------------------------


def _pads(n: Inference) -> list[tuple[int, int]]:
    """Elements added (if negative: removed) before and after each axis."""
    rank = len(n.spec(0).shape)
    axes = axes_of(n, n.ints(3) if n.has(3) else None, rank)
    amounts = n.ints(1)
    if len(amounts) != 2 * len(axes):
        raise n.error(f"expected {2 * len(axes)} pads, got {len(amounts)}")
    pads = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pads[axis] = amounts[i], amounts[i + len(axes)]
    return pads


@infer("Pad")
def _pad(n: Inference) -> list[Spec]:
    data = n.spec(0)
    mode = choice(n, "mode", "constant", ("constant", "reflect", "edge", "wrap"))
    if n.has(2) and (n.spec(2).dtype != data.dtype or n.spec(2).size > 1):
        raise n.error(f"expected constant_value to be one {data.dtype}, got {n.spec(2).dtype}{list(n.spec(2).shape)}")
    pads = _pads(n)
    shape = []
    for size, (before, behind) in zip(data.shape, pads, strict=True):
        kept = size + min(before, 0) + min(behind, 0)
        if kept < 0:
            raise n.error(f"pads {pads} remove more than shape {data.shape} has")
        if mode != "constant" and kept == 0 and max(before, behind) > 0:
            raise n.error(f"mode {mode} cannot pad an empty axis: pads {pads} of shape {data.shape}")
        shape.append(size + before + behind)
    return [Spec(data.dtype, tuple(shape))]


@bind("Pad")
def _bind_pad(b: Binder) -> None:
    source, target = _first(b)
    value = b.inputs[2] if len(b.inputs) > 2 else None
    known = [None if o is None else o.value for o in b.inputs]
    if known[1] is None or (len(known) > 3 and b.inputs[3] is not None and known[3] is None):
        raise NoKernel("pads that only a run knows")
    pads = _pads(Inference(b.node, [None if o is None else o.spec for o in b.inputs], known))
    if all(p == (0, 0) for p in pads):
        return view_or_copy(b, 0, source)
    if b.attr("mode", "constant") == "constant":
        fill = value if value is not None and value.size else fill_operand(b, 0, target.dtype)
        return _pad_constant(b, source, target, pads, fill)
    return _pad_mapped(b, source, target, pads)


def _pad_constant(b: Binder, source: Operand, target: Operand, pads: Sequence[tuple[int, int]], fill: Operand) -> None:
    """Copy the retained part, then fill the border axis by axis: each part of the result is written once."""
    to, steps = dense_strides(target.shape), dense_strides(source.shape)
    kept = [size + min(p, 0) + min(q, 0) for size, (p, q) in zip(source.shape, pads, strict=True)]
    lead = [max(p, 0) for p, _ in pads]
    cut = sum(max(-p, 0) * s for (p, _), s in zip(pads, steps, strict=True))
    origin = sum(p * t for p, t in zip(lead, to, strict=True))
    if prod(kept):
        emit_copy(b, source, target, [Dim(*d) for d in zip(kept, steps, to, strict=True)], cut, origin)
    extents = list(target.shape)
    start = 0
    for axis, (size, t) in enumerate(zip(kept, to, strict=True)):
        behind = target.shape[axis] - lead[axis] - size
        for at, width in ((0, lead[axis]), (lead[axis] + size, behind)):
            extents[axis] = width
            if prod(extents):
                border = [Dim(e, 0, s) for e, s in zip(extents, to, strict=True)]
                emit_copy(b, fill, target, border, 0, start + at * t)
        extents[axis] = size
        start += lead[axis] * t


def _pad_mapped(b: Binder, source: Operand, target: Operand, pads: Sequence[tuple[int, int]]) -> None:
    """Split every axis into stretches with a constant step; every combination of stretches is one copy."""
    mode = b.attr("mode")
    stretches = [_stretches(_pad_map(n, p, mode)) for n, p in zip(source.shape, pads, strict=True)]
    if prod(len(s) for s in stretches) > MAX_BOXES:
        raise NoKernel("a border many times as wide as the repeated part")
    to, steps = dense_strides(target.shape), dense_strides(source.shape)
    for box in product(*stretches):
        emit_copy(
            b,
            source,
            target,
            [Dim(count, stride * s, t) for (_, count, _, stride), s, t in zip(box, steps, to, strict=True)],
            sum(first * s for (_, _, first, _), s in zip(box, steps, strict=True)),
            sum(at * t for (at, _, _, _), t in zip(box, to, strict=True)),
        )


def _pad_map(size: int, pads: tuple[int, int], mode: str) -> Array:
    """The source index for every index of the padded axis."""
    before, behind = pads
    if size + before + behind > MAX_MAP:
        raise NoKernel("a border of an axis this long")
    kept = np.arange(max(-before, 0), size - max(-behind, 0))
    if not len(kept):
        return kept
    return np.pad(kept, (max(before, 0), max(behind, 0)), mode=mode)  # type: ignore[call-overload,no-any-return]


def _stretches(indices: Array) -> list[tuple[int, int, int, int]]:
    """Maximal stretches of constant step -1, 0 or 1: (start, length, first index, step)."""
    found: list[tuple[int, int, int, int]] = []
    at = 0
    jumps = np.diff(indices)
    ends = np.flatnonzero(np.diff(jumps)) + 1
    if len(ends) > MAX_BOXES:
        raise NoKernel("a border many times as wide as the repeated part")
    for end in (*(int(e) for e in ends), len(indices) - 1):
        # the step into `end` applies from `at` on; the element at a turn belongs to the stretch before it
        if end < at:
            continue
        step = int(indices[at + 1] - indices[at]) if end > at else 0
        if abs(step) > 1:
            end, step = at, 0
        found.append((at, end - at + 1, int(indices[at]), step))
        at = end + 1
    return found


@infer("CenterCropPad")
def _center_crop_pad(n: Inference) -> list[Spec]:
    data, wanted = n.spec(0), n.ints(1)
    axes = axes_of(n, n.attr("axes"), len(data.shape))
    if len(axes) != len(wanted) or any(size < 0 for size in wanted):
        raise n.error(f"expected {len(axes)} sizes of 0 or more, got {wanted}")
    shape = list(data.shape)
    for axis, size in zip(axes, wanted, strict=True):
        shape[axis] = size
    return [Spec(data.dtype, tuple(shape))]


# -- triangles, sequences, selections ---------------------------------------------------------------------------------


@infer("Trilu")
def _trilu(n: Inference) -> list[Spec]:
    if len(n.spec(0).shape) < 2:
        raise n.error(f"expected at least a matrix, got shape {n.spec(0).shape}")
    if n.has(1) and n.spec(1).size != 1:
        raise n.error(f"expected k to hold one element, got shape {n.spec(1).shape}")
    return [n.spec(0)]


@bind("Trilu")
def _bind_trilu(b: Binder) -> None:
    source, target = _first(b)
    diagonal = b.inputs[1] if len(b.inputs) > 1 else None
    size = element_size(source.dtype)
    if diagonal is not None and diagonal.value is None:
        raise NoKernel("a diagonal that only a run knows")
    height, width = source.shape[-2:]
    k = 0 if diagonal is None or diagonal.value is None else int(np.ravel(diagonal.value)[0])
    k = min(max(k, -height - 1), width + 1)
    b.emit(
        steps.Trilu(
            source=source,
            target=target,
            size=size,
            lines=source.size // width,
            height=height,
            width=width,
            k=k,
            upper=int(bool(b.attr("upper", 1))),
        )
    )


@infer("ReverseSequence")
def _reverse_sequence(n: Inference) -> list[Spec]:
    data, lengths = n.spec(0), n.spec(1)
    axes = n.attr("batch_axis", 1), n.attr("time_axis", 0)
    if set(axes) != {0, 1} or len(data.shape) < 2:
        raise n.error(f"expected batch and time axes 0 and 1 of at least rank 2, got {axes} of shape {data.shape}")
    if lengths.shape != (data.shape[axes[0]],):
        raise n.error(f"expected {data.shape[axes[0]]} lengths, got shape {lengths.shape}")
    return [data]


@infer("Compress")
def _compress(n: Inference) -> list[Spec]:
    data = n.spec(0)
    axis = n.attr("axis")
    axis = None if axis is None else axis_of(n, axis, len(data.shape))
    one_of(n, 1, ("bool",))
    size = data.size if axis is None else data.shape[axis]
    kept = n.value(1)
    if kept.ndim != 1 or np.count_nonzero(kept[size:]):
        raise n.error(f"expected a condition of at most {size} elements, got shape {kept.shape}")
    count = int(np.count_nonzero(kept))
    if axis is None:
        return [Spec(data.dtype, (count,))]
    return [Spec(data.dtype, (*data.shape[:axis], count, *data.shape[axis + 1 :]))]


@infer("TensorScatter")
def _tensor_scatter(n: Inference) -> list[Spec]:
    data, update = n.spec(0), n.spec(1)
    axis = axis_of(n, n.attr("axis", -2), len(data.shape))
    choice(n, "mode", "linear", ("linear", "circular"))
    if axis == 0 or update.dtype != data.dtype or len(update.shape) != len(data.shape):
        raise n.error(f"expected an axis after the batch axis and an update like {data}, got axis {axis}, {update}")
    if any(u != d and i != axis for i, (u, d) in enumerate(zip(update.shape, data.shape, strict=True))):
        raise n.error(f"expected an update of shape {data.shape} except along axis {axis}, got {update.shape}")
    if update.shape[axis] > data.shape[axis]:
        raise n.error(f"expected an update of at most {data.shape[axis]} steps, got {update.shape[axis]}")
    return [data]
