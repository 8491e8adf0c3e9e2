"""A compiled program in the planner's terms: its collectives with the mesh axes they run over, its kernels' work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from cloud.errors import PlanError
from cloud.parallel.checking.hlo.flow import Flow, Point, branches_of
from cloud.parallel.checking.hlo.groups import axes_of, chains, read_groups
from cloud.parallel.checking.hlo.text import Computation, Instruction, Module, Shape, parse, shape_bytes
from cloud.parallel.checking.hlo.work import NO_KERNEL, contraction, moved
from cloud.parallel.plan import Collective, Mesh

__all__ = ["Branch", "Branching", "Found", "Program", "Work", "read_program"]

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_REFUSED = ("ragged-all-to-all", "collective-broadcast")
_GATHERS, _REDUCES = ("all-gather",), ("all-reduce", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class Found:
    """A collective of the program. `prefetchable`: it gathers inputs of the step, before any contraction;
    `deferrable`: it reduces outputs, no contraction comes after it. Either could overlap with computing. `parts`: bytes
    and name of each value that it moves, since compilers combine several collectives into one."""

    collective: Collective
    prefetchable: bool = False
    deferrable: bool = False
    parts: tuple[tuple[int, str], ...] = ()

    @property
    def hideable(self) -> bool:
        """Whether it could overlap with computing."""
        return self.prefetchable or self.deferrable


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel on one device: FLOPs of its contractions in `dtype` (by NumPy's name), bytes it moves, and how often it
    runs."""

    flops: float
    bytes: float
    dtype: str
    times: int
    where: str


@dataclass(frozen=True, slots=True)
class Branch:
    """What one branch of a conditional computes and moves, `times` included."""

    work: tuple[Work, ...]
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True)
class Branching:
    """A conditional that runs `times`; `taken`: the number of the branch that moves the most."""

    where: str
    times: int
    branches: tuple[Branch, ...]
    taken: int


