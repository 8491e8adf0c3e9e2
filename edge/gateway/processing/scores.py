"""What a model says, made fit to be read: probabilities, the best few, labels. All along the last axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge.gateway.processing.steps import Kind, Single, Step, need
from lite_runtime.graph import Array

__all__ = ["Argmax", "Sigmoid", "Softmax", "Threshold", "TopK", "labelled"]


@dataclass(frozen=True)
class Softmax(Single):
    """exp(x) / sum of exp(x), computed in float64, kept in float32."""

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(len(kind.shape) > 0, f"softmax takes [.., classes], got {kind}")
        return _real("softmax", kind)

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        wide = array.astype(np.float64)
        if not wide.size:
            return wide.astype(np.float32)
        powers = np.exp(wide - wide.max(-1, keepdims=True))
        return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)


@dataclass(frozen=True)
class Sigmoid(Single):
    """1 / (1 + exp(-x)), computed in float64, kept in float32."""

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        return _real("sigmoid", kind)

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        small = np.exp(-np.abs(array.astype(np.float64)))
        return np.where(array < 0, small / (1 + small), 1 / (1 + small)).astype(np.float32)


@dataclass(frozen=True)
class Threshold(Single):
    """Whether x >= value."""

    value: float

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        need(kind.dtype not in ("string", "bool"), f"threshold takes numbers, got {kind}")
        return kind._replace(dtype="bool")

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return array >= self.value


@dataclass(frozen=True)
class TopK(Step):
    """The `k` largest, largest first, of equals the first; NaN comes last. Two arrays: values, and indices in int64 or,
    given labels, these."""

    k: int
    labels: list[str] | None

    def typed(self, *kinds: Kind) -> tuple[Kind, ...]:
        """See `Step`."""
        (kind,) = _one("top_k", kinds)
        classes = _classes("top_k", kind, self.labels)
        need(classes is None or self.k <= classes, f"top_k: expected k of at most {classes}, got {self.k}")
        shape = (*kind.shape[:-1], self.k)
        return kind._replace(shape=shape), Kind(_index_type(self.labels), shape)

    def run(self, *arrays: Array) -> tuple[Array, ...]:
        """See `Step`."""
        (array,) = arrays
        order = best(array)[..., : self.k]
        return np.take_along_axis(array, order, -1), labelled(order, self.labels)


@dataclass(frozen=True)
class Argmax(Single):
    """The index of the largest, of equals the first, in int64, or its label."""

    labels: list[str] | None

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        classes = _classes("argmax", kind, self.labels)
        need(classes != 0, f"argmax: expected at least one class, got {kind}")
        return Kind(_index_type(self.labels), kind.shape[:-1])

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        return labelled(best(array)[..., 0], self.labels)


def best(array: Array) -> Array:
    """Indices along the last axis, of the largest first; int64. Stable; NaN last."""
    if array.dtype.kind == "f":
        return np.argsort(-array.astype(np.float64), -1, "stable")
    # Integers cannot be negated within their type: the bits' complement reverses their order.
    return np.argsort(~array, -1, "stable")


def labelled(index: Array, labels: list[str] | None) -> Array:
    """The labels at `index`, as objects; `index` itself where there are none. An index beyond them is its number."""
    if labels is None:
        return index.astype(np.int64)
    words = np.empty(index.size, object)
    words[:] = [labels[i] if i < len(labels) else str(i) for i in index.ravel().tolist()]
    return words.reshape(index.shape)


def _one(what: str, kinds: tuple[Kind, ...]) -> tuple[Kind]:
    need(len(kinds) == 1, f"{what} takes one array, got {len(kinds)}")
    return (kinds[0],)


def _real(what: str, kind: Kind) -> Kind:
    need(kind.dtype.startswith("float"), f"{what} takes floats, got {kind}; dequantize first")
    return kind._replace(dtype="float32")


def _classes(what: str, kind: Kind, labels: list[str] | None) -> int | None:
    """Size of the last axis, which labels must fit."""
    need(len(kind.shape) > 0 and kind.dtype != "string", f"{what} takes [.., classes], got {kind}")
    count = kind.shape[-1]
    need(labels is None or count in (None, len(labels)),
         f"{what}: expected a label for each of {count} classes, got {len(labels or ())}")  # fmt: skip
    return count


def _index_type(labels: list[str] | None) -> str:
    return "int64" if labels is None else "string"
