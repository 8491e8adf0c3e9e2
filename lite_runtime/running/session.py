"""A loaded model: load a bundle, run its signatures, measure their cost."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_runtime import bundle
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Graph, Value, numpy_dtype
from lite_runtime.native import build
from lite_runtime.running import kept
from lite_runtime.running.executor import PLANS, Binding, Bound, Executor, Settings, aligned
from lite_runtime.running.inputs import Loaded, check_inputs
from lite_runtime.running.kept import Origin, Sketch

if TYPE_CHECKING:
    from lite_runtime.calibration.confidence import Confidence
    from lite_runtime.calibration.description import Calibration
    from lite_runtime.learning.state import Stateful, StateStore
    from lite_runtime.native.tuning import Choices
    from lite_runtime.running.profiling import Cost, Profile, Row, Span

__all__ = ["BACKENDS", "Binding", "Model", "load"]

BACKENDS = ("auto", "native", "reference", "guard")
"""auto: native if this machine supports it; guard: native with every buffer next to a guard page (for tests)."""


class Model:
    """A loaded bundle. Safe to call from several threads: runs exclude each other."""

    def __init__(
        self,
        held: bundle.Bundle | Sketch,
        settings: Settings,
        loaded: Loaded | None = None,
        explicit: Collection[str] = (),
    ) -> None:
        self._held = held
        self._uses = {name: use for name, use in held.uses.items() if name not in explicit}
        self._settings, self._lock = settings, settings.lock
        self._executors: dict[str, Executor] = {}
        self._seen: dict[str, list[Bound]] = {}
        """By signature, the plans for inputs that were checked before."""
        self._stateful: dict[str, Stateful] = {}
        self._loaded: Loaded = loaded or ((lambda: held.state), "")

    @cached_property
    def bundle(self) -> bundle.Bundle:
        """The contents of the file."""
        return self._held if isinstance(self._held, bundle.Bundle) else bundle.read(self._held.data)

    @property
    def choices(self) -> Choices:
        """The choices that plans made among several ways to compute steps: see `lite_runtime.native.tuning`."""
        return self._settings.choices

    @property
    def signatures(self) -> tuple[str, ...]:
        """Names of the model's signatures."""
        return tuple(self._held.signatures)

    def inputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """The signature's inputs, without state: name, dtype, shape with symbolic sizes."""
        return self._graph(signature).inputs

    def outputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """The signature's outputs, without state."""
        return self._graph(signature).outputs

    def run(self, inputs: Mapping[str, Any], signature: str = "predict") -> dict[str, Array]:
        """Run a signature. Outputs are fresh arrays. Raises InputError for inputs that do not match.

        A signature with state reads the state that the last run left; if the run succeeds, the values it writes become
        the state.
        """
        with self._lock:
            seen = self._seen.get(signature, ())
            for bound in seen:
                if bound.small:
                    results = bound.attempt(inputs)
                    if results is not None:
                        return results
                elif bound.takes(inputs):
                    if not bound.direct:
                        bound.executor.settings.iterated = 0
                    return bound.run(inputs)
            if signature in self._uses:
                return self._with_state(signature).step(inputs)
            self._settings.iterated = 0
            given = check_inputs(self._graph(signature), inputs)
            executor = self._executor(signature)
            outputs = executor.run(given)
            bound = executor.bound(given)
            if bound not in seen:
                self._seen[signature] = [bound, *seen][:PLANS]
            return outputs

    def explicit(self, signatures: Collection[str]) -> Model:
        """The same bundle as a model whose `signatures` keep no state: what they read is among their inputs, and what
        they write among their outputs.

        For a caller that holds the state itself, such as a server of many streams. Raises InputError for an unknown
        signature.
        """
        for name in signatures:
            self._graph(name)
        return Model(self._held, self._settings, self._loaded, signatures)

    def bind(
        self,
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        signature: str = "predict",
        arrays: Mapping[str, Array] = MappingProxyType({}),
    ) -> Binding:
        """A signature with its own arrays, for loops that run often: 0.4 µs per call in addition to the kernels' time.

        shapes: of inputs with open sizes; by default unknown sizes are 1. Inputs are initially zero. arrays: inputs in
        the caller's memory, which several bindings may share, and which operators that work in place change. Raises
        InputError for shapes and arrays that do not match, and for inputs that are not tensors.
        """
        graph = self._graph(signature)
        others = [v.name for v in graph.inputs if v.kind != "tensor"]
        if others:
            raise InputError(f"expected inputs that are tensors, got {', '.join(others)}; use run")
        with self._lock:
            if unknown := set(arrays).difference(v.name for v in graph.inputs):
                raise InputError(f"arrays: this signature has no inputs {', '.join(sorted(unknown))}")
            held = {v.name: arrays[v.name] if v.name in arrays else _zeros(v, shapes.get(v.name)) for v in graph.inputs}
            given = check_inputs(graph, held)
            if copied := [name for name, array in arrays.items() if given[name] is not array]:
                raise InputError(
                    f"arrays: expected aligned arrays of the machine's byte order, got others for {', '.join(copied)}"
                )
            if signature not in self._uses:
                return Binding(given, self._executor(signature))
            from lite_runtime.learning.state import StateBinding

            return StateBinding(given, self._with_state(signature))

    def profile(
        self, inputs: Mapping[str, Any], signature: str = "predict", repeats: int = 10, between: int = 0
    ) -> list[Row]:
        """Mean time of every step over `repeats` runs, in order of execution; the first run is not counted. State does
        not change. between: ordinary runs before each timed one, for times of a model that runs all the time.

        Timed by the processor's counter in native code: nothing else runs between steps than in ordinary runs.
        """
        from lite_runtime.running.profiling import Row

        repeats = max(repeats, 1)
        rows: dict[tuple[str, str], list[float]] = {}
        for piece in self._profile(inputs, signature, repeats, between).pieces:
            row = rows.setdefault((piece.node, piece.kernel), [0.0, 0, 0])
            row[0] += max(end - start for _, start, end in piece.times)
            row[1] += piece.record.operations if piece.record is not None else 0
            row[2] += piece.record.bytes if piece.record is not None else 0
        return [
            Row(node, kernel, total / repeats, int(count / repeats), int(nbytes / repeats))
            for (node, kernel), (total, count, nbytes) in rows.items()
        ]

    def trace(self, inputs: Mapping[str, Any], signature: str = "predict") -> list[Span]:
        """The begin and end of each step on each worker in one run, in seconds since the start of the run."""
        return self._profile(inputs, signature, 1).spans()

    def _profile(self, inputs: Mapping[str, Any], signature: str, repeats: int, between: int = 0) -> Profile:
        executor, given = self._rehearsed(signature), check_inputs(self._graph(signature), inputs)
        from lite_runtime.running.profiling import Profile

        profile = Profile()
        with self._lock:
            for i in range(repeats + 1):
                for j in range(between + 1):
                    executor.settings.iterated = 0
                    executor.run(given, profile if i and j == between else None)
        return profile

    def cost(self, inputs: Mapping[str, Any], signature: str = "predict") -> Cost:
        """The cost of a run; plans it, and runs it if a later part depends on values."""
        from lite_runtime.running.profiling import Cost

        executor, given = self._rehearsed(signature), check_inputs(self._graph(signature), inputs)
        arena, steps, native, reference = 0, 0, 0, []
        with self._lock:
            executor.settings.iterated = 0
            executor.run(given)
            parts = list(executor.parts(given))
        for part in parts:
            arena = max(arena, part.plan.arena_bytes)
            steps += len(part.plan.records)
            native += sum(len(step.nodes) for step in part.plan.steps) + len(part.plan.frontier) - len(part.reference)
            reference += [node.op for node in part.reference]
        return Cost(arena, steps, native, tuple(reference))

    @cached_property
    def calibration(self) -> Calibration | None:
        """The calibration in the bundle; None if it has none. Raises BundleError if it is malformed or not of this
        bundle's contents: a model runs nevertheless."""
        from lite_runtime.calibration.description import calibration_of, check_outputs

        found = calibration_of(self._held.data)
        if found is not None:
            check_outputs(found, self._held.signatures)
        return found

    def confidence(self, outputs: Mapping[str, Array]) -> Confidence:
        """Calibrated probabilities of a run's outputs, and whether its inputs are out of distribution.

        outputs: of the signature that the bundle's calibration names. Changed state is not considered: the figures are
        those of the bundle. Raises InputError for a bundle without calibration and outputs that do not fit,
        BundleError as `calibration`.
        """
        if self.calibration is None:
            raise InputError("this bundle has no calibration; fit one with cloud.audit.fit_calibration")
        from lite_runtime.calibration.confidence import confidence

        return confidence(self.calibration, outputs)

    @property
    def state_version(self) -> int:
        """Number of state changes since the model was loaded."""
        with self._lock:
            return self._store.version

    def state_dict(self) -> dict[str, Array]:
        """Copies of all state, by name."""
        with self._lock:
            return {name: self._store.now(name).copy() for name in self._store.rows}

    def load_state_dict(self, state: Mapping[str, Array], strict: bool = True) -> None:
        """Replace state by these arrays: all of them or, if one does not fit, none.

        strict: every state must be given; otherwise states may be left out and keep their values. Raises InputError for
        names that are missing or unknown and for arrays of another dtype or shape.
        """
        with self._lock:
            from lite_runtime.learning.state import check_state

            check_state(self._store.specs, state, strict)
            self._store.put(state)

    def save_state(self, path: str | os.PathLike[str], metadata: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Write all state to a file atomically: after a power failure there is either the old file or the new one.

        metadata: plain values stored with it. Raises BundleError for a path that cannot be written, InputError for
        state that is not finite, so that one bad example does not overwrite in that file what was learned before.
        """
        from lite_runtime.learning import checkpoint
        from lite_runtime.learning.state import check_finite

        state = self.state_dict()
        check_finite(state)
        checkpoint.write(path, state, self._held.digest, metadata)

    def load_state(self, path: str | os.PathLike[str], strict: bool = True) -> Mapping[str, Any]:
        """Replace state by the contents of a file, as `load_state_dict` does; returns the metadata given to
        `save_state`.

        A file of another model is accepted if its names, dtypes and shapes are the same. Raises BundleError for a file
        that is not a state file, InputError for one that does not fit.
        """
        from lite_runtime.learning import checkpoint
        from lite_runtime.learning.state import named

        found = checkpoint.read(path)
        named(found, os.fspath(path), self._held.digest, self.load_state_dict, found.state, strict)
        return found.metadata

    def reset_state(self) -> None:
        """Reset state to its values when the model was loaded."""
        with self._lock:
            self._store.put(self._store.initial)

    @cached_property
    def _store(self) -> StateStore:
        from lite_runtime.learning.state import StateStore, specs_of

        return StateStore(self._loaded[0], specs_of(self._held), self._settings.limit)

    def _graph(self, signature: str) -> Graph:
        if signature not in self._held.signatures:
            raise InputError(f"no signature {signature!r}; this model has {', '.join(self._held.signatures)}")
        return self._with_state(signature).face if signature in self._uses else self._held.signatures[signature]

    def _executor(self, signature: str) -> Executor:
        if signature not in self._executors:
            origin = Origin(self._held.data, signature)
            self._executors[signature] = Executor(self._graph(signature), self._settings, origin)
        return self._executors[signature]

    def _rehearsed(self, signature: str) -> Executor | Stateful:
        """The executor of a signature in a form without side effects on state."""
        return self._with_state(signature) if signature in self._uses else self._executor(signature)

    def _with_state(self, signature: str) -> Stateful:
        with self._lock:
            if signature not in self._stateful:
                from lite_runtime.learning.state import Stateful

                held, (_, name) = self._held, self._loaded
                graph, use = held.signatures[signature], self._uses[signature]
                origins = (
                    Origin(held.data, signature),
                    None if name is None else Origin(held.data, signature, name),
                )
                self._stateful[signature] = Stateful(graph, use, self._store, self._settings, origins, self._seen)
            return self._stateful[signature]


def load(
    source: str | os.PathLike[str] | bytes | memoryview,
    *,
    threads: int = 1,
    backend: str = "auto",
    limit: int = 4 << 30,
    iterations: int = 100_000,
    choices: Mapping[str, str] | None = None,
    state: Mapping[str, Array] | str | os.PathLike[str] | None = None,
    trust: Sequence[str | os.PathLike[str]] = (),
) -> Model:
    """Open a bundle.

    source: a path (mapped, not read), or the file's bytes. threads: the greatest number of workers for one inference,
    including the calling thread; as many take part as the inference gains from. backend: one of BACKENDS. limit: memory
    limit of one inference in bytes. iterations: greatest number of loop bodies in one inference. choices: options by
    key (`lite_runtime.native.tuning`), instead of this machine's tuning. state: complete initial state instead of the
    bundle's: arrays by name, or the path of a file that `Model.save_state` wrote. trust: files of public keys, one of
    which must have signed the bundle (needs `cryptography`); empty: any bundle. Raises BundleError for a file that is
    not a bundle, InputError for state of another model, MsedgeError for a bundle that no trusted key has signed.
    """
    if backend not in BACKENDS:
        raise InputError(f"expected a backend of {', '.join(BACKENDS)}, got {backend!r}")
    if not isinstance(threads, int) or not 1 <= threads <= 256:
        raise InputError(f"expected 1 to 256 threads, got {threads!r}")
    native = backend != "reference" and (backend != "auto" or build.available())
    if native and not build.available():
        raise MsedgeError(
            f"this machine has no compiled native kernels and cannot compile them: {build.remedy()}, or load with"
            " backend='reference'"
        )
    held = kept.read(source) if native else bundle.read(source)
    if trust:
        from lite_runtime.bundle import keys

        keys.check(bundle.opened(held.data), [keys.public_key(path) for path in trust], time.time())
    settings = Settings(
        threads=threads,
        native=native,
        guard=backend == "guard",
        limit=limit,
        iterations=iterations,
        choices=choices,
    )
    if state is None:
        return Model(held, settings)
    from lite_runtime.learning.state import loaded

    return Model(held, settings, loaded(held, state))


def _zeros(value: Value, shape: Sequence[int] | None) -> Array:
    """An input of that shape (unknown sizes are 1 if no shape is given), aligned to a cache line."""
    sizes = tuple(d if isinstance(d, int) else 1 for d in value.shape or ()) if shape is None else tuple(shape)
    dtype = numpy_dtype(value.dtype)
    if dtype.hasobject:
        return np.full(sizes, "", dtype)
    home = aligned(dtype.itemsize * prod(sizes))
    home[...] = 0
    return home.view(dtype).reshape(sizes)
