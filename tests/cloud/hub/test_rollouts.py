"""Rollouts: steps, judgement, returns and precedence, in simulated fleets and by properties."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.hub.errors import HubError
from cloud.hub.rollouts.cohorts import belongs, place
from cloud.hub.rollouts.evidence import Failures, Harm
from cloud.hub.rollouts.plan import read_plan
from cloud.hub.rollouts.precedence import assignment, report
from cloud.hub.rollouts.rollout import Event, Rollout
from lite_runtime.updates.checkin import Application, Measure, Outcome
from lite_runtime.updates.fields import plain

PLAN: dict[str, Any] = {"application": "keys", "version": "2", "steps": [5, 25, 100], "soak": 60, "patience": 600}


class Fleet:
    """Devices that obey, rollouts, and everything that happened, in the order in which a hub would store it."""

    def __init__(self, count: int, fate: Callable[[str, str], str], measure: Callable[[str, str], float] | None = None):
        self.now, self.fate, self.measure = 1000.0, fate, measure
        self.devices = {f"d{n}": Application("1") for n in range(count)}
        self.attributes = {name: {"region": "north" if n % 2 else "south"} for n, name in enumerate(self.devices)}
        self.rollouts: list[Rollout] = []
        self.events: dict[str, list[Event]] = {}

    def start(self, identity: str, **plan: Any) -> Rollout:
        made = Rollout(identity, ())
        self.events[identity] = []
        self.take(made, Event("started", self.now, data={**PLAN, **plan}))
        self.rollouts = sorted([made, *self.rollouts], key=lambda one: one.order)
        return made

    def take(self, rollout: Rollout, event: Event) -> None:
        rollout.apply(event)
        self.events[rollout.id].append(event)

    def check_in(self, name: str) -> None:
        there = self.devices[name]
        if self.measure is not None:
            there = there._replace(measures={"confidence": Measure(50, self.measure(name, there.version))})
        for rollout, event in report(self.rollouts, name, self.attributes[name], there, self.now):
            self.take(rollout, event)
        for rollout in self.rollouts:
            while (made := rollout.decision(self.now)) is not None:
                self.take(rollout, made)
        told = assignment(self.rollouts, name)
        if told is None or there.version == told.version:
            return
        if told.urgent:
            self.devices[name] = Application(told.version, outcome=Outcome(told.version, told.rollout, "returned"))
        elif there.outcome is None or there.outcome.rollout != told.rollout:
            kind = self.fate(name, told.version)
            runs = told.version if kind == "committed" else there.version
            self.devices[name] = Application(runs, outcome=Outcome(told.version, told.rollout, kind))

    def go(self, rounds: int, seconds: float = 30.0, most: int | None = None) -> None:
        for _ in range(rounds):
            for name in list(self.devices)[:most]:
                self.check_in(name)
            self.now += seconds

    def versions(self) -> dict[str, int]:
        found = [one.version for one in self.devices.values()]
        return {version: found.count(version) for version in sorted(set(found))}


def well(device: str, version: str) -> str:
    return "committed"


def badly(device: str, version: str) -> str:
    return "self-test"


def test_a_good_version_reaches_all_in_steps() -> None:
    fleet = Fleet(400, well)
    rollout = fleet.start("r1")
    fleet.go(1)
    first = len(rollout.members)
    assert 0 < first < 400 * 0.12
    fleet.go(20)
    assert rollout.status == "completed"
    assert fleet.versions() == {"2": 400}
    kinds = [event.kind for event in fleet.events["r1"] if event.kind in ("widened", "completed")]
    assert kinds == ["widened", "widened", "completed"]


def test_a_bad_version_stops_within_the_canary() -> None:
    fleet = Fleet(400, badly)
    rollout = fleet.start("r1")
    fleet.go(10)
    assert rollout.status == "aborted"
    assert len(rollout.members) <= 400 * 0.12
    assert fleet.versions() == {"1": 400}
    assert rollout.settled


def test_devices_that_took_a_bad_version_in_go_back_to_their_own() -> None:
    """Half of them commit before the others' failures stop it."""
    fleet = Fleet(400, lambda name, version: "committed" if place("x", name) < 0.5 else "rolled-back")
    fleet.devices["d0"] = Application("0.9")
    rollout = fleet.start("r1", steps=[50, 100])
    before = {name: one.version for name, one in fleet.devices.items()}
    for name in list(fleet.devices)[:]:
        fleet.check_in(name)
    assert fleet.versions().get("2", 0) > 5
    fleet.go(3)
    assert rollout.status == "aborted"
    assert {name: one.version for name, one in fleet.devices.items()} == before
    assert not rollout.returning


