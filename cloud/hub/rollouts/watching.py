"""What a device's report means for one rollout: events, of which a report that is repeated gives none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cloud.hub.rollouts.cohorts import belongs
from cloud.hub.rollouts.rollout import Event, Member, Rollout
from lite_runtime.updates.checkin import OUTCOMES, Application

__all__ = ["news"]

_CONTROLS = 16
"""So many devices without the version are followed, and two more for each that has it."""


def news(
    rollout: Rollout, device: str, attributes: Mapping[str, str], there: Application, now: float, *, admit: bool
) -> Iterator[Event]:
    """Events of a report, each to be applied before the next is asked for. admit: whether the device may become a
    member: no rollout of higher precedence has it."""
    if device not in rollout.members and admit and rollout.admits(device, attributes):
        yield Event("joined", now, device, data={"before": there.version, "measures": _means(rollout, there)})
    member = rollout.members.get(device)
    if member is None:
        yield from _of_control(rollout, device, attributes, there, now)
        return
    if (ended := _end(rollout, member, there)) is not None:
        kind, reason = ended
        yield Event("ended", now, device, text=reason, data={"kind": kind, "verdict": OUTCOMES[kind]})
    if not member.measured and rollout.plan.version == (there.trial or there.version):
        yield from _measured(rollout, device, member.since, member.baseline, there, now)
    if rollout.status == "aborted" and not member.returned and rollout.plan.version not in (there.version, there.trial):
        yield Event("returned", now, device)


def _end(rollout: Rollout, member: Member, there: Application) -> tuple[str, str] | None:
    """What became of the version on a member, and why, if that is news."""
    outcome = there.outcome
    if outcome is not None and outcome.rollout == rollout.id and outcome.version == rollout.plan.version:
        verdict = OUTCOMES[outcome.kind]
        new = member.undecided and verdict not in ("open", member.verdict)
        return (outcome.kind, outcome.reason) if new or (member.verdict, verdict) == ("good", "bad") else None
    if member.undecided and there.version == rollout.plan.version and not there.trial:
        return "committed", "it runs; its outcome was not reported"
    return None


def _of_control(
    rollout: Rollout, device: str, attributes: Mapping[str, str], there: Application, now: float
) -> Iterator[Event]:
    """A device of the cohort without the version: how its measures change meanwhile."""
    if rollout.status != "running" or not belongs(attributes, rollout.plan.cohort):
        return
    known = rollout.controls.get(device, ())
    if known == ():
        measures = _means(rollout, there)
        if measures and len(rollout.controls) < _CONTROLS + 2 * len(rollout.members):
            yield Event("sighted", now, device, data={"measures": measures})
    elif known:
        yield from _measured(rollout, device, *known, there, now)


def _measured(
    rollout: Rollout, device: str, since: float, before: Mapping[str, float], there: Application, now: float
) -> Iterator[Event]:
    """After half of a step's least time, with and without the version: what changes meanwhile everywhere is equal."""
    if rollout.status != "running" or now - since < rollout.plan.soak / 2:
        return
    after = _means(rollout, there)
    changes = {name: rollout.change(name, before[name], after[name]) for name in before if name in after}
    if changes:
        yield Event("measured", now, device, data={"changes": changes})


def _means(rollout: Rollout, there: Application) -> dict[str, float]:
    """The measures that the rollout judges by and that are of enough values."""
    judge = rollout.plan.judge
    return {
        name: there.measures[name].mean
        for name in judge.measures
        if name in there.measures and there.measures[name].number >= judge.examples
    }
