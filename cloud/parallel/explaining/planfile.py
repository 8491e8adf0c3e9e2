"""Plans as files: JSON that says what it was made for, read with every field doubted.

    {"msedge_plan": 1, "name": "searched", "graph": DIGEST, "regather": false, "recompute": 0.0,
     "topology": {"name": "h100x8", "digest": DIGEST}, "mesh": {"sizes": [8], "levels": [0]},
     "entering": [{"name": "params.w", "dtype": "float32", "shape": [64, 64], "split": [[0], []]}, ...],
     "choices": [{"loops": [[0], []], "results": [[[0], []]]}, ...], "ops": [0, 0, 1, ...], "estimate": {...}}

`ops[k]` is the number of equation k's choice; steps of many alike blocks have few.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cloud.errors import PlanError
from cloud.parallel.explaining.reading import Reading
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Assignment, Collective, Estimate, Mesh, Plan
from cloud.parallel.searching.options import fits
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest
from lite_runtime._files import write_atomically

__all__ = ["VERSION", "Argument", "Saved", "from_dict", "read", "to_dict", "write"]

VERSION = 1
LARGEST = 1 << 28
"""Bytes of a file that are read at all."""
ANEW = "`msedge plan CONFIG.toml -o FILE` searches anew"


@dataclass(frozen=True, slots=True)
class Argument:
    """What enters the step: its path, dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Saved:
    """A plan and what it was made for. `topology`: its name."""

    plan: Plan
    arguments: tuple[Argument, ...]
    topology: str

    def check(self, graph: Graph, topology: Topology | None = None) -> Plan:
        """The plan, if it is one for this step and these devices; `PlanError` says what differs. `topology` None: any
        with as many devices, as whoever applies the plan will see."""
        plan, devices = self.plan, math.prod(self.plan.mesh.sizes)
        if topology is not None and devices != topology.size:
            shape = " x ".join(map(str, plan.mesh.sizes))
            raise PlanError(f"the plan is for {devices} devices ({shape}); {topology.name} has {topology.size}: {ANEW}")
        if topology is not None and plan.topology != topology.digest:
            raise PlanError(
                f"the plan was made for the topology {self.topology!r}, of which links, memory or device differ from "
                f"{topology.name!r}: {ANEW}"
            )
        if plan.graph != digest(graph):
            raise PlanError(f"the plan was made for another step: {self._otherwise(graph)}: {ANEW}")
        _check_splits(plan, graph)
        return plan

    def _otherwise(self, graph: Graph) -> str:
        here = dict.fromkeys(_arguments(graph))
        gone = [str(one) for one in self.arguments if one not in here]
        come = [str(one) for one in here if one not in set(self.arguments)]
        if not gone and not come:
            return f"the same arguments, but {len(self.plan.ops)} operators; here are {len(graph.ops)}, or other ones"
        sides = (("it has", gone), ("here is", come))
        return "; ".join(f"{side} {_few(names)}" for side, names in sides if names)


def write(path: str | os.PathLike[str], plan: Plan, graph: Graph, topology: Topology) -> None:
    """The file, whole or not at all."""
    text = json.dumps(to_dict(plan, graph, topology), separators=(",", ":"), allow_nan=False)
    write_atomically(path, text.encode(), PlanError)


def read(path: str | os.PathLike[str]) -> Saved:
    """What `write` wrote. Raises `PlanError` for anything else."""
    shown = os.fspath(path)
    try:
        if Path(path).stat().st_size > LARGEST:
            raise PlanError(f"plan {shown}: expected at most {LARGEST >> 20} MiB")
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text, parse_constant=_no_constant)
    except OSError as error:
        raise PlanError(f"plan {shown}: cannot be read: {error.strerror}; msedge plan -o writes one") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"plan {shown}: expected JSON as `msedge plan -o` writes it: {error}") from error
    return from_dict(data, shown)


def to_dict(plan: Plan, graph: Graph, topology: Topology) -> dict[str, Any]:
    """The plan as JSON has it."""
    numbers: dict[Assignment, int] = {}
    ops = [numbers.setdefault(one, len(numbers)) for one in plan.ops]
    return {
        "msedge_plan": VERSION,
        "name": plan.name,
        "graph": plan.graph,
        "topology": {"name": topology.name, "digest": plan.topology},
        "regather": plan.regather,
        "recompute": plan.recompute,
        "mesh": asdict(plan.mesh),
        "entering": [
            asdict(about) | {"split": split} for about, split in zip(_arguments(graph), plan.entering, strict=True)
        ],
        "choices": [asdict(one) for one in numbers],
        "ops": ops,
        "estimate": asdict(plan.estimate),
    }


