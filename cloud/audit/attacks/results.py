"""What attacks are given and what they return, checked alike for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.audit.victim import Victim
from cloud.errors import AuditError

__all__ = ["Array", "Attacked", "Found", "Norm", "Task", "distances", "fitting", "in_batches", "inside",
           "within"]  # fmt: skip

Array: TypeAlias = npt.NDArray[Any]
Norm: TypeAlias = Literal["Linf", "L2"]
Found: TypeAlias = tuple[Array, Array]
"""Inputs (rows, ...) that an attack found, and the rows of the model that each cost (rows,) int64."""
_BLOCK = 1 << 14
"""Values that fit a processor's cache, with what is computed of them."""


@dataclass(frozen=True)
class Attacked:
    """What an attack found. Where it did not succeed, `inputs` are those given, and the distance is 0."""

    inputs: Array
    """(rows, ...) float32, within the stated range and, for attacks with an epsilon, within that distance."""
    success: npt.NDArray[np.bool_]
    """(rows,) whether the model's answer to `inputs`, asked anew after the attack, is what the attack wanted."""
    distances: Array
    """(rows,) float64: distance of `inputs` from the inputs given, in `norm`."""
    queries: Array
    """(rows,) int64: rows of the model that the attack asked for; one with its gradient counts once."""
    norm: Norm

    @property
    def rate(self) -> float:
        """The share of rows on which the attack succeeded, those that the model had wrong before included."""
        return float(self.success.mean())


@dataclass(frozen=True)
class Task:
    """What is wanted: another class than `labels` or, if targeted, exactly these; each value between low and high."""

    victim: Victim
    x: Array
    labels: Array
    targeted: bool
    low: float
    high: float
    norm: Norm
    epsilon: float = np.inf

    @classmethod
    def of(
        cls, victim: Victim, x: Array, labels: Array, *, targeted: bool, clip: tuple[float, float], norm: Norm,
        epsilon: float = np.inf,
    ) -> Task:  # fmt: skip
        """The task, checked. Raises AuditError for whatever does not fit, with what was expected."""
        x, labels = victim.checked(x), np.asarray(labels)
        if labels.shape != (len(x),) or labels.dtype.kind not in "iu":
            raise AuditError(f"expected {len(x)} labels, integers, got {labels.dtype}{list(labels.shape)}")
        if len(x) == 0:
            raise AuditError("expected at least one input, got none")
        if labels.min() < 0 or labels.max() >= victim.classes:
            raise AuditError(
                f"expected labels from 0 to {victim.classes - 1}, got {labels.min()} to {labels.max()}: the model has "
                f"{victim.classes} classes"
            )
        low, high = map(float, clip)
        if not low < high:
            raise AuditError(f"expected a range (low, high) with low < high, got {clip}")
        if x.min() < np.float32(low) or x.max() > np.float32(high):
            found = f"{x.min():.6g} to {x.max():.6g}"
            raise AuditError(f"expected inputs within clip={clip}, got {found}; state their range")
        if norm not in ("Linf", "L2"):
            raise AuditError(f"expected a norm of Linf, L2, got {norm!r}")
        if not epsilon > 0:
            raise AuditError(f"expected an epsilon above 0, got {epsilon}")
        return cls(victim, x, labels.astype(np.int32), targeted, low, high, norm, float(epsilon))

    def reached(self, x: Array, rows: Any = slice(None)) -> npt.NDArray[np.bool_]:
        """Whether the model answers as wanted."""
        right = self.victim.logits(x).argmax(1) == self.labels[rows]
        return np.asarray(right if self.targeted else ~right, np.bool_)

    def search(self, attack: Callable[[Array, Array, int], Found], restarts: int, batch: int) -> Attacked:
        """Run `attack(x, rows, restart)`, in batches, on the rows where the model does not answer as wanted yet.

        rows: the indices of `x` in the whole, for seeds that do not depend on batches. Raises AuditError for counts
        below 1.
        """
        if restarts < 1 or batch < 1:
            raise AuditError(f"expected at least 1 restart and rows in a batch, got {restarts} and {batch}")
        inputs, success = self.x.copy(), self.reached(self.x)
        queries = np.ones(len(self.x), np.int64)
        for restart in range(restarts):
            for rows, filled in in_batches(np.flatnonzero(~success), min(batch, len(self.x)), self.victim.any_size):
                found, cost = (part[: len(rows)] for part in attack(self.x[filled], filled, restart))
                found = inside(self.x[rows], found, self)
                won = self.reached(found, rows)
                queries[rows] += cost + 1
                inputs[rows[won]], success[rows] = found[won], won
        return Attacked(inputs, success, distances(self.x, inputs, self.norm), queries, self.norm)


def in_batches(rows: Array, size: int, any_size: bool) -> Iterator[tuple[Array, Array]]:
    """Indices in batches, and the same filled up with the first: to `size`, so that one program computes all, or if any
    size will do to one of few."""
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        whole = min(size, fitting(len(part))) if any_size else size
        yield part, np.concatenate([part, np.repeat(part[:1], whole - len(part))])


def fitting(rows: int) -> int:
    """The next power of two, or three quarters of it: models are planned once for every size."""
    power = 1 << max(rows - 1, 0).bit_length()
    return max(4, power * 3 // 4 if rows <= power * 3 // 4 else power)


def distances(x: Array, other: Array, norm: Norm) -> Array:
    """Distances (rows,) in float64."""
    difference = (other.astype(np.float64) - x.astype(np.float64)).reshape(len(x), -1)
    return np.asarray(np.abs(difference).max(1) if norm == "Linf" else np.sqrt((difference**2).sum(1)))


def within(x: Array, found: Array, epsilon: float) -> Array:
    """`found`, where it is within epsilon of `x`; elsewhere the last float32 that is."""
    flat, result = x.reshape(-1), found.flatten()
    for start in range(0, result.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        result[part] = _within_block(flat[part], result[part], epsilon)
    return result.reshape(found.shape)


def _within_block(x: Array, found: Array, epsilon: float) -> Array:
    exact, way = x.astype(np.float64), found - x
    outside = np.abs(found - exact) > epsilon
    if not outside.any():
        return found
    edge = (exact + np.where(way > 0, epsilon, -epsilon)).astype(np.float32)
    bits, inward = edge.view(np.int32), -np.sign(edge * way).astype(np.int32)  # bits plus or minus 1: a neighbour
    for _ in range(3):  # float32's rounding, and then float64's
        bits += inward * (np.abs(edge - exact) > epsilon)
    return np.where(outside, np.where(np.abs(edge - exact) > epsilon, x, edge), found)


def inside(x: Array, found: Array, task: Task) -> Array:
    """`found` in the range and within epsilon of `x` exactly: rounding to float32 can lead outside by a last bit."""
    found = np.clip(found.astype(np.float32), np.float32(task.low), np.float32(task.high))
    if not np.isfinite(task.epsilon):
        return found
    if task.norm == "Linf":
        return within(x, found, task.epsilon)
    shrink = 1e-7
    for _ in range(20):
        far = distances(x, found, "L2")
        outside = far > task.epsilon
        if not outside.any():
            return found
        scale = (task.epsilon / np.maximum(far, 1e-30) * (1 - shrink)).reshape(-1, *[1] * (x.ndim - 1))
        nearer = (x + (found.astype(np.float64) - x) * scale).astype(np.float32)
        found, shrink = np.where(outside.reshape(scale.shape), nearer, found), shrink * 2
    return np.where((distances(x, found, "L2") > task.epsilon).reshape(-1, *[1] * (x.ndim - 1)), x, found)
