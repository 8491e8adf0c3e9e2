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
"""Timed runs of a size; seconds after which fewer will do."""
MIXED = 1e-3
"""Difference, as a part of the largest output, above which a row is held to depend on its neighbours."""


def sample(shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype], number: int) -> Job:
    """A job that differs from the next in line: noise where it is of floats, else zeros or ones."""
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
    """Least seconds of a batch of these jobs, as nothing makes one faster than it is; few runs of what takes long."""
    segments = [Segment(job, 0, 1, at) for at, job in enumerate(jobs)]
    end = perf_counter() + ENOUGH
    times: list[float] = []
    while len(times) < 2 or (len(times) <= REPEATS and perf_counter() < end):
        times.append(compute(call, segments) if call.size > 1 else _single(call, jobs[0]))
    return min(times)


def mixes(one: Call, jobs: Sequence[Job]) -> bool:
    """Whether jobs computed together have other results than alone."""
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
    """What is done with a sample that was computed."""
