"""State between runs. ONNX graphs have no state, so each variable becomes an input and an output of the graph.

A variable that a graph reads is its input, in the stored type; one that it writes is its output, whose value is the
input of the next run. `States` collects this while a graph is built, `variables` joins the signatures of a file: a
bundle keeps these inputs and outputs as its state. The graph's metadata describe it for standard ONNX (`ir.kept`). A
variable that only the file's initialisation writes is a constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.loaded import Variables
from converter.frontends.tflite.model import Model
from converter.ir import build, kept
from lite_runtime.graph import Array, StateUse

__all__ = ["LARGEST", "Key", "States", "variables"]

LARGEST = 1 << 26
"""The most elements of a variable."""


class Key(NamedTuple):
    """A variable of a file: a resource, which all subgraphs share by its name, or a tensor of one subgraph."""

    name: str
    subgraph: int = -1
    tensor: int = -1


@dataclass
class _State:
    """A variable in one graph: its input if it was read before it was written, and its current value."""

    name: str
    input: ir.Value | None = None
    now: ir.Value | None = None
    output: ir.Value | None = None
    initial: Array | None = None
    """None for zeros."""


class States:
    """The variables of one graph under construction."""

    def __init__(self, model: Model, graph: ir.Graph, name: Callable[[str], str]) -> None:
        self._graph, self._name = graph, name
        self._states: dict[Key, _State] = {}
        self._initial: dict[Key, ir.Value] = {}
        self._initialising = False
        self._assigned = _assigned(model)

    def read(self, key: Key, dtype: ir.DataType, shape: Sequence[int], start: int = 0) -> ir.Value:
        """The value of a variable at this point of the run; before the first run, `start` everywhere."""
        state = self._states.get(key)
        if state is not None and state.now is not None:
            return state.now
        first = self._initial.get(key)
        if first is not None and key.subgraph < 0 and self._assigned is not None and key.name not in self._assigned:
            return first
        state = self._state(key)
        initial = np.asarray(start) if first is None and start else build.array(first)
        if first is not None and initial is None:
            raise ConvertError(
                f"variable {key.name!r}: expected a constant initial value, got a computed one of shape "
                f"{build.dims(first)}; freeze the variable, or start it with zeros"
            )
        sizes = list(shape) if initial is None or not initial.ndim else list(initial.shape)
        if prod(sizes) > LARGEST:
            raise ConvertError(f"variable {key.name!r}: expected at most {LARGEST} elements, got shape {sizes}")
        state.initial = initial
        state.input = ir.Value(name=state.name, type=ir.TensorType(dtype), shape=ir.Shape(sizes))
        self._graph.inputs.append(state.input)
        state.now = state.input
        return state.input

    def write(self, key: Key, value: ir.Value) -> None:
        """Assign `value` to a variable. Raises ConvertError inside a branch or loop."""
        if self._initialising:
            self._initial[key] = value
            return
        producer = value.producer()
        if producer is not None and producer.graph is not self._graph:
            raise ConvertError(
                f"variable {key.name!r} is written inside a branch or loop; pass it through the loop as a value instead"
            )
        state = self._state(key)
        state.now = state.output = value

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """Writes inside this context define initial values, before the first run."""
        self._initialising = True
        yield
        self._initialising = False

    def finish(self) -> None:
        """Append an output for every variable written, and the metadata."""
        for state in self._states.values():
            if state.now is None or state.output is None:
                continue
            shape = state.now.shape if state.input is None else state.input.shape
            output = ir.Value(name=self._name(f"{state.name}.next"), type=state.now.type, shape=shape)
            self._graph.append(ir.Node("", "Identity", [state.now], outputs=[output], name=output.name))
            self._graph.outputs.append(output)
            state.output = output
            if state.input is not None:
                kept.describe(self._graph, state.input.name or "", output.name or "", state.initial)

    def drop(self, key: Key) -> None:
        """Remove the output of a variable that no signature reads."""
        output = self._states[key].output
        if output is not None:
            self._graph.outputs.remove(output)

    @property
    def ends(self) -> Mapping[Key, tuple[ir.Value | None, ir.Value | None, Array | None]]:
        """Of each variable: the graph's input, its output, and the initial value (None for zeros)."""
        return {key: (state.input, state.output, state.initial) for key, state in self._states.items()}

    def _state(self, key: Key) -> _State:
        if key not in self._states:
            self._states[key] = _State(self._name(key.name))
        return self._states[key]


