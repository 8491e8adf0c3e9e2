"""What a step is: a rule for types, checked when a model is loaded, and a function of arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from lite_runtime.bundle.processing import ProcessingError
from lite_runtime.graph import Array

__all__ = ["Kind", "Payload", "Single", "Source", "Step", "need"]


class Kind(NamedTuple):
    """The type of one row: no batch axis. A size of None is known only when it is there."""

    dtype: str
    """As `lite_runtime.graph.DTYPES` has it; "string": bytes, or text."""
    shape: tuple[int | None, ...]
    rate: int = 0
    """Samples a second, of sound; 0: none."""

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


class Payload(NamedTuple):
    """A file whose header was read: what decoding it would cost, and the rest."""

    weight: float
    """In the unit of `Source.limit`."""
    data: Any


class Source(ABC):
    """Where an input begins: what a client sends becomes rows."""

    unit: str = ""
    """What weight is counted in."""

    @property
    def limit(self) -> float:
        """Most weight of all of a request's payloads together."""
        return 0.0

    @abstractmethod
    def outer(self) -> Kind:
        """A row as clients send it."""

    @abstractmethod
    def kind(self) -> Kind:
        """A row after decoding."""

    @abstractmethod
    def open(self, item: Any) -> Payload:
        """Read a row's header. Raises GatewayError (400)."""

    @abstractmethod
    def decode(self, payload: Payload) -> Array:
        """The row. Raises GatewayError (400)."""

    def prepare(self) -> None:
        """Called once when processing is made to run: raises MissingExtraError for libraries that are not there."""
        return None


class Step(ABC):
    """Arrays to arrays. Steps before the model see one row at a time and no batch axis; steps after it all rows."""

    @abstractmethod
    def typed(self, *kinds: Kind) -> tuple[Kind, ...]:
        """Types of what comes out, by types of rows. Raises ProcessingError."""

    @abstractmethod
    def run(self, *arrays: Array) -> tuple[Array, ...]:
        """What comes out. Pure. Raises GatewayError where a request's contents do not suit."""


class Single(Step):
    """A step from one array to one."""

    def typed(self, *kinds: Kind) -> tuple[Kind, ...]:
        """See `Step`."""
        need(len(kinds) == 1, f"{type(self).__name__} takes one array, got {len(kinds)}")
        return (self.kind(kinds[0]),)

    def run(self, *arrays: Array) -> tuple[Array, ...]:
        """See `Step`."""
        return (self.apply(arrays[0]),)

    @abstractmethod
    def kind(self, kind: Kind) -> Kind:
        """The type of what comes out."""

    @abstractmethod
    def apply(self, array: Array) -> Array:
        """What comes out."""


def need(right: bool, text: str) -> None:
    """Raise ProcessingError with `text` unless `right`."""
    if not right:
        raise ProcessingError(text)
