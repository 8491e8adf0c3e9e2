"""Gathering and scattering by indices, cumulative sums and products, and shapes of operators that select or sample."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.graph import itemsize
from lite_runtime.ops._checks import INDEX_TYPES, axis_of, choice, dense_strides, element_type, one_of, scalar_int
from lite_runtime.ops._copy import Dim, copy_whole, element_size, emit_copy, is_window, view_or_copy
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

COMBINE = {"none": 0, "add": 1, "mul": 2, "min": 3, "max": 4}


def _operands(b: Binder, count: int) -> list[Operand]:
    """The first `count` inputs and the result."""
    operands = []
    for operand in (*b.inputs[:count], b.outputs[0]):
        assert operand is not None
        operands.append(operand)
    return operands


# -- Gather -----------------------------------------------------------------------------------------------------------


@infer("Gather")
def _gather(n: Inference) -> list[Spec]:
    data, indices = n.spec(0), one_of(n, 1, INDEX_TYPES)
    axis = axis_of(n, n.attr("axis", 0), len(data.shape))
    if indices.size and not data.shape[axis]:
        raise n.error(f"axis {axis} of {data.shape} is empty, so indices cannot be gathered from it")
    return [Spec(data.dtype, (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :]))]


@bind("Gather")
def _bind_gather(b: Binder) -> None:
    data, indices, target = _operands(b, 2)
    axis = b.attr("axis", 0) % len(data.shape)
    extent = data.shape[axis]
    outer, inner = prod(data.shape[:axis]), prod(data.shape[axis + 1 :])
    if indices.value is not None and _gather_steadily(b, data, indices, target, (outer, extent, inner)):
        return
    run = inner * element_size(data.dtype)
    b.emit(
        steps.Gather(
            data=data,
            indices=indices,
            target=target,
            width=itemsize(indices.dtype),
            outer=outer,
            count=indices.size,
            extent=extent,
            run=run,
        )
    )


def _gather_steadily(b: Binder, data: Operand, indices: Operand, target: Operand, sizes: tuple[int, int, int]) -> bool:
    """Known indices at equal distances become a strided copy or a view; returns whether they did."""
    outer, extent, inner = sizes
    at = np.ravel(indices.value).astype(np.int64)  # type: ignore[arg-type]
    if ((at < -extent) | (at >= extent)).any():
        return False  # the kernel reports it
    at = np.where(at < 0, at + extent, at)
    step = int(at[1] - at[0]) if at.size > 1 else 1
    if (np.diff(at) != step).any():
        return False
    dims = [Dim(outer, extent * inner, at.size * inner), Dim(at.size, step * inner, inner), Dim(inner, 1, 1)]
    start = int(at[0]) * inner
    if is_window(dims):
        view_or_copy(b, 0, data, start)
    else:
        emit_copy(b, data, target, dims, start)
    return True


# -- along an axis ----------------------------------------------------------------------------------------------------


def _elements(n: Inference) -> Spec:
    """Check the operands that GatherElements and ScatterElements share; returns the data's type."""
    data, indices = n.spec(0), one_of(n, 1, INDEX_TYPES)
    axis = axis_of(n, n.attr("axis", 0), len(data.shape))
    if len(indices.shape) != len(data.shape):
        raise n.error(f"expected indices of rank {len(data.shape)}, got shape {indices.shape}")
    sizes = enumerate(zip(data.shape, indices.shape, strict=True))
    if any(i > d for a, (d, i) in sizes if a != axis) or (indices.size and not data.shape[axis]):
        raise n.error(f"expected indices no larger than {data.shape} except along axis {axis}, got {indices.shape}")
    return data


if TYPE_CHECKING:

    class _Collapsed(TypedDict):
        """Bytes of an element and an index, then sizes of shapes that agree except along the axis."""

        size: int
        width: int
        outer: int
        count: int
        inner: int
        extent: int

else:
    _Collapsed = dict


def _collapsed(b: Binder, data: Operand, indices: Operand) -> _Collapsed:
    """The shapes seen as [outer, count, inner]."""
    axis = b.attr("axis", 0) % len(data.shape)
    outer, inner = data.shape[:axis], data.shape[axis + 1 :]
    if indices.shape[:axis] != outer or indices.shape[axis + 1 :] != inner:
        raise NoKernel("indices smaller than the data")
    return _Collapsed(
        size=element_size(data.dtype),
        width=itemsize(indices.dtype),
        outer=prod(outer),
        count=indices.shape[axis],
        inner=prod(inner),
        extent=data.shape[axis],
    )


@infer("GatherElements")
def _gather_elements(n: Inference) -> list[Spec]:
    return [Spec(_elements(n).dtype, n.spec(1).shape)]


