"""Gathers and scatters: embeddings, their gradients, picking the logit of a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloud.parallel.tracing.rules.nest import Labels, Nest, elements, shapes, weave

__all__ = ["gather", "scatter"]

COMBINES = {"scatter-add": "add", "scatter-mul": "mul", "scatter-min": "min", "scatter-max": "max"}
"""How the partial results of each scatter are combined."""


def gather(eqn: Any) -> Nest:
    """Dimensions of the indices are loops, and so are dimensions of the operand that are taken whole. The dimension
    looked up is one too: a device finds the rows it has, zeros for others, and the sum is the result."""
    numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
    own, places = shapes(eqn.invars)[:2]
    (shape,) = shapes(eqn.outvars)
    looked = {d: ("row", d) for d in numbers.collapsed_slice_dims if d in numbers.start_index_map}
    indices = _of_indices(len(places), numbers.start_indices_batching_dims)
    windows = [d for d in range(len(own)) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    moved = {d: ("window", d) for d in windows if sizes[d] == own[d] and d not in numbers.start_index_map}
    batching = {d: ("batching", i) for i, d in enumerate(numbers.operand_batching_dims)}
    known = looked | moved | batching
    made = _interleaved(len(shape), numbers.offset_dims, [moved.get(d) for d in windows], indices[:-1])
    how = "or" if eqn.outvars[0].aval.dtype == bool else "add"
    reduces = dict.fromkeys(looked.values(), how)
    reads = [[known.get(d) for d in range(len(own))], indices]
    return weave(eqn, reads, [made], reduces=reduces, flops=float(elements(eqn.outvars)))


def scatter(eqn: Any) -> Nest:
    """Rows and window dimensions of the operand are loops; if updates are combined, so are their dimensions: they
    add."""
    numbers = eqn.params["dimension_numbers"]
    own, places, new = shapes(eqn.invars)
    how = COMBINES.get(eqn.primitive.name)
    indices = _of_indices(len(places), numbers.scatter_indices_batching_dims)
    if how is None:
        indices = [label if label and label[0] == "batching" else None for label in indices]
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    windows = [d for d in range(len(own)) if d not in gone]
    whole = {d: new[at] == own[d] for d, at in zip(windows, numbers.update_window_dims, strict=True)}
    moved = {d: ("window", d) for d in windows if whole[d] and d not in numbers.scatter_dims_to_operand_dims}
    rows = {d: ("row", d) for d in numbers.inserted_window_dims}
    batching = {d: ("batching", i) for i, d in enumerate(numbers.operand_batching_dims)}
    known = rows | moved | batching
    operand = [known.get(d) for d in range(len(own))]
    updates = _interleaved(len(new), numbers.update_window_dims, [moved.get(d) for d in windows], indices[:-1])
    reduces = {label: how for label in indices if label and label[0] == "index" and how}
    return weave(eqn, [operand, indices, updates], [operand], reduces=reduces, flops=float(elements(eqn.invars[2:])))


def _of_indices(rank: int, batching: Sequence[int]) -> list[tuple[str, int] | None]:
    """Labels of the indices: the last dimension, an index vector, is whole."""
    known = {d: ("batching", i) for i, d in enumerate(batching)}
    return [*(known.get(d, ("index", d)) for d in range(rank - 1)), None]


def _interleaved(rank: int, offsets: Sequence[int], windows: Labels, others: Labels) -> Labels:
    window, other = iter(windows), iter(others)
    return [next(window) if d in offsets else next(other) for d in range(rank)]
