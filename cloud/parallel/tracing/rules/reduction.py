"""Operators that reduce some dimensions, search along one, or slide a window over some."""

from __future__ import annotations

from typing import Any

from cloud.parallel.tracing.rules.nest import Nest, elements, shapes, weave

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
    """Kept dimensions are loops of the result; the others are reduced."""
    axes, kind = eqn.params["axes"], REDUCES[eqn.primitive.name]
    (shape,) = shapes(eqn.invars)
    kept = [d for d in range(len(shape)) if d not in axes]
    return weave(eqn, [range(len(shape))], [kept], reduces=dict.fromkeys(axes, kind), flops=float(elements(eqn.invars)))


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
    """`reduce_window_*` and `select_and_gather_add`: dimensions over which no window slides are loops."""
    labels = _still(eqn.params)
    reads = [labels if len(own) == len(labels) else (None,) * len(own) for own in shapes(eqn.invars)]
    trips = elements(eqn.outvars)
    for size in eqn.params["window_dimensions"]:
        trips *= size
    return weave(eqn, reads, [labels] * len(eqn.outvars), flops=float(trips))


def spread_selected(eqn: Any) -> Nest:
    """`select_and_scatter_add`, the gradient of max pooling."""
    labels = _still(eqn.params)
    return weave(eqn, [labels] * len(eqn.invars), [labels], flops=float(elements(eqn.invars)))


def _still(params: Any) -> list[int | None]:
    size, stride = params["window_dimensions"], params["window_strides"]
    ones = (1,) * len(size)
    dilations = zip(params.get("base_dilation", ones), params.get("window_dilation", ones), strict=True)
    moves = zip(size, stride, params["padding"], dilations, strict=True)
    still = [s == t == 1 and tuple(pad) == (0, 0) and gaps == (1, 1) for s, t, pad, gaps in moves]
    return [d if rests else None for d, rests in enumerate(still)]