@bind("GatherElements")
def _bind_gather_elements(b: Binder) -> None:
    data, indices, target = _operands(b, 2)
    b.emit(steps.GatherElements(data=data, indices=indices, target=target, **_collapsed(b, data, indices)))


@infer("ScatterElements")
def _scatter_elements(n: Inference) -> list[Spec]:
    data, updates = _elements(n), n.spec(2)
    choice(n, "reduction", "none", tuple(COMBINE))
    if updates != (data.dtype, n.spec(1).shape):
        raise n.error(f"expected updates {data.dtype}{list(n.spec(1).shape)}, got {updates.dtype}{list(updates.shape)}")
    return [data]


def _how(b: Binder, dtype: str) -> int:
    how = COMBINE[b.attr("reduction", "none")]
    if how and dtype != "float32":
        raise NoKernel(f"scattering with a reduction of {dtype}")
    return how


def _start_from(b: Binder, data: Operand, target: Operand, others: tuple[Operand, ...]) -> None:
    """Copy the data to the result, or update it in place if the kernel reads nothing else from its memory."""
    if all(other.slot != data.slot for other in others):
        b.reuse(0, data)
    copy_whole(b, data, target)


@bind("ScatterElements")
def _bind_scatter_elements(b: Binder) -> None:
    data, indices, updates, target = _operands(b, 3)
    sizes, how = _collapsed(b, data, indices), _how(b, data.dtype)
    _start_from(b, data, target, (indices, updates))
    if indices.size:
        b.emit(steps.ScatterElements(indices=indices, updates=updates, target=target, how=how, **sizes))


# -- index tuples -----------------------------------------------------------------------------------------------------


def _depth(n: Inference, batch: int) -> int:
    """Number of indices in a tuple, checked against the data's rank and sizes."""
    data, indices = n.spec(0), one_of(n, 1, ("int64",))
    if not indices.shape or not 1 <= indices.shape[-1] <= len(data.shape) - batch:
        most = len(data.shape) - batch
        raise n.error(f"expected index tuples of 1 to {most} along the last axis, got shape {indices.shape}")
    depth = indices.shape[-1]
    if indices.size and 0 in data.shape[batch : batch + depth]:
        raise n.error(f"data of shape {data.shape} is empty, so no index is valid")
    return depth


@infer("GatherND")
def _gather_nd(n: Inference) -> list[Spec]:
    data, indices, batch = n.spec(0), n.spec(1), n.attr("batch_dims", 0)
    if not 0 <= batch < min(len(data.shape), len(indices.shape)) or data.shape[:batch] != indices.shape[:batch]:
        raise n.error(f"expected {batch} equal batch sizes, got {data.shape} and {indices.shape}")
    depth = _depth(n, batch)
    return [Spec(data.dtype, (*indices.shape[:-1], *data.shape[batch + depth :]))]


@bind("GatherND")
def _bind_gather_nd(b: Binder) -> None:
    data, indices, target = _operands(b, 2)
    batch, depth = b.attr("batch_dims", 0), indices.shape[-1]
    size = element_size(data.dtype)
    rows, batches = indices.size // depth, prod(data.shape[:batch])
    b.emit(
        steps.GatherND(
            data=data,
            indices=indices,
            target=target,
            rows=rows,
            batch_rows=rows // batches,
            batch_bytes=prod(data.shape[batch:]) * size,
            run=prod(data.shape[batch + depth :]) * size,
            depth=depth,
            pairs=_pairs(data, size)[batch : batch + depth],
        )
    )


def _pairs(data: Operand, size: int) -> tuple[steps.Pair, ...]:
    """The extent of every axis, and the byte distance between its indices."""
    strides = dense_strides(data.shape)
    return tuple(steps.Pair(extent, stride * size) for extent, stride in zip(data.shape, strides, strict=True))


@infer("ScatterND")
def _scatter_nd(n: Inference) -> list[Spec]:
    data, indices, updates = n.spec(0), n.spec(1), n.spec(2)
    choice(n, "reduction", "none", tuple(COMBINE))
    expected = Spec(data.dtype, (*indices.shape[:-1], *data.shape[_depth(n, 0) :]))
    if updates != expected:
        raise n.error(
            f"expected updates {expected.dtype}{list(expected.shape)}, got {updates.dtype}{list(updates.shape)}"
        )
    return [data]


@bind("ScatterND")
def _bind_scatter_nd(b: Binder) -> None:
    data, indices, updates, target = _operands(b, 3)
    depth, size = indices.shape[-1], element_size(data.dtype)
    how = _how(b, data.dtype)
    _start_from(b, data, target, (indices, updates))
    if updates.size:
        b.emit(
            steps.ScatterND(
                indices=indices,
                updates=updates,
                target=target,
                rows=indices.size // depth,
                run=prod(data.shape[depth:]) * size,
                how=how,
                depth=depth,
                pairs=_pairs(data, size)[:depth],
            ),
            parallel=False,
        )


