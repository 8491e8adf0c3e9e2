"""Writes a bundle with other initial state: a model with what a device learned, as a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lite_runtime.bundle.layout import KNOWN, SIGNATURE
from lite_runtime.bundle.opening import Source
from lite_runtime.bundle.reading import read
from lite_runtime.bundle.refusal import refuse, show
from lite_runtime.bundle.writing import write
from lite_runtime.graph import Array

__all__ = ["with_state"]


def with_state(source: Source, state: Mapping[str, Array], provenance: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a bundle like `source` with the initial state `state`; state that it does not name is unchanged.

    Its provenance names the original bundle as `parent` (its digest), in addition to what `provenance` adds. Golden
    examples of signatures that read the changed state are dropped, because they describe the old state, and so are
    signatures of the file. Raises
    BundleError for state that `source` does not have, or of another dtype or shape.
    """
    held = read(source)
    for name in state:
        if name not in held.state:
            refuse("state", f"names of state of the bundle ({len(held.state)})", show(name), "use names of its state")
    changed = set(state)
    golden = {
        name: example
        for name, example in held.golden.items()
        if name not in held.uses or changed.isdisjoint(held.uses[name].reads.values())
    }
    return write(
        None,
        held.signatures,
        state={**held.state, **state},
        uses=held.uses,
        provenance={**held.provenance, **(provenance or {}), "parent": held.digest},
        metadata=held.metadata,
        golden=golden,
        extra={name: bytes(held.section(name)) for name in held.sections if name not in (*KNOWN, SIGNATURE)},
    )
