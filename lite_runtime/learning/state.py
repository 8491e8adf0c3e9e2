"""State that a model keeps between runs: trained weights, optimiser slots, running statistics.

Every state has two arrays. A run reads one and writes the other; after a successful run they are swapped in one
assignment, so that a failed run changes nothing. Imported when a signature with state is first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, Spec, StateUse, dtype_name, numpy_dtype
from lite_runtime.running.executor import PLANS, Binding, Bound, Executor, Settings, address_of, aligned
from lite_runtime.running.inputs import Loaded, check_inputs
from lite_runtime.running.kept import Later, Origin, Sketch

if TYPE_CHECKING:
    from lite_runtime.bundle import Bundle
    from lite_runtime.learning.checkpoint import Checkpoint
    from lite_runtime.running.profiling import Profile

__all__ = ["StateBinding", "StateStore", "Stateful"]

PATIENCE, MOST_PATIENCE = 2, 64
"""Number of runs with unchanged state before weights are packed and folded, at first and at most. It is doubled every
time, so that a caller who alternates between reads and changes does not plan more often than it runs."""


class _Sides(NamedTuple):
    """The arrays that runs read, those that they write, and the addresses of both: int64[2, states]."""

    now: list[Array]
    then: list[Array]
    at: Array


class StateStore:
    """Named arrays that signatures share. Callers hold the model's lock."""

    def __init__(self, initial: Callable[[], Mapping[str, Array]], specs: Mapping[str, Spec], limit: int) -> None:
        self._make, self.specs, self._limit = initial, specs, limit
        self.version = 0
        """Number of state changes since the model was loaded."""
        self.busy = False
        """Whether a run that uses state is in progress."""
        self.watchers: list[Callable[[], None]] = []
        """Called once, before state changes."""
        self._own: set[int] = set()
        """Rows with two separate arrays; for the others `then` is `now`, which is as loaded and never written."""

    @cached_property
    def initial(self) -> Mapping[str, Array]:
        """State as loaded."""
        return self._make()

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """The row of each state, by name."""
        return {name: i for i, name in enumerate(self.specs)}

    @cached_property
    def sides(self) -> _Sides:
        """The arrays that runs read and write."""
        arrays = [self.initial[name] for name in self.specs]
        at = np.array([address_of(array) for array in arrays], np.int64)
        return _Sides(arrays, arrays.copy(), np.array([at, at]))

    def now(self, name: str) -> Array:
        """A state as runs read it; valid until the change after the next."""
        return self.sides.now[self.rows[name]]

    def prepare(self, rows: Sequence[int]) -> None:
        """Allocate separate arrays for these states, so that they can be written. Raises MsedgeError above the
        limit."""
        new = [row for row in rows if row not in self._own]
        if not new:
            return
        needed = 2 * sum(self.sides.now[row].nbytes for row in {*new, *self._own})
        if needed > self._limit:
            raise MsedgeError(
                f"the state of this model takes {needed} bytes, the limit is {self._limit}; load it with a higher limit"
            )
        now, then, at = self.sides.now.copy(), self.sides.then.copy(), self.sides.at.copy()
        for row in new:
            held = now[row]
            now[row], then[row] = _like(held), _like(held)
            now[row][...] = held
            at[:, row] = address_of(now[row]), address_of(then[row])
        self.sides = _Sides(now, then, at)
        self._own.update(new)

    def swap(self, rows: Sequence[int], index: Array) -> None:
        """Make the written arrays the current ones. `index` is `rows` as an array."""
        self.changes()
        now, then, at = self.sides
        if len(rows) == len(now):
            self.sides = _Sides(then, now, at[::-1])
            return
        now, then, at = now.copy(), then.copy(), at.copy()
        for row in rows:
            now[row], then[row] = then[row], now[row]
        at[:, index] = at[::-1, index]
        self.sides = _Sides(now, then, at)

    def changes(self) -> None:
        """Announce that state is about to change."""
        self.version += 1
        while self.watchers:
            self.watchers.pop()()

    def put(self, values: Mapping[str, Array]) -> None:
        """Replace these states: all of them or, if one does not fit, none. Raises InputError."""
        self.must_rest()
        if values:
            self.replace(values)

    def must_rest(self) -> None:
        """Raise InputError inside a run that uses state."""
        if self.busy:
            raise InputError("state cannot be changed inside a run that uses it; wait until that run has finished")

    def replace(self, values: Mapping[str, Array]) -> None:
        """Like `put`, but also allowed inside a run."""
        check_state(self.specs, values)
        rows = [self.rows[name] for name in values]
        self.prepare(rows)
        for row, value in zip(rows, values.values(), strict=True):
            self.sides.then[row][...] = value
        self.swap(rows, np.array(rows, np.intp))