def from_dict(data: Any, where: str = "plan") -> Saved:
    """What `to_dict` gave. Raises `PlanError`, which names the field."""
    root = Reading(data, where)
    version = root.at("msedge_plan").whole()
    if version != VERSION:
        raise PlanError(f"plan {where}: expected version {VERSION}, got {version}: {ANEW}")
    root.only("msedge_plan", "name", "graph", "topology", "regather", "recompute", "mesh", "entering", "choices",
              "ops", "estimate")  # fmt: skip
    mesh = _mesh(root.at("mesh"))
    made_for = root.at("topology").only("name", "digest")
    axes = len(mesh.sizes)
    entering = [one.only("name", "dtype", "shape", "split") for one in root.at("entering").items()]
    choices = [_assignment(one.only("loops", "results"), axes) for one in root.at("choices").items()]
    arguments = tuple(
        Argument(one.at("name").text(), one.at("dtype").text(), tuple(n.whole() for n in one.at("shape").items()))
        for one in entering
    )
    splits = tuple(
        _split(one.at("split"), axes, len(about.shape)) for one, about in zip(entering, arguments, strict=True)
    )
    plan = Plan(
        mesh=mesh,
        entering=splits,
        ops=tuple(choices[one.whole(below=len(choices))] for one in root.at("ops").items()),
        estimate=_estimate(root.at("estimate"), axes),
        graph=root.at("graph").text(),
        topology=made_for.at("digest").text(),
        regather=root.at("regather").truth(),
        recompute=root.at("recompute").number(most=1.0),
        name=root.at("name").text(),
    )
    return Saved(plan, arguments, made_for.at("name").text())


def _arguments(graph: Graph) -> tuple[Argument, ...]:
    values = (graph.values[v] for v in graph.entering)
    return tuple(Argument(value.name, str(value.dtype), value.shape) for value in values)


def _mesh(at: Reading) -> Mesh:
    at.only("sizes", "levels")
    sizes = tuple(one.whole(least=1) for one in at.at("sizes").items())
    levels = tuple(one.whole(below=16) for one in at.at("levels").items())
    if not 1 <= len(sizes) <= 8 or len(levels) != len(sizes) or math.prod(sizes) > 1 << 20:
        raise at.wrong("1 to 8 sizes with a level each, of at most 2^20 devices")
    return Mesh(sizes, levels)


def _split(at: Reading, axes: int, rank: int | None = None) -> Split:
    """Each axis once, those of one dimension in mesh order."""
    split = tuple(tuple(axis.whole(below=axes) for axis in dim.items()) for dim in at.items())
    flat = [axis for dim in split for axis in dim]
    if len({*flat}) != len(flat) or any(list(dim) != sorted(dim) for dim in split):
        raise at.wrong("each mesh axis at most once, ascending within a dimension")
    if rank is not None and len(split) != rank:
        raise at.wrong(f"axes for each of {rank} dimensions")
    return split


def _assignment(at: Reading, axes: int) -> Assignment:
    return Assignment(_split(at.at("loops"), axes), tuple(_split(one, axes) for one in at.at("results").items()))


def _estimate(at: Reading, axes: int) -> Estimate:
    at.only(*(field.name for field in fields(Estimate)))
    return Estimate(
        at.at("compute_seconds").number(), at.at("collective_seconds").number(), at.at("exposed_seconds").number(),
        at.at("peak_bytes").whole(), at.at("state_bytes").whole(),
        tuple(_collective(one, axes) for one in at.at("collectives").items()), at.at("gap").number(most=1.0),
        at.at("crowded").truth(),
    )  # fmt: skip


def _collective(at: Reading, axes: int) -> Collective:
    at.only(*(field.name for field in fields(Collective)))
    over = tuple(one.whole(below=axes) for one in at.at("axes").items())
    group, times = at.at("group").whole(least=1), at.at("times").whole(least=1)
    return Collective(at.at("kind").text(), at.at("bytes").whole(), over, group, times, at.at("why").text())


def _check_splits(plan: Plan, graph: Graph) -> None:
    """That a file with the right digest also has the right shape: one choice an operator, dimensions that divide."""
    shapes = [graph.values[v].shape for v in graph.entering]
    sound = len(plan.ops) == len(graph.ops) and len(plan.entering) == len(shapes)
    sound = sound and all(fits(split, shape, plan.mesh) for split, shape in zip(plan.entering, shapes, strict=True))
    for op, chosen in zip(graph.ops, plan.ops, strict=False):
        sound = sound and len(chosen.loops) == len(op.loops) and len(chosen.results) == len(op.outputs)
        sound = sound and fits(chosen.loops, [loop.size for loop in op.loops], plan.mesh)
        for v, split in zip(op.outputs, chosen.results, strict=False):
            rank = len(graph.values[v].shape)
            sound = sound and len(split) == rank and fits(split, graph.values[v].shape, plan.mesh)
    if not sound:
        raise PlanError(
            f"the plan's choices do not fit the step whose digest it bears (was the file changed by hand?): {ANEW}"
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _no_constant(text: str) -> Mapping[str, Any]:
    raise ValueError(f"{text} is no number of JSON's")
