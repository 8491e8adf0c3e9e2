"""What a signature keeps between the requests of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edge.gateway.errors import GatewayError
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Spec, StateUse, dtype_name

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

    def file(self, state: Mapping[str, Array]) -> bytes:
        """The state as a state file."""
        from lite_runtime.learning import checkpoint

        return checkpoint.write(None, state, self.digest)

    def state_in(self, data: memoryview) -> Mapping[str, Array]:
        """The state in a state file. Raises GatewayError (400) for a file that is none, or is of another model."""
        from lite_runtime.learning import checkpoint
        from lite_runtime.learning.state import check_finite, check_state

        specs = {name: Spec(dtype_name(array.dtype), array.shape) for name, array in self.initial.items()}
        try:
            found = checkpoint.read(bytes(data)).state
            check_state(specs, found, strict=True)
            check_finite(found)
        except MsedgeError as error:
            raise GatewayError(400, f"the state of a sequence: {error}") from None
        return found


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
