"""Operators that compute each element of the result from the elements at the same position, and those that compute it
from the position alone."""

from __future__ import annotations

import math
from typing import Any

from cloud.parallel.tracing.rules.nest import Nest, elements, shapes, weave

__all__ = ["COSTS", "bits", "elementwise", "from_place"]

COSTS = {
    **dict.fromkeys(("exp", "exp2", "log", "log1p", "expm1", "logistic", "tanh", "sin", "cos", "tan", "pow"), 10.0),
    **dict.fromkeys(("erf", "erfc", "erf_inv", "atan2", "asin", "acos", "atan", "sinh", "cosh"), 20.0),
    **dict.fromkeys(("asinh", "acosh", "atanh", "lgamma", "digamma", "bessel_i0e", "bessel_i1e"), 20.0),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "cbrt", "rem"), 4.0),
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a", "regularized_incomplete_beta", "polygamma", "zeta"), 100.0),
    **dict.fromkeys(("convert_element_type", "bitcast_convert_type", "copy", "copy_p", "stop_gradient", "name"), 0.0),
    **dict.fromkeys(("optimization_barrier", "sharding_constraint", "real", "imag", "complex"), 0.0),
    **dict.fromkeys(("reduce_precision", "clamp"), 2.0),
    **dict.fromkeys(
        "add add_any sub mul max min neg abs sign floor ceil round square integer_pow and or xor not eq ne lt le gt ge"
        " eq_to lt_to le_to is_finite select_n nextafter shift_left shift_right_logical shift_right_arithmetic"
        " population_count clz conj mulhi".split(),
        1.0,
    ),
}
"""Floating-point operations per element on vector units: only the order of magnitude matters."""


def elementwise(eqn: Any) -> Nest:
    """Dimension d of every operand and result is loop d; operands of one element along d are whole there."""
    (shape, *_) = shapes(eqn.outvars)
    # A bitcast to narrower elements adds a last dimension, one to wider elements drops it.
    common = min(len(own) for own in (shape, *shapes(eqn.invars)) if own or not shape)

    def labels(own: tuple[int, ...]) -> list[int | None]:
        return [d if d < common and size == shape[d] else None for d, size in enumerate(own)]

    flops = COSTS[eqn.primitive.name] * elements(eqn.outvars)
    reads, writes = map(labels, shapes(eqn.invars)), map(labels, shapes(eqn.outvars))
    return weave(eqn, list(reads), list(writes), flops=flops, follows=True)


def from_place(eqn: Any) -> Nest:
    """`iota`: any dimension may be split, nothing is read."""
    (shape,) = shapes(eqn.outvars)
    return weave(eqn, [(None,) * len(own) for own in shapes(eqn.invars)], [range(len(shape))], follows=True)


def bits(eqn: Any) -> Nest:
    """`random_bits`: the generator is counter-based, so that any part can be drawn separately from the whole key."""
    (shape,), keys = shapes(eqn.outvars), shapes(eqn.invars)
    own = len(keys[0])
    labels = [None if d < own else d for d in range(len(shape))]
    return weave(eqn, [(None,) * len(key) for key in keys], [labels], flops=100.0 * math.prod(shape))
