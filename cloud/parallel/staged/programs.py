"""The stages of pipeline parallelism as programs with one interface: flat vectors in, flat vectors out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line, Segment, segments
from cloud.parallel.staged.packing import Pack, dtype_of, largest

__all__ = ["Arrays", "Program", "Programs", "is_float", "programs"]

Arrays: TypeAlias = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Program:
    """One stage. `params`: the numbers of the parameter arrays it holds; `came` and `goes`: the values that cross from
    the stage before and to the stage after, including those that only pass through."""

    segment: Segment
    params: tuple[int, ...]
    takes: tuple[Any, ...]
    gives: tuple[Any, ...]
    came: Pack
    goes: Pack


@dataclass(frozen=True, eq=False)
class Programs:
    """All stages of one loss. Arguments of the line: constants, then parameters, then the rest from `rest` on.
    `sizes`: of the crossing vectors; `sums` names the row sums in the order of the line's first results."""

    line: Line
    constants: tuple[Any, ...]
    rest: int
    stages: tuple[Program, ...]
    sizes: dict[str, int]
    sums: tuple[str, ...]
    trained: frozenset[int]

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """For each stage, the first one with the same computation on other parameters: only one of them must be
        compiled."""
        first: dict[Any, int] = {}
        return tuple(first.setdefault(self._kind(stage), number) for number, stage in enumerate(self.stages))

    def _kind(self, stage: Program) -> Any:
        places = {len(self.constants) + i: ~place for place, i in enumerate(stage.params)}
        entering = tuple(places.get(i, i) for i in stage.segment.entering)
        trained = tuple(i in self.trained for i in stage.params)
        passing = tuple(stage.takes.index(v) if v in stage.takes else -1 for v in stage.gives)
        taken = tuple(stage.takes.index(v) for v in stage.segment.takes)
        shapes = Pack.of(self.avals(stage.params))
        return (str(stage.segment.jaxpr), entering, trained, shapes, stage.came, stage.goes, taken, passing,
                stage.segment.results)  # fmt: skip

    def avals(self, params: Sequence[int]) -> list[Any]:
        """Shapes and dtypes of the parameters with these numbers."""
        return [self.line.jaxpr.invars[len(self.constants) + i].aval for i in params]

    def outside(self, number: int) -> tuple[int, ...]:
        """The arguments of the line that the stage reads, without parameters and constants."""
        return tuple(i for i in self.stages[number].segment.entering if i >= self.rest)

    def forward(self, number: int, params: Arrays, outside: Arrays, came: Arrays) -> list[Any]:
        """The values that cross to the next stage. `outside`: the values of `self.outside(number)`."""
        return self._run(number, params, outside, came)[0]

    def backward(
        self, number: int, params: Arrays, outside: Arrays, came: Arrays, after: Arrays
    ) -> tuple[list[Any], list[Any], Any]:
        """Gradients of the stage's trained parameters and of its crossing inputs (float dtypes), from those of the
        values that cross to the next stage; and the row sums computed here, [sums] float32. Forward is computed
        again."""
        return self.both(number, params, outside, came, after)[:3]

    def both(
        self, number: int, params: Arrays, outside: Arrays, came: Arrays, after: Arrays
    ) -> tuple[list[Any], list[Any], Any, list[Any]]:
        """As `backward`, and also the crossing values."""
        moves = [i in self.trained for i in self.stages[number].params], [is_float(v) for v in came]

        def loss(trained: list[Any], floats: list[Any]) -> tuple[tuple[list[Any], Any], tuple[Any, list[Any]]]:
            own, x = _fill(params, trained, moves[0]), _fill(came, floats, moves[1])
            y, sums = self._run(number, own, outside, x)
            return ([v for v in y if is_float(v)], sums[self.sums.index("loss")]), (sums, y)

        _, pull, (sums, y) = jax.vjp(loss, _some(params, moves[0]), _some(came, moves[1]), has_aux=True)
        gparams, gcame = pull((list(after), jnp.ones((), jnp.float32)))
        return gparams, gcame, sums, y

    @property
    def gradient_sizes(self) -> dict[str, int]:
        """Sizes of the gradients of the crossing values."""
        return {key: size for key, size in self.sizes.items() if jnp.issubdtype(dtype_of(key), jnp.inexact)}

    def _run(self, number: int, params: Arrays, outside: Arrays, came: Arrays) -> tuple[list[Any], Any]:
        stage, first = self.stages[number], len(self.constants)
        part = stage.segment
        values = dict(enumerate(self.constants))
        values.update(zip((first + i for i in stage.params), params, strict=True))
        values.update(zip(self.outside(number), outside, strict=True))
        env = dict(zip(stage.takes, came, strict=True))
        made = part(*(values[i] for i in part.entering), *(env[v] for v in part.takes))
        env.update(zip(part.gives, made, strict=False))
        results = dict(zip(part.results, made[len(part.gives) :], strict=True))
        sums = [jnp.float32(results.get(j, 0.0)) for j in range(len(self.sums))]
        return [env[v] for v in stage.gives], jnp.stack(sums)


