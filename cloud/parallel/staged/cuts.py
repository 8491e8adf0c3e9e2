"""The forward pass as a line of operators, and the places where the fewest bytes cross.

Equations are in the order in which the user wrote them. The values made before a place and read after it *cross* it:
activations. Values derived only from parameters (a cast, a slice), or only from the batch (a mask, keys of a
generator), never cross: such *light* operators are repeated in every segment that reads them. The user's custom
derivatives (`custom_jvp`, `custom_vjp`, `checkpoint`) stay whole, so that a segment can still be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import ClosedJaxpr, Literal

from cloud._jax import bound, shaped

__all__ = ["Floats", "Line", "Segment", "best_cuts", "line", "segments"]

Floats: TypeAlias = npt.NDArray[np.float64]

_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call"})
# Too much work to be repeated, whatever the operands derive from.
_HEAVY = frozenset({"dot_general", "conv_general_dilated", "scan", "while", "cond"})


@dataclass(frozen=True, eq=False)
class Line:
    """A function's flat jaxpr (constants are the first arguments). `order[p]` is the equation at place p of the line;
    the others are light. `crossing[p]`: bytes made before place p and read at or after it, without results, 0 <= p <=
    len(order); `flops[p]`, `held[p]`: work and result bytes of the equation there."""

    jaxpr: Any
    order: tuple[int, ...]
    crossing: Floats
    flops: Floats
    held: Floats
    result: Any

    def live(self, place: int) -> tuple[Any, ...]:
        """The variables that cross at `place`, in the order in which they are made."""
        made = _made(self, 0, place)
        read = {v for p in range(place, len(self.order)) for v in _reads(self.jaxpr.eqns[self.order[p]])}
        return tuple(v for v in made if v in read)


@dataclass(frozen=True, eq=False)
class Segment:
    """Places `start` to `stop` of a line. `jaxpr` takes the line's arguments numbered `entering`, then the crossing
    variables `takes`; it makes the variables `gives`, which later segments read, then the results with numbers
    `results`."""

    start: int
    stop: int
    jaxpr: Any
    entering: tuple[int, ...]
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]
    results: tuple[int, ...]

    def __call__(self, *values: Any) -> list[Any]:
        """`(*entering, *takes) -> [*gives, *results]`."""
        return list(jax.core.eval_jaxpr(self.jaxpr, (), *values))


Rule: TypeAlias = Callable[[Any, list[Any]], list[Any]]
"""(equation, its operands) -> its results; replaces the equation."""


def line(
    function: Callable[..., Any], *args: Any, rules: Mapping[str, Rule] = MappingProxyType({})
) -> tuple[Line, list[Any]]:
    """The line of `function(*args)`, and the constants that come before the flattened arguments.

    `args` are pytrees of arrays or `jax.ShapeDtypeStruct`; those of the first are the parameters. `rules`: primitives
    to be replaced."""
    shapes = jax.tree.map(_shape, args)
    closed, result = jax.make_jaxpr(function, return_shape=True)(*shapes)
    flat = jax.make_jaxpr(lambda *values: _inlined(closed, values, rules))(*(v.aval for v in closed.jaxpr.invars))
    jaxpr = flat.jaxpr.replace(constvars=[], invars=[*flat.jaxpr.constvars, *flat.jaxpr.invars])
    parameters = len(jax.tree.leaves(args[0]))
    first = len(flat.consts)
    return _line(jaxpr, set(jaxpr.invars[first : first + parameters]), result), flat.consts


def segments(line: Line, cuts: Sequence[int]) -> tuple[Segment, ...]:
    """The segments between the places `cuts`. Results that no operator of the line makes belong to the last segment."""
    bounds = [0, *cuts, len(line.order)]
    return tuple(_segment(line, start, stop) for start, stop in pairwise(bounds))


def best_cuts(line: Line, weights: Floats, limit: float) -> tuple[int, ...]:
    """The cuts with the fewest crossing bytes whose segments' weights do not exceed `limit`, if there are any."""
    places = _thin(line)
    sums = np.concatenate([[0.0], np.cumsum(weights)])[places]
    cost = line.crossing[places]
    best, came = np.zeros(len(places)), np.zeros(len(places), dtype=np.int64)
    for k in range(1, len(places)):
        first = min(int(np.searchsorted(sums, sums[k] - limit * (1 + 1e-9))), k - 1)
        came[k] = first + int(np.argmin(best[first:k]))
        best[k] = best[came[k]] + cost[k]
    cuts, k = [], int(came[-1])
    while k > 0:
        cuts.append(int(places[k]))
        k = int(came[k])
    return tuple(reversed(cuts))


def _thin(line: Line) -> npt.NDArray[np.int64]:
    """The ends, and the places of least crossing between; among equal neighbours, the one where heavier work begins."""
    crossing, flops = line.crossing, line.flops
    inner = [
        p for p in range(1, len(flops))
        if crossing[p - 1] >= crossing[p] <= crossing[p + 1]
        and (crossing[p] < crossing[p + 1] or flops[p - 1] < flops[p])
    ]  # fmt: skip
    return np.array([0, *inner, len(flops)], dtype=np.int64)


def _shape(value: Any) -> Any:
    return shaped(jnp.shape(value), jax.dtypes.result_type(value))


def _inlined(closed: ClosedJaxpr, values: Iterable[Any], rules: Mapping[str, Rule]) -> list[Any]:
    """Evaluates with calls inlined, so that tracing it gives a flat jaxpr."""
    env: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(closed.jaxpr.invars, values, strict=True))
    for eqn in closed.jaxpr.eqns:
        given = [_value(v, env) for v in eqn.invars]
        if eqn.primitive.name in _CALLS:
            inner = eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"]
            made = _inlined(inner, given, rules)
        elif eqn.primitive.name in rules:
            made = rules[eqn.primitive.name](eqn, given)
        else:
            made = bound(eqn, given)
        env.update(zip(eqn.outvars, made, strict=True))
    return [_value(v, env) for v in closed.jaxpr.outvars]


