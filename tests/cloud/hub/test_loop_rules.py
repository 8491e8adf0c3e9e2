"""A loop's rules: its state machine, its plan, which device gets which task."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.client import Client
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import STEPS, Cycle, Event
from cloud.hub.loop.drift import State
from cloud.hub.loop.plan import TEMPLATE, read_plan, rollout_of
from cloud.hub.loop.watching import Watcher
from cloud.hub.rollouts.plan import read_plan as read_rollout
from cloud.hub.tasks.task import CONDITIONS, Task, choose, read_task
from lite_runtime.updates.joining import Member, Offer


def event(kind: str, step: str = "", by: str = "loop", **data: Any) -> Event:
    return Event(kind, 1.0, step, by, "why", data)


def whole(gates: tuple[str, ...] = ()) -> list[Event]:
    """The events of a cycle that goes well."""
    found = [event("began", gates=list(gates), cause={"kind": "drift"})]
    for step in STEPS:
        found += [event("approved", step, "ann")] if step in gates else []
        found.append(event("done", step, at=step))
    return found


@pytest.mark.parametrize("gates", [(), ("promote",), tuple(STEPS)])
def test_a_cycle_goes_through_all_steps(gates: tuple[str, ...]) -> None:
    cycle = Cycle()
    for one in whole(gates):
        if one.kind == "approved":
            assert (cycle.status, cycle.due) == ("waits", "")
        elif one.kind == "done":
            assert cycle.due == one.step
        cycle.apply(one)
    assert (cycle.status, cycle.outcome, cycle.number, cycle.due) == ("idle", "finished", 1, "")
    assert cycle.results["sign"] == {"at": "sign"}
    assert cycle.approvals == dict.fromkeys(gates, "ann")


def test_the_same_events_give_the_same_state() -> None:
    events = [*whole(("sign",)), *whole(), event("began"), event("troubled", "learn"), event("failed", "learn")]
    assert Cycle(events).data() == Cycle(tuple(events)).data()
    for at in range(len(events)):
        cycle = Cycle(events[:at])
        for one in events[at:]:
            cycle.apply(one)
        assert cycle.data() == Cycle(events).data()


@pytest.mark.parametrize(
    ("before", "wrong"),
    [
        ([], event("done", "learn")),
        ([], event("approved", "learn")),
        ([], event("failed")),
        ([], event("unknown")),
        ([], event("began", gates=["lunch"])),
        (whole()[:1], event("began")),
        (whole()[:1], event("done", "judge")),
        (whole()[:1], event("approved", "learn")),
        (whole(("learn",))[:1], event("done", "learn")),
        (whole(("learn",))[:1], event("approved", "judge", "ann")),
        (whole(("learn",))[:1], event("approved", "learn", "loop")),
        (whole(), event("done", "rollout")),
    ],
)
def test_what_cannot_follow_is_refused_and_changes_nothing(before: list[Event], wrong: Event) -> None:
    cycle = Cycle(before)
    there = cycle.data()
    with pytest.raises(HubError):
        cycle.apply(wrong)
    assert cycle.data() == there


def test_a_person_ends_a_cycle() -> None:
    cycle = Cycle([*whole(("sign",))[:4], event("rejected", "sign", "ann")])
    assert (cycle.status, cycle.outcome) == ("idle", "failed")
    assert cycle.reason == "rejected by ann: why"
    cycle.apply(event("began"))
    assert (cycle.number, cycle.due, cycle.results) == (2, "learn", {})


def plan_at(folder: Path, change: str = "", to: str = "") -> Path:
    path = folder / "loop.toml"
    assert not change or change in TEMPLATE
    path.write_text(TEMPLATE.replace(change, to, 1) if change else TEMPLATE)
    return path


def test_the_template_is_a_plan(tmp_path: Path) -> None:
    plan = read_plan(plan_at(tmp_path))
    assert plan.version(7) == "2.7"
    assert plan.file.drift is not None
    assert plan.file.drift.rule.between == pytest.approx(730.56)
    for part, channel in ((plan.file.canary, "candidate"), (plan.file.rollout, "stable")):
        read_rollout(rollout_of(plan, part, "2.7", channel))
    tomllib.loads(TEMPLATE)


@pytest.mark.parametrize(
    ("change", "to", "words"),
    [
        ('"2.{cycle}"', '"2"', "{cycle}"),
        ('approve = ["sign", "promote"]', 'approve = ["lunch"]', "loop.approve"),
        ("[drift] ", "[draft] ", "no such section"),
        ('source = "model.onnx"', "#", "convert.source"),
        ('# kind = "federated"', 'kind = "train"', "convert.source"),
        ('# quantize = "none"', 'quantize = "int8"', "convert.calibration"),
        ("# steps = [5.0]", "steps = [5.0, 2.0]", "canary.steps"),
        ('# candidates = "candidate"', 'candidates = "stable"', "loop.candidates"),
        ("# tolerance = 0.1", "tolerance = 0.0", "drift.tolerance"),
    ],
)
def test_a_wrong_plan_is_named(change: str, to: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=words.replace("{", r"\{")):
        read_plan(plan_at(tmp_path, change, to))


def test_no_cycle_begins_while_the_last_one_rests(tmp_path: Path) -> None:
    """Whoever makes devices' telemetry look like a change costs a cycle a day at most."""
    plan = read_plan(plan_at(tmp_path))
    (tmp_path / plan.loop.folder).mkdir()
    watcher = Watcher(plan, Client("http://127.0.0.1:1", "token"))
    watcher.state = State(alarm=True)
    ended = Cycle([event("began"), event("failed", "learn")._replace(time=1e9)])
    assert plan.file.schedule.rest == 1.0
    assert watcher.cause(ended, 1e9 + 86_399) is None
    assert watcher.cause(ended, 1e9 + 86_401)
    assert watcher.cause(Cycle(), 1e9)