def loaded(held: Bundle | Sketch, given: Mapping[str, Array] | str | os.PathLike[str]) -> Loaded:
    """A model's initial state, from arrays or a state file. Raises InputError if it does not fit the model."""
    if not isinstance(given, Mapping):
        from lite_runtime.learning import checkpoint

        found = checkpoint.read(given)
        named(found, os.fspath(given), held.digest, check_state, specs_of(held), found.state, True)
        return (lambda: found.state), found.digest
    specs = specs_of(held)
    check_state(specs, given, strict=True)
    copies = {name: np.array(given[name], order="C") for name in specs}
    return (lambda: copies), None


def named(found: Checkpoint, path: str, model: str, call: Callable[..., None], *args: Any) -> None:
    """`call(*args)`; errors are prefixed with the origin of the state."""
    try:
        call(*args)
    except InputError as error:
        other = "" if found.model == model else f", saved from another model ({found.model[:16]}…)"
        raise InputError(f"{path!r}{other}: {error}") from None


def check_finite(state: Mapping[str, Array]) -> None:
    """Raise InputError if a float state contains NaN or an infinity."""
    if spoiled := [name for name, array in state.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]:
        raise InputError(
            f"state: expected finite numbers, got others in {_shown(spoiled)}: a step produced them, because of"
            " its inputs or learning rate; return to a saved state (load_state) or to the initial one (reset_state)"
        )


def specs_of(held: Bundle | Sketch) -> Mapping[str, Spec]:
    """Dtype and shape of each state, by name."""
    if isinstance(held, Sketch):
        return held.specs
    return {name: Spec(dtype_name(array.dtype), array.shape) for name, array in held.state.items()}


def check_state(specs: Mapping[str, Spec], given: Mapping[str, Any], strict: bool = False) -> None:
    """Raise InputError unless `given` holds only states of `specs`, each with its dtype and shape; strict: all of
    them."""
    missing = [name for name in specs if name not in given] if strict else []
    if missing:
        raise InputError(
            f"state: expected all {len(specs)}, got none for {_shown(missing)}; add them, or load with strict=False"
        )
    for name, value in given.items():
        if name not in specs:
            raise InputError(f"no state {name!r}; this model has {_shown(list(specs))}")
        want = specs[name]
        fits = hasattr(value, "dtype") and (value.dtype, value.shape) == (numpy_dtype(want.dtype), want.shape)
        if not fits:
            got = f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
            raise InputError(
                f"state {name!r}: expected {want.dtype}{list(want.shape)}, got {got}; pass arrays like those of"
                " state_dict()"
            )


def _shown(names: Sequence[str]) -> str:
    """Names for an error message, limited to a screenful."""
    shown = ", ".join(names[:20])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 20 else shown or "none"


def _like(array: Array) -> Array:
    """Uninitialised memory for such an array, aligned to a cache line."""
    return aligned(array.nbytes).view(array.dtype).reshape(array.shape)


class _Ports(NamedTuple):
    """A plan, and which of its bases correspond to which states."""

    bound: Bound
    read_bases: Array
    read_rows: Array
    write_bases: Array
    write_rows: Array