@dataclass(frozen=True, slots=True)
class Program:
    """`found`, `work`: of a device that takes the branch that moves the most in every conditional. `unbounded`: loops
    whose trip count is not in the program; their content is counted once. `branchings`: the conditionals that are not
    inside another."""

    found: tuple[Found, ...]
    work: tuple[Work, ...]
    unbounded: tuple[str, ...] = ()
    branchings: tuple[Branching, ...] = ()

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All collectives, in program order."""
        return tuple(one.collective for one in self.found)

    @property
    def flops(self) -> float:
        """FLOPs of contractions, on one device."""
        return sum(one.flops * one.times for one in self.work)

    @property
    def bytes(self) -> float:
        """Bytes that kernels read from and write to memory, on one device."""
        return sum(one.bytes * one.times for one in self.work)


def read_program(text: str, mesh: Mesh) -> Program:
    """Parse `compiled.as_text()`, compiled for a mesh with its devices in order. Raises `PlanError` for other text and
    for collectives without a cost formula."""
    module = parse(text)
    reader = _Reader(module, mesh)
    ran = list(reader.ran(module.computations[module.entry], 1))
    about = reader.found(ran), tuple(reader.work(ran)), tuple(reader.unbounded)
    return Program(*about, tuple(reader.branching(*one) for one in reader.conditionals))


_Ran = tuple[Instruction, Computation, int]


class _Reader:
    def __init__(self, module: Module, mesh: Mesh) -> None:
        self.module, self.mesh = module, mesh
        self.unbounded: list[str] = []
        self.conditionals: list[tuple[Instruction, int, list[list[_Ran]]]] = []
        self._deep = 0

    def ran(self, inside: Computation, times: int) -> Iterator[_Ran]:
        """Every instruction that runs, and how often. For a conditional: the branch that moves the most."""
        for one in inside.instructions.values():
            yield one, inside, times
            if one.opcode == "while":
                body = self.module.computations[one.called("body")[0]]
                yield from self.ran(body, times * self._trips(one))
            elif one.opcode == "conditional":
                self._deep += 1
                branches = [list(self.ran(self.module.computations[name], times)) for name in branches_of(one)]
                self._deep -= 1
                if not self._deep:
                    self.conditionals.append((one, times, branches))
                yield from max(branches, key=self._weight)
            elif one.opcode in ("call", "async-start"):
                for name in branches_of(one):
                    yield from self.ran(self.module.computations[name], times)

    def branching(self, one: Instruction, times: int, branches: list[list[_Ran]]) -> Branching:
        """A conditional with all its branches."""
        taken = max(range(len(branches)), key=lambda k: self._weight(branches[k]))
        parts = (Branch(tuple(self.work(branch)), self.found(branch)) for branch in branches)
        return Branching(one.where, times, tuple(parts), taken)

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self.module)

    def _weight(self, ran: list[_Ran]) -> float:
        return sum((work.bytes + work.flops) * work.times for work in self.work(ran))

    def _trips(self, loop: Instruction) -> int:
        known = loop.config.get("known_trip_count", {}).get("n")
        trips = int(known) if known is not None else _bound(self.module, loop)
        if trips is None:
            self.unbounded.append(loop.where)
        return 1 if trips is None else trips

    def work(self, ran: list[_Ran]) -> Iterator[Work]:
        for one, inside, times in ran:
            if one.opcode in NO_KERNEL or _collective(one.opcode) or one.opcode.endswith("-done"):
                continue
            flops, dtype = contraction(one, inside, self.module)
            yield Work(flops, moved(one, inside, self.module), _DTYPES.get(dtype, "float32"), times, one.where)

    def found(self, ran: list[_Ran]) -> tuple[Found, ...]:
        there = [(one, inside, times) for one, inside, times in ran if _collective(one.opcode)]
        if not there:
            return ()
        flow = self._flow
        heavy = [_point(one, inside) for one, inside, _ in ran if one.opcode not in NO_KERNEL
                 and contraction(one, inside, self.module)[0]]  # fmt: skip
        late, early = flow.below(heavy), flow.above(heavy)
        found = []
        for one, inside, times in there:
            collective = self._priced(one, inside, times)
            at = _point(one, inside)
            if collective.group > 1:
                found.append(Found(collective, collective.kind in _GATHERS and at not in late,
                                   collective.kind in _REDUCES and at not in early, _parts(one, inside)))  # fmt: skip
        return tuple(found)

    def _priced(self, one: Instruction, inside: Computation, times: int) -> Collective:
        kind = _collective(one.opcode)
        pairs = one.attribute("source_target_pairs")
        devices = math.prod(self.mesh.sizes)
        groups = chains(pairs) if pairs else read_groups(one.attribute("replica_groups") or "", devices)
        if max((device for group in groups for device in group), default=0) >= devices:
            raise PlanError(f"expected a program for the {devices} devices of the mesh {self.mesh.sizes}; "
                            f"{one.name} runs over more of them")  # fmt: skip
        axes = axes_of(groups, self.mesh.sizes)
        size = max((len(group) for group in groups), default=1)
        parts = _parts(one, inside)
        why = ", ".join(dict.fromkeys(name for _, name in parts))
        return Collective(kind, sum(bytes for bytes, _ in parts), axes, size, times, why)


def _collective(opcode: str) -> str:
    """The kind of collective that starts here, else ""."""
    kind = opcode.removesuffix("-start")
    if kind in _REFUSED:
        raise PlanError(f"the planner has no cost formula for {kind}: compile the step without it")
    return kind if kind in _KINDS else ""


def _result(one: Instruction) -> Shape:
    """Starts of collectives other than all-reduces return (operands, results, ...)."""
    if one.opcode.endswith("-start") and one.opcode != "all-reduce-start" and isinstance(one.shape, tuple):
        return one.shape[1]
    return one.shape


def _point(one: Instruction, inside: Computation) -> Point:
    return inside.name, one.name, -1


def _parts(one: Instruction, inside: Computation) -> tuple[tuple[int, str], ...]:
    """Bytes of each result, and the operation that made the operand."""
    shape = _result(one)
    if isinstance(shape, tuple) and len(shape) == len(one.operands) > 1:
        names = [_named(inside.instructions[name], inside) for name in one.operands]
        return tuple((shape_bytes(part), name) for part, name in zip(shape, names, strict=True))
    return ((shape_bytes(shape), _named(one, inside)),)


def _named(one: Instruction, inside: Computation, steps: int = 8) -> str:
    """JAX's name of the operation; for those that the compiler added, the operation they were made from."""
    if one.where != one.name or not one.operands or not steps:
        return one.where
    return _named(inside.instructions[one.operands[0]], inside, steps - 1)


def _bound(module: Module, loop: Instruction) -> int | None:
    """The trip count of a loop that counts up by one to a constant: the constant in its condition."""
    condition = module.computations[loop.called("condition")[0]]
    constants = [one for one in condition.instructions.values() if one.opcode == "constant"]
    for name in (name for one in condition.instructions.values() for name in one.called("calls")):
        constants += [one for one in module.computations[name].instructions.values() if one.opcode == "constant"]
    bounds = {one.inside for one in constants if one.inside.isdigit()}
    return int(bounds.pop()) if len(bounds) == 1 else None


_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "s8": "int8", "s32": "int32",
    "f8e4m3fn": "float8", "f8e5m2": "float8",
}  # fmt: skip
