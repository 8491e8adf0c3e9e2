"""The order of jobs, compared with a sorted list; and which jobs are accepted."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.batching.admission import Calibration, Limits, Load, admit
from edge.gateway.batching.queue import MIDDLE, Queue, rank
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job


def job(rows: int = 1, priority: int = 0, deadline: float = inf) -> Job:
    return Job({"x": np.zeros(rows)}, rows, lambda job: None, arrived=0.0, priority=priority, deadline=deadline)


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"), st.integers(1, 5), st.sampled_from([0, 1, 7, 101]), st.sampled_from([1.0, 2.0, 3.0, inf])
        ),
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("remove"), st.integers(0, 100)),
        st.tuples(st.just("expire"), st.sampled_from([0.5, 1.0, 2.5])),
    ),
    max_size=60,
)  # fmt: skip


@given(STEPS)
def test_against_a_sorted_list(steps: list[tuple[object, ...]]) -> None:
    queue, model = Queue(), list[Job]()
    for what, *args in steps:
        if what == "push":
            new = job(*args)  # type: ignore[arg-type]
            queue.push(new)
            model.append(new)
            model.sort(key=lambda j: (rank(j), j.deadline))
        elif what == "take":
            expected = list[Job]()
            while model and (not expected or sum(j.rows for j in [*expected, model[0]]) <= args[0]):  # type: ignore[operator]
                expected.append(model.pop(0))
            assert queue.take(args[0]) == expected  # type: ignore[arg-type]
        elif what == "remove" and model:
            queue.remove(model.pop(args[0] % len(model)))  # type: ignore[operator]
        elif what == "expire":
            late = [j for j in model if j.deadline <= args[0]]  # type: ignore[operator]
            model = [j for j in model if j not in late]
            assert queue.expire(args[0]) == late  # type: ignore[arg-type]
        assert (queue.jobs, queue.rows) == (len(model), sum(j.rows for j in model))
        assert queue.head() is (model[0] if model else None)
        assert set(queue) == set(model)
        for priority in (0, 1, 50, 200):
            asks = job(1, priority)
            assert queue.ahead(asks) == sum(j.rows for j in model if rank(j) <= rank(asks))


def test_what_was_removed_holds_no_memory() -> None:
    queue = Queue()
    queue.push(job(deadline=0.0))
    jobs = [job(deadline=1.0 + i) for i in range(1000)]
    for each in jobs:
        queue.push(each)
    for each in jobs:
        queue.remove(each)
        assert not each.inputs
    assert sum(map(len, queue._heaps.values())) < 100
    assert len(queue.take(10)) == 1


def test_ranks_come_and_go() -> None:
    queue = Queue()
    for priority in range(1, 500):
        each = job(1, priority)
        queue.push(each)
        queue.remove(each)
    assert queue.head() is None
    assert not queue._heaps and not queue._rows


def test_requests_without_priority_get_the_middle_one() -> None:
    assert rank(job()) == MIDDLE == 100


@pytest.mark.parametrize(
    ("given", "status", "text"),
    [
        (dict(rows=11), 400, "expected at most 10 rows in one request, got 11"),
        (dict(load=Load(5, 5, 3)), 429, "3 requests of this model"),
        (dict(load=Load(10, 1, 1)), 429, "10 rows of 1 requests already wait"),
        (dict(load=Load(4, 4, 0)), 429, "4 rows of 4 requests already wait"),
        (dict(deadline=1.0), 504, "deadline passed"),
        (dict(deadline=1.05, wait=0.1), 429, "done in 100 ms, its deadline is in 50 ms"),
    ],
)
def test_refused(given: dict[str, object], status: int, text: str) -> None:
    asked = job(given.get("rows", 1), deadline=given.get("deadline", inf))  # type: ignore[arg-type]
    limits = Limits(rows=10, jobs=4, concurrency=3)
    with pytest.raises(GatewayError, match=text) as found:
        admit(asked, limits, given.get("load", Load()), 1.0, given.get("wait", 0.0), 0.25)  # type: ignore[arg-type]
    assert found.value.status == status
    assert found.value.retry_after == (0.25 if status == 429 else None)


def test_taken_on() -> None:
    admit(job(10, deadline=2.0), Limits(rows=10, jobs=1), Load(0, 0, 100), 1.0, 0.9, 0.0)


@pytest.mark.parametrize("real", [0.7, 1.0, 3.0])
def test_calibrated(real: float) -> None:
    calibration, rng = Calibration(), np.random.default_rng(0)
    kept = []
    for _ in range(5000):
        actual = 0.02 * real * (1 + 0.2 * rng.random())
        kept.append(actual <= 0.02 * calibration.factor)
        calibration.observe(0.02, actual)
    assert np.mean(kept[500:]) > 0.97
    assert real < calibration.factor < 1.3 * real


def test_a_single_delay_is_ignored() -> None:
    calibration = Calibration()
    calibration.observe(0.02, 20.0)
    assert calibration.factor <= 1.25
    for _ in range(1000):
        calibration.observe(1e-6, 1e-4)
    assert calibration.factor < 1.0