def variables(graphs: Mapping[str, States]) -> Variables:
    """The state of a file's signatures. A variable that one signature reads or writes and another one too is one state.

    Raises ConvertError for a variable whose type or shape differs between signatures.
    """
    found: dict[Key, tuple[ir.Value, Array | None]] = {}
    for key, (entry, left, initial) in ((k, e) for states in graphs.values() for k, e in states.ends.items()):
        value = entry or left
        if value is None:
            continue
        held, first = found.setdefault(key, (value, initial))
        if (held.dtype, held.shape) != (value.dtype, value.shape):
            raise ConvertError(
                f"variable {key.name!r}: expected {held.dtype}{build.dims(held)} in every signature, got "
                f"{value.dtype}{build.dims(value)}; convert one signature at a time"
            )
        found[key] = (held, initial if first is None else first)
    read = {key for states in graphs.values() for key, (entry, _, _) in states.ends.items() if entry is not None}
    for states in graphs.values():
        for key in states.ends.keys() - read:
            states.drop(key)
    names = _names([key for key in found if key in read])
    uses = {
        signature: StateUse(
            {e.name or "": names[key] for key, (e, _, _) in states.ends.items() if e is not None},
            {o.name or "": names[key] for key, (_, o, _) in states.ends.items() if o is not None and key in read},
        )
        for signature, states in graphs.items()
    }
    values = {names[key]: _filled(*found[key]) for key in names}
    return Variables({s: use for s, use in uses.items() if use.reads or use.writes}, values)


def _names(keys: Sequence[Key]) -> dict[Key, str]:
    """A state's name: the variable's own as far as a bundle can hold it, with the subgraph's number where several have
    the same, and with a number where they are of one subgraph."""
    own = {key: key.name[: build.LONGEST] or "state" for key in keys}
    shared, made = Counter(own.values()), dict[str, Key]()
    for key, name in own.items():
        wanted = name if shared[name] == 1 else f"{name}@{key.subgraph}"
        made[next(n for n in chain([wanted], (f"{wanted}.{i}" for i in count(1))) if n not in made)] = key
    return {key: name for name, key in made.items()}


def _filled(value: ir.Value, initial: Array | None) -> Array:
    """The initial value as an array of the variable's type and shape."""
    sizes = build.dims(value)
    if sizes is None or value.dtype is None or any(not isinstance(d, int) for d in sizes):
        raise ConvertError(f"variable {value.name!r}: expected a known shape, got {sizes}; give it a fixed shape")
    array: Array = np.zeros(tuple(d for d in sizes if isinstance(d, int)), value.dtype.numpy())
    if initial is not None:
        array[...] = initial
    return array


def _assigned(model: Model) -> frozenset[str] | None:
    """Variables assigned in runs, without initialisation; None if a handle's name is not known."""
    first = {
        o.options.get("init_subgraph_index") for s in model.subgraphs for o in s.operators if o.name == "CALL_ONCE"
    }
    found = set()
    for subgraph in model.subgraphs:
        if subgraph.index in first:
            continue
        handles = {
            output: str(o.options.get("shared_name", ""))
            for o in subgraph.operators
            if o.name == "VAR_HANDLE"
            for output in o.outputs[:1]
        }
        for operator in subgraph.operators:
            if operator.name == "ASSIGN_VARIABLE":
                handle = handles.get(next(iter(operator.inputs), -1))
                if handle is None:
                    return None
                found.add(handle)
    return frozenset(found)