def test_one_failure_in_a_small_fleet_stops_nothing() -> None:
    fleet = Fleet(30, lambda name, version: "self-test" if name == "d3" else "committed")
    rollout = fleet.start("r1", steps=[100])
    fleet.go(40)
    assert rollout.status == "completed"
    assert fleet.versions() == {"1": 1, "2": 29}


def test_what_is_undecided_asks_a_person_and_does_not_flap() -> None:
    fleet = Fleet(3, lambda name, version: "self-test" if name == "d1" else "committed")
    rollout = fleet.start("r1", steps=[100])
    fleet.go(100)
    assert (rollout.status, "undecided" in rollout.reason) == ("paused", True)
    assert [event.kind for event in fleet.events["r1"]].count("paused") == 1
    fleet.take(rollout, Event("resumed", fleet.now, by="ann"))
    fleet.go(100)
    assert rollout.status == "completed" or rollout.status == "running"


def test_a_step_without_devices_is_passed_over() -> None:
    fleet = Fleet(5, well)
    rollout = fleet.start("r1", steps=[0.001, 100])
    fleet.go(60)
    assert rollout.status == "completed"
    assert fleet.versions() == {"2": 5}


def test_a_rollout_waits_for_devices_that_wait() -> None:
    fleet = Fleet(5, lambda name, version: "waits")
    rollout = fleet.start("r1", steps=[100])
    fleet.go(100)
    assert rollout.status == "running"
    assert rollout.open == 5


def test_pause_and_resume() -> None:
    fleet = Fleet(200, well)
    rollout = fleet.start("r1", steps=[100])
    fleet.go(1, most=50)
    fleet.take(rollout, Event("paused", fleet.now, by="ann", text="lunch"))
    members = set(rollout.members)
    fleet.go(30)
    assert set(rollout.members) == members
    assert fleet.versions() == {"1": 150, "2": 50}
    fleet.take(rollout, Event("resumed", fleet.now, by="ann"))
    fleet.go(5)
    assert fleet.versions() == {"2": 200}


def test_a_completed_rollout_can_be_taken_back() -> None:
    fleet = Fleet(50, well)
    rollout = fleet.start("r1", steps=[100])
    fleet.go(10)
    assert fleet.versions() == {"2": 50}
    fleet.take(rollout, Event("aborted", fleet.now, by="ann", text="a complaint", data={"back": True}))
    fleet.go(2)
    assert fleet.versions() == {"1": 50}
    assert rollout.settled


def test_an_abort_without_return_leaves_devices_as_they_are() -> None:
    fleet = Fleet(50, well)
    rollout = fleet.start("r1", steps=[100])
    fleet.go(1, most=20)
    fleet.take(rollout, Event("aborted", fleet.now, by="ann", data={"back": False}))
    fleet.go(3)
    assert fleet.versions() == {"1": 30, "2": 20}


def test_a_worse_score_stops_a_version_that_passes_its_tests() -> None:
    """All devices' scores fall in the evening; those of version 2 fall further."""
    draw = random.Random(5)

    def score(name: str, version: str) -> float:
        evening = 0.1 if fleet.now > 1040 else 0.0
        return 0.9 - evening - (0.25 if version == "2" else 0.0) + draw.gauss(0, 0.02)

    fleet = Fleet(400, well, score)
    rollout = fleet.start("r1", steps=[20, 100], soak=120)
    fleet.go(12)
    assert (rollout.status, "confidence" in rollout.reason) == ("aborted", True)
    assert len(rollout.members) < 400 * 0.3
    assert fleet.versions() == {"1": 400}


