"""Figures compared with sums by hand, histograms with the values themselves, Triton's format field by field."""

from __future__ import annotations

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.job import Job
from edge.gateway.operate.histograms import ROWS, SECONDS, Histogram, Recent
from edge.gateway.operate.statistics import ModelStatistics, Statistics, reason_of

times = st.floats(0, 200)


def answered(arrived: float, queue: float, given: float, infer: float, rows: int, batch: int) -> Job:
    job = Job({}, rows, lambda job: None, arrived=arrived)
    job.begun, job.input_seconds, job.batch = arrived + queue, given, batch
    job.computed = job.begun + given + infer
    job.done = job.computed
    return job


@given(st.lists(times | st.sampled_from(SECONDS)))
def test_a_bucket_holds_what_lies_below_its_bound_and_above_the_one_before(values: list[float]) -> None:
    found = Histogram()
    for value in values:
        found.add(value)
    assert found.count == len(values)
    assert found.total == pytest.approx(sum(values))
    for bound, count in found.cumulative(4):
        assert count == sum(value <= bound for value in values)


@given(st.lists(st.floats(20e-6, 90), min_size=1), st.floats(0.01, 1))
def test_quantiles_are_right_to_a_bucket(values: list[float], share: float) -> None:
    found = Histogram()
    for value in values:
        found.add(value)
    below = sorted(values)
    exact = below[max(0, min(len(values) - 1, -int(-share * len(values) // 1) - 1))]
    quantile = found.quantile(share)
    assert quantile is not None
    assert exact / 1.2 <= quantile <= exact * 1.2


def test_quantiles_at_the_ends() -> None:
    assert Histogram().quantile(0.5) is None
    above = Histogram()
    above.add(1e6)
    assert above.quantile(0.5) == SECONDS[-1]
    assert above.cumulative()[-1] == (inf, 1)
    assert Histogram(ROWS).cumulative()[-2][0] == 4096


@settings(max_examples=80)
@given(st.lists(st.floats(0, 40), max_size=40))
def test_recent_holds_the_last_spans_and_no_others(gaps: list[float]) -> None:
    now, at = 5.0, []
    recent = Recent(now)
    for gap in gaps:
        now += gap
        recent.at(now).add(1.0)
        at.append(now)
    found, span = recent.sum(now)
    assert found.count == sum(moment // 10 > now // 10 - 6 for moment in at)
    assert 0 < span <= 60
    assert recent.sum(now + 60)[0].count == 0


def test_a_young_gateway_s_rates_are_of_its_age() -> None:
    recent = Recent(103.0)
    recent.at(104.0).add(1.0)
    assert recent.sum(105.0)[1] == pytest.approx(2.0)


def test_triton_s_words() -> None:
    made = Statistics()
    numbers = made.of("m", "1")
    for rows in (1, 3):  # one batch of 4, of two requests that came at once
        numbers.record(answered(10.0, 0.5, 0.25, 1.0, rows, 4), 12.0)
    numbers.record(answered(20.0, 0.0, 0.125, 0.5, 4, 4), 21.0)
    numbers.record(answered(30.0, 0.0, 0.0, 2.0, 1, 1), 32.0)
    numbers.fail(answered(20.0, 0.0, 0.0, 0.0, 1, 0), 429, 20.5)
    numbers.fail(None, 400, 20.5)
    (found,) = made.triton()["model_stats"]
    assert found.pop("last_inference") > 1_600_000_000_000
    second = 1_000_000_000
    none = {"count": 0, "ns": 0}
    assert found == {
        "name": "m",
        "version": "1",
        "inference_count": 9,
        "execution_count": 3,
        "inference_stats": {
            "success": {"count": 4, "ns": 7 * second},
            "fail": {"count": 2, "ns": second // 2},
            "queue": {"count": 4, "ns": second},
            "compute_input": {"count": 4, "ns": 625_000_000},
            "compute_infer": {"count": 4, "ns": 4500_000_000},
            "compute_output": {"count": 4, "ns": 875_000_000},
            "cache_hit": none,
            "cache_miss": none,
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": 1, "compute_input": {"count": 1, "ns": 0},
             "compute_infer": {"count": 1, "ns": 2 * second}, "compute_output": {"count": 1, "ns": 0}},
            {"batch_size": 4, "compute_input": {"count": 2, "ns": 375_000_000},
             "compute_infer": {"count": 2, "ns": 1500_000_000}, "compute_output": {"count": 2, "ns": 625_000_000}},
        ],
        "memory_usage": [],
    }  # fmt: skip


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), max_size=40), st.randoms(use_true_random=False))
def test_batches_are_counted_from_their_requests(batches: list[list[int]], random: Random) -> None:
    """Whatever padding they had, and in whatever order requests of several are answered."""
    numbers = ModelStatistics(0.0)
    jobs = [
        answered(0.0, 1.0 + at, 0.0, 0.5, rows, sum(batch) + 3) for at, batch in enumerate(batches) for rows in batch
    ]
    for job in sorted(jobs, key=lambda job: job.begun + 9 * random.random()):
        numbers.record(job, 100.0)
    assert numbers.executions == numbers.batch_sizes().count == len(batches)
    assert numbers.rows == sum(map(sum, batches))
    by_size = numbers.triton("m", "1")["batch_stats"]
    assert sum(of["compute_infer"]["ns"] for of in by_size) == len(batches) * 500_000_000


def test_a_request_with_more_rows_than_a_batch_counts_as_several() -> None:
    numbers = ModelStatistics(0.0)
    numbers.record(answered(0.0, 0.0, 0.0, 1.0, 100, 64), 1.0)
    assert numbers.executions == 2


def test_batches_are_remembered_for_a_while_only() -> None:
    numbers = ModelStatistics(0.0)
    for at in range(1000):
        numbers.record(answered(0.0, float(at), 0.0, 1.0, 1, 1), 2000.0)
    assert numbers.executions == 1000
    assert len(numbers._begun) <= 64


def test_which_models_are_shown() -> None:
    made = Statistics()
    for key in (("b", "1"), ("a", "2"), ("a", "1")):
        assert made.of(*key) is made.of(*key)

    def names(**which: str) -> list[tuple[str, str]]:
        return [(one["name"], one["version"]) for one in made.triton(**which)["model_stats"]]

    assert names() == [("a", "1"), ("a", "2"), ("b", "1")]
    assert names(name="a") == [("a", "1"), ("a", "2")]
    assert names(name="a", version="2") == [("a", "2")]
    assert names(name="c") == []
    made.forget("a", "1")
    made.forget("a", "1")
    assert names(name="a") == [("a", "2")]


def test_reasons() -> None:
    assert [reason_of(status) for status in (429, 503, 504, 499, 500, 400, 404)] == [
        "REJECTED", "REJECTED", "REJECTED", "CANCELED", "BACKEND", "OTHER", "OTHER",
    ]  # fmt: skip


def test_the_page_s_numbers() -> None:
    numbers = ModelStatistics(100.0)
    nothing = numbers.page(101.0)
    assert (nothing["p50"], nothing["requests_per_second"]) == (None, 0.0)
    for _ in range(10):
        numbers.record(answered(100.0, 0.0, 0.0, 0.5, 2, 2), 101.0)
    found = numbers.page(102.0)
    assert (found["requests_per_second"], found["rows_per_second"]) == (5.0, 10.0)
    assert found["p50"] == pytest.approx(1.0, rel=0.2)
    assert sum(found["latency"]["counts"]) == 10
    assert len(found["latency"]["counts"]) == len(found["latency"]["bounds"]) + 1
    assert sum(found["rows_by_batch"]["counts"]) == 20
