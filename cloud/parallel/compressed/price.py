"""What data parallelism costs with compressed gradients, beside the same with exact sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cloud.errors import PlanError
from cloud.parallel import cost
from cloud.parallel.compressed import int8
from cloud.parallel.compressed.layout import Part, layout
from cloud.parallel.compressed.method import Compress
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Collective, Estimate, Mesh, Plan
from cloud.parallel.searching.predict import Moved, moved, predict
from cloud.parallel.searching.search import plans
from cloud.parallel.topology import Topology

__all__ = ["Price", "offers", "plain", "priced"]

FAST, SLOW = (1,), (0,)


@dataclass(frozen=True)
class Price:
    """`plan`: data parallelism with exact sums on the same `mesh`. `estimate`: with compressed gradients. `slow`,
    `exact`: (seconds, bytes that a device sends) across the slow level for gradients, compressed and as they are."""

    how: Compress
    mesh: Mesh
    plan: Plan
    estimate: Estimate
    slow: tuple[float, float]
    exact: tuple[float, float]

    @property
    def pays(self) -> bool:
        """Whether the compressed step is expected to be faster than the exact one."""
        return self.estimate.step_seconds < self.plan.estimate.step_seconds

    @property
    def fewer(self) -> float:
        """How many times fewer bytes cross the slow level."""
        return self.exact[1] / max(self.slow[1], 1.0)


def plain(graph: Graph, topology: Topology, how: Compress, seconds: float = 30.0, memory: float | None = None) -> Plan:
    """Data parallelism with exact sums on the mesh of `how`. Sums end whole on every device, as with the CPU's
    compiler. Raises `PlanError`."""
    mesh = how.mesh(topology)
    found = plans(graph, topology, expert="dp", meshes=[mesh], backend="cpu", seconds=seconds, memory=memory)
    return found[0]


def offers(
    graph: Graph, topology: Topology, methods: Sequence[Compress], *, memory: float | None = None,
    reduce_scatter: bool = True,
) -> list[Price]:  # fmt: skip
    """The prices of several methods; none on a topology of one level, whose links are alike, or if data parallelism has
    no plan that fits."""
    if len(topology.levels) < 2 or not methods:
        return []
    try:
        found = plain(graph, topology, methods[0], memory=memory)
    except PlanError:
        return []
    return [priced(graph, topology, how, found, reduce_scatter=reduce_scatter) for how in methods]


def priced(
    graph: Graph, topology: Topology, how: Compress, plan: Plan, *, trained: Mapping[str, Any] | None = None,
    state: Iterable[Any] = (), reduce_scatter: bool = True,
) -> Price:  # fmt: skip
    """The price of compressing as `how` says what `plan` (of `plain`) sums exactly. `trained`: the trained parameters,
    by default all inputs named `params.*` of which there is a gradient. `state`: arrays that are means over the groups
    (`Across.gradient`). `reduce_scatter`: whether the compiler emits them."""
    mesh, groups = plan.mesh, plan.mesh.sizes[0]
    given = _params(graph) if trained is None else dict(trained)
    before = predict(graph, plan, topology, reduce_scatter=reduce_scatter)
    plan = replace(plan, estimate=before)
    sums, others = _apart(moved(graph, plan, topology, reduce_scatter=reduce_scatter), given, graph)
    parts = layout({name: given[name] for name in sums}, how, mesh.sizes[1] if len(mesh.sizes) > 1 else 1)
    inside = [_inside(part, sums[part.name].collective, reduce_scatter) for part in parts]
    across = list(_across(parts, how, groups))
    after = [Collective("all-gather", _bytes(part), FAST, part.fast, why=f"sum of gradient of {part.name}")
             for part in parts if part.dim is not None]  # fmt: skip
    means = [Collective("all-reduce", _size(a), SLOW, groups, why="mean of the state") for a in state]
    inside = inside if len(mesh.sizes) > 1 else []
    found = [*inside, *across, *after, *_others(others, mesh, reduce_scatter), *means]
    alike = {id(one) for one in (*inside, *after)} if reduce_scatter else ()  # the GPU's compiler combines them
    times = [one.times * cost.seconds(one.kind, one.bytes, one.axes, mesh, topology, id(one) in alike) for one in found]
    working, space = _work(parts, how, groups, topology)
    slow = [one for one in across if 0 in one.axes]
    gone = [one.collective for one in sums.values()]

    def part(one: Collective) -> float:
        """Bytes of its result that cross the slow level: those that a group summed are shared by its devices."""
        return one.bytes / math.prod(mesh.sizes[axis] for axis in one.axes if axis != 0)

    def seconds(one: Collective) -> float:
        return one.times * cost.seconds(one.kind, part(one), SLOW, mesh, topology, reduce_scatter and one in gone)

    def sent(one: Collective) -> float:
        return one.times * cost.sent(one.kind, part(one), groups)

    return Price(
        how, mesh, plan,
        Estimate(before.compute_seconds + working, sum(times), sum(times), before.peak_bytes + space,
                 before.state_bytes + space // 4, tuple(found)),
        (sum(map(seconds, slow)), sum(map(sent, slow))), (sum(map(seconds, gone)), sum(map(sent, gone))),
    )  # fmt: skip


def _params(graph: Graph) -> dict[str, Any]:
    inputs = (graph.values[v] for v in graph.entering)
    return {v.name.removeprefix("params."): v for v in inputs
            if v.kind == "state" and v.name.startswith("params") and np.issubdtype(v.dtype, np.floating)}  # fmt: skip


def _apart(found: Sequence[Moved], given: Mapping[str, Any], graph: Graph) -> tuple[dict[str, Moved], list[Moved]]:
    """The sums of gradients by the name of the parameter, matched by their bytes, and everything else that moves."""
    waiting: dict[int, list[str]] = {}
    for name, array in given.items():
        waiting.setdefault(_size(array), []).append(name)
    sums: dict[str, Moved] = {}
    others = []
    for one in found:
        names = waiting.get(one.collective.bytes, [])
        if one.adds and 0 in one.collective.axes and names and graph.values[one.value].shape:
            sums[names.pop(0)] = one
        elif one.adds or one.op >= 0:  # not what an update that devices share brings back
            others.append(one)
    return {name: sums[name] for name in given if name in sums}, others


def _inside(part: Part, exact: Collective, reduce_scatter: bool) -> Collective:
    """The sum inside a group."""
    scattered = reduce_scatter and part.dim is not None and exact.times == 1
    kind, bytes = ("reduce-scatter", _bytes(part) // part.fast) if scattered else ("all-reduce", _bytes(part))
    return replace(exact, kind=kind, bytes=bytes, axes=FAST, group=part.fast)


def _across(parts: Sequence[Part], how: Compress, groups: int) -> Iterator[Collective]:
    """What groups exchange, and what powersgd adds up or gathers inside them for it."""

    def one(kind: str, bytes: int, why: str, axes: tuple[int, ...] = SLOW, group: int = groups) -> Collective:
        return Collective(kind, bytes, axes, group, why=why)

    exact = [part for part in parts if part.exact]
    if exact:
        yield one("all-reduce", sum(map(_bytes, exact)), "gradients that are not compressed")
    parts = [part for part in parts if not part.exact]
    if not parts:
        return
    if how.method == "powersgd":
        split = [part for part in parts if part.dim is not None]
        number = 4 * how.rank
        yield one("all-reduce", number * sum(part.rows for part in parts), "P of the gradients")
        if split:
            fast = split[0].fast
            yield one("all-gather", fast * number * sum(part.rows for part in split), "rows of P", FAST, fast)
            both = number * sum(part.sides[1] for part in split)
            yield one("all-reduce", both, "Q of the gradients of a group", FAST, fast)
            yield one("all-reduce", both, "Q of the gradients", (*SLOW, *FAST), groups * fast)
        if whole := [part for part in parts if part.dim is None]:
            yield one("all-reduce", number * sum(part.sides[1] for part in whole), "Q of the gradients")
        return
    blocks = int8.padded(sum(part.size for part in parts), groups, how.block) // how.block
    bytes = blocks * (how.block + int8.SCALE)
    if groups == 2:
        yield one("all-gather", 2 * bytes, "gradients in int8")
    else:
        yield one("all-to-all", bytes, "gradients in int8")
        yield one("all-gather", bytes, "sums of gradients in int8")


def _others(found: Iterable[Moved], mesh: Mesh, merged: bool) -> Iterator[Collective]:
    """Statistics over the batch are those of a group; scalars (the loss) are summed over all, level by level. `merged`:
    the compiler makes one collective of both sums, as the GPU's does."""
    for one in found:
        about = one.collective
        if 0 in about.axes and about.bytes <= 8:
            if merged:
                yield about
                continue
            yield replace(about, axes=SLOW, group=mesh.sizes[0])
        axes = tuple(axis for axis in about.axes if axis != 0)
        if axes:
            yield replace(about, axes=axes, group=mesh.sizes[1])


def _work(parts: Sequence[Part], how: Compress, groups: int, topology: Topology) -> tuple[float, int]:
    """Seconds that a device computes more, and bytes that it holds more: passes over memory, counted from the code of
    `int8` and `powersgd` (bytes read and written for each element on the device), and the kernels of every array."""
    parts = [part for part in parts if not part.exact]
    elements = sum(part.size for part in parts)
    if how.method == "powersgd":
        each, shapes = 36.0, len({part.sides for part in parts})
        launches = 5 * len(parts) + shapes * how.rank * (how.rank + 3) // 2
    else:
        each, launches = 52.0 + groups, 12 + 2 * len(parts)
    device = topology.device
    return launches * device.launch + each * elements / device.bandwidth, 16 * elements


def _bytes(part: Part) -> int:
    return int(np.prod(part.shape, dtype=np.int64)) * 4


def _size(array: Any) -> int:
    return int(np.prod(array.shape, dtype=np.int64)) * int(np.dtype(array.dtype).itemsize)
