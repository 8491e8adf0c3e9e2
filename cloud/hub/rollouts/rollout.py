"""One rollout as a state machine: events change it, and what it decides by itself are events too.

    running -> running (the next step) -> … -> completed
    running <-> paused;   running, paused, completed -> aborted, and then every member returns

`apply` alone changes a rollout, so that the same events in the same order always give the same state: a hub that is
restarted replays them. Verdicts are not taken back: a rollout that has stopped itself goes on only by an operator's
word, whatever later reports say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import log1p
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from cloud.hub.errors import HubError
from cloud.hub.rollouts.cohorts import belongs, place
from cloud.hub.rollouts.evidence import Failures, Harm
from cloud.hub.rollouts.plan import Limit, Plan, read_plan

__all__ = ["JUDGE", "Event", "Member", "Rollout"]

JUDGE = "the hub"
"""Who decides when no operator does."""
_NONE: Mapping[str, Any] = MappingProxyType({})
_AHEAD = 60.0
"""Seconds by which a clock may be set back without notice."""
_CLIP = 4.0
"""Differences of measures count up to so many margins."""
_TOLERATED = (1 + 1 / _CLIP) / 2
"""One margin, of values that are mapped from [-4, 4] margins to [0, 1]."""


class Event(NamedTuple):
    """Something that happened to a rollout at a time (seconds since 1970). data: in JSON's types."""

    kind: str
    time: float
    device: str = ""
    by: str = ""
    text: str = ""
    data: Mapping[str, Any] = _NONE


class Member:
    """A device that was given the version. before: the version it had. since: when. baseline: its measures then.
    verdict: "" (open), good, bad or neutral."""

    __slots__ = ("baseline", "before", "kind", "measured", "returned", "since", "verdict")

    def __init__(self, before: str, since: float, baseline: Mapping[str, float]) -> None:
        self.before, self.since, self.baseline = before, since, baseline
        self.verdict = self.kind = ""
        self.measured = self.returned = False

    @property
    def undecided(self) -> bool:
        """Whether what became of the version is not known: open, or a disk or network that failed, which is tried
        again."""
        return not self.verdict or self.kind == "failed"


