"""Stages are optimal; schedules have the promised memory and time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line
from cloud.parallel.staged.schedule import SCHEDULES, Schedule, schedule
from cloud.parallel.staged.stages import Stage, StageCost, balanced, best_stages


def every(segments: int, devices: int, widths: tuple[int, ...], first: int = 0) -> Iterator[tuple[Stage, ...]]:
    if first == segments:
        if devices == 0:
            yield ()
        return
    for width in (w for w in widths if w <= devices):
        for last in range(first + 1, segments + 1):
            for rest in every(segments, devices - width, widths, last):
                yield Stage(first, last, width), *rest


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31), st.integers(5, 60))
def test_stages_are_the_best_of_all(segments: int, devices: int, microbatches: int, seed: int, memory: int) -> None:
    draw = np.random.default_rng(seed)
    table = draw.integers(1, 20, (segments, segments + 1, devices + 1, 3))

    def cost(stage: Stage) -> StageCost:
        seconds, fixed, each = table[stage.first, stage.last, stage.width]
        return StageCost(float(seconds), float(fixed), float(each))

    def total(stages: tuple[Stage, ...]) -> float:
        costs = [cost(stage) for stage in stages]
        for number, own in enumerate(costs):
            if own.fixed + own.each * min(len(stages) - number, microbatches) > memory:
                return np.inf
        return sum(c.seconds for c in costs) + (microbatches - 1) * max(c.seconds for c in costs)

    widths = (1, 2)
    least = min(map(total, every(segments, devices, widths)), default=np.inf)
    found = best_stages(segments, devices, microbatches, cost, widths=widths, memory=float(memory))
    if found is None:
        assert least == np.inf
    else:
        assert found.seconds == total(found.stages) == least


def test_balanced_stages_share_the_work_and_cut_where_little_crosses() -> None:
    flops = np.array([1.0, 9.0] * 8)
    crossing = np.array([0.0] + [1.0 if place % 2 == 0 else 50.0 for place in range(1, 17)])
    walked = Line(None, tuple(range(16)), crossing, flops, flops, None)
    assert balanced(walked, 4) == (4, 8, 12)
    with pytest.raises(PlanError, match="too few for 20 stages"):
        balanced(walked, 20)


def when(table: tuple[tuple[int, ...], ...], stage: int) -> dict[int, int]:
    return {row[stage]: tick for tick, row in enumerate(table) if row[stage] >= 0}


def check(plan: Schedule) -> None:
    for stage in range(plan.stages):
        forward, backward = when(plan.forward, stage), when(plan.backward, stage)
        assert list(forward) == list(backward) == list(range(plan.microbatches))  # each once, in order
        for number in range(plan.microbatches):
            assert backward[number] >= forward[number]
            if stage:
                assert forward[number] > when(plan.forward, stage - 1)[number]
                assert backward[number] < when(plan.backward, stage - 1)[number]
        begun = [sum(f <= t <= backward[n] for n, f in forward.items()) for t in range(plan.ticks)]
        assert max(begun) <= SCHEDULES[plan.name].kept(plan.stages - stage, plan.microbatches)


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 8), st.integers(1, 12))
def test_schedules_hold_what_they_promise(name: str, stages: int, microbatches: int) -> None:
    plan = schedule(name, stages, microbatches)
    check(plan)
    assert plan.ticks == microbatches + 2 * stages - 2 if name == "paired" else True
    assert plan.ticks == 2 * (microbatches + stages - 1) if name != "paired" else True


def test_in_step_paired_takes_gpipes_time_and_1f1b_more() -> None:
    forward, backward = [1.0] * 4, [3.0] * 4
    seconds = {name: schedule(name, 4, 16).seconds(forward, backward) for name in SCHEDULES}
    assert seconds["paired"] == seconds["gpipe"] == (16 + 3) * 4
    assert seconds["1f1b"] > seconds["paired"]
    assert schedule("paired", 4, 16).bubble(forward, backward) == pytest.approx(3 / 19)
    assert schedule("paired", 1, 4).bubble([1.0], [3.0]) == 0


@pytest.mark.parametrize(("name", "stages"), [("zigzag", 2), ("1f1b", 0)])
def test_an_impossible_schedule_is_refused(name: str, stages: int) -> None:
    with pytest.raises(PlanError, match="expected"):
        schedule(name, stages, 4)
