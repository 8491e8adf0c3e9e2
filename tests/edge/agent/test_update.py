"""The update as a state machine: whatever happens, in whatever order, the old version runs or the new one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.agent.update import (
    MAKING,
    TRYING,
    Again,
    Assigned,
    Damaged,
    Declined,
    Event,
    Failed,
    Fetched,
    Health,
    Installed,
    Passed,
    Phase,
    Return,
    Rules,
    Started,
    State,
    Stored,
    Switched,
    Told,
    durable,
    faults,
    step,
)  # fmt: skip

RULES = Rules(seconds=10, successes=2, failures=2, limit=100, starts=3)
ONE, TWO = Installed("a", "1", "1" * 64), Installed("b", "2", "2" * 64)
MADE: tuple[Event, ...] = (Fetched(), Passed(), Stored(), Switched(), Told())


def after(events: Sequence[Event], state: State = State()) -> State:  # noqa: B008 # it is frozen
    for event in events:
        state = step(state, event, RULES)
    return state


def assigned(number: int, rollout: str = "") -> Assigned:
    return Assigned(str(number), str(number) * 64, rollout)


GOOD = (Health(True, 5), Health(True, 20))
FIRST = after((assigned(1), *MADE, *GOOD))
TRIAL = after((assigned(2, "r"), *MADE), FIRST)


def test_an_update_takes_its_way() -> None:
    phases, state = [], FIRST
    for event in (assigned(2), *MADE, *GOOD):
        state = step(state, event, RULES)
        phases.append(str(state.phase))
    assert phases == "fetching rebuilding checked staged switched trial trial idle".split()
    assert (state.running, state.previous, state.coming) == (TWO, ONE, None)
    assert state.outcome is not None and state.outcome[:3] == ("2", "", "committed")


def test_a_trial_that_fails_returns_and_is_not_tried_again() -> None:
    state = after((Health(False, 1, "it hangs"), Health(False, 2, "it hangs")), TRIAL)
    assert (state.phase, state.running, state.previous, state.told) == (Phase.IDLE, ONE, None, False)
    assert state.outcome is not None
    assert state.outcome == ("2", "r", "rolled-back", "2 health checks in sequence failed: it hangs")
    again = step(state, assigned(2, "r2"), RULES)
    assert again.phase is Phase.IDLE and again.outcome is not None
    assert again.outcome == ("2", "r2", "rolled-back", state.outcome.reason)
    assert step(step(state, Again("2"), RULES), assigned(2), RULES).phase is Phase.FETCHING
    assert step(state, Again("3"), RULES).refused == state.refused


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ((Health(False, 1), Health(True, 2), Health(False, 3), Health(True, 4), Health(True, 11)), "committed"),
        ((Health(True, 1), Health(True, 2), Health(True, 3)), ""),  # not long enough
        ((Health(True, 1), Health(False, 2, "no"), Health(True, 101)), "rolled-back"),  # too long
        ((Started(), Told(), Started(), Told(), Started()), "rolled-back"),
        ((Started(), Told(), Started(), Told(), *GOOD), "committed"),
        ((Return("somebody"),), "returned"),
        ((assigned(1),), "returned"),
        ((assigned(3), Declined("4", "no"), Failed("late"), Fetched(), Switched()), ""),
    ],
)
def test_how_a_trial_ends(events: tuple[Event, ...], ends: str) -> None:
    state = after(events, TRIAL)
    assert state.outcome is not None
    assert state.outcome.kind == ends if ends else state.phase is Phase.TRIAL
    assert state.running == (TWO if ends in ("", "committed") else ONE)


def test_damage() -> None:
    committed = after(GOOD, TRIAL)
    assert step(committed, Damaged("a", "x"), RULES).previous is None
    back = step(committed, Damaged("b", "x"), RULES)
    assert (back.running, back.previous, back.told, back.phase) == (ONE, None, False, Phase.IDLE)
    alone = step(back, Damaged("a", "x"), RULES)  # none is left: it is fetched again
    assert (alone.running, alone.coming, alone.phase) == (None, ONE, Phase.FETCHING)
    staged = after((assigned(3), *MADE[:3]), committed)
    assert step(staged, Damaged("a", "x"), RULES).phase is Phase.FETCHING
    lost = step(staged, Damaged("b", "x"), RULES)
    assert lost.running is None and lost.coming == staged.coming and not faults(lost)


def test_the_version_before_needs_no_download() -> None:
    committed = after(GOOD, TRIAL)
    state = step(committed, assigned(1), RULES)
    assert (state.phase, state.coming, state.previous) == (Phase.STAGED, ONE, None)
    returned = step(committed, Return("by hand"), RULES)
    assert (returned.running, returned.previous, returned.refused[0].release) == (ONE, TWO, TWO.release)
    assert step(returned, assigned(2), RULES).running == ONE


def test_refusals_are_bounded() -> None:
    state = FIRST
    for number in range(100):
        state = after((Assigned(str(number), f"{number:064}"), Failed("no", "broken", True)), state)
    assert len(state.refused) == 32 and state.refused[-1].version == "99"


numbers = st.integers(1, 4)
EVENTS = st.one_of(
    numbers.map(assigned), st.sampled_from(MADE), st.sampled_from(MADE), st.just(Started()),
    st.builds(Failed, st.just("x"), st.just("failed"), st.booleans()),
    st.builds(Health, st.booleans(), st.floats(0, 200), st.just("x")),
    st.builds(Damaged, st.sampled_from("ab"), st.just("x")), st.builds(Return, st.just("x")),
    numbers.map(lambda n: Declined(str(n), "x")), st.just(Again("")),
)  # fmt: skip


@given(st.lists(st.tuples(EVENTS, st.booleans()), max_size=60))
def test_the_old_or_the_new_version_runs(events: list[tuple[Event, bool]]) -> None:
    """With a crash after any event, and with states that were saved only in part: slots whose files would be lost are
    never those that run, or that a trial can return to."""
    state, sound = State(), set[Installed]()
    for event, crash in events:
        before = state
        state = step(state, event, RULES)
        assert not faults(state)
        if isinstance(event, Stored) and before.phase is Phase.CHECKED and before.coming is not None:
            sound.add(before.coming)
        if isinstance(event, Damaged):
            sound = {one for one in sound if one.slot != event.slot}
        if state.phase in MAKING and state.phase is not Phase.STAGED and state.coming is not None:
            sound = {one for one in sound if one.slot != state.coming.slot}  # it is written to
        if before.running in sound:
            assert state.running is not None and state.running in sound
        if state.running is not None and not isinstance(event, Damaged):
            assert state.running in sound
        if state.phase in TRYING and state.previous is not None:
            assert state.previous in sound
        if crash:
            assert durable(step(durable(state), Started(), RULES)) == durable(step(state, Started(), RULES))
            state = step(durable(state), Started(), RULES)
            assert not faults(state)


@given(st.lists(EVENTS, max_size=60))
def test_events_can_be_replayed(events: list[Event]) -> None:
    assert after(events) == after(events)
    assert durable(durable(after(events))) == durable(after(events))
