"""Operators rewritten in terms of others that can be split better, with the same values.

1. `top_k` -> sort and slice: XLA gathers the operand of `top_k` for any sharding.
2. A scan of few trips -> its trips one after another, so that each can be planned separately.
3. A scan that accumulates products or sums in a carry (the gradient of a recurrent network's weights) -> one that
   stacks their operands, and one product or sum over all trips after it: partial results are then combined once, not
   at every trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from cloud._jax import written_like

__all__ = ["MOST_TRIPS", "rewritten"]

MOST_TRIPS = 64
"""Scans of more trips are never unrolled, because program size and compile time grow with them."""

Function = Callable[..., Any]

ROOTS = {"dot_general", "reduce_sum"}
MOVES = {"transpose", "reshape", "squeeze"}
"""Operators allowed between a root and the carry it is added to: linear, with the same result before and after the
sum."""


def rewritten(eqn: Any, unroll: bool, flat: Callable[[Any], Any]) -> Any:
    """A closed jaxpr equivalent to `eqn`, or None if `eqn` needs no rewriting.

    unroll: whether short scans are unrolled. flat: inlines the calls of a closed jaxpr (`inline.flat`).
    """
    if eqn.primitive.name == "top_k":
        function: Function | None = _top_k(eqn)
    elif eqn.primitive.name == "scan":
        short = unroll and eqn.params["length"] <= MOST_TRIPS
        function = _unrolled(eqn) if short else _added_after(eqn, flat)
    else:
        return None
    avals = [atom.aval for atom in eqn.invars]
    with written_like(eqn.source_info):
        return None if function is None else jax.make_jaxpr(function)(*avals)


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
        stacked = [jnp.stack([stacks[i][j] for i in range(length)]) for j in range(len(eqn.outvars) - kept)]
        return [*carry, *stacked]

    return run


@dataclass(frozen=True)
class _Sum:
    """A carry that only accumulates: `root` is the product or sum of each trip, `chain` the operators that then move
    its elements."""

    carry: int
    root: Any
    chain: tuple[Any, ...]


def _added_after(eqn: Any, flat: Callable[[Any], Any]) -> Function | None:
    params = eqn.params
    held, kept = params["num_consts"], params["num_carry"]
    closed = flat(params["jaxpr"])
    sums = _sums(closed.jaxpr, held, kept)
    if not sums:
        return None
    gone = {each.carry for each in sums}
    staying = [i for i in range(kept) if i not in gone]
    arguments = closed.jaxpr.invars
    scanned = {var: i for i, var in enumerate(arguments[held + kept :])}
    wanted = list(dict.fromkeys(atom for each in sums for atom in each.root.invars if atom not in scanned))
    results = [*(closed.jaxpr.outvars[i] for i in staying), *closed.jaxpr.outvars[kept:], *wanted]
    body = closed.jaxpr.replace(outvars=results, debug_info=closed.jaxpr.debug_info.with_unknown_names())
    trip = core.jaxpr_as_fun(core.ClosedJaxpr(body, closed.consts))

    def run(*operands: Any) -> list[Any]:
        consts, start, stacks = operands[:held], operands[held : held + kept], operands[held + kept :]

        def step(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
            full = list(start)  # the places of sums, which are no longer read
            for i, value in zip(staying, carry, strict=True):
                full[i] = value
            made = trip(*consts, *full, *slices)
            return made[: len(staying)], made[len(staying) :]

        last, made = lax.scan(step, [start[i] for i in staying], list(stacks), length=params["length"],
                              reverse=params["reverse"], unroll=params["unroll"])  # fmt: skip
        plain = len(closed.jaxpr.outvars) - kept
        over_trips = {var: stacks[i] for var, i in scanned.items()} | dict(zip(wanted, made[plain:], strict=True))
        carried = dict(zip(staying, last, strict=True))
        for each in sums:
            carried[each.carry] = start[each.carry] + _total(each, [over_trips[var] for var in each.root.invars])
        return [*(carried[i] for i in range(kept)), *made[:plain]]

    return run


def _total(of: _Sum, operands: Sequence[Any]) -> Any:
    """The sum of all trips' contributions, from the stacked operands of the root."""
    params = dict(of.root.params)
    if of.root.primitive.name == "reduce_sum":
        params["axes"] = (0, *(axis + 1 for axis in params["axes"]))
    else:
        summed, batch = params["dimension_numbers"]
        moved = [(0, *(d + 1 for d in side)) for side in summed]
        params["dimension_numbers"] = (tuple(moved), tuple(tuple(d + 1 for d in side) for side in batch))
    value = of.root.primitive.bind(*operands, **params)
    for eqn in of.chain:
        value = eqn.primitive.bind(value, **eqn.params)
    return value


def _sums(jaxpr: Any, held: int, kept: int) -> list[_Sum]:
    uses = Counter(atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var))
    uses.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
    fixed = {*jaxpr.constvars, *jaxpr.invars[: held + kept]}

    def found(i: int) -> _Sum | None:
        before, after = jaxpr.invars[held + i], jaxpr.outvars[i]
        add = makers.get(after) if isinstance(after, core.Var) else None
        if add is None or add.primitive.name not in ("add", "add_any") or before not in add.invars:
            return None
        (added,) = [atom for atom in add.invars if atom is not before] or [before]
        if uses[before] != 1 or uses[after] != 1 or not isinstance(added, core.Var):
            return None
        chain: list[Any] = []
        deepest = None
        while (eqn := makers.get(added)) is not None and uses[added] == 1 and eqn.primitive.name in MOVES | ROOTS:
            varying = all(isinstance(atom, core.Var) and atom not in fixed for atom in eqn.invars)
            if eqn.primitive.name in ROOTS and varying:
                deepest = _Sum(i, eqn, tuple(reversed(chain)))
            if eqn.primitive.name == "dot_general":
                break
            chain.append(eqn)
            added = eqn.invars[0]
        return deepest

    return [each for i in range(kept) if (each := found(i)) is not None]
