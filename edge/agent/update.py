"""The update of one application as a state machine: a state and an event give the next state. No clock, disk or socket.

    idle -> fetching -> rebuilding -> checked -> staged -> switched -> trial -> idle, with an outcome

What a phase asks of the one who drives the machine (`edge.agent.application`) follows from the state alone, so that an
update goes on wherever a process was killed. Two slots hold files, and every state keeps these rules (`faults`):
the running version's slot is never the one that is being filled; until a trial has passed, the version before is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeAlias

from lite_runtime.frozen import NamedTuple

__all__ = [
    "MAKING", "SLOTS", "TRYING", "Again", "Assigned", "Damaged", "Declined", "Event", "Failed", "Fetched", "Health",
    "Installed", "Outcome", "Passed", "Phase", "Refused", "Return", "Rules", "Started", "State", "Stored", "Switched",
    "Told", "durable", "faults", "step",
]  # fmt: skip

SLOTS = ("a", "b")
MOST_REFUSED = 32
"""The newest refusals are kept."""


class Phase(StrEnum):
    """Where an update is. idle: none is under way. fetching: pieces and deltas come. rebuilding: files are put
    together. checked: they passed the checks before the switch. staged: the disk has all of them. switched: they are
    the running version, which the application was not told yet. trial: its health decides."""

    IDLE = "idle"
    FETCHING = "fetching"
    REBUILDING = "rebuilding"
    CHECKED = "checked"
    STAGED = "staged"
    SWITCHED = "switched"
    TRIAL = "trial"


MAKING = (Phase.FETCHING, Phase.REBUILDING, Phase.CHECKED, Phase.STAGED)
TRYING = (Phase.SWITCHED, Phase.TRIAL)


class Installed(NamedTuple):
    """A version in a slot. release: SHA-256 of its release document."""

    slot: str
    version: str
    release: str


class Refused(NamedTuple):
    """A version that is not tried again until told: what became of it (one of `OUTCOMES`), and why."""

    version: str
    release: str
    kind: str
    reason: str


class Outcome(NamedTuple):
    """How the last update ended. rollout: who had assigned the version. kind: one of
    `lite_runtime.updates.checkin.OUTCOMES`."""

    version: str
    rollout: str
    kind: str
    reason: str = ""


class Rules(NamedTuple):
    """When a trial ends. It has passed after `seconds` with `successes` passed checks in sequence; it has failed after
    `failures` failed ones in sequence, after `limit` seconds, or at the agent's start number `starts`."""

    seconds: float = 60.0
    successes: int = 3
    failures: int = 3
    limit: float = 3600.0
    starts: int = 5


class State(NamedTuple):
    """running: the version that the application uses; told: whether it knows. previous: the version before, which can
    be returned to. coming: the version that is being made. passed, failed: health checks in sequence. starts: of the
    agent since the switch. rollout: of the last assignment. outcome: of the last update."""

    phase: Phase = Phase.IDLE
    running: Installed | None = None
    previous: Installed | None = None
    coming: Installed | None = None
    told: bool = True
    starts: int = 0
    passed: int = 0
    failed: int = 0
    rollout: str = ""
    refused: tuple[Refused, ...] = ()
    outcome: Outcome | None = None

    def refusal(self, release: str) -> Refused | None:
        """Why a release is not tried again; None if it may be."""
        return next((one for one in self.refused if one.release == release), None)


# -- events ------------------------------------------------------------------------------------------------------------


class Assigned(NamedTuple):
    """The application should run this version. rollout: a name by which the hub knows the assignment."""

    version: str
    release: str
    rollout: str = ""


class Declined(NamedTuple):
    """A version was assigned that cannot run here: what is installed stays."""

    version: str
    reason: str
    rollout: str = ""


class Fetched(NamedTuple):
    """All that has to be downloaded is here."""


class Passed(NamedTuple):
    """All files are complete, have their digests, and passed the checks before the switch."""


class Stored(NamedTuple):
    """The disk confirmed all files."""


class Switched(NamedTuple):
    """The new version shall run from now on: conditions for a switch hold, and its slot was read again."""


class Told(NamedTuple):
    """The application was told which version runs."""


class Failed(NamedTuple):
    """A version cannot be made. kind: one of `OUTCOMES`. lasting: another try would fail as well."""

    reason: str
    kind: str = "failed"
    lasting: bool = False


class Health(NamedTuple):
    """A check of the application's health in a trial. seconds: since the application was told."""

    passed: bool
    seconds: float
    reason: str = ""


