"""Plans as JSON files, which record what they were made for and are strictly validated when read.

    {"msedge_plan": 1, "name": "searched", "graph": DIGEST, "regather": false, "recompute": 0.0,
     "topology": {"name": "h100x8", "digest": DIGEST}, "mesh": {"sizes": [8], "levels": [0]},
     "entering": [{"name": "params.w", "dtype": "float32", "shape": [64, 64], "split": [[0], []]}, ...],
     "choices": [{"loops": [[0], []], "results": [[[0], []]]}, ...], "ops": [0, 0, 1, ...], "estimate": {...}}

`ops[k]` is the index of equation k's choice; steps with many repeated blocks have few distinct choices.
`"compiled": {"step_seconds": 0.1, "peak_bytes": 1}` are the figures of the plan's program, if that was compiled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, structs

from cloud.errors import PlanError
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Assignment, Collective, Estimate, Figures, Mesh, Plan
from cloud.parallel.searching.options import fits
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import digest
from federated.tables import Fraction, NotNegative, Reader
from lite_runtime._files import write_atomically

__all__ = ["VERSION", "Argument", "Saved", "from_dict", "read", "to_dict", "write"]

VERSION = 1
LARGEST = 1 << 28
"""The largest file that is read, in bytes."""
ANEW = "`msedge plan CONFIG.toml -o FILE` makes a new plan"
_READ = Reader(PlanError, ANEW)
_Whole = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="a whole number from 0 to below 2^63")]
_Count = Annotated[int, Meta(ge=1, le=(1 << 63) - 1, description="a whole number from 1 to below 2^63")]


class _Mesh(Struct, forbid_unknown_fields=True):
    sizes: Annotated[tuple[_Count, ...], Meta(min_length=1, max_length=8, description="1 to 8 sizes")]
    levels: tuple[Annotated[int, Meta(ge=0, le=15)], ...]


class _Topology(Struct, forbid_unknown_fields=True):
    name: str
    digest: str


class _Entering(Struct, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[_Whole, ...]
    split: tuple[tuple[_Whole, ...], ...]


class _Choice(Struct, forbid_unknown_fields=True):
    loops: tuple[tuple[_Whole, ...], ...]
    results: tuple[tuple[tuple[_Whole, ...], ...], ...]


class _Collective(Struct, forbid_unknown_fields=True):
    kind: str
    bytes: _Whole
    axes: tuple[_Whole, ...]
    group: _Count
    times: _Count
    why: str


class _Estimate(Struct, forbid_unknown_fields=True):
    compute_seconds: NotNegative
    collective_seconds: NotNegative
    exposed_seconds: NotNegative
    peak_bytes: _Whole
    state_bytes: _Whole
    collectives: tuple[_Collective, ...]
    gap: Fraction
    crowded: bool


class _Figures(Struct, forbid_unknown_fields=True):
    step_seconds: NotNegative
    peak_bytes: _Whole


class _File(Struct, forbid_unknown_fields=True):
    msedge_plan: Literal[1]
    name: str
    graph: str
    topology: _Topology
    regather: bool
    recompute: Fraction
    mesh: _Mesh
    entering: tuple[_Entering, ...]
    choices: tuple[_Choice, ...]
    ops: tuple[_Whole, ...]
    estimate: _Estimate
    parts: _Count = 1
    compiled: _Figures | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An input of the step: its path, dtype and shape."""

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
        """The plan, if it was made for this step and these devices; `PlanError` says what differs. `topology` None: any
        topology; the number of devices is checked when the plan is applied."""
        plan, devices = self.plan, math.prod(self.plan.mesh.sizes)
        if topology is not None and devices != topology.size:
            shape = " x ".join(map(str, plan.mesh.sizes))
            raise PlanError(f"the plan is for {devices} devices ({shape}); {topology.name} has {topology.size}: {ANEW}")
        if topology is not None and plan.topology != topology.digest:
            raise PlanError(
                f"the plan was made for the topology {self.topology!r}, whose links, memory or device differ from "
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
            return f"its arguments are the same, its {len(self.plan.ops)} operators are not ({len(graph.ops)} here)"
        sides = (("it has", gone), ("here is", come))
        return "; ".join(f"{side} {_few(names)}" for side, names in sides if names)


def write(path: str | os.PathLike[str], plan: Plan, graph: Graph, topology: Topology) -> None:
    """Write the file atomically."""
    text = json.dumps(to_dict(plan, graph, topology), separators=(",", ":"), allow_nan=False)
    write_atomically(path, text.encode(), PlanError)


def read(path: str | os.PathLike[str]) -> Saved:
    """Read what `write` wrote. Raises `PlanError` for anything else."""
    shown = os.fspath(path)
    try:
        if Path(path).stat().st_size > LARGEST:
            raise PlanError(f"plan {shown}: expected at most {LARGEST >> 20} MiB")
        data = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise PlanError(f"plan {shown}: cannot be read: {error.strerror}; msedge plan -o writes one") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise PlanError(f"plan {shown}: expected JSON as `msedge plan -o` writes it: {error}") from error
    return from_dict(data, shown)


def to_dict(plan: Plan, graph: Graph, topology: Topology) -> dict[str, Any]:
    """The plan as plain data for JSON."""
    numbers: dict[Assignment, int] = {}
    ops = [numbers.setdefault(one, len(numbers)) for one in plan.ops]
    return {
        "msedge_plan": VERSION,
        "name": plan.name,
        "graph": plan.graph,
        "topology": {"name": topology.name, "digest": plan.topology},
        "regather": plan.regather,
        "recompute": plan.recompute,
        "parts": plan.parts,
        "mesh": asdict(plan.mesh),
        "entering": [
            asdict(about) | {"split": split} for about, split in zip(_arguments(graph), plan.entering, strict=True)
        ],
        "choices": [asdict(one) for one in numbers],
        "ops": ops,
        "estimate": asdict(plan.estimate),
    } | ({"compiled": asdict(plan.compiled)} if plan.compiled else {})


def from_dict(data: Any, where: str = "plan") -> Saved:
    """Read what `to_dict` returned. Raises `PlanError`, which names the field."""
    version = data.get("msedge_plan") if isinstance(data, Mapping) else None
    if type(version) is int and version != VERSION:
        raise PlanError(f"plan {where}: expected version {VERSION}, got {version}: {ANEW}")
    file = _READ.read(_File, data, f"plan {where}: ")
    sizes, levels, axes = file.mesh.sizes, file.mesh.levels, len(file.mesh.sizes)

    def need(truth: bool, key: str, what: str, got: object) -> None:
        _READ.need(truth, f"plan {where}: {key}", what, got)

    def need_axes(split: Split, key: str, rank: int | None = None) -> None:
        what = f"mesh axes from 0 to below {axes}, each at most once, ascending within a dimension"
        flat = [axis for dim in split for axis in dim]
        sound = all(axis < axes for axis in flat) and all([*dim] == sorted(dim) for dim in split)
        need(sound and len({*flat}) == len(flat), key, what, split)
        need(rank is None or len(split) == rank, key, f"axes for each of {rank} dimensions", split)

    sound = len(sizes) == len(levels) and math.prod(sizes) <= 1 << 20
    need(sound, "mesh", "1 to 8 sizes with a level each, of at most 2^20 devices", structs.asdict(file.mesh))
    for i, one in enumerate(file.entering):
        need_axes(one.split, f"entering[{i}].split", len(one.shape))
    for i, choice in enumerate(file.choices):
        need_axes(choice.loops, f"choices[{i}].loops")
        for k, split in enumerate(choice.results):
            need_axes(split, f"choices[{i}].results[{k}]")
    for i, op in enumerate(file.ops):
        need(op < len(file.choices), f"ops[{i}]", f"a whole number from 0 to below {len(file.choices)}", op)
    for i, collective in enumerate(file.estimate.collectives):
        within = all(axis < axes for axis in collective.axes)
        need(within, f"estimate.collectives[{i}].axes", f"mesh axes from 0 to below {axes}", collective.axes)
    collectives = tuple(Collective(**structs.asdict(one)) for one in file.estimate.collectives)
    choices = [Assignment(choice.loops, choice.results) for choice in file.choices]
    plan = Plan(
        mesh=Mesh(sizes, levels),
        entering=tuple(one.split for one in file.entering),
        ops=tuple(choices[op] for op in file.ops),
        estimate=Estimate(**{**structs.asdict(file.estimate), "collectives": collectives}),
        graph=file.graph,
        topology=file.topology.digest,
        regather=file.regather,
        recompute=file.recompute,
        parts=file.parts,
        name=file.name,
        compiled=Figures(**structs.asdict(file.compiled)) if file.compiled else None,
    )
    arguments = tuple(Argument(one.name, one.dtype, one.shape) for one in file.entering)
    return Saved(plan, arguments, file.topology.name)


def _arguments(graph: Graph) -> tuple[Argument, ...]:
    values = (graph.values[v] for v in graph.entering)
    return tuple(Argument(value.name, str(value.dtype), value.shape) for value in values)


def _check_splits(plan: Plan, graph: Graph) -> None:
    """Check that a file with the right digest also fits the step: one choice per operator, dimensions that divide."""
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
            f"the plan's choices do not fit the step, although its digest matches (edited by hand?): {ANEW}"
        )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
