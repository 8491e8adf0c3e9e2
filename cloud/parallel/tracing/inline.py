"""Inlining of calls: a jaxpr in which every equation is an operator, as planner and pipeline parallelism need it.

`jit`, `closed_call`, `custom_jvp_call`, `custom_vjp_call`, `remat` and similar calls become the equations of their
bodies; scans, conditionals and other loops stay whole. The operands of a differentiated `remat` pass through an
optimisation barrier, one equation for each operand (so that each keeps its own split): without it XLA would reuse the
values of the forward pass and recompute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
from jax.extend import core

from cloud._jax import without_dead
from cloud.parallel.tracing.rewrites import rewritten

__all__ = ["flat"]

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "custom_lin": "call_jaxpr",
    "composite": "jaxpr",
}
"""Primitives that only call, and the parameter that holds the called jaxpr."""


def flat(closed: Any, *, unroll: bool = False, parts: int = 1) -> Any:
    """`closed` (a ClosedJaxpr) with calls inlined, some operators rewritten and dead equations removed; arguments and
    results stay the same. Every variable is assigned once, even if one body is called several times. `unroll`: scans of
    up to `MOST_TRIPS` trips are unrolled. `parts`: of the sums that other scans add up (`tracing.sums`)."""
    opener = _Opener(unroll, parts)
    jaxpr = closed.jaxpr
    results = opener.body(jaxpr, dict(zip(jaxpr.constvars, jaxpr.constvars, strict=True)), jaxpr.invars, "")
    constants = [*jaxpr.constvars, *opener.constants]
    opened = jaxpr.replace(constvars=constants, eqns=opener.equations, outvars=list(results))
    alive = without_dead(opened)
    consts = dict(zip(opened.constvars, [*closed.consts, *opener.constants.values()], strict=True))
    return _with_used_constants(alive, consts)


def _with_used_constants(jaxpr: Any, consts: dict[Any, Any]) -> Any:
    read = {atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var)}
    read.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
    kept = [var for var in jaxpr.constvars if var in read]
    return core.ClosedJaxpr(jaxpr.replace(constvars=kept), [consts[var] for var in kept])


class _Opener:
    """Collects the equations of one flat jaxpr and the constants of the bodies that it inlines."""

    def __init__(self, unroll: bool, parts: int) -> None:
        self.unroll, self.parts = unroll, parts
        self.settled: list[Any] = []
        self.equations: list[Any] = []
        self.constants: dict[Any, Any] = {}

    def body(self, jaxpr: Any, names: dict[Any, Any], arguments: Sequence[Any], stack: Any) -> Iterator[Any]:
        """Appends the equations of `jaxpr` called with `arguments`; returns the outer variables of its results."""
        names.update(zip(jaxpr.invars, arguments, strict=True))

        def outside(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else names[atom]

        for eqn in jaxpr.eqns:
            if stack:
                source = eqn.source_info
                eqn = eqn.replace(source_info=source.replace(name_stack=stack + source.name_stack))
            operands = [outside(atom) for atom in eqn.invars]
            if eqn.primitive.name in CALLS:
                made = self.call(eqn, operands)
            elif (instead := self.rewritten(eqn)) is not None:
                made = self.opened(eqn, instead, operands)
            else:
                made = self.fresh(eqn, operands)
            names.update(zip(eqn.outvars, made, strict=True))
        return map(outside, jaxpr.outvars)

    def rewritten(self, eqn: Any) -> Any:
        """As `rewrites.rewritten`."""
        if eqn.primitive.name == "scan" and any(eqn.params["jaxpr"] is each for each in self.settled):
            return None
        instead, settled = rewritten(eqn, self.unroll, self.parts, flat)
        if instead is not None and settled:
            self.settled += [one.params["jaxpr"] for one in instead.jaxpr.eqns if one.primitive.name == "scan"]
        return instead

    def call(self, eqn: Any, operands: list[Any]) -> list[Any]:
        inner = eqn.params[CALLS[eqn.primitive.name]]
        if eqn.params.get("differentiated") and eqn.params.get("prevent_cse"):
            operands = [self.barred(eqn, atom) for atom in operands]
        closed = inner if isinstance(inner, core.ClosedJaxpr) else core.ClosedJaxpr(inner, ())
        return self.opened(eqn, closed, operands)

    def opened(self, eqn: Any, closed: Any, operands: list[Any]) -> list[Any]:
        names = {var: core.Var(var.aval) for var in closed.jaxpr.constvars}
        self.constants.update(zip(names.values(), closed.consts, strict=True))
        return list(self.body(closed.jaxpr, names, operands, eqn.source_info.name_stack))

    def fresh(self, eqn: Any, operands: list[Any]) -> list[Any]:
        made = [core.Var(var.aval) for var in eqn.outvars]
        self.equations.append(eqn.replace(invars=operands, outvars=made))
        return made

    def barred(self, eqn: Any, atom: Any) -> Any:
        if isinstance(atom, core.Literal):
            return atom
        barrier = _barrier().replace(source_info=eqn.source_info, outvars=[atom])
        return self.fresh(barrier, [atom])[0]


@cache
def _barrier() -> Any:
    return jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0]