class Started(NamedTuple):
    """The agent was started, after whatever ended it."""


class Damaged(NamedTuple):
    """The files in a slot are not those that belong there."""

    slot: str
    reason: str


class Return(NamedTuple):
    """Somebody wants the version before."""

    reason: str


class Again(NamedTuple):
    """Versions may be tried again: this one, or with "" all."""

    version: str = ""


Event: TypeAlias = (
    Assigned
    | Declined
    | Fetched
    | Passed
    | Stored
    | Switched
    | Told
    | Failed
    | Health
    | Started
    | Damaged
    | Return
    | Again
)


# -- the machine -------------------------------------------------------------------------------------------------------


def step(state: State, event: Event, rules: Rules = Rules()) -> State:  # noqa: B008 # it is frozen
    """The next state. An event that means nothing in a state leaves it as it is."""
    return _ON[type(event)](state, event, rules)


def _assigned(state: State, event: Assigned, rules: Rules) -> State:
    if state.phase in TRYING:
        if state.previous is not None and event.release == state.previous.release:
            made = _rolled_back(state, "returned", f"version {event.version} was assigned again", refuse=False)
            return made._replace(rollout=event.rollout)
        return state  # the trial ends first
    state = state._replace(rollout=event.rollout)
    if state.running is not None and event.release == state.running.release:
        return state._replace(phase=Phase.IDLE, coming=None)
    if state.coming is not None and event.release == state.coming.release:
        return state
    refused = state.refusal(event.release)
    if refused is not None:
        return state._replace(outcome=Outcome(event.version, event.rollout, refused.kind, refused.reason))
    if state.coming is None and state.previous is not None and event.release == state.previous.release:
        return state._replace(phase=Phase.STAGED, coming=state.previous, previous=None)
    slot = state.coming.slot if state.coming is not None else _free(state)
    return state._replace(phase=Phase.FETCHING, coming=Installed(slot, event.version, event.release), previous=None)


def _declined(state: State, event: Declined, rules: Rules) -> State:
    if state.phase in TRYING:
        return state
    outcome = Outcome(event.version, event.rollout, "refused", event.reason)
    return state._replace(phase=Phase.IDLE, coming=None, rollout=event.rollout, outcome=outcome)


def _free(state: State) -> str:
    taken = state.running.slot if state.running is not None else ""
    return next(slot for slot in SLOTS if slot != taken)


def _moves(before: Phase, after: Phase) -> Callable[[State, Any, Rules], State]:
    return lambda state, event, rules: state._replace(phase=after) if state.phase is before else state


def _switched(state: State, event: Switched, rules: Rules) -> State:
    if state.phase is not Phase.STAGED:
        return state
    return state._replace(
        phase=Phase.SWITCHED, running=state.coming, previous=state.running, coming=None, told=False, starts=1,
        passed=0, failed=0,
    )  # fmt: skip


def _told(state: State, event: Told, rules: Rules) -> State:
    return state._replace(phase=Phase.TRIAL if state.phase is Phase.SWITCHED else state.phase, told=True)


def _failed(state: State, event: Failed, rules: Rules) -> State:
    if state.coming is None:
        return state
    outcome = Outcome(state.coming.version, state.rollout, event.kind, event.reason)
    made = state._replace(phase=Phase.IDLE, coming=None, outcome=outcome)
    return _refusing(made, state.coming, event.kind, event.reason) if event.lasting else made


def _health(state: State, event: Health, rules: Rules) -> State:
    if state.phase is not Phase.TRIAL or state.running is None:
        return state
    passed, failed = (state.passed + 1, 0) if event.passed else (0, state.failed + 1)
    if failed >= rules.failures:
        times = f"{failed} health checks in sequence" if failed > 1 else "a health check"
        return _rolled_back(state, "rolled-back", f"{times} failed: {event.reason}")
    if passed >= rules.successes and event.seconds >= rules.seconds:
        outcome = Outcome(state.running.version, state.rollout, "committed")
        return state._replace(phase=Phase.IDLE, starts=0, passed=0, failed=0, outcome=outcome)
    if event.seconds >= rules.limit:
        why = event.reason or f"{passed} of {rules.successes} checks had passed"
        return _rolled_back(state, "rolled-back", f"the trial did not pass within {rules.limit:g} s: {why}")
    return state._replace(passed=passed, failed=failed)


