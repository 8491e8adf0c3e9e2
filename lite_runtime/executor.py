"""Run plans: bind arrays to bases, walk the native program, evaluate what only references can, go on with the rest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime import build, reference
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Graph, Node, Value, numpy_dtype
from lite_runtime.memory import ALIGNMENT
from lite_runtime.ops.registry import Operand
from lite_runtime.plan import ARENA, FAULT, Plan, fold, plan, spec_of
from lite_runtime.target import host
from lite_runtime.threads import Team, team

__all__ = ["Executor", "Settings", "aligned"]

WORTH_SHARING = 40e-6
"""Seconds a program must take one worker before others join in: waking and meeting them costs about 5 µs."""
TRIALS = 2
"""Runs by one worker that tell how long a program takes; results are the same bits whoever computes them."""
PLANS = 32
"""Input types an executor remembers a plan for."""


class Settings:
    """How a model's graphs are run, and what its executors share: packed weights, the lock, the team."""

    def __init__(
        self,
        *,
        threads: int = 1,
        native: bool = True,
        guard: bool = False,
        limit: int = 4 << 30,
        iterations: int = 100_000,
    ) -> None:
        self.native = native
        self.guard = guard
        self.limit = limit
        self.iterations = iterations
        self.iterated = 0
        target = host() if native else None
        self.lanes = target.lanes if target else 4
        self.team: Team | None = team(threads) if native else None
        self.lock = threading.RLock()
        self._packed: dict[tuple[int, str], tuple[Array, Array]] = {}

    def pack(self, source: Operand, layout: str, make: Callable[[Array], Array]) -> Array:
        """Packed constants, made once; the source is kept alive so that its identity stays its own."""
        assert source.value is not None
        key = (source.value.ctypes.data, f"{layout} {source.value.shape} {source.value.dtype}")
        if key not in self._packed:
            packed = make(source.value)
            self._packed[key] = (source.value, _as_aligned(packed))
        return self._packed[key][1]

    def iterate(self, node: Node) -> None:
        """Count a body run; raises once a run has used up its iterations, so that no loop is without end."""
        self.iterated += 1
        if self.iterated > self.iterations:
            raise MsedgeError(
                f"{node.where}: still going after {self.iterations} iterations of its run; if that is meant,"
                " load the model with more iterations"
            )


def aligned(nbytes: int) -> Array:
    """Uninitialised bytes that start at a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def _as_aligned(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    home = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    home[...] = array
    return home


class Executor:
    """A graph that can be run again and again; plans are made per input types and kept."""

    def __init__(self, graph: Graph, settings: Settings) -> None:
        self.settings = settings
        self.graph = fold(graph, settings.limit)
        self._plans: dict[tuple[Any, ...], Bound] = {}
        self._subgraphs: dict[int, Executor] = {}

    def run(self, inputs: Mapping[str, Any], profile: Profile | None = None) -> dict[str, Any]:
        """Values of the graph's outputs. `inputs` hold every graph input: arrays, or lists and None for non-tensors."""
        with self.settings.lock:
            return self.bound(inputs).run(inputs, profile)

    def bound(self, inputs: Mapping[str, Any]) -> Bound:
        """The plan for inputs of these types, with its memory."""
        specs = {name: spec for name, value in inputs.items() if (spec := spec_of(value)) is not None}
        key = tuple(sorted(specs.items()))
        held = self._plans.get(key)
        if held is None:
            s = self.settings
            made = plan(self.graph, specs, pack=s.pack, lanes=s.lanes, native=s.native, limit=s.limit, separate=s.guard)
            while len(self._plans) >= PLANS:
                del self._plans[next(iter(self._plans))]
            held = self._plans[key] = Bound(made, self)
        return held

    def parts(self, inputs: Mapping[str, Any]) -> Iterator[Plan]:
        """The plans a run with these inputs goes through, nested graphs left out."""
        bound: Bound | None = self.bound(inputs)
        while bound is not None:
            yield bound.plan
            bound = bound.latest

    def subgraph(self, graph: Graph, captures: tuple[str, ...]) -> Executor:
        """The executor of a nested graph, its captures turned into inputs."""
        held = self._subgraphs.get(id(graph))
        if held is None:
            wide = (*graph.inputs, *(Value(name, "", None, "any") for name in captures))
            held = Executor(Graph(wide, graph.outputs, graph.nodes, graph.constants, graph.name), self.settings)
            self._subgraphs[id(graph)] = held
        return held

    def evaluate(self, node: Node, values: Mapping[str, Any]) -> list[Any]:
        """A node by its reference, nested graphs by executors of their own."""

        def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
            self.settings.iterate(node)
            inner = self.subgraph(graph, graph.free_names)
            given = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
            given.update((name, values[name]) for name in graph.free_names)
            results = inner.run(given)
            return [results[v.name] for v in graph.outputs]

        return reference.evaluate(node, [values[name] if name else None for name in node.inputs], run_graph)


