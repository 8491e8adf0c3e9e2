"""Rows of several owners in one run: tables hold the tensors that differ between owners, one slot per owner.

owners = PersonalModel(model, {"head.weight", "head.bias"}, {"x": (1, 3, 32, 32)}, slots=1000)
owners.write(7, owners.prepare(state))           # one owner's state, of those names
run = owners.bind({"x": (64, 3, 32, 32)})
run.inputs["x"][...], run.inputs[SLOTS][...] = x, slots
run(); run.outputs
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Spec, dtype_name, numpy_dtype
from lite_runtime.learning.grouping import SLOTS, Grouped, Table, Ungrouped, group
from lite_runtime.planning.program import ALIGNMENT
from lite_runtime.planning.stage import fold
from lite_runtime.running.executor import PLANS, Binding, Executor
from lite_runtime.running.inputs import check_inputs
from lite_runtime.running.session import Model

__all__ = ["SLOTS", "PersonalBinding", "PersonalModel", "Row", "SeparateModel", "Ungrouped"]

Row = tuple[Array, ...]
"""The contents of one slot of each table."""


class PersonalBinding(Binding):
    """A binding whose tables are hidden from its caller's inputs."""

    arena_bytes: int
    """Bytes of memory between the inputs and the outputs."""

    def __init__(self, inputs: dict[str, Array], tables: Mapping[str, Array], executor: Executor) -> None:
        super().__init__({**inputs, **tables}, executor)
        self.arena_bytes = executor.bound(self.inputs).plan.arena_bytes
        self._everything, self.inputs = self.inputs, inputs

    def __call__(self) -> None:
        """See `Binding`."""
        if self._walk is not None:
            super().__call__()
            return
        with self._lock:
            self.executor.settings.iterated = 0
            self.outputs = self.executor.run(self._everything)


class _Owned:
    """A signature that reads state and writes none; the states in `names` differ between owners, the others are the
    bundle's and never change."""

    def __init__(self, model: Model, names: Iterable[str], signature: str = "predict") -> None:
        held, self.settings = model.bundle, model._settings.apart()
        use = held.uses.get(signature)
        reads = use.reads if use is not None else {}
        self.names = frozenset(names)
        """Types of the states."""
        if use is not None and use.writes:
            raise InputError(f"signature {signature!r} writes state: expected one that only reads it")
        if strange := self.names - set(reads.values()):
            raise InputError(f"signature {signature!r} reads no state {', '.join(map(repr, sorted(strange)))}")
        self.reads = {port: state for port, state in reads.items() if state in self.names}
        self.specs = {name: Spec(dtype_name(held.state[name].dtype), held.state[name].shape) for name in self.names}
        graph = held.signatures[signature]
        kept = {port: held.state[state] for port, state in reads.items() if state not in self.names}
        self.face = Graph(*use.seen(graph), (), {}) if use is not None else graph.replace(nodes=(), constants={})
        inputs = (*self.face.inputs, *(value for value in graph.inputs if value.name in self.reads))
        self.graph = fold(Graph(inputs, graph.outputs, graph.nodes, {**graph.constants, **kept}), self.settings.limit)

    def owned(self, state: Mapping[str, Array]) -> dict[str, Array]:
        """The graph's inputs that belong to one owner. Raises InputError for state that is missing or does not fit."""
        for name, want in self.specs.items():
            got = state.get(name)
            if got is None or (got.dtype, got.shape) != (numpy_dtype(want.dtype), want.shape):
                what = "none" if got is None else f"{got.dtype}{list(got.shape)}"
                raise InputError(f"state {name!r}: expected {want.dtype}{list(want.shape)}, got {what}")
        return {port: np.asarray(state[name]) for port, name in self.reads.items()}


