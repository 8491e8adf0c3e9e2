"""When an update may download, and when it may switch: pure rules on what a machine says.

An urgent return (the version that runs is taken back) waits for neither a time window nor an unmetered network.
"""

from __future__ import annotations

from edge.agent.machine import Facts
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.release import Requirements

__all__ = ["Conditions", "Window", "cannot", "closed", "waits"]

DAY = 1440


class Window(NamedTuple):
    """Minutes of the day, local time: from the first on, before the second; it may pass midnight."""

    begin: int
    end: int

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        return self.begin == self.end or (minute - self.begin) % DAY < (self.end - self.begin) % DAY

    def __str__(self) -> str:
        return "-".join(f"{at // 60:02}:{at % 60:02}" for at in self)


class Conditions(NamedTuple):
    """free: bytes of disk that stay free. battery: the least percent, unless it is charging. metered: whether downloads
    may cost. window: when versions are switched; None: always."""

    free: int = 16 << 20
    battery: int = 0
    metered: bool = False
    window: Window | None = None


def waits(
    conditions: Conditions, facts: Facts, *, disk: int = 0, download: int = 0, memory: int = 0, urgent: bool = False
) -> str:
    """What an update waits for, "" if nothing. disk, download: bytes that are still written, and fetched. memory: bytes
    that the version needs."""
    if facts.free is not None and disk and facts.free < disk + conditions.free:
        return f"disk: expected {disk + conditions.free} bytes free, got {facts.free}; delete something"
    if facts.battery is not None and facts.battery < conditions.battery and not facts.charging:
        return f"battery: expected {conditions.battery} % or a charger, got {facts.battery} %"
    if facts.memory is not None and facts.memory < memory:
        return f"memory: expected {memory} bytes that are free, got {facts.memory}"
    if download and facts.metered and not conditions.metered and not urgent:
        return "network: expected one whose traffic does not cost, got a metered one"
    return ""


def closed(conditions: Conditions, facts: Facts, urgent: bool = False) -> str:
    """What a switch waits for, "" if nothing."""
    if conditions.window is not None and not urgent and not conditions.window.holds(facts.minute):
        return f"time: expected {conditions.window}, got {facts.minute // 60:02}:{facts.minute % 60:02}"
    return waits(conditions, facts)


def cannot(needs: Requirements, facts: Facts) -> str:
    """Why this machine cannot run a release at all, "" if it can."""
    if needs.targets and not set(needs.targets) & set(facts.targets):
        return f"target: expected one of {', '.join(needs.targets)}, got {', '.join(facts.targets) or 'none'}"
    if needs.runtime and _parts(facts.runtime) < _parts(needs.runtime):
        return f"runtime: expected msedge {needs.runtime} or newer, got {facts.runtime}; update msedge"
    if facts.total is not None and needs.memory > facts.total:
        return f"memory: expected {needs.memory} bytes, got {facts.total}"
    return ""


def _parts(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    numbers = []
    for word in version.split("."):
        digits = word[: len(word) - len(word.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != word:
            break
    return tuple(numbers)
