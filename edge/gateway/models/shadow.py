"""Shadow versions: copies of a share of the requests are computed by another version when the machine is idle, and its
outputs are compared with those that the client got; they are not returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.gateway.batching.queue import IDLE
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.models.routing import dealt
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from edge.gateway.batching.runner import Runner
    from edge.gateway.models.served import Served

__all__ = ["MOST", "Figures", "Shadow", "compared"]

PATIENCE = 1.0
"""Seconds that a copy may wait before it is dropped."""
MOST = 8
"""Most copies at a time; a copy keeps its request's body in memory."""
ELEMENTS = 1 << 18
"""Most elements of an output that are compared: a millisecond's work."""


@dataclass(slots=True)
class Figures:
    """The results of the copied requests."""

    compared: int = 0
    """Requests whose outputs were compared."""
    dropped: int = 0
    """Copies dropped because the machine was busy."""
    failed: int = 0
    """Copies that the shadow refused, or answered with other shapes, dtypes or names of outputs than the client got."""
    rows: int = 0
    agreed: int = 0
    """Compared rows in which the largest element of every output is at the same place; integers and strings must be
    equal."""
    largest: float = 0.0
    """The largest difference between elements; infinite if only one of two elements is finite."""


class Shadow:
    """Copies a share of a model's requests to `target`; used only on the event loop's thread."""

    def __init__(self, target: Served, fraction: float) -> None:
        self.target, self.fraction, self.figures = target, fraction, Figures()
        self._due, self._under_way = dealt(fraction), 0

    def after(self, job: Job, submit: Callable[[Job, Runner], None]) -> None:
        """For an answered job: perhaps have the shadow compute a copy, for which nothing waits.

        Jobs of devices are not copied: their results depend on their own weights. `submit`: the scheduler's.
        """
        outputs = job.outputs
        if outputs is None or job.device or job.signature not in self.target.ports or not self._due():
            return
        if self._under_way >= MOST or self.target.retired:
            self.figures.dropped += 1
            return
        now = perf_counter()
        # Copied, as the client's next request may be received into the same memory.
        inputs = {name: x.copy() for name, x in job.inputs.items()}
        copy = Job(
            inputs, job.rows, lambda done: self._finish(done, outputs), arrived=now, signature=job.signature,
            priority=IDLE, deadline=now + PATIENCE,
        )  # fmt: skip
        self._under_way += 1
        self.target.acquire(now)
        try:
            submit(copy, self.target.runner_for(copy))
        except Exception as error:  # request: the client already has its answer
            copy.error = error
            self._finish(copy, outputs)

    def _finish(self, job: Job, expected: Mapping[str, Array]) -> None:
        self._under_way -= 1
        self.target.release()
        if job.outputs is None:
            busy = isinstance(job.error, GatewayError) and job.error.status in (429, 503, 504)
            self.figures.dropped += busy
            self.figures.failed += not busy
            return
        found = compared(job.outputs, expected, job.rows)
        if found is None:
            self.figures.failed += 1
            return
        agreed, largest = found
        self.figures.compared += 1
        self.figures.rows += job.rows
        self.figures.agreed += agreed
        self.figures.largest = max(self.figures.largest, largest)

    def as_dict(self) -> dict[str, Any]:
        """The results, for statistics and the status page."""
        named = {name: getattr(self.figures, name) for name in Figures.__slots__}
        return {"version": self.target.version, "fraction": self.fraction, **named}


def compared(got: Mapping[str, Array], expected: Mapping[str, Array], rows: int) -> tuple[int, float] | None:
    """(rows that agree, largest difference) of outputs whose first axis is rows; None if they cannot be compared.

    If axis 0 is not the rows, the whole output counts as one row.
    """
    if got.keys() != expected.keys():
        return None
    agree, largest = np.ones(rows, bool), 0.0
    for name, other in expected.items():
        one = got[name]
        if one.shape != other.shape or one.dtype != other.dtype:
            return None
        per_row = other.ndim > 0 and other.shape[0] == rows
        a, b = (np.reshape(x, (rows, -1)) if per_row else np.reshape(x, (1, -1)) for x in (one, other))
        a, b = (x[:, : max(1, ELEMENTS // len(x))] for x in (a, b))
        if not a.size:
            continue
        if b.dtype.kind in "biuOc":
            agree &= (a == b).all(axis=1)
        else:
            a, b = a.astype(np.float64), b.astype(np.float64)
            agree &= a.argmax(axis=1) == b.argmax(axis=1)
            largest = max(largest, _largest(a, b))
    return int(agree.sum()), largest


def _largest(a: Array, b: Array) -> float:
    """The largest difference; equal infinities and two NaNs do not differ."""
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    a, b = a[~same], b[~same]
    return float(np.abs(a - b).max()) if np.isfinite(a).all() and np.isfinite(b).all() else float("inf")