class Profile:
    """Seconds spent in each native record and reference node of a run, summed over runs."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], list[float]] = {}

    def add(self, nodes: tuple[Node, ...], kernel: str, seconds: float) -> None:
        label = "+".join(node.op for node in nodes), nodes[-1].name or nodes[-1].outputs[0]
        row = self.rows.setdefault((f"{label[0]} {label[1]}", kernel), [0.0, 0])
        row[0] += seconds
        row[1] += 1


class Bound:
    """A plan with its memory: arena, table of bases, kernels' addresses."""

    def __init__(self, made: Plan, executor: Executor) -> None:
        self.plan, self.executor = made, executor
        settings = executor.settings
        self.fault = np.zeros(1, np.int64)
        self.arena = aligned(made.arena_bytes)
        self.bases = np.zeros(made.bases, np.int64)
        self.bases[FAULT], self.bases[ARENA] = self.fault.ctypes.data, self.arena.ctypes.data
        self.memory: dict[int, Array] = {ARENA: self.arena}
        self.workers = settings.team.workers if settings.team is not None and settings.guard else 1
        self._trials = TRIALS if settings.team is not None and settings.team.workers > self.workers else 0
        for base, array in made.constants.items():
            self._bind(base, self._guarded(base, array) if settings.guard else array)
        for base, nbytes in made.slots.items():
            self._bind(base, self._guarded(base, np.zeros(nbytes, np.uint8)))
        self.table = np.array(
            [build.image(family).addresses[name] for family, name in (k.split(".") for k in made.kernels)] or [0],
            np.int64,
        )
        self.rest = Executor(made.rest, settings) if made.rest is not None else None
        self.latest: Bound | None = None
        specs = ((name, base, made.where[name][2]) for name, base in made.outputs.items())
        self._outputs = [(name, base, spec.shape, numpy_dtype(spec.dtype)) for name, base, spec in specs]
        self._all_made = [v.name for v in executor.graph.outputs] == list(made.outputs)
        self._addresses = made.program.ctypes.data, self.bases.ctypes.data, self.table.ctypes.data

    def _guarded(self, base: int, array: Array) -> Array:
        """A copy against a forbidden page: behind it or before it, other for one worker than for two."""
        from lite_runtime.guard import guarded

        return guarded(array, front=(base + (self.workers > 1)) % 2 == 0)

    def _bind(self, base: int, array: Array) -> None:
        self.memory[base] = array
        self.bases[base] = array.__array_interface__["data"][0]  # a third of what array.ctypes.data costs

    def _array(self, name: str) -> Array:
        """A view of a value's memory."""
        base, offset, spec = self.plan.where[name]
        memory = self.memory[base].reshape(-1).view(np.uint8)
        dtype = numpy_dtype(spec.dtype)
        return memory[offset : offset + spec.nbytes].view(dtype).reshape(spec.shape)

    def run(self, inputs: Mapping[str, Any], profile: Profile | None = None) -> dict[str, Any]:
        """One run; the caller holds the settings' lock."""
        made, guard = self.plan, self.executor.settings.guard
        started = time.perf_counter() if self._trials else 0.0
        for name, base in made.inputs.items():
            array = inputs[name]
            if not array.flags.c_contiguous:
                array = np.ascontiguousarray(array)
            self._bind(base, self._guarded(base, array) if guard else array)
        results: dict[str, Any] = {}
        for name, base, shape, dtype in self._outputs:
            results[name] = np.empty(shape, dtype)
            self._bind(base, self._guarded(base, results[name]) if guard else results[name])
        for step in made.steps:
            if step.end:
                self._walk(step.begin, step.end, profile)
            else:
                self._reference(step.nodes[0], inputs, profile)
        if self._trials:
            self._consider_sharing(time.perf_counter() - started)
        if guard:
            results = {name: self._array(name).copy() for name in results}
        for name in made.copies:
            results[name] = self._array(name).copy()
        if self.rest is not None:
            return self._go_on(inputs, results, profile)
        if self._all_made:
            return results
        return {v.name: self._result(v.name, results, inputs) for v in self.executor.graph.outputs}

    def _consider_sharing(self, seconds: float) -> None:
        """After the trial runs, of which the first is cold, let the whole team work where one worker took long."""
        self._trials -= 1
        team_ = self.executor.settings.team
        if not self._trials and team_ is not None and seconds > WORTH_SHARING:
            self.workers = team_.workers

    def _result(self, name: str, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        if name in results:
            return results[name]
        if name in self.plan.known:
            return np.array(self.plan.known[name])
        return inputs[name]

    def _walk(self, begin: int, end: int, profile: Profile | None) -> None:
        program, bases, table = self._addresses
        team_ = self.executor.settings.team
        assert team_ is not None
        if profile is None:
            team_.run(program + 8 * begin, end - begin, bases, table, self.workers)
        else:
            for record in self.plan.records:
                if begin <= record.begin < end:
                    start = time.perf_counter()
                    team_.run(program + 8 * record.begin, record.end - record.begin, bases, table, self.workers)
                    profile.add(self.plan.units[record.unit], record.name, time.perf_counter() - start)
        if self.fault[0]:
            unit = int(self.fault[0]) >> 8
            self.fault[0] = 0
            where = " + ".join(node.where for node in self.plan.units[unit])
            raise InputError(
                f"{where}: an index lies outside the tensor it points into; check the model's index inputs"
            )

    def _values(self, node: Node, inputs: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
        """What a node reads: from the arena, the caller, or what is known."""
        values: dict[str, Any] = {}
        for name in (*node.inputs, *node.captures):
            if name in results:
                values[name] = results[name]
            elif name in self.plan.known:
                values[name] = self.plan.known[name]
            elif name in self.plan.where:
                values[name] = self._array(name)
            elif name:
                values[name] = inputs[name]
        return values

    def _reference(self, node: Node, inputs: Mapping[str, Any], profile: Profile | None) -> None:
        start = time.perf_counter()
        outputs = self.executor.evaluate(node, self._values(node, inputs, {}))
        for name, value in zip(node.outputs, outputs, strict=False):
            if name:
                home = self._array(name)
                if value.shape != home.shape or value.dtype != home.dtype:
                    raise MsedgeError(
                        f"{node.where}: planned {home.dtype}{list(home.shape)}, got {value.dtype}{list(value.shape)};"
                        " this is a bug in msedge"
                    )
                home[...] = value
        if profile is not None:
            profile.add((node,), "reference", time.perf_counter() - start)

    def _go_on(self, inputs: Mapping[str, Any], results: dict[str, Any], profile: Profile | None) -> dict[str, Any]:
        """Evaluate the frontier, then the rest of the graph with what came out."""
        assert self.rest is not None
        for node in self.plan.frontier:
            start = time.perf_counter()
            outputs = self.executor.evaluate(node, self._values(node, inputs, results))
            results.update((name, value) for name, value in zip(node.outputs, outputs, strict=False) if name)
            if profile is not None:
                profile.add((node,), "reference", time.perf_counter() - start)
        given = {v.name: self._result(v.name, results, inputs) for v in self.rest.graph.inputs}
        self.latest = self.rest.bound(given)
        return self.rest.run(given, profile)
