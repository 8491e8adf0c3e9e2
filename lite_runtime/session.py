"""The model a program holds: load a bundle, run its signatures, ask what they cost."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lite_runtime import build, bundle
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.executor import PLANS, Bound, Executor, Profile, Settings
from lite_runtime.graph import Array, Graph, Value, dtype_name

__all__ = ["BACKENDS", "Cost", "Model", "Row", "load"]

BACKENDS = ("auto", "native", "reference", "guard")
"""auto: native where this machine can; guard: native with every buffer against a forbidden page (for tests)."""


class Row(NamedTuple):
    """Time of one piece of a program: `node` says which operators it computes, `kernel` what computed them."""

    node: str
    kernel: str
    seconds: float
    """Mean over runs."""


class Cost(NamedTuple):
    """What a run with given input types takes: bytes of arena, native records, nodes by what runs them."""

    arena_bytes: int
    steps: int
    native: int
    reference: tuple[str, ...]
    """Operators of the nodes that only their references compute."""


class Model:
    """A loaded bundle. Safe to call from several threads: runs take turns."""

    def __init__(self, held: bundle.Bundle, settings: Settings) -> None:
        self.bundle = held
        self._settings = settings
        self._executors: dict[str, Executor] = {}
        self._seen: dict[tuple[Any, ...], Bound] = {}
        """Plans of inputs that were checked before, by their names and types."""

    @property
    def signatures(self) -> tuple[str, ...]:
        """Names of what this model can do."""
        return tuple(self.bundle.signatures)

    def inputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """The signature's inputs: name, dtype, shape with symbolic sizes."""
        return self._graph(signature).inputs

    def outputs(self, signature: str = "predict") -> tuple[Value, ...]:
        """The signature's outputs."""
        return self._graph(signature).outputs

    def run(self, inputs: Mapping[str, Any], signature: str = "predict") -> dict[str, Array]:
        """Compute a signature. Outputs are fresh arrays. Raises InputError for inputs that do not fit."""
        key = _key(signature, inputs)
        bound = self._seen.get(key) if key is not None else None
        with self._settings.lock:
            self._settings.iterated = 0
            if bound is not None:
                return bound.run(inputs)
            given = check_inputs(self._graph(signature), inputs)
            executor = self._executor(signature)
            outputs = executor.run(given)
            if key is not None:
                if len(self._seen) >= PLANS:
                    self._seen.clear()
                self._seen[key] = executor.bound(given)
            return outputs

    def profile(self, inputs: Mapping[str, Any], signature: str = "predict", repeats: int = 10) -> list[Row]:
        """Mean time of every piece over `repeats` runs, in order of execution; the first run is not counted."""
        executor, given = self._executor(signature), check_inputs(self._graph(signature), inputs)
        executor.run(given)
        profile = Profile()
        for _ in range(max(repeats, 1)):
            executor.run(given, profile)
        return [Row(node, kernel, total / max(repeats, 1)) for (node, kernel), (total, _) in profile.rows.items()]

    def cost(self, inputs: Mapping[str, Any], signature: str = "predict") -> Cost:
        """What a run takes; plans it, and runs it where a later part waits for values."""
        executor, given = self._executor(signature), check_inputs(self._graph(signature), inputs)
        arena, steps, native, reference = 0, 0, 0, []
        executor.run(given)
        for part in executor.parts(given):
            arena = max(arena, part.arena_bytes)
            steps += len(part.records)
            native += sum(len(step.nodes) for step in part.steps if step.end)
            reference += [step.nodes[0].op for step in part.steps if not step.end] + [n.op for n in part.frontier]
        return Cost(arena, steps, native, tuple(reference))

    def _graph(self, signature: str) -> Graph:
        if signature not in self.bundle.signatures:
            raise InputError(f"no signature {signature!r}; this model has {', '.join(self.bundle.signatures)}")
        return self.bundle.signatures[signature]

    def _executor(self, signature: str) -> Executor:
        if signature not in self._executors:
            self._executors[signature] = Executor(self._graph(signature), self._settings)
        return self._executors[signature]


def load(
    source: str | os.PathLike[str] | bytes | memoryview,
    *,
    threads: int = 1,
    backend: str = "auto",
    limit: int = 4 << 30,
    iterations: int = 100_000,
) -> Model:
    """Open a bundle.

    source: a path (mapped, not read), or the file's bytes. threads: workers that share one inference, this one counted.
    backend: one of BACKENDS. limit: bytes one inference may hold. iterations: loop bodies one inference may run.
    Raises BundleError for a file that is none.
    """
    if backend not in BACKENDS:
        raise InputError(f"expected a backend of {', '.join(BACKENDS)}, got {backend!r}")
    if not isinstance(threads, int) or not 1 <= threads <= 256:
        raise InputError(f"expected 1 to 256 threads, got {threads!r}")
    native = backend != "reference" and (backend != "auto" or build.available())
    if native and not build.available():
        raise MsedgeError(
            "native kernels are not kept on this machine and cannot be compiled: pip install 'msedge[jit]',"
            " or load with backend='reference'"
        )
    held = bundle.read(source)
    return Model(
        held, Settings(threads=threads, native=native, guard=backend == "guard", limit=limit, iterations=iterations)
    )


def _key(signature: str, inputs: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Names and types of inputs that are all plain, aligned arrays; None otherwise."""
    parts: list[Any] = [signature]
    for name, array in inputs.items():
        if (
            type(array) is not np.ndarray
            or not array.flags.aligned
            or array.dtype.hasobject
            or not array.dtype.isnative
        ):
            return None
        parts += name, array.dtype, array.shape
    return tuple(parts)


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as arrays in machine order, checked against the graph's."""
    names = [v.name for v in graph.inputs]
    if set(inputs) != set(names):
        missing, unknown = sorted(set(names) - set(inputs)), sorted(set(inputs) - set(names))
        parts = [f"missing {', '.join(missing)}"] * bool(missing) + [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise InputError(f"inputs: {'; '.join(parts)}; this signature takes {', '.join(map(_describe, graph.inputs))}")
    sizes: dict[str, int] = {}
    return {v.name: _check(v, inputs[v.name], sizes) for v in graph.inputs}


def _describe(value: Value) -> str:
    shape = "any rank" if value.shape is None else ", ".join("?" if d is None else str(d) for d in value.shape)
    return f"{value.name}: {value.dtype}[{shape}]"


def _check(value: Value, given: Any, sizes: dict[str, int]) -> Any:
    if value.kind != "tensor":
        return given
    array = np.asarray(given)
    if not array.flags.aligned or not array.dtype.isnative:
        array = np.require(array, array.dtype.newbyteorder("="), "A")
    got = dtype_name(array.dtype) if array.dtype.kind in "biufcOUSTV" else str(array.dtype)
    if got != value.dtype:
        raise InputError(f"input {_describe(value)}: got dtype {got}; convert it with .astype('{value.dtype}')")
    if value.dtype == "string":
        array = array.astype(object)
    if value.shape is None:
        return array
    if array.ndim != len(value.shape):
        raise InputError(f"input {_describe(value)}: expected rank {len(value.shape)}, got shape {list(array.shape)}")
    for want, size in zip(value.shape, array.shape, strict=True):
        fixed = sizes.setdefault(want, size) if isinstance(want, str) else want
        if fixed is not None and fixed != size:
            because = f" ({want} is {fixed} in an earlier input)" if isinstance(want, str) else ""
            raise InputError(f"input {_describe(value)}: got shape {list(array.shape)}{because}")
    return array