def test_a_score_that_falls_everywhere_stops_nothing() -> None:
    draw = random.Random(6)
    fleet = Fleet(400, well, lambda name, version: 0.9 - (fleet.now - 1000) / 1000 + draw.gauss(0, 0.02))
    rollout = fleet.start("r1", steps=[20, 100], soak=120)
    fleet.go(12)
    assert rollout.status == "completed"


def test_a_version_that_fails_after_its_trial_counts_as_bad() -> None:
    fleet = Fleet(40, well)
    rollout = fleet.start("r1", steps=[100], soak=1000, patience=1000)
    fleet.go(2)
    assert rollout.counts()["good"] == 40
    for name in ("d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"):
        fleet.devices[name] = Application("1", outcome=Outcome("2", "r1", "rolled-back", "crashed"))
        fleet.check_in(name)
    assert rollout.counts()["bad"] == 9 or rollout.status == "aborted"


def test_a_full_disk_is_not_the_last_word() -> None:
    """It is tried again: what becomes of the version then counts, once."""
    fleet = Fleet(4, lambda name, version: "failed")
    rollout = fleet.start("r1", steps=[100], soak=1000, patience=1000)
    fleet.go(2)
    assert rollout.counts() == {"": 0, "good": 0, "bad": 0, "neutral": 4}
    for name, kind in (("d0", "committed"), ("d1", "self-test"), ("d2", "refused")):
        fleet.devices[name] = Application("1", outcome=Outcome("2", "r1", kind))
    fleet.devices["d3"] = Application("2")
    before = len(fleet.events["r1"])
    fleet.go(3)
    assert rollout.counts() == {"": 0, "good": 2, "bad": 1, "neutral": 1} and rollout.open == 0
    assert len(fleet.events["r1"]) == before + 3


def test_a_clock_that_was_set_back_stops_no_rollout() -> None:
    """It began in a future that was none; what is started after it comes before it all the same."""
    fleet = Fleet(40, well)
    fleet.now += 1e8
    old = fleet.start("old", steps=[50, 100])
    fleet.go(1)
    fleet.now -= 1e8 - 30
    fleet.go(30)
    assert old.status == "completed" and fleet.versions() == {"2": 40}
    assert [event.kind for event in fleet.events["old"]].count("rebased") == 1
    new = fleet.start("new", version="3", steps=[100])
    assert fleet.rollouts == [new, old] and sorted(fleet.rollouts, key=lambda one: one.order) == [new, old]
    fleet.go(10)
    assert new.status == "completed" and fleet.versions() == {"3": 40}


def test_a_device_counts_once_whatever_it_says() -> None:
    """False reports: one device that says again and again that the version failed."""
    fleet = Fleet(20, badly)
    rollout = fleet.start("r1", steps=[100])
    for kind in ("self-test", "rolled-back", "broken", "committed", "self-test") * 20:
        fleet.check_in("d1")
        fleet.devices["d1"] = Application("1", outcome=Outcome("2", "r1", kind))
    assert rollout.counts()["bad"] == 1
    assert rollout.failures[0] == Failures(0, 1)
    assert rollout.status == "running"


def test_an_outcome_of_another_rollout_does_not_count() -> None:
    fleet = Fleet(5, well)
    rollout = fleet.start("r1", steps=[100])
    fleet.check_in("d1")
    fleet.devices["d1"] = Application("1", outcome=Outcome("2", "r0", "self-test"))
    fleet.check_in("d1")
    assert rollout.counts()["bad"] == 0


# -- precedence --------------------------------------------------------------------------------------------------------


def test_the_higher_priority_decides_and_then_the_newer() -> None:
    fleet = Fleet(100, well)
    fleet.start("all", steps=[100])
    fleet.now += 1
    fleet.start("north", version="3", cohort={"region": ["nor*"]}, steps=[100])
    fleet.now += 1
    fleet.start("late", version="4", priority=-5, steps=[100])
    fleet.go(20)
    assert fleet.versions() == {"2": 50, "3": 50}