def _value(atom: Any, env: dict[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else env[atom]


def _reads(eqn: Any) -> list[Any]:
    return [v for v in eqn.invars if not isinstance(v, Literal)]


def _line(jaxpr: Any, parameters: set[Any], result: Any) -> Line:
    needed = _needed(jaxpr.eqns, set(jaxpr.outvars[i] for i in _named(jaxpr.outvars)))
    order = tuple(k for k in _in_line(jaxpr, parameters) if k in needed)
    eqns = [jaxpr.eqns[k] for k in order]
    return Line(jaxpr, order, _crossing(eqns), np.array([_flops(eqn) for eqn in eqns]),
                np.array([sum(_bytes(v) for v in eqn.outvars) for eqn in eqns], dtype=np.float64), result)  # fmt: skip


def _named(atoms: Sequence[Any]) -> list[int]:
    return [i for i, atom in enumerate(atoms) if not isinstance(atom, Literal)]


def _in_line(jaxpr: Any, parameters: set[Any]) -> list[int]:
    """Equations that derive from parameters and something else, that are heavy, or that read the result of such a
    one."""
    owes: dict[Any, tuple[bool, bool]] = {v: (v in parameters, v not in parameters) for v in jaxpr.invars}
    order = []
    for k, eqn in enumerate(jaxpr.eqns):
        from_parameters, from_others = (any(owes[v][side] for v in _reads(eqn)) for side in (0, 1))
        if (from_parameters and from_others) or eqn.primitive.name in _HEAVY:
            order.append(k)
            from_parameters = from_others = True
        owes.update((v, (from_parameters, from_others)) for v in eqn.outvars)
    return order


def _needed(eqns: Sequence[Any], wanted: set[Any], among: Iterable[int] | None = None) -> set[int]:
    """The equations (of `among`) that compute `wanted`; all their operands are added to `wanted`."""
    needed = set()
    for k in sorted(range(len(eqns)) if among is None else among, reverse=True):
        if any(v in wanted for v in eqns[k].outvars):
            needed.add(k)
            wanted.update(_reads(eqns[k]))
    return needed


def _crossing(eqns: Sequence[Any]) -> Floats:
    last: dict[Any, int] = {v: p for p, eqn in enumerate(eqns) for v in _reads(eqn)}
    change = np.zeros(len(eqns) + 2)
    for p, eqn in enumerate(eqns):
        for v in eqn.outvars:
            if last.get(v, -1) > p:
                change[p + 1] += _bytes(v)
                change[last[v] + 1] -= _bytes(v)
    return np.array(list(accumulate(change[: len(eqns) + 1])))


def _segment(line: Line, start: int, stop: int) -> Segment:
    eqns = line.jaxpr.eqns
    here = {line.order[p] for p in range(start, stop)}
    at = {k: p for p, k in enumerate(line.order)}
    maker = {v: k for k in line.order for v in eqns[k].outvars}
    gives = tuple(v for v in line.live(stop) if maker[v] in here)
    is_last = stop == len(line.order)
    results = tuple(j for j, v in enumerate(line.jaxpr.outvars) if _is_made(v, maker, here, is_last))
    wanted = {v for v in (*gives, *(line.jaxpr.outvars[j] for j in results)) if not isinstance(v, Literal)}
    wanted.update(v for k in here for v in _reads(eqns[k]))
    light = _needed(eqns, wanted, [k for k in range(len(eqns)) if k not in at])
    entering = tuple(i for i, v in enumerate(line.jaxpr.invars) if v in wanted)
    takes = tuple(v for v in line.live(start) if v in wanted)
    jaxpr = line.jaxpr.replace(
        invars=[*(line.jaxpr.invars[i] for i in entering), *takes],
        outvars=[*gives, *(line.jaxpr.outvars[j] for j in results)],
        eqns=[eqns[k] for k in sorted(here | light)],
    )
    return Segment(start, stop, jaxpr, entering, takes, gives, results)


def _is_made(v: Any, maker: dict[Any, int], here: set[int], is_last: bool) -> bool:
    if isinstance(v, Literal) or v not in maker:
        return is_last
    return maker[v] in here


def _made(line: Line, start: int, stop: int) -> list[Any]:
    return [v for p in range(start, stop) for v in line.jaxpr.eqns[line.order[p]].outvars]


def _bytes(v: Any) -> int:
    return int(np.prod(v.aval.shape, dtype=np.int64)) * int(v.aval.dtype.itemsize)


def _flops(eqn: Any) -> float:
    """2 per multiply-add of contractions, else 1 per element of the results; bodies of loops times their trips."""
    inner = _bodies(eqn)
    if inner:
        return float(eqn.params.get("length", 1)) * max(sum(map(_flops, body.eqns)) for body in inner)
    made = float(np.prod(eqn.outvars[0].aval.shape)) if eqn.outvars else 0.0
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * made * float(np.prod([eqn.invars[0].aval.shape[d] for d in contracted]))
    if eqn.primitive.name == "conv_general_dilated":
        kernel, numbers = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"]
        return 2 * made * float(np.prod(kernel)) / float(kernel[numbers.rhs_spec[0]])
    return made


def _bodies(eqn: Any) -> list[Any]:
    values = [v for value in eqn.params.values() for v in (value if isinstance(value, tuple | list) else [value])]
    return [getattr(v, "jaxpr", v) for v in values if hasattr(v, "eqns")]
