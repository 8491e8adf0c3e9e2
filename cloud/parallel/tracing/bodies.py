"""Loops opened: the bodies of scans and `while` loops as operators of the flat jaxpr, each planned by itself.

Four operators that only the planner knows tie a body to what is around it, one equation for each value, so that each
has its own split:

1. `loop_carry`: an initial value -> the carry that a trip reads;
2. `loop_close`: (the carry that a trip gives, the one that it reads) -> the loop's result; all have one split;
3. `loop_slice`: a stacked value -> the slice of one trip;
4. `loop_stack`: the result of one trip -> the stack of all trips.

`loop_test` stands for the condition of a `while`, which is computed whole on every device. Values from outside that a
body reads are the same in every trip: they are moved once, before the loop. Loops with side effects stay closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.extend import core

from cloud.parallel.graph import Body
from cloud.parallel.tracing.inline import flat

__all__ = ["CARRY", "CLOSE", "SLICE", "STACK", "TEST", "TIES", "opened"]

CARRY, CLOSE, SLICE, STACK, TEST = "loop_carry", "loop_close", "loop_slice", "loop_stack", "loop_test"

TIES = frozenset({CARRY, CLOSE})
"""Operators that only name a buffer: they neither compute nor move anything."""

_PRIMITIVES = {name: core.Primitive(name) for name in (CARRY, CLOSE, SLICE, STACK, TEST)}


def opened(closed: Any, parts: int = 1) -> tuple[Any, tuple[Body, ...]]:
    """`closed`, a flat closed jaxpr, with the bodies of its loops in place of the loops, and what these bodies are. The
    parameter `body` of the operators above is the number of their body. `parts`: as for `flat`."""
    opener = _Opener(parts)
    jaxpr = closed.jaxpr
    names = {var: var for var in (*jaxpr.constvars, *jaxpr.invars)}
    results = opener.run(jaxpr, names, -1)
    constants = [*jaxpr.constvars, *opener.constants]
    flattened = jaxpr.replace(constvars=constants, eqns=opener.equations, outvars=results)
    return core.ClosedJaxpr(flattened, [*closed.consts, *opener.constants.values()]), tuple(opener.bodies)


class _Opener:
    """Collects the equations of one flat jaxpr, the constants of its bodies, and the bodies."""

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.equations: list[Any] = []
        self.constants: dict[Any, Any] = {}
        self.bodies: list[Body] = []

    def run(self, jaxpr: Any, names: dict[Any, Any], outer: int) -> list[Any]:
        """Appends the equations of a flat `jaxpr`, inside body `outer`; returns the variables of its results."""

        def outside(atom: Any) -> Any:
            return atom if isinstance(atom, core.Literal) else names[atom]

        for eqn in jaxpr.eqns:
            operands = [outside(atom) for atom in eqn.invars]
            opens = None if eqn.effects else {"scan": self.scan, "while": self.repeated}.get(eqn.primitive.name)
            if opens is not None:
                made = opens(eqn, operands, outer)
            else:
                made = [core.Var(var.aval) for var in eqn.outvars]
                self.equations.append(eqn.replace(invars=operands, outvars=made))
            names.update(zip(eqn.outvars, made, strict=True))
        return [outside(atom) for atom in jaxpr.outvars]

    def scan(self, eqn: Any, operands: Sequence[Any], outer: int) -> list[Any]:
        held, kept = eqn.params["num_consts"], eqn.params["num_carry"]
        inner = flat(eqn.params["jaxpr"], parts=self.parts)
        avals = [var.aval for var in inner.jaxpr.invars]
        number = self.begun(outer)
        carry = [self.tie(CARRY, eqn, number, [atom], aval)
                 for atom, aval in zip(operands[held : held + kept], avals[held:], strict=False)]  # fmt: skip
        start = len(self.equations)
        slices = [self.tie(SLICE, eqn, number, [atom], aval)
                  for atom, aval in zip(operands[held + kept :], avals[held + kept :], strict=True)]  # fmt: skip
        made = self.body(inner, [*operands[:held], *carry, *slices], number)
        ends = self.closed(eqn, number, made[:kept], carry)
        ends += [self.tie(STACK, eqn, number, [atom], var.aval)
                 for atom, var in zip(made[kept:], eqn.outvars[kept:], strict=True)]  # fmt: skip
        self.bodies[number] = Body(start, len(self.equations), eqn.params["length"], outer, loop=eqn)
        return ends

    def repeated(self, eqn: Any, operands: Sequence[Any], outer: int) -> list[Any]:
        asks, held = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
        inner = flat(eqn.params["body_jaxpr"], parts=self.parts)
        number = self.begun(outer)
        carry = [self.tie(CARRY, eqn, number, [atom], var.aval)
                 for atom, var in zip(operands[asks + held :], inner.jaxpr.invars[held:], strict=True)]  # fmt: skip
        start = len(self.equations)
        cond = eqn.params["cond_jaxpr"].jaxpr
        read = {atom for one in cond.eqns for atom in one.invars if isinstance(atom, core.Var)}
        read.update(atom for atom in cond.outvars if isinstance(atom, core.Var))
        asked = zip([*operands[:asks], *carry], cond.invars, strict=True)
        self.tie(TEST, eqn, number, [atom for atom, var in asked if var in read], _flag())
        made = self.body(inner, [*operands[asks : asks + held], *carry], number)
        ends = self.closed(eqn, number, made, carry)
        self.bodies[number] = Body(start, len(self.equations), 1, outer, bounded=False, loop=eqn)
        return ends

    def begun(self, outer: int) -> int:
        self.bodies.append(Body(0, 0, 1, outer))
        return len(self.bodies) - 1

    def body(self, inner: Any, arguments: Sequence[Any], number: int) -> list[Any]:
        names = {var: core.Var(var.aval) for var in inner.jaxpr.constvars}
        self.constants.update(zip(names.values(), inner.consts, strict=True))
        return self.run(inner.jaxpr, names | dict(zip(inner.jaxpr.invars, arguments, strict=True)), number)

    def closed(self, eqn: Any, number: int, last: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        return [self.tie(CLOSE, eqn, number, [after, before], var.aval)
                for after, before, var in zip(last, carry, eqn.outvars, strict=False)]  # fmt: skip

    def tie(self, name: str, eqn: Any, number: int, operands: list[Any], aval: Any) -> Any:
        made = core.Var(aval)
        about = {"invars": operands, "outvars": [made], "params": {"body": number}, "source_info": eqn.source_info}
        self.equations.append(_blank().replace(primitive=_PRIMITIVES[name], **about))
        return made


@cache
def _blank() -> Any:
    return jax.make_jaxpr(jax.lax.optimization_barrier)(0.0).eqns[0]


def _flag() -> Any:
    return jax.core.ShapedArray((), np.dtype(np.bool_))