class Rollout:
    """The state after some events, the first of them "started". Raises HubError for events that cannot follow."""

    def __init__(self, identity: str, events: Iterable[Event]) -> None:
        self.id = identity
        self.status, self.reason = "", ""
        self.members: dict[str, Member] = {}
        self._counts = {"": 0, "good": 0, "bad": 0, "neutral": 0}
        self.controls: dict[str, tuple[float, Mapping[str, float]] | None] = {}
        """Devices without the version that are compared with: since when and from which measures, None: compared."""
        self.open = 0
        """Members whose outcome is not known."""
        self.back = False
        """Whether it was aborted and its version taken back."""
        self.returning = 0
        """Members that have not said yet that they run the version before."""
        for event in events:
            self.apply(event)

    # -- what it says

    @property
    def percent(self) -> float:
        """How much of the cohort may have the version."""
        return self.plan.steps[self.step]

    @property
    def order(self) -> tuple[float, float, str]:
        """Sorts rollouts by precedence: what comes first decides."""
        return -self.plan.priority, -self.started, self.id

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for any device."""
        return self.status == "aborted" and not self.returning

    def admits(self, device: str, attributes: Mapping[str, str]) -> bool:
        """Whether a device that is no member may become one now."""
        if self.status not in ("running", "completed") or not belongs(attributes, self.plan.cohort):
            return False
        return place(self.plan.seed or self.id, device) < self.percent / 100

    def counts(self) -> dict[str, int]:
        """Members by verdict; those of "" are open."""
        return dict(self._counts)

    def decision(self, now: float) -> Event | None:
        """What the rollout decides by itself at this time, as an event that is still to be applied; None: nothing."""
        if max(self.started, self.began) > now + _AHEAD:
            return Event("rebased", now, by=JUDGE, text="the clock of the hub was set back")
        if self.status != "running":
            return None
        if why := self._against():
            return Event("aborted", now, by=JUDGE, text=why, data={"back": True})
        age, judge = now - self.began, self.plan.judge
        if age < self.plan.soak:
            return None
        found = self.failures[self.step]
        if found.verdict(judge.acceptable, judge.unacceptable, self._alpha, judge.beta) == "good":
            return self._onward(now, f"{found.good} devices did well, {found.bad} did not")
        if age < self.plan.patience:
            return None
        if not found.good and not found.bad:
            return self._onward(now, "no device has this step") if not self.open else None
        words = f"undecided after {self.plan.patience:g} s: {found.good} devices did well, {found.bad} did not"
        if found.evidence(judge.acceptable, judge.unacceptable) < 0:
            return self._onward(now, words)
        return Event("paused", now, by=JUDGE, text=words)

    @property
    def _alpha(self) -> float:
        """The probability of a false alarm that one test may have: there is one a step, and one a measure."""
        return self.plan.judge.alpha / (len(self.plan.steps) + len(self.plan.judge.measures))

    def _against(self) -> str:
        """What speaks against the version, "" if nothing does yet."""
        judge, found = self.plan.judge, self.failures[self.step]
        if found.verdict(judge.acceptable, judge.unacceptable, self._alpha, judge.beta) == "bad":
            return f"{found.bad} of {found.good + found.bad} devices failed"
        worse = [name for name, harm in self.harms.items() if harm.found(self._alpha)]
        return f"{', '.join(worse)}: worse than on devices without this version" if worse else ""

    def _onward(self, now: float, why: str) -> Event:
        if self.step + 1 < len(self.plan.steps):
            return Event("widened", now, by=JUDGE, text=why, data={"step": self.step + 1})
        return Event("completed", now, by=JUDGE, text=why)

    # -- what changes it

    def apply(self, event: Event) -> None:
        """Take an event in. Raises HubError, and changes nothing, for one that this state does not allow."""
        states, change = _CHANGES[event.kind]
        if self.status not in states:
            raise HubError(
                f"rollout {self.id}: expected one that is {' or '.join(states) or 'new'} to be {event.kind}, got one "
                f"that is {self.status or 'new'}"
            )
        change(self, event)

    def _start(self, event: Event) -> None:
        self.plan: Plan = read_plan(event.data)
        self.started = self.began = event.time
        self.status, self.step = "running", 0
        self.failures = [Failures()] * len(self.plan.steps)
        self.harms = dict.fromkeys(self.plan.judge.measures, Harm())
        self._waiting: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in self.harms}

    def _join(self, event: Event) -> None:
        if event.device in self.members:
            return
        member = self.members[event.device] = Member(
            event.data["before"], event.time, event.data.get("measures", _NONE)
        )
        self.controls.pop(event.device, None)
        if member.before == self.plan.version:
            member.verdict, member.kind, member.returned = "neutral", "present", True
        self._counts[member.verdict] += 1
        if member.verdict:
            return
        self.open += 1
        if not member.before:
            member.returned = True  # there is nothing to return to
        else:
            self.returning += 1

    def _end(self, event: Event) -> None:
        member = self.members.get(event.device)
        verdict = event.data["verdict"]
        if member is None or member.verdict == verdict:
            return
        if not member.undecided and (member.verdict, verdict) != ("good", "bad"):
            return  # a version that failed after its trial counts, other news do not
        self.open -= not member.verdict
        self._counts[member.verdict] -= 1
        self._counts[verdict] += 1
        member.verdict, member.kind = verdict, event.data["kind"]
        if verdict in ("good", "bad"):
            found = self.failures[self.step]
            self.failures[self.step] = found._replace(**{verdict: getattr(found, verdict) + 1})

    def _sight(self, event: Event) -> None:
        if event.device not in self.members:
            self.controls.setdefault(event.device, (event.time, event.data["measures"]))

    def _measure(self, event: Event) -> None:
        member = self.members.get(event.device)
        if member is not None:
            member.measured = True
        elif event.device in self.controls:
            self.controls[event.device] = None
        for name, change in event.data["changes"].items():
            if name in self._waiting:
                self._compare(name, change, member is not None)

    def _compare(self, name: str, change: float, new: bool) -> None:
        """Pair a device that has the version with one that has not, in the order in which they come."""
        with_it, without = self._waiting[name]
        (with_it if new else without).append(change)
        if with_it and without:
            difference = min(max(with_it.pop(0) - without.pop(0), -1.0), 1.0)
            self.harms[name] = self.harms[name].after((difference + 1) / 2, _TOLERATED)

    def _widen(self, event: Event) -> None:
        self.step, self.began = event.data["step"], event.time

    def _rebase(self, event: Event) -> None:
        """What began in a future that was none begins now: else a step would last until then, and a rollout would come
        before those that were started after it."""
        self.started, self.began = min(self.started, event.time), min(self.began, event.time)
        for member in self.members.values():
            member.since = min(member.since, event.time)
        self.controls = {
            device: None if seen is None else (min(seen[0], event.time), seen[1])
            for device, seen in self.controls.items()
        }

    def _pause(self, event: Event) -> None:
        self.status, self.reason = "paused", event.text

    def _resume(self, event: Event) -> None:
        """By an operator, who has seen why it paused: the step begins anew, without what spoke against it."""
        self.status, self.reason, self.began = "running", "", event.time
        self.failures[self.step] = Failures()

    def _abort(self, event: Event) -> None:
        self.status, self.reason, self.back = "aborted", event.text, event.data.get("back", True)
        if not self.back:
            for member in self.members.values():
                member.returned = True
            self.returning = 0

    def _return(self, event: Event) -> None:
        member = self.members.get(event.device)
        if member is not None and not member.returned:
            member.returned = True
            self.returning -= 1

    def _complete(self, event: Event) -> None:
        self.status = "completed"

    def change(self, name: str, before: float, after: float) -> float:
        """How much worse a measure became, from -1 to 1, which are four margins of its limit."""
        limit: Limit = self.plan.judge.measures[name]
        if name.endswith("_ms"):
            before, after, margin = log1p(max(before, 0.0)), log1p(max(after, 0.0)), log1p(limit.margin)
        else:
            margin = limit.margin
        worse = before - after if limit.higher else after - before
        return min(max(worse / (_CLIP * margin), -1.0), 1.0)

    def data(self) -> dict[str, Any]:
        """What an operator sees, in JSON's types."""
        counts = self.counts()
        return {
            "id": self.id, "status": self.status, "reason": self.reason, "started": self.started, "step": self.step,
            "percent": self.percent, "began": self.began, "members": len(self.members), "open": self.open,
            "good": counts["good"], "bad": counts["bad"], "neutral": counts["neutral"], "returning": self.returning,
            "evidence": round(
                self.failures[self.step].evidence(self.plan.judge.acceptable, self.plan.judge.unacceptable), 3
            ),
            "harm": {name: round(harm.highest, 3) for name, harm in self.harms.items()},
            "plan": msgspec.to_builtins(self.plan),
        }  # fmt: skip


_LIVE = ("running", "paused", "completed")
_ANY = (*_LIVE, "aborted")
_CHANGES: Mapping[str, tuple[tuple[str, ...], Callable[[Rollout, Event], None]]] = {
    "started": (("",), Rollout._start),
    "joined": (("running", "completed"), Rollout._join),
    "ended": (_ANY, Rollout._end),
    "sighted": (("running",), Rollout._sight),
    "measured": (("running",), Rollout._measure),
    "widened": (("running",), Rollout._widen),
    "rebased": (_ANY, Rollout._rebase),
    "paused": (("running",), Rollout._pause),
    "resumed": (("paused",), Rollout._resume),
    "aborted": (_LIVE, Rollout._abort),
    "returned": (("aborted",), Rollout._return),
    "completed": (("running",), Rollout._complete),
}
"""By kind of event: the states that allow it, and what it does."""
