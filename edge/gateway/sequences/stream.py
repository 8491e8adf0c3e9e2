"""What a signature keeps between the requests of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lite_runtime.graph import Array, StateUse

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["Stream", "streams_of"]

_LEARNING = frozenset(("train_step", "gradients"))
"""Signatures of a bundle that learns: the state that they write is the model itself, and belongs to no sequence."""


class Stream(NamedTuple):
    """A signature's state: `use` says which inputs and outputs it is; `initial` has its values at the beginning."""

    use: StateUse
    initial: Mapping[str, Array]
    digest: str
    """Of the bundle, which state files name."""

    @property
    def nbytes(self) -> int:
        """Bytes that one sequence holds."""
        return sum(array.nbytes for array in self.initial.values())


def streams_of(model: Model) -> dict[str, Stream]:
    """The signatures that keep state between requests; none for a bundle that learns."""
    held = model.bundle
    if _LEARNING & set(held.signatures):
        return {}
    return {
        name: Stream(use, {state: held.state[state] for state in use.reads.values()}, held.digest)
        for name, use in held.uses.items()
        if use.writes
    }
