"""The loops of an equation: a table from primitives to rules, one file per family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import dtypes

from cloud.parallel.tracing.rules import contraction, control, elementwise, indexing, layout, reduction
from cloud.parallel.tracing.rules.nest import Nest, whole

__all__ = ["RULES", "Nest", "describe"]

RULES: dict[str, Callable[[Any], Nest]] = {
    **dict.fromkeys(elementwise.COSTS, elementwise.elementwise),
    "iota": elementwise.from_place,
    "random_bits": elementwise.bits,
    "dot_general": contraction.dot,
    "conv_general_dilated": contraction.convolution,
    **dict.fromkeys(("cholesky", "eigh", "geqrf", "householder_product", "triangular_solve"), contraction.batched),
    **dict.fromkeys(reduction.REDUCES, reduction.reduce),
    "reduce": reduction.reduce_by_function,
    **dict.fromkeys(("argmax", "argmin"), reduction.argument),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort"), reduction.along),
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min"), reduction.window),
    **dict.fromkeys(("reduce_window", "select_and_gather_add"), reduction.window),
    "select_and_scatter_add": reduction.spread_selected,
    "transpose": layout.transpose,
    "reshape": layout.reshape,
    "broadcast_in_dim": layout.broadcast,
    "squeeze": layout.squeeze,
    "rev": layout.reverse,
    **dict.fromkeys(("slice", "dynamic_slice"), layout.part),
    "dynamic_update_slice": layout.update,
    "pad": layout.pad,
    "concatenate": layout.join,
    "split": layout.separate,
    "stack": layout.stack,
    "unstack": layout.unstack,
    "tile": layout.tile,
    "gather": indexing.gather,
    **dict.fromkeys(("scatter", "scatter-sub", *indexing.COMBINES), indexing.scatter),
    "scan": lambda eqn: control.scan(eqn, describe),
    "while": lambda eqn: control.repeated(eqn, describe),
    "cond": lambda eqn: control.conditional(eqn, describe),
    **dict.fromkeys(("loop_carry", "loop_close"), control.tied),
    "loop_slice": control.sliced,
    "loop_stack": control.stacked,
    **dict.fromkeys(
        "random_wrap random_unwrap random_seed random_fold_in random_split random_clone random_gamma threefry2x32"
        " rng_uniform rng_bit_generator lu qr svd eig custom_linear_solve fft reduce_xor empty"
        " tridiagonal_solve approx_top_k select_and_scatter ragged_dot_general platform_index debug_callback"
        " loop_test".split(),
        whole,
    ),
}
"""Every primitive with a known rule; all others are kept whole, which is correct but never split."""


def describe(eqn: Any) -> Nest:
    """The loops of an equation of a flat jaxpr."""
    rule = RULES.get(eqn.primitive.name, whole)
    keys = any(_is_key(atom) for atom in (*eqn.invars, *eqn.outvars))
    return whole(eqn) if keys and eqn.primitive.name != "random_bits" else rule(eqn)


def _is_key(atom: Any) -> bool:
    dtype: Any = getattr(atom.aval, "dtype", None)
    return jnp.issubdtype(dtype, dtypes.extended)
