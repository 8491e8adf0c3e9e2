"""State between runs. ONNX graphs have no state, so each variable becomes an input and an output.

Variable "h" that a graph reads is its input "h", in the stored type; one that it writes is its output "h.next", which
the caller gives back as "h" in the next run. The graph's metadata "msedge.state" says so, as JSON:

    {"h": {"next": "h.next", "initial": null}}

`initial` null means zeros in the first run, one number that number everywhere (the zero point of a quantised state);
lists are values that the file's own initialisation assigns. A variable that only the initialisation writes is a
constant.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Model
from converter.ir import build

__all__ = ["METADATA", "States", "described"]

METADATA = "msedge.state"
_INITIAL_UP_TO = 65536
"""The most elements of an initial value that is written into the metadata."""


@dataclass
class _State:
    """A variable: its graph input if it was read before it was written, and its current value."""

    name: str
    input: ir.Value | None = None
    now: ir.Value | None = None
    written: bool = False
    initial: np.ndarray | None = None


class States:
    """The variables of one graph under construction."""

    def __init__(self, model: Model, graph: ir.Graph, name: Callable[[str], str]) -> None:
        self._graph, self._name = graph, name
        self._states: dict[str, _State] = {}
        self._initial: dict[str, ir.Value] = {}
        self._initialising = False
        self._assigned = _assigned(model)

    def read(self, key: str, dtype: ir.DataType, shape: Sequence[int | None], start: int = 0) -> ir.Value:
        """The value of variable `key` at this point of the run; before the first run, `start` everywhere."""
        state = self._states.get(key)
        if state is not None and state.now is not None:
            return state.now
        first = self._initial.get(key)
        if first is not None and self._assigned is not None and key not in self._assigned:
            return first
        state = self._state(key)
        state.input = ir.Value(name=state.name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        state.initial = np.asarray(start) if first is None and start else build.array(first)
        if first is not None and (state.initial is None or state.initial.size > _INITIAL_UP_TO):
            raise ConvertError(
                f"variable {key!r}: expected a constant initial value of at most {_INITIAL_UP_TO} elements, got "
                f" one of shape {build.dims(first)}; freeze the variable, or start it with zeros"
            )
        self._graph.inputs.append(state.input)
        state.now = state.input
        return state.input

    def write(self, key: str, value: ir.Value) -> None:
        """Assign `value` to variable `key`. Raises ConvertError inside a branch or loop."""
        if self._initialising:
            self._initial[key] = value
            return
        producer = value.producer()
        if producer is not None and producer.graph is not self._graph:
            raise ConvertError(
                f"variable {key!r} is written inside a branch or loop; pass it through the loop as a value instead"
            )
        state = self._state(key)
        state.now, state.written = value, True

    @contextmanager
    def initialising(self) -> Iterator[None]:
        """Writes inside this context define initial values, before the first run."""
        self._initialising = True
        yield
        self._initialising = False

    def finish(self) -> None:
        """Append an output for every variable written, and the metadata."""
        described = {}
        for state in self._states.values():
            if state.written and state.now is not None:
                output = ir.Value(name=self._name(f"{state.name}.next"), type=state.now.type, shape=state.now.shape)
                self._graph.append(ir.Node("", "Identity", [state.now], outputs=[output], name=output.name))
                self._graph.outputs.append(output)
                initial = None if state.initial is None else state.initial.tolist()
                described[state.name] = {"next": output.name, "initial": initial}
        if described:
            self._graph.metadata_props[METADATA] = json.dumps(described)

    def _state(self, key: str) -> _State:
        if key not in self._states:
            self._states[key] = _State(self._name(key))
        return self._states[key]


def described(models: Mapping[str, ir.Model]) -> dict[str, Any]:
    """`{"state": {signature: its graph's state metadata}}`, empty if no signature has state."""
    found = {key: model.graph.metadata_props.get(METADATA) for key, model in models.items()}
    states = {key: json.loads(text) for key, text in found.items() if text}
    return {"state": states} if states else {}


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
            o.outputs[0]: str(o.options.get("shared_name", "")) for o in subgraph.operators if o.name == "VAR_HANDLE"
        }
        for operator in subgraph.operators:
            if operator.name == "ASSIGN_VARIABLE":
                if operator.inputs[0] not in handles:
                    return None
                found.add(handles[operator.inputs[0]])
    return frozenset(found)
