"""All stages of a pipeline-parallel step, each planned on several devices: their computation and communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from cloud.errors import PlanError
from cloud.parallel.plan import Collective
from cloud.parallel.staged.inside import Half, Inside, inside
from cloud.parallel.staged.programs import Arrays, Programs, is_float
from cloud.parallel.topology import Topology

__all__ = ["Shared", "sharing"]


def sharing(programs: Programs, width: int, topology: Topology, **options: Any) -> Shared:
    """All stages of `programs` on `width` devices each. Parameters that several stages read are sharded as in the
    plan of the first of them. `options`: those of `inside`."""
    dims: dict[int, int | None] = {}
    halves: dict[int, Inside] = {}
    for number, (stage, kind) in enumerate(zip(programs.stages, programs.kinds, strict=True)):
        if kind not in halves:
            halves[kind] = inside(programs, number, width, topology, known=dims, **options)
        for i, dim in zip(stage.params, halves[kind].dims, strict=True):
            if dims.setdefault(i, dim) != dim:
                raise PlanError(
                    f"stage {number} and another one read parameter number {i}, which would have to be split along "
                    f"both dimension {dim} and {dims[i]}: use stages of one device"
                )
    return Shared(programs, width, halves, dims)


@dataclass(frozen=True, eq=False)
class Shared:
    """The stages of `programs` with their plans applied; the interface of `Programs`. `dims`: the split dimension of
    each parameter, by its number."""

    programs: Programs
    width: int
    insides: Mapping[int, Inside]
    dims: Mapping[int, int | None]

    def forward(self, number: int, params: Arrays, outside: Arrays, came: Arrays) -> list[Any]:
        """See `Programs.forward`."""
        gives = self.programs.stages[number].gives
        after = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in gives if is_float(v.aval)]
        made = self.insides[number].forward.run([*after, *came, *params, *outside])
        floats, integers = iter(made[: len(after)]), iter(made[len(after) :])
        return [next(floats) if is_float(v.aval) else next(integers) for v in gives]

    def backward(
        self, number: int, params: Arrays, outside: Arrays, came: Arrays, after: Arrays
    ) -> tuple[list[Any], list[Any], Any]:
        """See `Programs.backward`."""
        stage = self.programs.stages[number]
        *made, sums = self.insides[number].backward.run([*after, *came, *params, *outside])
        back, own = made[: len(came)], made[len(came) :]
        trained = [g for g, i in zip(own, stage.params, strict=True) if i in self.programs.trained]
        return trained, [g for g in back if is_float(g)], sums

    def collectives(self) -> Iterator[Collective]:
        """Collectives in one tick: of the branches that a device may take forward and backward those with the most
        computation, as in the analysis of compiled programs; axis 0 is the devices of a stage."""
        last = len(self.programs.stages) - 1
        for way in (0, 1):
            kinds = [kind for kind in self.insides if way or kind != last]
            if kinds:
                yield from max((self._half(kind, way) for kind in kinds), key=_flops).estimate.collectives

    def seconds(self, exposed: bool) -> tuple[list[float], list[float]]:
        """Seconds of each stage for one microbatch, forward and backward; the last stage's forward pass is part of its
        backward. `exposed`: including the time its devices wait for each other."""
        about = [[self._half(kind, way).estimate for kind in self.programs.kinds] for way in (0, 1)]
        forward, backward = ([e.step_seconds if exposed else e.compute_seconds for e in way] for way in about)
        return [*forward[:-1], 0.0], backward

    def _half(self, kind: int, way: int) -> Half:
        return self.insides[kind].backward if way else self.insides[kind].forward


def _flops(half: Half) -> float:
    return half.flops