def test_a_version_taken_back_twice_leads_to_the_first() -> None:
    fleet = Fleet(60, well)
    one = fleet.start("r1", steps=[100])
    fleet.go(5)
    fleet.now += 1
    two = fleet.start("r2", version="3", steps=[100])
    fleet.go(5)
    assert fleet.versions() == {"3": 60}
    fleet.take(one, Event("aborted", fleet.now, by="ann"))
    fleet.go(2)
    assert fleet.versions() == {"3": 60}
    fleet.take(two, Event("aborted", fleet.now, by="ann"))
    fleet.go(3)
    assert fleet.versions() == {"1": 60}
    assert one.settled
    assert two.settled


def test_what_is_taken_back_falls_to_the_next_rollout() -> None:
    fleet = Fleet(60, well)
    fleet.start("r1", steps=[100])
    fleet.go(5)
    fleet.now += 1
    fleet.start("r2", version="3", steps=[100])
    fleet.go(5)
    fleet.devices["new"], fleet.attributes["new"] = Application("1"), {"region": "east"}
    fleet.check_in("new")
    assert fleet.devices["new"].version == "3"
    fleet.take(fleet.rollouts[0], Event("aborted", fleet.now, by="ann"))
    fleet.go(2)
    assert fleet.versions() == {"2": 61}


# -- properties --------------------------------------------------------------------------------------------------------

WORDS = st.lists(
    st.one_of(
        st.tuples(st.just("check"), st.integers(0, 24)),
        st.tuples(st.sampled_from(["paused", "resumed", "aborted"]), st.integers(0, 2)),
        st.tuples(st.just("start"), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.integers(1, 900)),
    ),
    max_size=80,
)


@settings(max_examples=80)
@given(WORDS, st.integers(0, 1000))
def test_whatever_happens_the_rules_hold(words: Sequence[tuple[str, int]], seed: int) -> None:
    fates = ("committed", "committed", "committed", "self-test", "waits", "failed")
    fleet = Fleet(25, lambda name, version: fates[int(place(f"{seed}{version}", name) * len(fates))])
    joined: dict[str, set[str]] = {}
    for word, number in words:
        frozen = {one.id for one in fleet.rollouts if one.status in ("paused", "aborted")}
        if word == "check":
            fleet.check_in(f"d{number}")
        elif word == "wait":
            fleet.now += number
        elif word == "start" and len(fleet.rollouts) == 5:
            continue
        elif word == "start":
            cohort = ({}, {"region": ["north"]}, {"region": ["south"]})[number]
            version = str(len(fleet.rollouts) + 2)
            fleet.start(f"r{version}", version=version, cohort=cohort, priority=number, steps=[20, 60, 100])
        elif number < len(fleet.rollouts):
            try:
                fleet.take(fleet.rollouts[number], Event(word, fleet.now, by="ann", text="because"))
            except HubError as problem:
                assert "expected one that is" in str(problem)
        for rollout in fleet.rollouts:
            members = set(rollout.members)
            before = joined.setdefault(rollout.id, set())
            assert before <= members
            assert before == members or rollout.id not in frozen
            joined[rollout.id] = members
            assert all(belongs(fleet.attributes[name], rollout.plan.cohort) for name in members)
            limit = rollout.plan.steps[rollout.step] / 100
            assert all(place(rollout.id, name) < limit for name in members)
            counts = rollout.counts()
            assert counts[""] == rollout.open
            assert rollout.returning == sum(not one.returned for one in rollout.members.values())
    for name in fleet.devices:
        told = assignment(fleet.rollouts, name)
        taken = {one.plan.version for one in fleet.rollouts if one.status == "aborted" and name in one.members}
        assert told is None or told.version not in taken
    for identity, events in fleet.events.items():
        live = next(one for one in fleet.rollouts if one.id == identity)
        stored = [Event(**json.loads(json.dumps(plain(event)))) for event in events]
        again = Rollout(identity, stored)
        assert again.data() == live.data()
        told = [[assignment([one], name) for name in fleet.devices] for one in (again, live)]
        assert told[0] == told[1]
        assert again.decision(fleet.now + 1e6) == live.decision(fleet.now + 1e6)


