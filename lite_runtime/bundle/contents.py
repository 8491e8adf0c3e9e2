"""The contents of a verified bundle. Imported when a bundle is read completely: a start with a cached program does not
need it.
"""

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
    """Position of a stored tensor in its section: the unit of delta updates. `digest` is that of its bytes, in hex.

    A tensor stored in the manifest itself has offset -1 and no digest.
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
    """Identifies the contents: BLAKE2b-256 over header and section table, which contains every section's digest; as if
    the file had no signatures."""
    sections: Mapping[str, Section]
    tensors: tuple[TensorRecord, ...]
    """The records of the `weights` section."""
    data: memoryview
    """The complete file, read-only."""
    state: Mapping[str, Array] = MappingProxyType({})
    """Initial values of the state that signatures keep between runs, by name."""
    uses: Mapping[str, StateUse] = MappingProxyType({})
    """By signature, the state it reads and writes; a signature without state is left out."""

    def at_first(self, signature: str) -> Graph:
        """A signature's graph with its initial state as constants, and without state among its inputs and outputs.
        Raises KeyError for an unknown name."""
        graph, use = self.signatures[signature], self.uses.get(signature)
        if use is None:
            return graph
        held = {name: self.state[state] for name, state in use.reads.items()}
        inputs, outputs = use.seen(graph)
        return graph.replace(inputs=inputs, outputs=outputs, constants={**graph.constants, **held})

    def section(self, name: str) -> memoryview:
        """The bytes of a section; raises KeyError for an unknown name."""
        return cut(self.data, self.sections[name])