# -- running sums -----------------------------------------------------------------------------------------------------


@infer("CumSum", "CumProd")
def _cumulate(n: Inference) -> list[Spec]:
    one_of(n, 1, INDEX_TYPES)
    if n.spec(1).size != 1:
        raise n.error(f"expected one axis, got shape {n.spec(1).shape}")
    if n.values[1] is not None:
        axis_of(n, scalar_int(n, 1), len(n.spec(0).shape))
    return [n.spec(0)]


@bind("CumSum", "CumProd")
def _bind_cumulate(b: Binder) -> None:
    data, axis, target = _operands(b, 2)
    if axis.value is None or data.dtype not in ("float32", "int32", "int64"):
        raise NoKernel(f"a running sum of {data.dtype}, or along an axis known only at run time")
    at = int(np.ravel(axis.value)[0]) % len(data.shape)
    outer, inner = prod(data.shape[:at]), prod(data.shape[at + 1 :])
    b.emit(
        steps.Accumulate(
            source=data,
            target=target,
            outer=outer,
            count=data.shape[at],
            inner=inner,
            exclusive=int(bool(b.attr("exclusive", 0))),
            backwards=int(bool(b.attr("reverse", 0))),
        ),
        kernel=f"indexing.{b.node.op.lower()}_{data.dtype}",
    )


# -- shapes only ------------------------------------------------------------------------------------------------------


@infer("Bernoulli", "RandomNormalLike", "RandomUniformLike")
def _random_like(n: Inference) -> list[Spec]:
    dtype = n.attr("dtype")
    return [Spec(n.spec(0).dtype if dtype is None else element_type(n, dtype), n.spec(0).shape)]


@infer("RandomNormal", "RandomUniform")
def _random(n: Inference) -> list[Spec]:
    shape = tuple(int(size) for size in n.attr("shape", ()))
    if any(size < 0 for size in shape):
        raise n.error(f"expected sizes of 0 or more, got {shape}")
    return [Spec(element_type(n, n.attr("dtype", "float32")), shape)]


@infer("Multinomial")
def _multinomial(n: Inference) -> list[Spec]:
    if len(n.spec(0).shape) != 2 or n.attr("sample_size", 1) < 0:
        raise n.error(f"expected (batch, classes) and sample_size of 0 or more, got shape {n.spec(0).shape}")
    return [Spec(element_type(n, n.attr("dtype", "int32")), (n.spec(0).shape[0], n.attr("sample_size", 1)))]


@infer("Einsum")
def _einsum(n: Inference) -> list[Spec]:
    """Sizes by letter; "..." stands for axes that broadcast; without "->" the result has the letters that occur once,
    in order."""
    left, arrow, right = n.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(n.specs):
        raise n.error(f"expected {len(terms)} operands for {n.attr('equation')!r}, got {len(n.specs)}")
    sizes: dict[str, int] = {}
    wide: tuple[int, ...] = ()
    for i, term in enumerate(terms):
        shape = n.spec(i).shape
        before, dots, behind = term.partition("...")
        letters = before + behind
        free = len(shape) - len(letters)
        if not all("a" <= c.lower() <= "z" for c in letters) or free < 0 or (free and not dots):
            raise n.error(f"expected operand {i} to fit {term!r}, got shape {shape}")
        inner = shape[len(before) : len(before) + free]
        width = max(len(wide), free)
        pairs = zip((1,) * (width - len(wide)) + wide, (1,) * (width - free) + inner, strict=True)
        merged = [(a, b) for a, b in pairs]
        if any(a != b and 1 not in (a, b) for a, b in merged):
            raise n.error(f"expected axes of '...' that broadcast, got {wide} and {inner}")
        wide = tuple(b if a == 1 else a for a, b in merged)
        for letter, size in zip(letters, shape[: len(before)] + shape[len(before) + free :], strict=True):
            known = sizes.get(letter, 1)
            if known != size and 1 not in (known, size):
                raise n.error(f"expected one size for {letter!r} of {n.attr('equation')!r}, got {known} and {size}")
            sizes[letter] = size if known == 1 else known
    if not arrow:
        once = sorted(c for c in sizes if left.count(c) == 1)
        right = ("..." if wide else "") + "".join(once)
    before, dots, behind = right.partition("...")
    if not set(before + behind) <= set(sizes) or (wide and not dots):
        raise n.error(f"expected a result of known letters, got {right!r}")
    shape = (*(sizes[c] for c in before), *(wide if dots else ()), *(sizes[c] for c in behind))
    return [Spec(n.spec(0).dtype, shape)]
