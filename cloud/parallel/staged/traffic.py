"""The communication of devices in a pipeline-parallel step, as in the compiled program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cloud.parallel.plan import Collective
from cloud.parallel.staged.packing import Pack, flat_bytes, largest
from cloud.parallel.staged.programs import Programs
from cloud.parallel.staged.schedule import Schedule
from cloud.parallel.staged.sharing import Shared

__all__ = ["gradient_packs", "traffic"]


def gradient_packs(programs: Programs, dims: Mapping[int, int | None], width: int) -> tuple[list[Pack], Pack]:
    """The packing of each stage's gradients, and of those of parameters that several stages read."""

    def pack(params: list[int]) -> Pack:
        return Pack.of(programs.avals(params), [dims.get(i) for i in params], width)

    own = [[i for i in stage.params if i in programs.trained] for stage in programs.stages]
    tied = [i for i in sorted(programs.trained) if sum(i in params for params in own) > 1]
    return [pack(params) for params in own], pack(tied)


def traffic(
    programs: Programs, shared: Shared | None, table: Schedule, replicas: int, packs: tuple[list[Pack], Pack]
) -> Iterator[Collective]:
    """Axis 0 of the mesh is the stages, axis 1 the replicas, axis 2 the devices of each. Every tick counts as much as
    the busiest stage. `packs`: of the gradients."""
    stages, width, ticks = table.stages, 1 if shared is None else shared.width, table.ticks
    for way, sizes in (("to", programs.sizes), ("back from", programs.gradient_sizes)):
        for bytes_ in flat_bytes(sizes).values() if stages > 1 else ():
            why = f"activations {way} the next stage"
            yield Collective("collective-permute", bytes_, (0,), stages, ticks, why)
    for one in () if width == 1 or shared is None else shared.collectives():
        yield replace(one, axes=(2,), times=one.times * ticks)
    for axis, size, sizes, why in (
        (1, replicas, largest(packs[0]), "gradients of the replicas"),
        (0, stages, packs[1].sizes, "gradients of parameters that several stages read"),
    ):
        for bytes_ in flat_bytes(sizes).values() if size > 1 else ():
            yield Collective("all-reduce", bytes_, (axis,), size, 1, why)
    if both := tuple(axis for axis, size in enumerate((stages, replicas)) if size > 1):
        yield Collective("all-reduce", 4 * len(programs.sums), both, stages * replicas, 1, "sums")
