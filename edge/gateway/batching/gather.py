"""Copying rows of jobs into the arrays of one compiled batch size, and its outputs back to the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter

import numpy as np

from edge.gateway.batching.runnable import Runnable
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job

__all__ = ["Call", "Segment", "compute", "deal"]


LARGE = 1 << 16
"""If one job fills the whole batch, its inputs of at least so many bytes are read in place instead of copied: for
smaller ones, checking the type takes as long as copying."""


class Segment:
    """Rows `begin` to `end` of a job, placed at row `at` of a batch."""

    __slots__ = ("at", "begin", "end", "job")

    def __init__(self, job: Job, begin: int, end: int, at: int) -> None:
        self.job, self.begin, self.end, self.at = job, begin, end, at


def deal(jobs: Sequence[Job], sizes: Sequence[int]) -> Iterator[tuple[int, list[Segment]]]:
    """Distribute the jobs' rows in order over batches of these sizes: each size and its segments. Jobs may be split."""
    which, begin = 0, 0
    for size in sizes:
        segments, at = [], 0
        while at < size and which < len(jobs):
            job = jobs[which]
            end = min(job.rows, begin + size - at)
            segments.append(Segment(job, begin, end, at))
            at += end - begin
            which, begin = (which + 1, 0) if end == job.rows else (which, end)
        if segments:
            yield size, segments


class Call:
    """One compiled batch size: arrays to fill, and the function that computes them.

    Rows that no job fills keep the data of an earlier batch; their results are not used.
    """

    __slots__ = ("_binding", "_homes", "_large", "_run", "go", "inputs", "size")

    def __init__(self, model: Runnable, signature: str, shapes: Mapping[str, tuple[int, ...]], size: int) -> None:
        """shapes: of the complete inputs. size: their number of rows. Raises the exceptions of planning."""
        self._binding = model.bind(shapes, signature)
        self.inputs, self.size = self._binding.inputs, size
        self._homes = tuple(self.inputs.items())
        self.go = self._binding.__call__
        self._large = any(home.nbytes > LARGE for home in self.inputs.values())
        self._run = partial(model.run, signature=signature)

    @property
    def nbytes(self) -> int:
        """Bytes of inputs and outputs; valid after a run."""
        return sum(array.nbytes for array in (*self.inputs.values(), *self._binding.outputs.values()))

    def compute(self, job: Job) -> None:
        """Compute a job that fills the batch: sets `outputs`, `input_seconds`, `computed`, `done`; needs `begun`."""
        inputs = job.inputs
        if self._large:
            job.input_seconds = 0.0
            job.outputs = self._run(inputs)
            job.computed = job.done = perf_counter()
            return
        for name, home in self._homes:
            home[...] = inputs[name]
        job.input_seconds = perf_counter() - job.begun
        self.go()
        job.computed = perf_counter()
        job.outputs = {name: array.copy() for name, array in self._binding.outputs.items()}
        job.done = perf_counter()

    def put(self, segment: Segment) -> None:
        """Copy a segment's rows in."""
        inputs, begin, end, at = segment.job.inputs, segment.begin, segment.end, segment.at
        whole = end - begin == segment.job.rows
        for name, home in self._homes:
            home[at : at + end - begin] = inputs[name] if whole else inputs[name][begin:end]

    def take(self, segment: Segment) -> None:
        """Copy a segment's rows out of the outputs. Raises GatewayError (500) for a wrong number of rows."""
        job, begin, end, at = segment.job, segment.begin, segment.end, segment.at
        found = self._binding.outputs
        if end - begin == job.rows:
            end = at + job.rows
            job.outputs = {name: _rows(name, array, self.size)[at:end].copy() for name, array in found.items()}
            return
        if not begin:
            job.outputs = {name: np.empty((job.rows, *array.shape[1:]), array.dtype) for name, array in found.items()}
        assert job.outputs is not None
        for name, array in found.items():
            job.outputs[name][begin:end] = _rows(name, array, self.size)[at : at + end - begin]

    def clear(self) -> None:
        """Zero the rows after a failure; as padding, they would make the next batch fail too."""
        for _, home in self._homes:
            home[...] = "" if home.dtype.hasobject else 0


def compute(call: Call, segments: Sequence[Segment]) -> float:
    """Compute a batch and record its times in its jobs; returns its seconds."""
    begun = perf_counter()
    job = segments[0].job
    if len(segments) == 1 and job.rows == call.size:
        job.begun, job.batch = begun, call.size
        call.compute(job)
        return job.done - begun
    for segment in segments:
        call.put(segment)
    ready = perf_counter()
    call.go()
    computed = perf_counter()
    for segment in segments:
        call.take(segment)
    done = perf_counter()
    for segment in segments:
        job = segment.job
        if not segment.begin:
            job.begun, job.input_seconds = begun, 0.0
        job.input_seconds += ready - begun
        job.computed, job.done, job.batch = computed, done, call.size
    return done - begun


def _rows(name: str, array: np.ndarray, size: int) -> np.ndarray:
    if len(array) != size:
        raise GatewayError(500, f"output {name!r} has {len(array)} rows for a batch of {size}; serve this model with"
                           " max_batch 1")  # fmt: skip
    return array
