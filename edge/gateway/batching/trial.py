"""Trials of a newly compiled batch size: how long it takes, and whether its rows are independent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from edge.gateway.batching.gather import Call, Segment, compute
from edge.gateway.job import Job
from lite_runtime.graph import Array

__all__ = ["mixes", "sample", "timed"]

REPEATS, ENOUGH = 5, 0.2
"""Number of timed runs per size; after so many seconds, fewer are enough."""
MIXED = 1e-3
"""Relative difference (to the largest output) above which a row's result is assumed to depend on the other rows."""


def sample(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype], number: int) -> Job:
    """A job of one row. Jobs with consecutive numbers differ: floats are random, other types are zeros or ones."""
    noise = np.random.default_rng(number)
    inputs = {}
    for name, shape in shapes.items():
        dtype = dtypes[name]
        if dtype.hasobject:
            inputs[name] = np.full(shape, "", dtype)
        elif dtype.kind in "biu":
            inputs[name] = np.full(shape, number % 2, dtype)
        else:
            inputs[name] = noise.standard_normal(shape, np.float32).astype(dtype)
    return Job(inputs, 1, _nothing, arrived=0.0)


def timed(call: Call, jobs: Sequence[Job]) -> float:
    """The minimum of several timed runs of these jobs as one batch: disturbances only make a run slower. Slow batches
    are run fewer times."""
    segments = [Segment(job, 0, 1, at) for at, job in enumerate(jobs)]
    end = perf_counter() + ENOUGH
    times: list[float] = []
    while len(times) < 2 or (len(times) <= REPEATS and perf_counter() < end):
        times.append(compute(call, segments) if call.size > 1 else _single(call, jobs[0]))
    return min(times)


def mixes(one: Call, jobs: Sequence[Job]) -> bool:
    """Whether jobs that were computed together have other results than each alone."""
    for job in jobs:
        alone = Job(job.inputs, 1, _nothing, arrived=0.0)
        one.compute(alone)
        assert job.outputs is not None and alone.outputs is not None
        if not all(_same(job.outputs[name], array) for name, array in alone.outputs.items()):
            return True
    return False


def _single(call: Call, job: Job) -> float:
    job.begun = perf_counter()
    call.compute(job)
    return job.done - job.begun


def _same(a: Array, b: Array) -> bool:
    if a.dtype.hasobject or a.dtype.kind == "b":
        return bool(np.array_equal(a, b))
    a, b = a.astype(np.float64), b.astype(np.float64)
    most = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
    return a.shape == b.shape and np.allclose(a, b, rtol=0.0, atol=MIXED * float(most), equal_nan=True)


def _nothing(job: Job) -> None:
    """The `finish` of a sample job: its results are not sent to a client."""
