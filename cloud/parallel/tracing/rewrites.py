"""Operators rewritten in terms of others that can be split better, with the same values.

1. `top_k` -> sort and slice: XLA gathers the operand of `top_k` for any sharding.
2. A scan of few trips -> its trips one after another, so that each can be planned separately.
3. A scan of no trips -> its initial carries and empty stacks.
4. A scan that accumulates products or sums in a carry -> one that leaves the sum over devices for after the loop
   (`tracing.sums`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from cloud._jax import written_like
from cloud.parallel.tracing.sums import added_after

__all__ = ["MOST_TRIPS", "rewritten"]

MOST_TRIPS = 64
"""Scans of more trips are never unrolled, because program size and compile time grow with them."""

Function = Callable[..., Any]


def rewritten(eqn: Any, unroll: bool, parts: int, flat: Callable[[Any], Any]) -> tuple[Any, bool]:
    """A closed jaxpr equivalent to `eqn`, or None if `eqn` needs no rewriting; and whether its scans need none either.

    unroll: whether short scans are unrolled. parts: see `sums.added_after`. flat: inlines the calls of a closed jaxpr
    (`inline.flat`).
    """
    function: Function | None
    settled = False
    if eqn.primitive.name == "top_k":
        function = _top_k(eqn)
    elif eqn.primitive.name == "scan":
        short = eqn.params["length"] == 0 or (unroll and eqn.params["length"] <= MOST_TRIPS)
        function, settled = (_unrolled(eqn), False) if short else added_after(eqn, parts, flat)
    else:
        return None, settled
    avals = [atom.aval for atom in eqn.invars]
    with written_like(eqn.source_info):
        return None if function is None else jax.make_jaxpr(function)(*avals), settled


def _top_k(eqn: Any) -> Function:
    """Largest first, the first of equals first; NaNs come last, while `top_k` puts them first."""
    count, axis = eqn.params["k"], eqn.params.get("axis", -1) % len(eqn.invars[0].aval.shape)

    def largest(x: Any) -> list[Any]:
        downwards = lax.neg if jnp.issubdtype(x.dtype, jnp.inexact) else lax.bitwise_not
        places = lax.broadcasted_iota(eqn.outvars[1].aval.dtype, x.shape, axis)
        keys, order = lax.sort((downwards(x), places), dimension=axis, is_stable=True, num_keys=1)
        first = [lax.slice_in_dim(each, 0, count, axis=axis) for each in (keys, order)]
        return [downwards(first[0]), first[1]]

    return largest


def _unrolled(eqn: Any) -> Function:
    params = eqn.params
    held, kept, length = params["num_consts"], params["num_carry"], params["length"]
    trip = core.jaxpr_as_fun(params["jaxpr"])

    def run(*operands: Any) -> list[Any]:
        consts, carry, scanned = operands[:held], list(operands[held : held + kept]), operands[held + kept :]
        stacks: dict[int, list[Any]] = {}
        for i in reversed(range(length)) if params["reverse"] else range(length):
            slices = [lax.index_in_dim(each, i, 0, keepdims=False) for each in scanned]
            made = trip(*consts, *carry, *slices)
            carry, stacks[i] = made[:kept], made[kept:]
        if not length:
            return [*carry, *(jnp.zeros(var.aval.shape, var.aval.dtype) for var in eqn.outvars[kept:])]
        stacked = [jnp.stack([stacks[i][j] for i in range(length)]) for j in range(len(eqn.outvars) - kept)]
        return [*carry, *stacked]

    return run
