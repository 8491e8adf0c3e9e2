"""Which version of one application a device should run, where several rollouts have something to say.

Rollouts are asked in the order of their priority, the newest of equal ones first:

- one that has the device as a member, and is running, paused or completed: its version;
- one that has the device as a member and was aborted: its version is taken back, and those that follow decide; if none
  does, a device that still has it goes back to what it had before, or to what it had before that, if this is taken
  back too;
- any other: the next is asked.

Without an answer the device keeps what it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cloud.hub.rollouts.rollout import Event, Rollout
from cloud.hub.rollouts.watching import news
from lite_runtime.updates.checkin import Application, Assignment

__all__ = ["assignment", "report"]


def report(
    rollouts: Iterable[Rollout], device: str, attributes: Mapping[str, str], there: Application, now: float
) -> Iterator[tuple[Rollout, Event]]:
    """Events of a device's report for the rollouts of one application, in the order of precedence; each is to be
    applied before the next is asked for. Only the first rollout that means the device may take it in."""
    free = True
    for rollout in rollouts:
        for event in news(rollout, device, attributes, there, now, admit=free):
            yield rollout, event
        if device in rollout.members and rollout.status != "aborted":
            free = False


def assignment(rollouts: Iterable[Rollout], device: str) -> Assignment | None:
    """What a device should run. rollouts: of one application, in the order of precedence, after `report`."""
    taken: dict[str, str] = {}
    """Versions that are taken back on this device, and what it had before each."""
    urgent: Rollout | None = None
    for rollout in rollouts:
        member = rollout.members.get(device)
        if member is None:
            continue
        if rollout.status != "aborted":
            if rollout.plan.version not in taken:
                return Assignment(rollout.plan.version, rollout.plan.channel, rollout.id, urgent is not None)
        elif rollout.back:
            taken.setdefault(rollout.plan.version, member.before)
            urgent = urgent or (None if member.returned else rollout)
    if urgent is None:
        return None
    before = urgent.members[device].before
    for _ in taken:
        before = taken.get(before, before)
    if not before or before in taken:
        return None
    return Assignment(before, urgent.plan.channel, urgent.id, True)
