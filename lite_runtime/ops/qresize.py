"""QLinearResize: at most two axes are interpolated, using tables of offsets and integer weights."""

from __future__ import annotations

from functools import reduce
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import Array, itemsize
from lite_runtime.ops._checks import choice, dense_strides, one_of
from lite_runtime.ops._copy import view_or_copy
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer
from lite_runtime.ops.resize import COORDINATES, MAX_TABLE, known_targets, targets_of
from lite_runtime.reference.qresize import BITS, MOST_AXES, blends

__all__: list[str] = []

_COORDINATES = tuple(mode for mode in COORDINATES if mode != "tf_crop_and_resize")


@infer("QLinearResize")
def _infer(n: Inference) -> list[Spec]:
    data = one_of(n, 0, ("int8", "uint8", "int16"))
    choice(n, "mode", "nearest", ("linear",))
    choice(n, "coordinate_transformation_mode", "half_pixel", _COORDINATES)
    for name in ("antialias", "exclude_outside"):
        if n.attr(name, 0):
            raise n.error(f"expected {name} 0, got {n.attr(name)}: integers are resized without it")
    targets = targets_of(n)
    shape = tuple(targets[i][0] if i in targets else size for i, size in enumerate(data.shape))
    if sum(a != b for a, b in zip(shape, data.shape, strict=True)) > MOST_AXES:
        raise n.error(f"expected at most {MOST_AXES} axes to change, got {list(data.shape)} to {list(shape)}")
    return [Spec(data.dtype, shape)]


def _identity(size: int) -> tuple[Array, Array, Array]:
    index = np.arange(size)
    return index, index, np.zeros(size, np.int64)


@bind("QLinearResize")
def _bind(b: Binder) -> None:
    source, target = b.inputs[0], b.outputs[0]
    assert source is not None and target is not None
    mode = b.attr("coordinate_transformation_mode", "half_pixel")
    found = {a: blends(source.shape[a], new, scale, mode) for a, (new, scale) in known_targets(b).items()}
    moved = [a for a, (at, _, weight) in found.items() if weight.any() or not _same(at, source.shape[a])]
    if not moved:
        view_or_copy(b, 0, source)
        return
    if len(moved) > 2:
        raise NoKernel("blending more than two axes")
    last, other = max(moved), min(moved)
    if prod(target.shape[:last]) > MAX_TABLE:
        raise NoKernel("a table of too many rows")
    strides = [s * itemsize(source.dtype) for s in dense_strides(source.shape)]
    tables = []
    for axes, blended in ((range(last), other if other < last else -1), (range(last, last + 1), last)):
        index = [found[a] if a == blended else _identity(source.shape[a]) for a in axes]
        ends = [_outer([entry[end] * strides[a] for a, entry in zip(axes, index, strict=True)]) for end in (0, 1)]
        weight = _outer([entry[2] for entry in index])
        tables.append(np.stack([*ends, (1 << BITS) - weight, weight], 1).astype(np.int64))
    run = prod(target.shape[last + 1 :])
    rows, columns = (b.constant(table) for table in tables)
    high, wide = map(len, tables)
    b.emit(
        steps.IntegerLinear(x=source, rows=rows, columns=columns, y=target, high=high, wide=wide, run=run),
        kernel=f"qresize.{source.dtype}_linear",
    )


def _outer(terms: list[Array]) -> Array:
    """Sums of one term per axis, for all positions of these axes in order."""
    return reduce(lambda outer, inner: np.add.outer(outer, inner).ravel(), terms, np.zeros(1, np.int64))


def _same(index: Array, size: int) -> bool:
    return len(index) == size and bool(np.array_equal(index, np.arange(size)))
