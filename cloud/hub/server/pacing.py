"""When a device comes again: a fleet is spread over time, and stays spread.

After a power failure ten thousand devices start in the same second. If each came again after the same time, all would
do so together for ever; random delays spread them over some intervals only. So each has a place of its own in the
interval, by the hash of its name, and is told the seconds until then (Bonawitz et al., "Towards Federated Learning at
Scale: System Design", MLSys 2019, section 2.3: pace steering). What is random in addition keeps apart devices whose
places are close.
"""

from __future__ import annotations

from cloud.hub.rollouts.cohorts import place

__all__ = ["again", "spread"]

_LEAST, _JITTER = 0.5, 0.05
"""The least share of the interval until the next check-in, and the share that is random."""


def spread(wanted: float, devices: int, capacity: float) -> float:
    """Seconds between two check-ins of each of so many devices: what is wanted, or as much more as keeps them below
    `capacity` a second."""
    return max(wanted, devices / capacity)


def again(device: str, interval: float, now: float, chance: float) -> float:
    """Seconds until a device's next place in intervals of this length: from a half to one and a half intervals, and a
    twentieth of one by chance (from 0 to below 1)."""
    at = place("pace", device) * interval
    wait = (at - now) % interval
    if wait < _LEAST * interval:
        wait += interval
    return wait + _JITTER * interval * chance
