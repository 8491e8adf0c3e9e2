"""The stages of a pipeline as programs of one form: flat vectors in, flat vectors out, whatever each stage computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line, Segment, segments
from cloud.parallel.staged.packing import Flats, Pack, empty, largest

__all__ = ["Entering", "Program", "Programs", "programs"]

Entering = Callable[[int], Any]
"""Number of an argument of the line that is no parameter -> its value for one microbatch."""


@dataclass(frozen=True, eq=False)
class Program:
    """One stage. `params`: the numbers of the parameter arrays it holds, `pack` their places; `came` and `goes`: what
    crosses from the stage before and to the stage after, also what only passes through."""

    segment: Segment
    params: tuple[int, ...]
    pack: Pack
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]
    came: Pack
    goes: Pack


@dataclass(frozen=True, eq=False)
class Programs:
    """All stages of one loss. Arguments of the line: constants, then parameters, then the rest from `rest` on.
    `sizes`: of what crosses; `sums` names the row sums in the order of the line's first results."""

    line: Line
    constants: tuple[Any, ...]
    rest: int
    stages: tuple[Program, ...]
    sizes: dict[str, int]
    sums: tuple[str, ...]
    trained: frozenset[int]

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """Of each stage the first that computes the same, on parameters of its own: one of them need be compiled."""
        first: dict[Any, int] = {}
        return tuple(first.setdefault(self._kind(stage), number) for number, stage in enumerate(self.stages))

    def _kind(self, stage: Program) -> Any:
        places = {len(self.constants) + i: ~place for place, i in enumerate(stage.params)}
        entering = tuple(places.get(i, i) for i in stage.segment.entering)
        trained = tuple(i in self.trained for i in stage.params)
        passing = tuple(stage.takes.index(v) if v in stage.takes else -1 for v in stage.gives)
        taken = tuple(stage.takes.index(v) for v in stage.segment.takes)
        return (str(stage.segment.jaxpr), entering, trained, stage.pack, stage.came, stage.goes, taken, passing,
                stage.segment.results)  # fmt: skip

    def forward(self, number: int, params: Sequence[Any], entering: Entering, x: Flats) -> Flats:
        """What crosses to the next stage."""
        stage = self.stages[number]
        y, _ = self._run(stage, params, entering, stage.came.unpack(x))
        return stage.goes.pack(y, self.sizes)

    def backward(
        self, number: int, params: Sequence[Any], entering: Entering, x: Flats, gradient: Flats
    ) -> tuple[list[Any], Flats, Any]:
        """Gradients of the stage's trained parameters and of what came (float dtypes), and the row sums made here,
        [sums] float32; forward is computed again from what came."""
        stage = self.stages[number]
        came = stage.came.unpack(x)
        moves = [number in self.trained for number in stage.params], [_is_float(v) for v in came]

        def loss(trained: list[Any], floats: list[Any]) -> tuple[tuple[list[Any], Any], Any]:
            y, sums = self._run(stage, _fill(params, trained, moves[0]), entering, _fill(came, floats, moves[1]))
            return ([v for v in y if _is_float(v)], sums[self.sums.index("loss")]), sums

        floats = Pack(tuple(leaf for leaf in stage.goes.leaves if _is_float_name(leaf[1])))
        _, pull, sums = jax.vjp(loss, _some(params, moves[0]), _some(came, moves[1]), has_aux=True)
        gparams, gcame = pull((floats.unpack(gradient), jnp.ones((), jnp.float32)))
        back = Pack(tuple(leaf for leaf in stage.came.leaves if _is_float_name(leaf[1])))
        return gparams, back.pack(gcame, self.gradient_sizes), sums

    @property
    def gradient_sizes(self) -> dict[str, int]:
        """Of the gradients of what crosses."""
        return {dtype: size for dtype, size in self.sizes.items() if _is_float_name(dtype)}

    def nothing(self) -> tuple[Flats, Flats, Any]:
        """What idle stages send forward and back, and their row sums."""
        return empty(self.sizes), empty(self.gradient_sizes), jnp.zeros(len(self.sums), jnp.float32)

    def _run(
        self, stage: Program, params: Sequence[Any], entering: Entering, came: Sequence[Any]
    ) -> tuple[list[Any], Any]:
        first, held = len(self.constants), dict(zip(stage.params, params, strict=True))

        def value(i: int) -> Any:
            if i < first:
                return self.constants[i]
            return held[i - first] if i < self.rest else entering(i)

        env = dict(zip(stage.takes, came, strict=True))
        part = stage.segment
        made = part(*(value(i) for i in part.entering), *(env[v] for v in part.takes))
        env.update(zip(part.gives, made, strict=False))
        results = dict(zip(part.results, made[len(part.gives) :], strict=True))
        sums = [jnp.float32(results.get(j, 0.0)) for j in range(len(self.sums))]
        return [env[v] for v in stage.gives], jnp.stack(sums)