class Stateful:
    """A signature that uses state. Callers hold the model's lock.

    A signature that writes no state is planned with state as constants once the state has not changed for a while: its
    weights are then packed and folded like ordinary ones. Until then, and if state is written, state is an input of the
    program, read and written in place.
    """

    def __init__(
        self,
        graph: Graph,
        use: StateUse,
        store: StateStore,
        settings: Settings,
        origins: tuple[Origin, Origin | None],
        seen: MutableMapping[str, list[Bound]],
    ) -> None:
        """origins: where programs are cached that take state as an input, and those for state as loaded (None: not
        cached). seen: the model's plans by signature; plans with state as constants are listed there while they are
        valid."""
        self.graph, self.use, self._store, self.settings = graph, use, store, settings
        self._origin, self._loaded = origins
        self._seen = seen
        self.face = face(graph, use)
        self._running = Executor(graph, settings, self._origin, frozenset((*use.reads, *use.writes)))
        self._ports: list[_Ports] = []
        self._writes = [store.rows[name] for name in use.writes.values()] if use.writes else []
        self._folded: Executor | None = None
        self._patience = PATIENCE
        self._version, self._still_runs = 0, 0

    def step(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One run; returns the outputs that are not state. If it succeeds, the values it wrote become the state."""
        if self._stands_still():
            return self._run_folded(inputs)
        for ports in self._ports:
            if ports.bound.takes(inputs):
                return self._run(ports, inputs)
        given = check_inputs(self.face, inputs)
        return self._run(self._planned(given), given)

    def run(self, given: Mapping[str, Any], profile: Profile | None = None) -> dict[str, Any]:
        """The result of `step` without changing the state."""
        if not self.use.writes:
            return self._fold().run(given, profile)
        return self._run(self._planned(given), given, profile, keep=False)

    def parts(self, given: Mapping[str, Any]) -> Iterator[Bound]:
        """The plans that `run` executes, without those of nested graphs."""
        if not self.use.writes:
            return self._fold().parts(given)
        return self._running.parts(self._with_state(given))

    # -- state as constants --------------------------------------------------------------------------------------------

    def _stands_still(self) -> bool:
        if self._folded is not None:
            return True
        version = self._store.version
        if self.use.writes:
            return False
        if version != self._version:
            self._version, self._still_runs = version, 0
        self._still_runs += 1
        return version == 0 or self._still_runs > self._patience

    def _run_folded(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        executor = self._fold()
        given = check_inputs(self.face, inputs)
        executor.settings.iterated = 0
        results = executor.run(given)
        bound = executor.bound(given)
        seen = self._seen.get(self._origin.signature, [])
        if executor is self._folded and bound not in seen:
            self._seen[self._origin.signature] = [bound, *seen][:PLANS]
        return results

    def _fold(self) -> Executor:
        """The signature with the current state as constants."""
        if self._folded is None:
            loaded = self._store.version == 0
            if not loaded:
                self._patience = min(2 * self._patience, MOST_PATIENCE)
                held = {name: self._store.now(state).copy() for name, state in self.use.reads.items()}

            def make() -> Graph:
                base = self.graph if loaded else self._running.folded
                values = {n: self._store.initial[s] for n, s in self.use.reads.items()} if loaded else held
                return Graph(self.face.inputs, self.face.outputs, base.nodes, {**base.constants, **values}, base.name)

            graph = Later(self.face.inputs, self.face.outputs, make)
            self._folded = Executor(graph, self.settings.apart(), self._loaded if loaded else None)
            self._store.watchers.append(self._forget)
        return self._folded

    def _forget(self) -> None:
        self._folded = None
        self._seen.pop(self._origin.signature, None)

    # -- state as an input ---------------------------------------------------------------------------------------------

    def _with_state(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, **{name: self._store.now(state) for name, state in self.use.reads.items()}}

    def _planned(self, given: Mapping[str, Any]) -> _Ports:
        """The plan for checked inputs of these types. Raises MsedgeError if it would write a value that is not
        state."""
        for ports in self._ports:
            if ports.bound.takes(given):
                return ports
        bound = self._running.bound(self._with_state(given))
        made = bound.plan
        for name, state in self.use.writes.items():
            want = self._store.specs[state]
            got = made.where[name][2] if name in made.outputs else want
            if got != want:
                raise MsedgeError(f"state {state!r}: expected {want}, got a new value {got}; convert the model again")
        rows = self._store.rows
        reads = [(made.inputs[name], rows[state]) for name, state in self.use.reads.items() if name in made.inputs]
        writes = [(made.outputs[name], rows[state]) for name, state in self.use.writes.items() if name in made.outputs]
        ports = _Ports(bound, *_columns(reads), *_columns(writes))
        self._ports = [ports, *self._ports][:PLANS]
        return ports

    def _run(
        self, ports: _Ports, inputs: Mapping[str, Any], profile: Profile | None = None, keep: bool = True
    ) -> dict[str, Any]:
        store, bound = self._store, ports.bound
        outer = store.busy
        if self._writes:
            store.must_rest()
        if bound.running:  # inside a run of the same plan, e.g. from a signal handler: each needs its own memory
            bound = Bound(bound.plan, bound.executor)
        store.busy = True
        try:
            if self._writes:
                store.prepare(self._writes)
            if not bound.direct:
                return self._run_in_parts(bound, inputs, profile, keep)
            at = store.sides.at
            bound.bases[ports.read_bases] = at[0, ports.read_rows]
            bound.bases[ports.write_bases] = at[1, ports.write_rows]
            results = bound.run(inputs, profile)
            if keep and self._writes:
                store.swap(self._writes, ports.write_rows)
            return results
        finally:
            store.busy = outer

    def _run_in_parts(
        self, bound: Bound, inputs: Mapping[str, Any], profile: Profile | None, keep: bool
    ) -> dict[str, Any]:
        """A run of several native calls. State is passed as copies, because results may be views of it."""
        self.settings.iterated = 0
        given = {name: array.copy() for name, array in self._with_state({}).items()}
        everything = bound.run({**inputs, **given}, profile)
        if keep and self._writes:
            self._store.replace({state: everything[name] for name, state in self.use.writes.items()})
        return {value.name: everything[value.name] for value in self.face.outputs}


def face(graph: Graph, use: StateUse) -> Graph:
    """A graph as its caller sees it: inputs and outputs that are not state; no nodes."""
    return Graph(*use.seen(graph), (), MappingProxyType({}))


def _columns(pairs: Sequence[tuple[int, int]]) -> Array:
    """A list of pairs as two arrays."""
    return np.array(pairs, np.intp).reshape(-1, 2).T.copy()


class StateBinding(Binding):
    """A binding of a signature that uses state: each call is a step and stores new arrays in `outputs`."""

    def __init__(self, inputs: dict[str, Array], stateful: Stateful) -> None:
        self.inputs, self.outputs, self.fixed = inputs, {}, False
        self._stateful, self._lock = stateful, stateful.settings.lock

    def __call__(self) -> None:
        """Compute `outputs` from `inputs` and state, and replace state."""
        with self._lock:
            self.outputs = self._stateful.step(self.inputs)
