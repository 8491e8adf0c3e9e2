"""Runs plans: binds arrays to bases, runs the native program, evaluates reference nodes, continues with the rest."""

from __future__ import annotations

import ctypes
import time
from _thread import RLock  # threading itself takes 0.4 ms to import
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Graph, Node, Spec, Value, numpy_dtype, spec_of
from lite_runtime.native import build
from lite_runtime.native.target import host
from lite_runtime.planning.program import ALIGNMENT, ARENA, FAULT, TOO_MANY, Plan, Step
from lite_runtime.running import kept
from lite_runtime.running.threads import Team, Walk, cores, team, ticks_per_second, worth
from lite_runtime.running.turns import Turns
from lite_runtime.targets import PLAIN

if TYPE_CHECKING:
    from lite_runtime.native.tuning import Choices
    from lite_runtime.ops.registry import Operand
    from lite_runtime.running.profiling import Profile

__all__ = ["Binding", "Bound", "Executor", "Settings", "address_of", "aligned"]

PLANS = 32
"""Number of input types for which an executor caches a plan."""
COPIED = 1 << 14
"""Size in bytes up to which an input or output is copied: 0.1 to 0.25 µs, while getting an array's address alone costs
0.2 to 0.9."""


class Settings:
    """How a model's graphs are run, and what its executors share: packed weights, the lock, the worker team."""

    def __init__(
        self,
        *,
        threads: int = 1,
        native: bool = True,
        guard: bool = False,
        limit: int = 4 << 30,
        iterations: int = 100_000,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        self._choices = choices
        self.native = native
        self.guard = guard
        self.limit = limit
        self.iterations = iterations
        self.iterated = 0
        self.target = (host() if native else None) or PLAIN
        self.threads = threads
        self.team: Team | None = team() if native else None
        self.lock = RLock()
        self._packed: MutableMapping[tuple[int, str], tuple[Array, Array]] = {}

    @cached_property
    def choices(self) -> Choices:
        """The choices among several ways to compute steps."""
        from lite_runtime.native import tuning

        return tuning.Choices(tuning.kept() if self._choices is None else self._choices)

    def pack(self, source: Operand, layout: str, make: Callable[[Array], Array]) -> Array:
        """A packed constant, computed once; the source is kept alive so that its address is not reused."""
        assert source.value is not None
        key = (source.value.ctypes.data, f"{layout} {source.value.shape} {source.value.dtype}")
        if key not in self._packed:
            packed = make(source.value)
            self._packed[key] = (source.value, _as_aligned(packed))
        return self._packed[key][1]

    def apart(self) -> Settings:
        """These settings for temporary constants: packed forms of them are dropped together with the copy."""
        other = copy(self)
        other._packed = ChainMap({}, self._packed)
        return other

    def count(self, node: Node, turns: int) -> None:
        """Count runs of a loop body; raises an error when a run's iterations are used up, so that every loop ends."""
        self.iterated += turns
        if self.iterated > self.iterations:
            raise self.too_many(node)

    def too_many(self, node: Node) -> MsedgeError:
        """The error of a loop that does not end."""
        return MsedgeError(
            f"{node.where}: not finished after {self.iterations} iterations in this run; if this is intended,"
            " load the model with a higher limit (iterations=…)"
        )


def aligned(nbytes: int) -> Array:
    """Uninitialised bytes aligned to a cache line."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


def _as_aligned(array: Array) -> Array:
    array = np.ascontiguousarray(array)
    home = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
    home[...] = array
    return home


def _own(value: Any) -> Any:
    """An array that is no view of memory that the next run overwrites."""
    return value.copy() if isinstance(value, np.ndarray) and value.base is not None else value


class Executor:
    """A graph that can be run repeatedly; plans are made per input types and cached."""

    def __init__(
        self, graph: Graph, settings: Settings, origin: kept.Origin | None = None, held: frozenset[str] = frozenset()
    ) -> None:
        self.settings = settings
        self.graph = graph
        self.held = held
        """Inputs and outputs whose memory belongs to the caller: if the plan runs as one call, they set the bases."""
        self.origin = origin
        """The bundle that the graph came from, needed to cache its program; None for nested graphs and rests."""
        self._plans: dict[tuple[Any, ...], Bound] = {}
        self._subgraphs: dict[tuple[str, str], Executor] = {}
        self._turns: dict[tuple[str, ...], Turns] = {}
        self._scratch: ref[Array] | None = None

    def scratch(self, nbytes: int) -> Array:
        """Memory that plans which run as one native call share: calls exclude each other, and nothing stays in it."""
        held = self._scratch() if self._scratch is not None else None
        if held is None or held.nbytes < nbytes:
            held = aligned(nbytes if held is None else max(nbytes, 2 * held.nbytes))
            self._scratch = ref(held)
        return held

    def run(self, inputs: Mapping[str, Any], profile: Profile | None = None) -> dict[str, Any]:
        """Values of the graph's outputs. `inputs` contains every graph input: arrays, or lists and None for
        non-tensors."""
        with self.settings.lock:
            return self.bound(inputs).run(inputs, profile)

    def bound(self, inputs: Mapping[str, Any]) -> Bound:
        """The plan for inputs of these types, with its memory."""
        specs = {name: spec for name, value in inputs.items() if (spec := spec_of(value)) is not None}
        key = tuple(sorted(specs.items()))
        held = self._plans.get(key)
        if held is None:
            settings = self.settings
            if self.origin is not None and not self._plans and settings.native and not settings.guard:
                chosen = settings.choices.chosen
                limits = settings.limit, settings.iterations
                made = kept.plan(self.origin, self.graph, specs, chosen, limits, lambda: self.plan(specs))
            else:
                made = self.plan(specs)
            while len(self._plans) >= PLANS:
                del self._plans[next(iter(self._plans))]
            held = self._plans[key] = Bound(made, self)
        return held

    def planned(self, inputs: Mapping[str, Any]) -> Plan:
        """The plan for inputs of these types."""
        return self.bound(inputs).plan

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """The plans that are cached, with their memory."""
        return tuple(self._plans.values())

    @cached_property
    def folded(self) -> Graph:
        """The graph with everything evaluated that depends on constants only."""
        from lite_runtime.planning import plan

        return plan.fold(self.graph, self.settings.limit)

    def plan(self, specs: Mapping[str, Spec]) -> Plan:
        """A new plan for inputs of these types."""
        from lite_runtime.planning import plan  # imports every operator's rules: most of a start's time

        s = self.settings
        return plan.plan(
            self.folded,
            specs,
            pack=s.pack,
            target=s.target,
            native=s.native,
            limit=s.limit,
            separate=s.guard,
            choose=s.choices,
            turns=s.iterations,
        )

    def parts(self, inputs: Mapping[str, Any]) -> Iterator[Bound]:
        """The plans that a run with these inputs used, without those of nested graphs."""
        bound: Bound | None = self.bound(inputs)
        while bound is not None:
            yield bound
            bound = bound.latest

    def subgraph(self, node: Node, graph: Graph) -> Executor:
        """The executor of a node's nested graph, with its captured values as inputs."""
        key = next((name for name in node.outputs if name), ""), next(k for k, a in node.attrs.items() if a is graph)
        held = self._subgraphs.get(key)
        if held is None:
            wide = (*graph.inputs, *(Value(name, "", None, "any") for name in graph.free_names))
            held = Executor(Graph(wide, graph.outputs, graph.nodes, graph.constants, graph.name), self.settings)
            self._subgraphs[key] = held
        return held

    def looped(self, node: Node) -> bool:
        """Whether the latest evaluation of a node ran natively, as a number of turns at a time."""
        return node.outputs in self._turns and self._turns[node.outputs].native

    def evaluate(self, node: Node, values: Mapping[str, Any]) -> list[Any]:
        """Evaluate a node by its reference, nested graphs by their own executors. A Loop runs natively if its body
        can."""
        if node.op == "Loop" and self.settings.native:
            if node.outputs not in self._turns:
                self._turns[node.outputs] = Turns(node, lambda g: Executor(g, self.settings), self.settings.count)
            results = self._turns[node.outputs].run(values)
            if results is not None:
                return results

        def run_graph(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
            self.settings.count(node, 1)
            inner = self.subgraph(node, graph)
            given = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
            given.update((name, values[name]) for name in graph.free_names)
            results = inner.run(given)
            return [results[v.name] for v in graph.outputs]

        from lite_runtime import reference

        return reference.evaluate(node, [values[name] if name else None for name in node.inputs], run_graph)


def address_of(array: Array) -> int:
    """The address of a contiguous array's elements."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))  # 0.17 µs
    except (TypeError, ValueError):  # read-only, empty, or of a type without buffer support
        return int(array.__array_interface__["data"][0])  # 0.8 µs


class Binding:
    """A signature with its own arrays for inputs and outputs: fill `inputs`, call, read `outputs`.

    Calls and runs of one model exclude each other; a program that calls from several threads must synchronise access to
    the arrays itself. If every node has a native kernel, the arrays never change, and a call checks and allocates
    nothing; otherwise each call stores new arrays in `outputs`.
    """

    def __init__(self, inputs: dict[str, Array], executor: Executor) -> None:
        bound = executor.bound(inputs)
        made = bound.plan
        self.executor, self.bound = executor, bound
        self.inputs: Mapping[str, Array] = inputs
        """Input arrays by name."""
        self.outputs: Mapping[str, Array] = {}
        """Output arrays by name; contents undefined before the first call."""
        self._lock = executor.settings.lock
        self._fault, self._check = bound.fault, bound.check
        self._walk: Walk | None = None
        self.fixed = bound.direct
        """Whether the arrays in `outputs` never change."""
        if bound.direct:
            self.outputs = {name: _empty(made.where[name][2]) for name in made.outputs}
            bases = bound.bases.copy()
            for ports, arrays in ((made.inputs, self.inputs), (made.outputs, self.outputs)):
                for name, base in ports.items():
                    bases[base] = address_of(arrays[name])
            self._walk = bound.walk(made.steps[0], bases)
            self._go = self._walk.go

    def __call__(self) -> None:
        """Compute `outputs` from `inputs`."""
        with self._lock:
            if self._walk is None:
                self.executor.settings.iterated = 0
                self.outputs = self.executor.run(self.inputs)
                return
            self._go()
            if self._fault.value:
                self._check()


def _plain(array: Array) -> Array:
    """The array, or a copy in a form that kernels can read."""
    flags = array.flags
    return array if flags.c_contiguous and flags.aligned else np.require(array, requirements=("C", "A"))


def _empty(spec: Spec) -> Array:
    return aligned(spec.nbytes).view(numpy_dtype(spec.dtype)).reshape(spec.shape)


class Bound:
    """A plan with its memory: arena, table of bases, addresses of kernels."""

    def __init__(self, made: Plan, executor: Executor) -> None:
        self.plan, self.executor = made, executor
        settings = executor.settings
        self.fault = ctypes.c_int64(0)
        self._all_made = [v.name for v in executor.graph.outputs] == list(made.outputs)
        once = [bool(step.end) for step in made.steps] == [True] and not (made.copies or made.rest)
        self.direct = once and self._all_made and not settings.guard
        """One native call computes everything: no references, no copies."""
        self.arena = executor.scratch(made.arena_bytes) if self.direct else aligned(made.arena_bytes)
        self.bases = np.zeros(made.bases, np.int64)
        self.bases[FAULT], self.bases[ARENA] = ctypes.addressof(self.fault), self.arena.ctypes.data
        self.memory: dict[int, Array] = {ARENA: self.arena}
        self.workers = 1
        if settings.team is not None:
            self.workers = settings.threads
            if self.workers > 1 and not settings.guard:
                self.workers = worth(made.records, min(self.workers, cores()))
        for base, array in made.constants.items():
            self._bind(base, self._guarded(base, array) if settings.guard else array)
        for base, nbytes in made.slots.items():
            self._bind(base, self._guarded(base, np.zeros(nbytes, np.uint8)))
        self.table = np.array(build.addresses(made.kernels) or [0], np.int64)
        self.rest = Executor(made.rest, settings) if made.rest is not None else None
        self.latest: Bound | None = None
        held = executor.held
        types = {n: (numpy_dtype(s.dtype), s.shape) for n in (*made.inputs, *made.outputs) for s in (made.where[n][2],)}
        self._inputs = [(name, *types[name]) for name in made.inputs if name not in held]
        self._outputs = [(name, base, *types[name]) for name, base in made.outputs.items()]
        self._walks = {step.begin: self.walk(step, self.bases) for step in made.steps if step.end}
        self.running = False
        self._blank: dict[str, Any] = dict.fromkeys(name for name in made.outputs if name not in held)
        self._copied_in: list[tuple[str, Array]] = []
        self._copied_out: list[tuple[str, Array]] = []
        self.small = False
        """Direct, and every input and output is copied."""
        if self.direct:
            self._direct()

    def _direct(self) -> None:
        """Small inputs and outputs get their own memory here; for large ones only the address is passed."""
        made, held = self.plan, self.executor.held
        for ports, copied in ((made.inputs, self._copied_in), (made.outputs, self._copied_out)):
            for name, base in ports.items():
                spec = made.where[name][2]
                if spec.nbytes <= COPIED and name not in held:
                    self._bind(base, _empty(spec))
                    copied.append((name, self.memory[base]))
        bound = held.union(name for name, _ in (*self._copied_in, *self._copied_out))
        self._passed_in = [(name, base) for name, base in made.inputs.items() if name not in bound]
        self._passed_out = [port for port in self._outputs if port[0] not in bound]
        self._go = self._walks[made.steps[0].begin].go
        self.small = not self._passed_in and not self._passed_out
        homes = dict(self._copied_in)
        self._small = [(*port, homes[port[0]]) for port in self._inputs] if self.small else []

    @property
    def nbytes(self) -> int:
        """Bytes of its memory, without constants, inputs, outputs and the arena."""
        return sum(self.plan.slots.values())

    @property
    def reference(self) -> list[Node]:
        """The nodes that the latest run evaluated by reference."""
        frontier = [node for node in self.plan.frontier if not self.executor.looped(node)]
        return [*(step.nodes[0] for step in self.plan.steps if not step.end), *frontier]

    def walk(self, step: Step, bases: Array) -> Walk:
        """A native step with a table of bases."""
        team_ = self.executor.settings.team
        assert team_ is not None
        seconds = sum(r.seconds for r in self.plan.records if step.begin <= r.begin < step.end)
        program = self.plan.program[step.begin : step.end]
        always = self.executor.settings.guard
        return Walk(team_, program, bases, self.table, workers=self.workers, seconds=seconds, always=always)

    def attempt(self, inputs: Mapping[str, Any]) -> dict[str, Any] | None:
        """A run of a `small` plan; None for inputs of other types, or while the plan is already running."""
        if self.running or len(inputs) != len(self._inputs):
            return None
        self.running = True
        try:
            for name, dtype, shape, home in self._small:
                array = inputs.get(name)
                if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                    return None
                home[...] = array
            self._go()
            if self.fault.value:
                self.check()
            results = {}
            for name, home in self._copied_out:
                results[name] = home.copy()
            return results
        finally:
            self.running = False

    def takes(self, inputs: Mapping[str, Any]) -> bool:
        """Whether these are plain arrays of the types for which this plan was made."""
        if len(inputs) != len(self._inputs):
            return False
        for name, dtype, shape in self._inputs:
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
                return False
        return True

    def _guarded(self, base: int, array: Array) -> Array:
        """A copy next to a guard page: after it or before it; one worker and several workers use opposite sides."""
        from lite_runtime.running.guard import guarded

        return guarded(array, front=(base + (self.workers > 1)) % 2 == 0)

    def _bind(self, base: int, array: Array) -> None:
        self.memory[base] = array
        self.bases[base] = address_of(array)

    def _array(self, name: str) -> Array:
        """A view of a value's memory."""
        base, offset, spec = self.plan.where[name]
        memory = self.memory[base].reshape(-1).view(np.uint8)
        dtype = numpy_dtype(spec.dtype)
        return memory[offset : offset + spec.nbytes].view(dtype).reshape(spec.shape)

    def run(self, inputs: Mapping[str, Any], profile: Profile | None = None) -> dict[str, Any]:
        """One run; the caller holds the settings' lock. Outputs are fresh arrays."""
        if self.running:  # a run inside a run, e.g. from a signal handler: each needs its own memory
            return Bound(self.plan, self.executor).run(inputs, profile)
        self.running = True
        try:
            if not self.direct:
                return self._run_in_parts(inputs, profile)
            for name, home in self._copied_in:
                home[...] = inputs[name]
            held = []
            for name, base in self._passed_in:
                array = _plain(inputs[name])
                self.bases[base] = address_of(array)
                held.append(array)
            results: dict[str, Any] = self._blank.copy()
            for name, base, dtype, shape in self._passed_out:
                results[name] = array = np.empty(shape, dtype)
                self.bases[base] = address_of(array)
            if profile is None:
                self._go()
            else:
                self._timed(self.plan.steps[0], profile)
            if self.fault.value:
                self.check()
            for name, home in self._copied_out:
                results[name] = home.copy()
            return results
        finally:
            self.running = False

    def _run_in_parts(self, inputs: Mapping[str, Any], profile: Profile | None) -> dict[str, Any]:
        made, guard = self.plan, self.executor.settings.guard
        for name, base in made.inputs.items():
            array = _plain(inputs[name])
            self._bind(base, self._guarded(base, array) if guard else array)
        results: dict[str, Any] = {}
        for name, base, dtype, shape in self._outputs:
            results[name] = np.empty(shape, dtype)
            self._bind(base, self._guarded(base, results[name]) if guard else results[name])
        for step in made.steps:
            if not step.end:
                self._reference(step.nodes[0], inputs, profile)
            elif profile is None:
                self._walks[step.begin].go()
            else:
                self._timed(step, profile)
            self.check()
        if guard:
            results = {name: self._array(name).copy() for name in results}
        for name in made.copies:
            results[name] = self._array(name).copy()
        if self.rest is not None:
            return self._go_on(inputs, results, profile)
        if self._all_made:
            return results
        return {v.name: self._result(v.name, results, inputs) for v in self.executor.graph.outputs}

    def _result(self, name: str, results: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        if name in results:
            return results[name]
        if name in self.plan.known:
            return np.array(self.plan.known[name])
        return inputs[name]

    def _timed(self, step: Step, profile: Profile) -> None:
        """Run a native step; every record of every worker is timed by the processor's counter."""
        team_ = self.executor.settings.team
        assert team_ is not None
        records = [r for r in self.plan.records if step.begin <= r.begin < step.end]
        clock = np.zeros((self.workers, len(records), 2), np.int64)
        rate, begin = ticks_per_second(), time.perf_counter()
        program = self.plan.program[step.begin : step.end]
        Walk(team_, program, self.bases, self.table, workers=self.workers, always=True, clock=clock).go()
        seconds = begin + (clock - clock[0, 0, 0]) / rate
        for i, record in enumerate(records):
            took_part = self.workers if record.shared and clock[-1, 0, 0] else 1
            times = ((w, float(seconds[w, i, 0]), float(seconds[w, i, 1])) for w in range(took_part))
            if clock[0, i, 0]:  # a jump may have left it out
                profile.add(self.plan.units[record.unit], record, *times)

    def check(self) -> None:
        """Raise InputError if the last run found an index outside its tensor or took a branch that is invalid for the
        inputs' types, MsedgeError if a loop did not end."""
        if not self.fault.value:
            return
        found, self.fault.value = self.fault.value, 0
        nodes = self.plan.units[found >> 8]
        if found & TOO_MANY:
            raise self.executor.settings.too_many(nodes[0])
        if found >> 8 in self.plan.refusals:
            raise InputError(f"{nodes[0].where}: the branch for this condition: {self.plan.refusals[found >> 8]}")
        where = " + ".join(node.where for node in nodes)
        raise InputError(f"{where}: an index is outside the tensor that it indexes; check the model's index inputs")

    def _values(self, node: Node, inputs: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, Any]:
        """The values that a node reads: from the arena, the caller, or constants."""
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
            profile.add((node,), None, (0, start, time.perf_counter()))

    def _go_on(self, inputs: Mapping[str, Any], results: dict[str, Any], profile: Profile | None) -> dict[str, Any]:
        """Evaluate the frontier, then run the rest of the graph with its results."""
        assert self.rest is not None
        for node in self.plan.frontier:
            start = time.perf_counter()
            outputs = self.executor.evaluate(node, self._values(node, inputs, results))
            results.update((name, value) for name, value in zip(node.outputs, outputs, strict=False) if name)
            if profile is not None:
                profile.add((node,), None, (0, start, time.perf_counter()))
        if not self.rest.graph.nodes:  # nothing to plan for the types found
            made = {name for node in self.plan.frontier for name in node.outputs}
            found = {v.name: self._result(v.name, results, inputs) for v in self.rest.graph.outputs}
            return {name: _own(value) if name in made else value for name, value in found.items()}
        given = {v.name: self._result(v.name, results, inputs) for v in self.rest.graph.inputs}
        self.latest = self.rest.bound(given)
        return self.rest.run(given, profile)