class SeparateModel(_Owned):
    """Runs one owner at a time, for any graph: nothing is planned or packed again for the next owner."""

    def __init__(self, model: Model, names: Iterable[str], signature: str = "predict") -> None:
        super().__init__(model, names, signature)
        self._executor = Executor(self.graph, self.settings)

    def run(self, inputs: Mapping[str, Array], state: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs for these inputs with this state, as fresh arrays. Raises InputError."""
        given = check_inputs(self.face, inputs)
        with self.settings.lock:
            self.settings.iterated = 0
            return self._executor.run({**given, **self.owned(state)})


class PersonalModel(_Owned):
    """Runs batches with rows of several owners. Raises Ungrouped if the graph does not allow it: use `SeparateModel`.

    shapes: of inputs, with any number of rows. slots: the number of owners that the tables hold, limited to what fits
    into `memory` bytes (at least 2). Slot 0 is the bundle's own state; others are zeros until they are written. Runs
    and writes exclude each other.
    """

    def __init__(
        self,
        model: Model,
        names: Iterable[str],
        shapes: Mapping[str, Sequence[int]],
        *,
        slots: int = 1024,
        memory: int = 256 << 20,
        signature: str = "predict",
    ) -> None:
        super().__init__(model, names, signature)
        first = self._grouped(shapes)
        self.tables: tuple[Table, ...] = first.tables
        self._prepare = first.prepare
        self._preparing = Executor(first.prepare, self.settings)
        self.slot_bytes = sum(table.spec.nbytes for table in self.tables)
        """Bytes of memory for each owner."""
        self.slots = max(2, min(slots, memory // max(self.slot_bytes, 1)))
        self._rows = {table.name: _zeros(table.spec.dtype, (self.slots, *table.spec.shape)) for table in self.tables}
        self.write(0, self.prepare(model.bundle.state))
        self._executors: dict[tuple[tuple[str, tuple[int, ...]], ...], Executor] = {}

    def prepare(self, state: Mapping[str, Array]) -> Row:
        """The slot contents for an owner with this state, which must include `names`. Raises InputError."""
        values = {**self._prepare.constants, **self.owned(state)}
        if self._prepare.outputs:
            inputs = {value.name: values[value.name] for value in self._prepare.inputs}
            values.update(self._preparing.run(inputs))
        return tuple(table.row(values[table.source]) for table in self.tables)

    def write(self, slot: int, row: Row) -> None:
        """Assign a slot to an owner. Raises InputError for a slot that does not exist."""
        if not 0 <= slot < self.slots:
            raise InputError(f"expected a slot of 0 to {self.slots - 1}, got {slot}")
        with self.settings.lock:
            for table, part in zip(self.tables, row, strict=True):
                self._rows[table.name][slot] = part

    def bind(self, shapes: Mapping[str, Sequence[int]]) -> PersonalBinding:
        """A binding for inputs of these shapes; `inputs[SLOTS]`, int64[rows], gives each row's slot. Its tables are
        those of this model: later writes apply to later calls. Raises Ungrouped, InputError."""
        key = tuple((value.name, tuple(shapes[value.name])) for value in self.face.inputs)
        with self.settings.lock:
            executor = self._executors.pop(key, None) or self._executor(shapes)
            while len(self._executors) >= PLANS:
                del self._executors[next(iter(self._executors))]
            self._executors[key] = executor
            given = {value.name: _zeros(value.dtype, shapes[value.name]) for value in self.face.inputs}
            rows = next(iter(given.values())).shape[0]
            return PersonalBinding({**given, SLOTS: _zeros("int64", (rows,))}, self._rows, executor)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs for these inputs, which include SLOTS, as fresh arrays. Raises Ungrouped, InputError."""
        binding = self.bind({name: array.shape for name, array in inputs.items()})
        for name, home in binding.inputs.items():
            home[...] = inputs[name]
        binding()
        return {name: array.copy() for name, array in binding.outputs.items()}

    def _executor(self, shapes: Mapping[str, Sequence[int]]) -> Executor:
        grouped = self._grouped(shapes)
        if grouped.tables != self.tables:
            raise Ungrouped(f"inputs of other shapes ({dict(shapes)}) need other tables")
        return Executor(grouped.graph, self.settings, held=frozenset(self._rows))

    def _grouped(self, shapes: Mapping[str, Sequence[int]]) -> Grouped:
        """Raises InputError for shapes that do not fit the signature."""
        zeros = {value.name: np.broadcast_to(_one(value.dtype), shapes[value.name]) for value in self.face.inputs}
        check_inputs(self.face, zeros)
        inputs = {value.name: Spec(value.dtype, tuple(shapes[value.name])) for value in self.face.inputs}
        specs = {port: self.specs[name] for port, name in self.reads.items()}
        return group(self.graph, specs, inputs, self.settings.limit)


def _one(dtype: str) -> Array:
    return np.zeros((), numpy_dtype(dtype))


def _zeros(dtype: str, shape: Sequence[int]) -> Array:
    """Zeros aligned to a cache line; the system allocates the memory when it is first written."""
    spec = Spec(dtype, tuple(shape))
    raw = np.zeros(spec.nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + spec.nbytes].view(numpy_dtype(dtype)).reshape(spec.shape)
