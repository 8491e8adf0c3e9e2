"""Reduce*: over any axes, with one pass for each separate run of adjacent axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._axes import FLOATS, attr_int, expect, groups, unique_axes
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__ = [
    "BYTES",
    "INTEGERS",
    "REDUCTIONS",
    "Reduction",
    "axes_of",
    "infer_reduced",
    "known_ints",
    "operands",
    "reduce_to",
    "reduction",
    "result",
]

BYTES = frozenset({"int8", "uint8"})

NONE, DIVIDE, SQRT, LOG, NEGATE = range(5)
"""The operation of the last pass on its results, as named in kernels/reduce.py."""


class Reduction(NamedTuple):
    """The kernels of the first pass and of the passes over its results, and the final operation."""

    first: str
    rest: str
    finish: int = NONE
    family: str = "reduce"


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

INTEGERS: dict[tuple[str, str], Reduction] = {
    **{("ReduceMax", d): Reduction(f"{d}_max", f"{d}_max", family="qreduce") for d in sorted(BYTES)},
    **{("ReduceMin", d): Reduction(f"{d}_min", f"{d}_min", family="qreduce") for d in sorted(BYTES)},
    **{("ReduceSum", d): Reduction(f"{d}_{d}_sum", f"{d}_{d}_sum", family="qreduce") for d in ("int32", "int64")},
}
"""(operator, element type) with native kernels on integers; sums wrap."""

_NUMBERS = FLOATS | {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
_WITH_BOOL = _NUMBERS | {"bool"}


def reduction(op: str, dtype: str) -> Reduction:
    """The kernels of a Reduce operator on elements of `dtype`; NoKernel if there are none."""
    found = REDUCTIONS[op] if dtype == "float32" else INTEGERS.get((op, dtype))
    if found is None:
        raise NoKernel(f"{op} of {dtype}")
    return found


def axes_of(given: Sequence[int] | None, rank: int, noop: int) -> tuple[int, ...]:
    """The axes that a Reduce node works on: all if none are given, unless `noop` makes it do nothing then."""
    if given is None or len(given) == 0:
        return () if noop else tuple(range(rank))
    return tuple(sorted(a % rank for a in given))


def infer_reduced(n: Inference, spec: Spec, i: int) -> tuple[int, ...]:
    """The shape of `spec` reduced over the axes that optional input `i` names."""
    keep = attr_int(n, "keepdims", 1)
    noop = attr_int(n, "noop_with_empty_axes", 0)
    rank = len(spec.shape)
    axes: tuple[int, ...] | None = None
    if n.has(i):
        if n.spec(i).dtype != "int64" or len(n.spec(i).shape) > 1:
            raise n.error(f"expected axes as an int64 vector, got {n.spec(i).dtype}{list(n.spec(i).shape)}")
        axes = unique_axes(n, n.ints(i), rank)
    over = axes_of(axes, rank, noop)
    if keep:
        return tuple(1 if a in over else d for a, d in enumerate(spec.shape))
    return tuple(d for a, d in enumerate(spec.shape) if a not in over)


@infer(*REDUCTIONS)
def _infer_reduce(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, _WITH_BOOL if n.node.op in ("ReduceMax", "ReduceMin") else _NUMBERS)
    return (Spec(spec.dtype, infer_reduced(n, spec, 1)),)


def reduce_to(b: Binder, x: Operand, y: Operand, axes: Sequence[int], reduction: Reduction) -> None:
    """Emit the passes that reduce `x` over `axes` into `y`, starting with the last run of adjacent axes.

    Intermediate results have the type of `y`.
    """
    runs = groups(x.shape, axes)
    count = prod(size for size, reduced in runs if reduced)
    if x.size == 0:  # every result is that of an empty reduction
        runs = [(0, True), (y.size, False)]
    elif not any(reduced for _, reduced in runs):
        runs = [(1, True), (x.size, False)]
    kernel, source = reduction.first, x
    while True:
        at = max(i for i, (_, reduced) in enumerate(runs) if reduced)
        outer, n, inner = prod(s for s, _ in runs[:at]), runs[at][0], prod(s for s, _ in runs[at + 1 :])
        runs = [*runs[:at], *runs[at + 1 :]]
        last = not any(reduced for _, reduced in runs)
        target = y if last else b.scratch(y.dtype, (outer * inner,))
        declared = steps.IntegerReduce if reduction.family == "qreduce" else steps.Reduce
        b.emit(
            declared(
                x=source,
                y=target,
                outer=outer,
                n=n,
                inner=inner,
                finish=reduction.finish if last else NONE,
                divisor=float(count),
            ),
            kernel=f"{reduction.family}.{kernel}__{'rows' if inner == 1 else 'columns'}",
        )
        if last:
            return
        kernel, source = reduction.rest, target


def emit_sum(b: Binder, x: Operand, y: Operand, rows: int, columns: int) -> None:
    """Append the step that sums float32 `rows` of `columns` elements."""
    kernel = f"reduce.f32_sum__{'rows' if columns == 1 else 'columns'}"
    b.emit(steps.Reduce(x=x, y=y, outer=1, n=rows, inner=columns, finish=NONE, divisor=1.0), kernel=kernel)


def operands(b: Binder, *which: int) -> list[Operand]:
    """The inputs at these positions, which must be present float32 tensors; NoKernel otherwise."""
    found = []
    for i in which:
        operand = b.inputs[i]
        if operand is None or operand.dtype != "float32":
            raise NoKernel(f"input {i} is not a float32 tensor")
        found.append(operand)
    return found


def result(b: Binder, i: int = 0) -> Operand:
    """Output `i`, which must be wanted."""
    out = b.outputs[i]
    if out is None:
        raise NoKernel(f"output {i} is not wanted")
    return out


def known_ints(b: Binder, i: int) -> list[int] | None:
    """Integers of optional input `i`, None if it is left out; NoKernel if they are known only at run time."""
    operand = b.inputs[i] if i < len(b.inputs) else None
    if operand is None:
        return None
    if operand.value is None:
        raise NoKernel(f"input {i} is computed")
    return [int(v) for v in np.asarray(operand.value).ravel()]


@bind(*REDUCTIONS)
def _bind_reduce(b: Binder) -> None:
    x = b.inputs[0]
    assert x is not None
    axes = axes_of(known_ints(b, 1), len(x.shape), int(b.attr("noop_with_empty_axes", 0)))
    found = reduction(b.node.op, x.dtype)
    if found.finish == DIVIDE and not axes:
        found = found._replace(finish=NONE)
    reduce_to(b, x, result(b), axes, found)
