"""Reduce*: over any axes, in as many passes as there are separate runs of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from lite_runtime.ops._axes import FLOATS, attr_int, expect, groups, unique_axes
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__ = ["REDUCTIONS", "Reduction", "known_ints", "operands", "reduce_to", "result"]

NONE, DIVIDE, SQRT, LOG, NEGATE = range(5)
"""What the last pass does to its results; kernels/reduce.py names them."""


class Reduction(NamedTuple):
    """Kernels of the first pass and of those over its results, and what is done in the end."""

    first: str
    rest: str
    finish: int = NONE


_SUM = "f32_sum"
REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": Reduction("f32_sum_abs", _SUM),
    "ReduceL2": Reduction("f32_sum_square", _SUM, SQRT),
    "ReduceLogSum": Reduction(_SUM, _SUM, LOG),
    "ReduceLogSumExp": Reduction("f32_log_sum_exp", "f32_log_sum_exp"),
    "ReduceMax": Reduction("f32_max", "f32_max"),
    "ReduceMean": Reduction(_SUM, _SUM, DIVIDE),
    "ReduceMin": Reduction("f32_max_negated", "f32_max", NEGATE),
    "ReduceProd": Reduction("f32_prod", "f32_prod"),
    "ReduceSum": Reduction(_SUM, _SUM),
    "ReduceSumSquare": Reduction("f32_sum_square", _SUM),
}

_NUMBERS = FLOATS | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_WITH_BOOL = _NUMBERS | {"bool"}


def _axes(n_axes: Sequence[int] | None, rank: int, noop: int) -> tuple[int, ...]:
    if n_axes is None or len(n_axes) == 0:
        return () if noop else tuple(range(rank))
    return tuple(sorted(a % rank for a in n_axes))


@infer(*REDUCTIONS)
def _infer_reduce(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, _WITH_BOOL if n.node.op in ("ReduceMax", "ReduceMin") else _NUMBERS)
    keep = attr_int(n, "keepdims", 1)
    noop = attr_int(n, "noop_with_empty_axes", 0)
    rank = len(spec.shape)
    axes: tuple[int, ...] | None = None
    if n.has(1):
        if n.spec(1).dtype != "int64" or len(n.spec(1).shape) > 1:
            raise n.error(f"expected axes as an int64 vector, got {n.spec(1).dtype}{list(n.spec(1).shape)}")
        axes = unique_axes(n, n.ints(1), rank)
    over = _axes(axes, rank, noop)
    if keep:
        return (Spec(spec.dtype, tuple(1 if i in over else d for i, d in enumerate(spec.shape))),)
    return (Spec(spec.dtype, tuple(d for i, d in enumerate(spec.shape) if i not in over)),)


def reduce_to(b: Binder, x: Operand, y: Operand, axes: Sequence[int], reduction: Reduction) -> None:
    """Emit the passes that reduce float32 `x` over `axes` into `y`: last run of neighbouring axes first."""
    runs = groups(x.shape, axes)
    count = prod(size for size, reduced in runs if reduced)
    if x.size == 0:  # every result is that of no elements
        runs = [(0, True), (y.size, False)]
    elif not any(reduced for _, reduced in runs):
        runs = [(1, True), (x.size, False)]
    kernel, source = reduction.first, x
    while True:
        at = max(i for i, (_, reduced) in enumerate(runs) if reduced)
        outer, n, inner = prod(s for s, _ in runs[:at]), runs[at][0], prod(s for s, _ in runs[at + 1 :])
        runs = [*runs[:at], *runs[at + 1 :]]
        last = not any(reduced for _, reduced in runs)
        target = y if last else b.scratch("float32", (outer * inner,))
        numbers = (outer, n, inner, reduction.finish if last else NONE, float(count))
        b.emit(f"reduce.{kernel}__{'rows' if inner == 1 else 'columns'}", (source, target), numbers)
        if last:
            return
        kernel, source = reduction.rest, target


def operands(b: Binder, *which: int) -> list[Operand]:
    """Inputs that the infer rule found present, float32 all; NoKernel otherwise."""
    found = []
    for i in which:
        operand = b.inputs[i]
        if operand is None or operand.dtype != "float32":
            raise NoKernel(f"input {i} is no float32 tensor")
        found.append(operand)
    return found


def result(b: Binder, i: int = 0) -> Operand:
    """Output `i`, which must be wanted."""
    out = b.outputs[i]
    if out is None:
        raise NoKernel(f"output {i} is not wanted")
    return out


def known_ints(b: Binder, i: int) -> list[int] | None:
    """Integers of optional input `i`, None where it was left out; NoKernel where only a run tells."""
    operand = b.inputs[i] if i < len(b.inputs) else None
    if operand is None:
        return None
    if operand.value is None:
        raise NoKernel(f"input {i} is computed")
    return [int(v) for v in np.asarray(operand.value).ravel()]


@bind(*REDUCTIONS)
def _bind_reduce(b: Binder) -> None:
    (x,) = operands(b, 0)
    axes = _axes(known_ints(b, 1), len(x.shape), int(b.attr("noop_with_empty_axes", 0)))
    reduction = REDUCTIONS[b.node.op]
    if reduction.finish == DIVIDE and not axes:
        reduction = reduction._replace(finish=NONE)
    reduce_to(b, x, result(b), axes, reduction)
