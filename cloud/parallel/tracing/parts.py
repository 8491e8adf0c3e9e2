"""Accumulators of a loop in parts: the second form of `tracing.sums`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from cloud._jax import bound

__all__ = ["Apart", "in_parts"]

ALONG = frozenset({"transpose", "reshape", "squeeze", "convert_element_type", "neg"})
"""Linear operators of one operand that act on each part."""

Flat = Callable[[Any], Any]


def in_parts(eqn: Any, apart: Apart, carries: Mapping[int, Any], stacks: Sequence[int] = ()) -> Callable[..., Any]:
    """The scan as a function of its operands. `apart`: of its body. `carries`: those kept in parts, and what each trip
    adds to them. `stacks`: results of the body that are stacked in parts, added up after the loop."""
    params = eqn.params
    held, kept = params["num_consts"], params["num_carry"]
    wanted = [*carries.values(), *(apart.closed.jaxpr.outvars[j] for j in stacks)]

    def run(*operands: Any) -> list[Any]:
        consts, start, slices = operands[:held], operands[held : held + kept], operands[held + kept :]

        def trip(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], Any]:
            given = [start[i] if i in carries else each for i, each in enumerate(carry)]
            made, lifted = apart.run([*consts, *given, *slices], wanted)
            after = dict(zip(carries, lifted, strict=False))
            rest = [None if j in stacks else each for j, each in enumerate(made)][kept:]
            return [carry[i] + after[i] if i in after else made[i] for i in range(kept)], (rest, lifted[len(after) :])

        zeros = [jnp.zeros((apart.parts, *jnp.shape(each)), each.dtype) if i in carries else each
                 for i, each in enumerate(start)]  # fmt: skip
        last, (made, parts) = lax.scan(trip, zeros, list(slices), params["length"], params["reverse"], params["unroll"])
        for j, each in zip(stacks, parts, strict=True):
            made[j - kept] = each.sum(1)
        return [*(start[i] + each.sum(0) if i in carries else each for i, each in enumerate(last)), *made]

    return run


class Apart:
    """A flat jaxpr whose values can be computed in parts: with a leading dimension over which they add up."""

    def __init__(self, closed: Any, parts: int, flat: Flat) -> None:
        self.closed, self.parts, self.flat = closed, parts, flat
        jaxpr = closed.jaxpr
        self.uses = Counter(atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var))
        self.uses.update(atom for atom in jaxpr.outvars if isinstance(atom, core.Var))
        self.makers = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}
        self.inner: dict[Any, Apart] = {}

    def carries(self, held: int, kept: int) -> dict[int, Any]:
        """Carries that only accumulate, and what is added to them, if it can be computed in parts."""
        found = {}
        jaxpr = self.closed.jaxpr
        for i in range(kept):
            before, after = jaxpr.invars[held + i], jaxpr.outvars[i]
            add = self.makers.get(after) if isinstance(after, core.Var) else None
            if add is None or add.primitive.name not in ("add", "add_any") or self.uses[before] != 1:
                continue
            others = [atom for atom in add.invars if atom is not before]
            if len(others) == 1 and self.uses[after] == 1 and self.can(others[0]):
                found[i] = others[0]
        return found

    def gradients(self, held: int, kept: int) -> list[int]:
        """Stacked results that can be computed in parts and look like gradients of weights: vectors, or of the shape of
        a slice that the body multiplies with."""
        jaxpr = self.closed.jaxpr
        read = {atom for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general" for atom in eqn.invars
                if isinstance(atom, core.Var)}  # fmt: skip
        shapes = {var.aval.shape for var in jaxpr.invars[held + kept :] if var in read}
        outs = {j: jaxpr.outvars[j].aval.shape for j in range(kept, len(jaxpr.outvars))}
        return [j for j, shape in outs.items() if (len(shape) < 2 or shape in shapes) and self.can_stack(j)]

    def can(self, atom: Any) -> bool:
        """Whether the value, which nothing else reads, can be computed in parts."""
        eqn = self.makers.get(atom) if isinstance(atom, core.Var) else None
        if eqn is None or self.uses[atom] != 1:
            return False
        name = eqn.primitive.name
        if self.goes_on(eqn):
            return self.can(eqn.invars[0])
        if name in ("add", "add_any"):
            return all(map(self.can, eqn.invars))
        if name in ("mul", "div"):
            return not eqn.invars[1].aval.shape and self.can(eqn.invars[0])
        if name == "scan":
            j = eqn.outvars.index(atom) - eqn.params["num_carry"]
            return j >= 0 and not eqn.effects and self.within(eqn).can_stack(eqn.params["num_carry"] + j)
        return self.grouped(eqn) is not None

    def goes_on(self, eqn: Any) -> bool:
        """Whether it is linear in its first operand, and acts on each part of it."""
        name = eqn.primitive.name
        return name in ALONG or (name == "reduce_sum" and self.grouped(eqn) is None)

    def can_stack(self, j: int) -> bool:
        """Whether result j can be computed in parts."""
        return self.can(self.closed.jaxpr.outvars[j])

    def within(self, eqn: Any) -> Apart:
        """The body of a scan inside."""
        if id(eqn) not in self.inner:
            self.inner[id(eqn)] = Apart(self.flat(eqn.params["jaxpr"]), self.parts, self.flat)
        return self.inner[id(eqn)]

    def grouped(self, eqn: Any) -> list[int | None] | None:
        """For each operand of a root, the dimension that is divided into parts; None if it is no such root."""
        name = eqn.primitive.name
        if name == "reduce_sum":
            return next(([d] for d in eqn.params["axes"] if self.divides(eqn.invars[0], d)), None)
        if name == "dot_general":
            (left, right), _ = eqn.params["dimension_numbers"]
            pairs = zip(left, right, strict=True)
            return next(([d, e] for d, e in pairs if self.divides(eqn.invars[0], d)), None)
        if name == "scatter-add" and self.is_zero(eqn.invars[0]):
            numbers = eqn.params["dimension_numbers"]
            rows = [d for d in range(len(eqn.invars[2].aval.shape)) if d not in numbers.update_window_dims]
            apart = numbers.operand_batching_dims
            found = next((n for n, d in enumerate(rows) if not apart and self.divides(eqn.invars[2], d)), None)
            return None if found is None else [None, found, rows[found]]
        return None

    def divides(self, atom: Any, d: int) -> bool:
        """Whether a dimension divides into parts."""
        size = atom.aval.shape[d]
        return bool(size > 0 and size % self.parts == 0)

    def is_zero(self, atom: Any) -> bool:
        """Whether it is an array of zeros."""
        eqn = self.makers.get(atom) if isinstance(atom, core.Var) else None
        source = eqn.invars[0] if eqn is not None and eqn.primitive.name == "broadcast_in_dim" else None
        return isinstance(source, core.Literal) and bool(source.val == 0)

    def run(self, arguments: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results, and these values in parts."""
        jaxpr = self.closed.jaxpr
        env: dict[Any, Any] = dict(zip(jaxpr.constvars, self.closed.consts, strict=True))
        env.update(zip(jaxpr.invars, arguments, strict=True))
        stacks = self.stacks(wanted)
        lifted: dict[Any, Any] = {}
        for eqn in jaxpr.eqns:
            values = [_read(env, atom) for atom in eqn.invars]
            if any(value is None for value in values):
                made = [None] * len(eqn.outvars)  # only what is replaced needs it
            elif id(eqn) in stacks:
                made, parts = self.scanned(eqn, values, stacks[id(eqn)])
                lifted.update(parts)
            else:
                made = bound(eqn, values)
            env.update(zip(eqn.outvars, made, strict=True))
        return [_read(env, atom) for atom in jaxpr.outvars], [self.lift(env, lifted, atom) for atom in wanted]

    def stacks(self, wanted: Sequence[Any]) -> dict[int, list[Any]]:
        """Of the scans inside, by the identity of their equation, the stacks that are needed in parts."""
        found: dict[int, list[Any]] = {}
        todo = list(wanted)
        while todo:
            atom = todo.pop()
            eqn = self.makers[atom]
            if eqn.primitive.name == "scan":
                found.setdefault(id(eqn), []).append(atom)
            elif self.goes_on(eqn) or eqn.primitive.name in ("mul", "div"):
                todo.append(eqn.invars[0])
            elif eqn.primitive.name in ("add", "add_any"):
                todo += eqn.invars
        return found

    def scanned(self, eqn: Any, values: Sequence[Any], stacks: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
        """A scan's results, without those stacks, which are in parts [parts, trips, ...] beside them."""
        params, inner = eqn.params, self.within(eqn)
        held, kept = params["num_consts"], params["num_carry"]
        places = [eqn.outvars.index(atom) for atom in stacks]
        wanted = [inner.closed.jaxpr.outvars[j] for j in places]

        def trip(carry: Sequence[Any], slices: Sequence[Any]) -> tuple[list[Any], Any]:
            made, parts = inner.run([*values[:held], *carry, *slices], wanted)
            return made[:kept], ([None if j in places else one for j, one in enumerate(made)][kept:], parts)

        start, scans = list(values[held : held + kept]), list(values[held + kept :])
        last, (made, parts) = lax.scan(trip, start, scans, params["length"], params["reverse"], params["unroll"])
        return [*last, *made], {atom: jnp.moveaxis(part, 1, 0) for atom, part in zip(stacks, parts, strict=True)}

    def lift(self, env: Mapping[Any, Any], lifted: Mapping[Any, Any], atom: Any) -> Any:
        """A value in parts. `lifted`: those that are known."""
        if atom in lifted:
            return lifted[atom]
        eqn = self.makers[atom]
        name = eqn.primitive.name
        if name in ("add", "add_any"):
            one, other = (self.lift(env, lifted, each) for each in eqn.invars)
            return one + other
        if self.goes_on(eqn) or name in ("mul", "div"):
            first = self.lift(env, lifted, eqn.invars[0])
            rest = [_read(env, each) for each in eqn.invars[1:]]
            return jax.vmap(lambda x: bound(eqn, [x, *rest])[0])(first)
        dims = self.grouped(eqn)
        assert dims is not None
        operands = [jnp.zeros((self.parts, *each.aval.shape), each.aval.dtype) if d is None
                    else self.divided(_read(env, each), d)
                    for each, d in zip(eqn.invars, dims, strict=True)]  # fmt: skip
        return jax.vmap(lambda *each: bound(eqn, list(each))[0])(*operands)

    def divided(self, x: Any, d: int) -> Any:
        """[..., rows, ...] -> [parts, ..., rows / parts, ...]."""
        return jnp.moveaxis(x.reshape(*x.shape[:d], self.parts, -1, *x.shape[d + 1 :]), d, 0)


def _read(env: Mapping[Any, Any], atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else env[atom]