def programs(
    line: Line, constants: Sequence[Any], params: int, state: int, cuts: Sequence[int], trained: frozenset[int]
) -> Programs:
    """Of the line of `loss_sums(params, state, batch, key) -> (sums, state)`, whose first two arguments have that many
    arrays. `trained`: numbers of parameters that are differentiated."""
    first, rest = len(constants), len(constants) + params
    sums = _sums(line, rest, state)
    parts = segments(line, cuts)
    unread = set(range(params)) - {i - first for part in parts for i in part.entering}
    stages = [_program(line, part, first, rest, unread if part is parts[-1] else set()) for part in parts]
    crossing = largest(pack for stage in stages for pack in (stage.came, stage.goes))
    return Programs(line, tuple(constants), rest, tuple(stages), crossing, sums, trained)


def _program(line: Line, part: Segment, first: int, rest: int, extra: set[int]) -> Program:
    held = tuple(sorted({i - first for i in part.entering if first <= i < rest} | extra))
    takes, gives = line.live(part.start), line.live(part.stop)
    pack = Pack.of(line.jaxpr.invars[first + i].aval for i in held)
    return Program(part, held, pack, takes, gives, _crossing(takes), _crossing(gives))


def _crossing(variables: Sequence[Any]) -> Pack:
    if odd := [v.aval for v in variables if not isinstance(v.aval.dtype, np.dtype)]:
        raise PlanError(f"a pipeline's stages send arrays of numbers, got {odd[0].str_short()} at a cut: cut elsewhere")
    return Pack.of(v.aval for v in variables)


def _sums(line: Line, rest: int, state: int) -> tuple[str, ...]:
    """The names of the sums, which are the first results; the state that follows must be what came in."""
    sums, after = line.result
    names = sorted(sums)
    if odd := [name for name in names if sums[name].shape != ()]:
        raise PlanError(f"expected a loss that gives sums over rows, shape (), got {sums[odd[0]].shape} for {odd[0]!r}")
    before = line.jaxpr.invars[rest : rest + state]
    if any(a is not b for a, b in zip(line.jaxpr.outvars[len(names) :], before, strict=True)):
        raise PlanError(
            f"the model's state, {len(before)} arrays of which the first is {jax.tree.leaves(after)[0]}, changes with "
            "each batch, as BatchNormalization's does: its rows are not independent, and microbatches would give other "
            "numbers. Train it without a pipeline"
        )
    return tuple(names)


def _some(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [value for value, taken in zip(values, chosen, strict=True) if taken]


def _fill(values: Sequence[Any], new: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    """`values` with those `chosen` replaced by `new`, in order."""
    source = iter(new)
    return [next(source) if taken else value for value, taken in zip(values, chosen, strict=True)]


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


def _is_float_name(dtype: str) -> bool:
    return bool(jnp.issubdtype(np.dtype(dtype), jnp.inexact))