# -- tasks -------------------------------------------------------------------------------------------------------------

ONE = Task(population="keys", plan=2, bundle="b1", conditions=("idle", "charging", "unmetered"))
OFFER = Offer((1, 2), idle=True, charging=True, metered=False, populations={"keys": Member("b1", 10, "d")})


def chosen(task: Task = ONE, offer: Offer = OFFER, taken: tuple[str, ...] = (), **attributes: str) -> Any:
    return choose({"t": task}, {"t": taken}, "me", offer, attributes)


def test_a_device_that_fits_gets_the_task() -> None:
    assert chosen()[:3] == ("t", "keys", Member("b1", 10, "d"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"idle": False}, CONDITIONS["idle"]),
        ({"charging": False}, CONDITIONS["charging"]),
        ({"metered": True}, CONDITIONS["unmetered"]),
        ({"plans": (3,)}, "version 2"),
        ({"populations": {"keys": Member("b2")}}, "another version"),
        ({"populations": {"others": Member("b1")}}, "no task"),
    ],
)
def test_a_device_that_does_not_fit_is_told_why(change: dict[str, Any], why: str) -> None:
    found = chosen(offer=OFFER._replace(**change))
    assert not found.task
    assert why in found.why


def test_cohorts_and_numbers() -> None:
    north = Task(population="keys", plan=2, cohort={"region": ("north*",)}, devices=2)
    assert chosen(north).why == "there is no task"
    assert chosen(north, region="north-1").task == "t"
    assert "enough" in chosen(north, taken=("a", "b"), region="north-1").why
    assert chosen(north, taken=("a", "me"), region="north-1").task == "t", "who has the task keeps it"


def test_of_several_tasks_the_emptiest() -> None:
    tasks = {"a": Task(population="keys", plan=2, devices=10), "b": Task(population="keys", plan=2, devices=20)}
    assert choose(tasks, {"a": ("x",), "b": ("y",)}, "me", OFFER, {}).task == "b"
    assert choose(tasks, {"a": ("me", "x"), "b": ()}, "me", OFFER, {}).task == "a"
    assert choose({}, {}, "me", OFFER, {}).why == "there is no task"


@pytest.mark.parametrize(
    "wrong", [{}, {"population": "A", "plan": 2}, {"population": "a", "plan": 2, "conditions": ["x"]}]
)
def test_a_wrong_task_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(HubError):
        read_task(wrong, "task")
