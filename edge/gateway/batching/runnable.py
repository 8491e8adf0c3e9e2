"""The interface that batching needs from a model, so that other objects than `lite_runtime.Model` can be batched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lite_runtime.graph import Array

__all__ = ["Bound", "Footprint", "Runnable"]


class Bound(Protocol):
    """A signature bound to its own arrays; a call computes `outputs` from `inputs`."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """The arrays to fill before a call."""
        raise NotImplementedError

    @property
    def outputs(self) -> Mapping[str, Array]:
        """The results of the last call; the next call overwrites them."""
        raise NotImplementedError

    def __call__(self) -> None:
        """Compute."""


class Footprint(Protocol):
    """Memory that a run needs."""

    @property
    def arena_bytes(self) -> int:
        """Bytes of memory for intermediate values."""
        raise NotImplementedError


class Runnable(Protocol):
    """The methods that a `ModelRunner` needs from a model; `lite_runtime.Model` has them."""

    def run(self, inputs: Mapping[str, Any], signature: str) -> dict[str, Array]:
        """Outputs by name, as fresh arrays."""
        raise NotImplementedError

    def bind(self, shapes: Mapping[str, tuple[int, ...]], signature: str) -> Bound:
        """The signature bound to its own arrays, for inputs of these shapes."""
        raise NotImplementedError

    def cost(self, inputs: Mapping[str, Any], signature: str) -> Footprint:
        """Memory that a run needs."""
        raise NotImplementedError
