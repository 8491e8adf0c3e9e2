"""What a verified bundle holds. Loaded when one is read whole: a start that finds its program kept does without it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lite_runtime.bundle.layout import Section, cut
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Graph, StateUse

__all__ = ["Bundle", "Golden", "TensorRecord"]

Golden = Mapping[str, tuple[Mapping[str, Array], Mapping[str, Array]]]


class TensorRecord(NamedTuple):
    """Where a stored tensor lies in its section: the unit of delta updates. `digest` is of its bytes, in hex.

    One that stands in the manifest has offset -1 and no digest.
    """

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    digest: str


class Bundle(NamedTuple):
    """A verified bundle. Arrays are read-only views into the file, string tensors excepted."""

    signatures: Mapping[str, Graph]
    golden: Golden
    provenance: Mapping[str, Any]
    metadata: Mapping[str, Any]
    digest: str
    """Names the contents: BLAKE2b-256 over header and section table, which holds every section's own."""
    sections: Mapping[str, Section]
    tensors: tuple[TensorRecord, ...]
    """The records of the `weights` section."""
    data: memoryview
    """The whole file, read-only."""
    state: Mapping[str, Array] = MappingProxyType({})
    """What signatures keep between runs, by name: how it is at first."""
    uses: Mapping[str, StateUse] = MappingProxyType({})
    """By signature, what of that it reads and writes; a signature that uses none is left out."""

    def at_first(self, signature: str) -> Graph:
        """A signature's graph as a caller first meets it: state as the constants it begins with, and no part of inputs
        and outputs. KeyError where there is none of that name."""
        graph, use = self.signatures[signature], self.uses.get(signature)
        if use is None:
            return graph
        held = {name: self.state[state] for name, state in use.reads.items()}
        inputs, outputs = use.seen(graph)
        return graph.replace(inputs=inputs, outputs=outputs, constants={**graph.constants, **held})

    def section(self, name: str) -> memoryview:
        """The bytes of a section; KeyError where there is none of that name."""
        return cut(self.data, self.sections[name])