@given(st.text(max_size=10), st.sampled_from([1.0, 5.0, 40.0]), st.sampled_from([41.0, 100.0]))
def test_steps_are_nested_and_have_their_share(seed: str, small: float, large: float) -> None:
    places = [place(seed, f"device-{n}") for n in range(2000)]
    assert all(0 <= one < 1 for one in places)
    inside = sum(one < small / 100 for one in places)
    assert abs(inside - 20 * small) < 6 * (20 * small * (1 - small / 100)) ** 0.5
    within = [{n for n, one in enumerate(places) if one < share / 100} for share in (small, large)]
    assert within[0] <= within[1]


def test_a_place_never_changes() -> None:
    assert [round(place("r1", name), 6) for name in ("d0", "d1")] == [0.425531, 0.551075]


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.02])
def test_good_versions_are_stopped_no_more_often_than_promised(rate: float) -> None:
    draw, stopped, runs = random.Random(1), 0, 500
    for _ in range(runs):
        found = Failures()
        for _ in range(400):
            found = found._replace(bad=found.bad + 1) if draw.random() < rate else found._replace(good=found.good + 1)
            if found.verdict(0.02, 0.2, 0.05, 1e-300) == "bad":
                stopped += 1
                break
    assert stopped <= runs * 0.05 + 3 * (runs * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize("rate", [0.2, 0.5, 1.0])
def test_bad_versions_pass_no_more_often_than_promised(rate: float) -> None:
    draw, passed, runs, used = random.Random(2), 0, 1000, []
    for _ in range(runs):
        found = Failures()
        while not (verdict := found.verdict(0.02, 0.2, 0.05, 0.05)):
            found = found._replace(bad=found.bad + 1) if draw.random() < rate else found._replace(good=found.good + 1)
        passed += verdict == "good"
        used.append(sum(found))
    assert passed <= runs * 0.05 + 3 * (runs * 0.05 * 0.95) ** 0.5
    assert sum(used) / runs < 20


def test_harm_is_found_no_more_often_than_promised_and_when_it_is_there() -> None:
    draw, runs = random.Random(3), 400

    def found(mean: float) -> int:
        count = 0
        for _ in range(runs):
            harm = Harm()
            for _ in range(200):
                harm = harm.after(min(max(draw.gauss(mean, 0.1), 0.0), 1.0), 0.625)
            count += harm.found(0.05)
        return count

    assert found(0.62) <= runs * 0.05 + 3 * (runs * 0.05 * 0.95) ** 0.5
    assert found(0.75) == runs


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0.05, 0.95))
def test_capital_stays_finite(values: Sequence[float], margin: float) -> None:
    harm = Harm()
    for value in values:
        harm = harm.after(value, margin)
    assert harm.highest >= harm.capital > -200
    assert harm.number == len(values)


WRONG = {
    "steps": ({"steps": [5, 5]}, "steps: expected growing percents"),
    "no steps": ({"steps": []}, "steps: expected growing percents"),
    "percent": ({"steps": [5, 101]}, "steps"),
    "a path": ({"version": "../2"}, "version: expected a name"),
    "soak": ({"soak": -1}, "soak: expected seconds"),
    "patience": ({"patience": 1}, "patience: expected at least soak"),
    "rates": ({"judge": {"acceptable": 0.5}}, "judge.acceptable: expected less than unacceptable"),
    "a key": ({"step": [5]}, "step: no such key; did you mean 'steps'?"),
    "cohort": ({"cohort": {"region": "north"}}, "cohort"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_plans_are_refused(case: str) -> None:
    change, message = WRONG[case]
    with pytest.raises(HubError) as caught:
        read_plan({**PLAN, **change})
    assert message in str(caught.value)


def test_a_missing_attribute_does_not_belong() -> None:
    assert belongs({"a": "x1"}, {"a": ["y", "x?"]})
    assert not belongs({}, {"a": ["*"]})
    assert belongs({}, {})