def programs(
    line: Line, constants: Sequence[Any], params: int, state: int, cuts: Sequence[int], trained: frozenset[int],
    width: int = 1,
) -> Programs:  # fmt: skip
    """The stages of the line of `loss_sums(params, state, batch, key) -> (sums, state)`, whose first two arguments have
    that many arrays. `trained`: numbers of the parameters that are differentiated. `width`: devices of each stage, over
    which crossing values are split along the first dimension that divides."""
    first, rest = len(constants), len(constants) + params
    sums = _sums(line, rest, state)
    parts = segments(line, cuts)
    unread = set(range(params)) - {i - first for part in parts for i in part.entering}
    stages = [_program(line, part, first, rest, unread if part is parts[-1] else set(), width) for part in parts]
    crossing = largest(pack for stage in stages for pack in (stage.came, stage.goes))
    return Programs(line, tuple(constants), rest, tuple(stages), crossing, sums, trained)


def _program(line: Line, part: Segment, first: int, rest: int, extra: set[int], width: int) -> Program:
    held = tuple(sorted({i - first for i in part.entering if first <= i < rest} | extra))
    takes, gives = line.live(part.start), line.live(part.stop)
    return Program(part, held, takes, gives, _crossing(takes, width), _crossing(gives, width))


def _crossing(variables: Sequence[Any], width: int) -> Pack:
    if odd := [v.aval for v in variables if not isinstance(v.aval.dtype, np.dtype)]:
        raise PlanError(f"expected arrays of numbers to cross between stages, got {odd[0].str_short()}: cut elsewhere")
    dims = [next((d for d, n in enumerate(v.aval.shape) if n % width == 0 and width > 1), None) for v in variables]
    return Pack.of((v.aval for v in variables), dims, width)


def _sums(line: Line, rest: int, state: int) -> tuple[str, ...]:
    """The names of the sums, which are the first results; the state after them must be the unchanged input state."""
    sums, after = line.result
    names = sorted(sums)
    if odd := [name for name in names if sums[name].shape != ()]:
        raise PlanError(f"expected a loss that gives sums over rows, shape (), got {sums[odd[0]].shape} for {odd[0]!r}")
    before = line.jaxpr.invars[rest : rest + state]
    if any(a is not b for a, b in zip(line.jaxpr.outvars[len(names) :], before, strict=True)):
        raise PlanError(
            f"the model's state ({len(before)} arrays, the first is {jax.tree.leaves(after)[0]}) changes with each "
            "batch, as BatchNormalization's does: its rows are not independent, and microbatches would give other "
            "results. Train it without pipeline parallelism"
        )
    return tuple(names)


def _some(values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [value for value, taken in zip(values, chosen, strict=True) if taken]


def _fill(values: Sequence[Any], new: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    """`values` with those `chosen` replaced by `new`, in order."""
    source = iter(new)
    return [next(source) if taken else value for value, taken in zip(values, chosen, strict=True)]


def is_float(value: Any) -> bool:
    """Whether the array may have a gradient."""
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))