def _started(state: State, event: Started, rules: Rules) -> State:
    if state.phase in (Phase.REBUILDING, Phase.CHECKED):
        return state._replace(phase=Phase.FETCHING)
    if state.phase not in TRYING:
        return state
    starts = state.starts + 1
    if starts > rules.starts:
        why = f"the agent was started {rules.starts} times in the trial, which never passed"
        return _rolled_back(state, "rolled-back", why)
    return state._replace(phase=Phase.SWITCHED, told=False, starts=starts, passed=0, failed=0)


def _damaged(state: State, event: Damaged, rules: Rules) -> State:
    running, previous, coming = (
        one is not None and one.slot == event.slot for one in (state.running, state.previous, state.coming)
    )
    if coming:
        return state._replace(phase=Phase.FETCHING)
    if previous:
        return state._replace(previous=None)
    if not running or state.running is None:
        return state
    why = Outcome(state.running.version, state.rollout, "broken", f"its files are damaged: {event.reason}")
    made = state._replace(running=state.previous, previous=None, told=False, starts=0, outcome=why)
    if state.phase in MAKING:
        return made
    if state.previous is not None:
        return made._replace(phase=Phase.IDLE)
    return made._replace(phase=Phase.FETCHING, coming=state.running)  # what is sound of it need not be fetched again


def _return(state: State, event: Return, rules: Rules) -> State:
    if state.phase in TRYING:
        return _rolled_back(state, "returned", event.reason)
    if state.phase is not Phase.IDLE or state.previous is None or state.running is None:
        return state
    made = state._replace(
        running=state.previous, previous=state.running, told=False,
        outcome=Outcome(state.running.version, state.rollout, "returned", event.reason),
    )  # fmt: skip
    return _refusing(made, state.running, "returned", event.reason)


def _again(state: State, event: Again, rules: Rules) -> State:
    kept = (one for one in state.refused if event.version and one.version != event.version)
    return state._replace(refused=tuple(kept))


def _rolled_back(state: State, kind: str, reason: str, refuse: bool = True) -> State:
    """Back from a trial. Without a version before, nothing runs, as before the update."""
    tried = state.running
    assert tried is not None
    made = state._replace(
        phase=Phase.IDLE, running=state.previous, previous=None, told=False, starts=0, passed=0, failed=0,
        outcome=Outcome(tried.version, state.rollout, kind, reason),
    )  # fmt: skip
    return _refusing(made, tried, kind, reason) if refuse else made


def _refusing(state: State, version: Installed, kind: str, reason: str) -> State:
    others = [one for one in state.refused if one.release != version.release]
    refused = (*others, Refused(version.version, version.release, kind, reason))
    return state._replace(refused=refused[-MOST_REFUSED:])


_ON: Mapping[type, Callable[[State, Any, Rules], State]] = {
    Assigned: _assigned,
    Declined: _declined,
    Fetched: _moves(Phase.FETCHING, Phase.REBUILDING),
    Passed: _moves(Phase.REBUILDING, Phase.CHECKED),
    Stored: _moves(Phase.CHECKED, Phase.STAGED),
    Switched: _switched,
    Told: _told,
    Failed: _failed,
    Health: _health,
    Started: _started,
    Damaged: _damaged,
    Return: _return,
    Again: _again,
}


# -- what is kept ------------------------------------------------------------------------------------------------------


def durable(state: State) -> State:
    """What of a state has to survive a crash: the rest is done again. A step that leaves this as it is needs no
    writing."""
    phase = {Phase.REBUILDING: Phase.FETCHING, Phase.CHECKED: Phase.FETCHING, Phase.TRIAL: Phase.SWITCHED}
    told = state.told and state.phase not in TRYING
    return state._replace(phase=phase.get(state.phase, state.phase), told=told, passed=0, failed=0)


def faults(state: State) -> list[str]:
    """What contradicts the rules of a state; a file that says so was not written by this program."""
    held = [one for one in (state.running, state.previous, state.coming) if one is not None]
    rules = (
        (len({one.slot for one in held}) == len(held), "two versions in one slot"),
        (all(one.slot in SLOTS for one in held), f"a slot other than {' and '.join(SLOTS)}"),
        ((state.coming is not None) == (state.phase in MAKING), f"a version that comes in phase {state.phase}"),
        (state.running is not None or state.phase not in TRYING, f"no running version in phase {state.phase}"),
        (state.running is not None or state.previous is None, "a version before, and none that runs"),
    )
    return [text for holds, text in rules if not holds]
