"""Operators whose windows slide over a split dimension, written out for one device: the edges of its neighbours' parts
are joined with its own, and what the operator then makes is its part of the result.

XLA's partitioner does the same with most of them, but sums the gradient of a kernel over the devices of idle mesh axes
too, which multiplies it by their number (XLA of JAX 0.10), and gathers images if other dimensions are split beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import bound, on_axes, split_over
from cloud.parallel.graph import Op
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.options import degree, made, partial_axes, wanted
from cloud.parallel.tracing.rules.sliding import Cut, Slide, slide_of

__all__ = ["slid"]

_permuted: Any = jax.lax.ppermute
_summed: Any = jax.lax.psum


def slid(eqn: Any, op: Op, assignment: Assignment, sizes: Mesh, mesh: jax.sharding.Mesh) -> Callable[..., list[Any]]:
    """A function from the operands of an operator, split as it needs them, to its results with all partial sums added:
    for operators whose loop `slides` is split."""
    loops = assignment.loops
    dim, parts = op.reads[0].index(op.slides), degree(loops[op.slides], sizes)
    place, slide = _slide(eqn, dim)
    cut = next(cut for cut in slide.cuts() if cut.within == (op.slides in op.writes[0]))
    padding = list(eqn.params["padding"])
    padding[place] = slide.padding(cut, parts)
    of_one, outside = eqn.replace(params={**eqn.params, "padding": tuple(padding)}), _outside(eqn)
    names = tuple(mesh.axis_names[axis] for axis in loops[op.slides])
    adding = tuple(mesh.axis_names[axis] for axis in partial_axes(op, 0, loops))

    def alone(*operands: Any) -> list[Any]:
        first = _joined(operands[0], dim, cut, names, parts, outside)
        results = bound(of_one, [first, *operands[1:]])
        return [_summed(result, adding) for result in results] if adding else results

    reads = [wanted(op, i, loops) for i in range(len(op.inputs))]
    writes = [made(op, j, loops) for j in range(len(op.outputs))]
    given, back = ([split_over(mesh, split).spec for split in splits] for splits in (reads, writes))
    return on_axes(alone, mesh, mesh.axis_names, tuple(given), back)


def _joined(part: Any, dim: int, cut: Cut, names: tuple[str, ...], parts: int, outside: Any) -> Any:
    """The part with the edges of the one before and of the one after; `outside` of the whole."""
    size, place, (before, after) = part.shape[dim], jax.lax.axis_index(names), cut.edges

    def edge(first: int, last: int, step: int, end: int) -> Any:
        sent = jax.lax.slice_in_dim(part, first, last, axis=dim)
        pairs = [(i, i + step) for i in range(parts) if 0 <= i + step < parts]
        came = _permuted(sent, names, pairs)  # zeros where nothing comes
        return came if outside == 0 else jnp.where(place == end, jnp.full_like(came, outside), came)

    left = [edge(size - before, size, 1, 0)] if before else []
    right = [edge(0, after, -1, parts - 1)] if after else []
    return jnp.concatenate([*left, part, *right], dim) if left or right else part


def _slide(eqn: Any, dim: int) -> tuple[int, Slide]:
    """The slide over dimension `dim` of the first operand, and its place among the equation's paddings."""
    params, operand, result = eqn.params, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if eqn.primitive.name != "conv_general_dilated":
        return dim, slide_of(params, dim, operand[dim], params["window_dimensions"][dim], result[dim])
    numbers = params["dimension_numbers"]
    i = numbers.lhs_spec[2:].index(dim)
    window, to = eqn.invars[1].aval.shape[numbers.rhs_spec[2 + i]], result[numbers.out_spec[2 + i]]
    return i, slide_of(params, i, operand[dim], window, to)


def _outside(eqn: Any) -> Any:
    """What a window reads beyond the ends: the neutral element of its reduction."""
    dtype = eqn.invars[0].aval.dtype
    if eqn.primitive.name not in ("reduce_window_max", "reduce_window_min"):
        return 0
    largest = eqn.primitive.name == "reduce_window_min"
    if jnp.issubdtype(dtype, np.floating):
        return np.inf if largest else -np.inf
    return np.iinfo(dtype).max if largest else np.iinfo(dtype).min
