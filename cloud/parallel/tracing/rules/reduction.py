"""Operators that reduce some dimensions, search along one, or slide a window over some."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cloud.parallel.tracing.rules.nest import Nest, elements, shapes, weave
from cloud.parallel.tracing.rules.sliding import Slide, slide_of

__all__ = ["REDUCES", "along", "argument", "reduce", "reduce_by_function", "spread_selected", "window"]

REDUCES = {
    "reduce_sum": "add",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "mul",
    "reduce_and": "and",
    "reduce_or": "or",
}
"""How partial results of each reduction are combined."""


def reduce(eqn: Any) -> Nest:
    """Kept dimensions are loops of the result; the others are reduced. Over dimensions of one element: a reshape."""
    axes, kind = eqn.params["axes"], REDUCES[eqn.primitive.name]
    (shape,) = shapes(eqn.invars)
    kept = [d for d in range(len(shape)) if d not in axes]
    alone = all(shape[d] == 1 for d in axes)
    trips = 0.0 if alone else float(elements(eqn.invars))
    return weave(eqn, [range(len(shape))], [kept], reduces=dict.fromkeys(axes, kind), flops=trips, follows=alone)


def argument(eqn: Any) -> Nest:
    """`argmax`, `argmin`: the dimension searched is whole."""
    return _without(eqn, eqn.params["axes"])


def reduce_by_function(eqn: Any) -> Nest:
    """`reduce` by an unknown function: the reduced dimensions are whole."""
    return _without(eqn, eqn.params["dimensions"])


def _without(eqn: Any, axes: Any) -> Nest:
    (shape, *_) = shapes(eqn.outvars)
    rank = len(shape) + len(axes)
    labels = [None if d in axes else d for d in range(rank)]
    reads = [labels if len(own) == rank else () for own in shapes(eqn.invars)]
    kept = [label for label in labels if label is not None]
    return weave(eqn, reads, [kept] * len(eqn.outvars), flops=float(elements(eqn.invars)))


def along(eqn: Any) -> Nest:
    """`cumsum` and similar ones, `sort`: the dimension they run along is whole, all others are loops."""
    params = eqn.params
    (shape, *_) = shapes(eqn.invars)
    axis = params.get("axis", params.get("dimension", -1)) % len(shape)
    labels = [None if d == axis else d for d in range(len(shape))]
    return weave(eqn, [labels] * len(eqn.invars), [labels] * len(eqn.outvars), flops=float(elements(eqn.invars)))


def window(eqn: Any) -> Nest:
    """`reduce_window_*` and `select_and_gather_add`: dimensions over which no window slides, or over which windows lie
    side by side, are loops; of the others the largest one that parts of operand and result cover up to a halo."""
    over = _slides(eqn.params, shapes(eqn.invars)[0], shapes(eqn.outvars)[0])
    trips = elements(eqn.outvars) * math.prod(eqn.params["window_dimensions"])
    simple = eqn.primitive.name in _SLIDING
    labels = [d if slide.still or (simple and _side_by_side(slide)) else None for d, slide in enumerate(over)]
    able = [d for d, label in enumerate(labels) if simple and label is None]
    sliding = [(cut, d) for d in able for cut in over[d].cuts() if cut.within]
    sizes, slides, edges = dict[int, int](), None, (0, 0)
    if sliding:
        cut, slides = max(sliding, key=lambda one: one[0].parts)
        labels[slides], sizes[slides], edges = slides, cut.parts, cut.edges
    reads = [labels if len(own) == len(labels) else (None,) * len(own) for own in shapes(eqn.invars)]
    return weave(eqn, reads, [labels] * len(eqn.outvars), sizes=sizes, flops=float(trips), slides=slides, edges=edges)


def spread_selected(eqn: Any) -> Nest:
    """`select_and_scatter_add`, the gradient of max pooling, for which XLA gathers images where windows overlap."""
    over = _slides(eqn.params, shapes(eqn.outvars)[0], shapes(eqn.invars)[0])
    labels = [d if slide.still or _side_by_side(slide) else None for d, slide in enumerate(over)]
    return weave(eqn, [labels] * len(eqn.invars), [labels], flops=float(elements(eqn.invars)))


_SLIDING = frozenset({"reduce_window_sum", "reduce_window_max", "reduce_window_min"})


def _side_by_side(slide: Slide) -> bool:
    tiles = slide.window == slide.stride and slide.gaps == slide.apart == 1 and slide.low == slide.high == 0
    return tiles and slide.made * slide.stride == slide.size


def _slides(params: Any, size: Sequence[int], made: Sequence[int]) -> list[Slide]:
    """The window's slide over every dimension."""
    about = zip(size, params["window_dimensions"], made, strict=True)
    return [slide_of(params, d, *sizes) for d, sizes in enumerate(about)]
