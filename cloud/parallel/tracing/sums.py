"""Sums that a loop adds up, in a form in which devices combine their parts once, after the loop.

A carry that only accumulates (the gradient of a recurrent network's weights, or that of microbatches) is the sum over
trips of products or sums over the batch. With the batch split over devices each trip's result is partial, and devices
would combine it in every trip. Two forms avoid that, with the same result up to rounding:

1. the trips stack the operands, and one product or sum over all trips follows the loop: taken if that moves fewer bytes
   than reading and writing the accumulator in each trip does (short rows, large weights);
2. the carry has a leading dimension of `parts`, each part adds up its share of the batch, and the parts are added
   after the loop. A plan that splits this dimension as the batch leaves each device its own accumulator. Linear
   operators between the product and the carry act on each part, also those of a scan inside, whose stacks have a
   leading dimension too. Where no carry accumulates, what looks like the stacked gradients of layers gets it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from jax import lax
from jax.extend import core

from cloud.parallel.tracing.parts import Apart, in_parts

__all__ = ["added_after"]

Function = Callable[..., Any]
Flat = Callable[[Any], Any]

ROOTS = {"dot_general", "reduce_sum"}
MOVES = {"transpose", "reshape", "squeeze"}
"""Operators allowed between a root and the carry it is added to: linear, with the same result before and after the
sum."""


@dataclass(frozen=True)
class _Sum:
    """A carry that only accumulates: `root` is the product or sum of each trip, `chain` the operators that then move
    its elements."""

    carry: int
    root: Any
    chain: tuple[Any, ...]


def added_after(eqn: Any, parts: int, flat: Flat) -> tuple[Function | None, bool]:
    """A function of the scan's operands that is equal to the scan, or None if nothing in it can be rewritten; and
    whether its sums are in parts, the last that can be done. `parts`: of the second form, 1 for none. flat:
    `inline.flat`."""
    params = eqn.params
    closed = flat(params["jaxpr"])
    stacked = _worth(closed.jaxpr, params["num_consts"] + params["num_carry"],
                     _sums(closed.jaxpr, params["num_consts"], params["num_carry"]))  # fmt: skip
    if stacked:
        return _stacking(eqn, closed, stacked), False
    apart = Apart(closed, parts, flat) if parts > 1 else None
    if apart is None:
        return None, True
    about = params["num_consts"], params["num_carry"]
    carries = apart.carries(*about)
    stacks = [] if carries else apart.gradients(*about)
    return (in_parts(eqn, apart, carries, stacks) if carries or stacks else None), True


def _worth(jaxpr: Any, first: int, sums: Sequence[_Sum]) -> list[_Sum]:
    """Those whose operands are smaller than the carry, without operands that are stacked anyway."""
    stacked = {atom for atom in (*jaxpr.invars[first:], *jaxpr.outvars) if isinstance(atom, core.Var)}
    found: list[_Sum] = []
    for each in sorted(sums, key=lambda each: -_bytes(jaxpr.outvars[each.carry])):
        operands = {atom for atom in each.root.invars if isinstance(atom, core.Var)} - stacked
        if sum(map(_bytes, operands)) <= _bytes(jaxpr.outvars[each.carry]):
            found.append(each)
            stacked |= operands
    return found


def _bytes(atom: Any) -> int:
    return int(math.prod(atom.aval.shape) * atom.aval.dtype.itemsize)


def _stacking(eqn: Any, closed: Any, sums: Sequence[_Sum]) -> Function:
    params = eqn.params
    held, kept = params["num_consts"], params["num_carry"]
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
