"""State of a source in its graph: which inputs and outputs are a variable that is kept between runs.

The graph's metadata "msedge.state" has it as JSON, so that a model exported as standard ONNX keeps it too:

    {"h": {"next": "h.next", "initial": null}}

Output "h.next" of a run is input "h" of the next. `initial` null means zeros in the first run, one number that number
everywhere (the zero point of a quantised state), lists are the values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from lite_runtime.graph import Array

__all__ = ["METADATA", "describe", "ends"]

METADATA = "msedge.state"
_LISTED_UP_TO = 65536
"""The most elements of an initial value that the metadata list."""


def describe(graph: ir.Graph, input: str, output: str, initial: Array | None) -> None:
    """Note that a run's `output` is the next run's `input`. initial: in the first run; None for zeros."""
    found = json.loads(graph.metadata_props.get(METADATA, "{}"))
    found[input] = {"next": output, "initial": _listed(initial)}
    graph.metadata_props[METADATA] = json.dumps(found)


def ends(graph: ir.Graph) -> frozenset[str]:
    """The names of the graph's inputs and outputs that are state."""
    found = json.loads(graph.metadata_props.get(METADATA, "{}"))
    return frozenset(found) | {entry["next"] for entry in found.values()}


def _listed(initial: Array | None) -> object:
    if initial is None or initial.size <= _LISTED_UP_TO:
        return None if initial is None else initial.tolist()
    return f"{initial.dtype}{list(initial.shape)}, not listed"
