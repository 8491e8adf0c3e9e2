"""Whether what devices tell has changed: a sequential test on sketches and class histograms. No clock, no disk.

What devices tell of a version comes in windows. The first ones, until they have enough examples, are the reference. Of
each later window and each stream (a sketch of an input, a histogram of answers) the distance from the reference is
taken, from 0 to 1: that of Kolmogorov and Smirnov for sketches, total variation for histograms.

The hypothesis: a window's distance is expected to be at most `tolerance`, whatever was seen before. Nothing else is
assumed, neither of the values nor of how examples of one device hang together. Against it a bet of a share b of the
capital multiplies it by 1 + b (distance / tolerance - 1), whose expectation is then at most 1. The sums

    R <- (1 + R) * (1 + b (distance / tolerance - 1))

of all bets that began at some window (Shiryaev-Roberts) are averaged over bets and streams. R minus the number of
windows is a supermartingale, so that the expected number of windows until R reaches a bound is at least that bound,
however often one looks (Shin, Ramdas & Rinaldo, "E-detectors: a nonparametric framework for sequential change
detection", New England Journal of Statistics in Data Science, 2023, section 2). The bound is the number of windows in
the time in which one false alarm is allowed.

Lost: comparing each window's p-value with a threshold, which alarms at once for what one device does for an hour; and
ranks of distances among earlier ones, which forget a change as they see more of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from lite_runtime.updates.sketch import Sketch

__all__ = ["BETS", "Rule", "State", "Stream", "Told", "after", "windows_to_detect"]

BETS = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Shares of the capital: small ones find small changes, large ones find large changes soon."""
_MOST = 1e200


class Told(NamedTuple):
    """What devices told: sketches and histograms by name."""

    sketches: Mapping[str, Sketch]
    classes: Mapping[str, Mapping[str, float]]

    @property
    def examples(self) -> float:
        """How many examples it is about: values of the stream that has most."""
        counts = [sketch.count for sketch in self.sketches.values()]
        counts += [sum(counts.values()) for counts in self.classes.values()]
        return max(counts, default=0.0)

    def streams(self) -> list[str]:
        """The names of all streams, in order."""
        return sorted([f"sketch:{name}" for name in self.sketches] + [f"classes:{name}" for name in self.classes])

    def only(self, patterns: Iterable[str]) -> Told:
        """The streams whose names fit one of the patterns."""

        def fits(name: str) -> bool:
            return any(fnmatchcase(name, pattern) for pattern in patterns)

        patterns = tuple(patterns)
        return Told({name: one for name, one in self.sketches.items() if fits(name)},
                    {name: one for name, one in self.classes.items() if fits(name)})  # fmt: skip

    def plus(self, other: Told) -> Told:
        """Both together."""
        sketches = {name: _copy(one) for name, one in self.sketches.items()}
        for name, one in other.sketches.items():
            sketches.setdefault(name, Sketch()).merge(one)
        classes = {name: dict(one) for name, one in self.classes.items()}
        for name, counts in other.classes.items():
            mine = classes.setdefault(name, {})
            for label, count in counts.items():
                mine[label] = mine.get(label, 0.0) + count
        return Told(sketches, classes)

    def minus(self, before: Told) -> Told | None:
        """What was told since an earlier time; None if a count has become less: what is old was removed."""
        sketches: dict[str, Sketch] = {}
        for name, one in self.sketches.items():
            found = _without(one, before.sketches.get(name, Sketch()))
            if found is None:
                return None
            sketches[name] = found
        classes: dict[str, dict[str, float]] = {}
        for name, counts in self.classes.items():
            changed = _less(counts, before.classes.get(name, {}))
            if changed is None:
                return None
            classes[name] = changed
        gone = before.sketches.keys() - sketches.keys() or before.classes.keys() - classes.keys()
        return None if gone else Told(sketches, classes)

    def plain(self) -> dict[str, Any]:
        """In JSON's types."""
        sketches = {
            name: {"zero": one.zero, "positive": one.positive, "negative": one.negative}
            for name, one in self.sketches.items()
        }
        return {"sketches": sketches, "classes": {name: dict(one) for name, one in self.classes.items()}}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Told:
        """The same from JSON. Raises KeyError, TypeError, ValueError, AttributeError for other content."""
        sketches = {
            str(name): Sketch(float(one["zero"]), *(_bins(one[side]) for side in ("positive", "negative")))
            for name, one in table["sketches"].items()
        }
        classes = {
            str(name): {str(label): float(count) for label, count in one.items()}
            for name, one in table["classes"].items()
        }
        return cls(sketches, classes)


NOTHING = Told({}, {})


class Rule(NamedTuple):
    """tolerance: the distance of a window that is expected. between: the expected number of windows until a false
    alarm, at least. reference: examples that the reference needs."""

    tolerance: float
    between: float
    reference: float


class Stream(NamedTuple):
    """One stream: the sums of its bets (`BETS`), its last distance."""

    sums: tuple[float, ...] = (0.0,) * len(BETS)
    distance: float = 0.0

    @property
    def evidence(self) -> float:
        """The mean over the bets: at most the number of windows is expected without a change."""
        return sum(self.sums) / len(self.sums)


class State(NamedTuple):
    """What is known of one version. windows: that were compared with the reference. alarm: whether they have changed:
    it stays until a new `State`."""

    reference: Told = NOTHING
    windows: int = 0
    streams: Mapping[str, Stream] = {}
    alarm: bool = False

    @property
    def evidence(self) -> float:
        """The mean over the streams, which the alarm compares with `Rule.between`."""
        return sum(one.evidence for one in self.streams.values()) / max(1, len(self.streams))

    def changed(self) -> list[str]:
        """The streams, those with the most evidence first."""
        return sorted(self.streams, key=lambda name: -self.streams[name].evidence)

    def plain(self) -> dict[str, Any]:
        """In JSON's types."""
        streams = {name: [list(one.sums), one.distance] for name, one in self.streams.items()}
        return {"reference": self.reference.plain(), "windows": self.windows, "streams": streams, "alarm": self.alarm}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> State:
        """The same from JSON. Raises as `Told.of`."""
        streams = {str(name): _stream(*one) for name, one in table["streams"].items()}
        return cls(Told.of(table["reference"]), int(table["windows"]), streams, bool(table["alarm"]))


def after(state: State, window: Told, rule: Rule) -> State:
    """The state with one more window."""
    if state.alarm:
        return state
    if state.reference.examples < rule.reference:
        return state._replace(reference=state.reference.plus(window))
    streams = {}
    for name in state.reference.streams():
        before = state.streams.get(name, Stream())
        distance = _distance(name, state.reference, window)
        # A stream that a window lacks says nothing: every bet keeps its capital.
        factors = [1.0 if distance is None else 1 + bet * (distance / rule.tolerance - 1) for bet in BETS]
        sums = tuple(min((1 + one) * factor, _MOST) for one, factor in zip(before.sums, factors, strict=True))
        streams[name] = Stream(sums, before.distance if distance is None else distance)
    made = State(state.reference, state.windows + 1, streams)
    return made._replace(alarm=made.evidence >= rule.between)


def windows_to_detect(distance: float, rule: Rule, streams: int) -> int | None:
    """After how many windows the alarm has come at the latest, if from some window on one of the streams is at least
    this far from the reference in each; None: perhaps never."""
    sums = (0.0,) * len(BETS)
    factors = [1 + bet * (distance / rule.tolerance - 1) for bet in BETS]
    if distance <= rule.tolerance:
        return None
    windows = 0
    while sum(sums) / len(sums) / streams < rule.between:
        sums = tuple((1 + one) * factor for one, factor in zip(sums, factors, strict=True))
        windows += 1
        if windows > 1_000_000:
            return None
    return windows


def _distance(stream: str, reference: Told, window: Told) -> float | None:
    kind, _, name = stream.partition(":")
    if kind == "sketch":
        one, other = reference.sketches[name], window.sketches.get(name, Sketch())
        return one.distance(other) if other.count else None
    counts, found = reference.classes[name], window.classes.get(name, {})
    total, whole = sum(counts.values()), sum(found.values())
    if total <= 0 or whole <= 0:
        return None
    labels = counts.keys() | found.keys()
    return sum(abs(counts.get(label, 0.0) / total - found.get(label, 0.0) / whole) for label in labels) / 2


def _copy(sketch: Sketch) -> Sketch:
    return Sketch(sketch.zero, sketch.positive, sketch.negative)


def _without(sketch: Sketch, before: Sketch) -> Sketch | None:
    zero = sketch.zero - before.zero
    sides = [_less(mine, theirs) for mine, theirs in
             ((sketch.positive, before.positive), (sketch.negative, before.negative))]  # fmt: skip
    if zero < -_TINY or any(side is None for side in sides):
        return None
    return Sketch(max(zero, 0.0), *sides)


_TINY = 1e-6
"""Counts are sums of fractions, which lose so much."""


def _less(now: Mapping[Any, float], before: Mapping[Any, float]) -> dict[Any, float] | None:
    """Counts without earlier ones; None if one is less than it was."""
    if any(now.get(name, 0.0) < count - _TINY * max(1.0, count) for name, count in before.items()):
        return None
    found = {name: count - before.get(name, 0.0) for name, count in now.items()}
    return {name: count for name, count in found.items() if count > _TINY}


def _bins(table: Mapping[Any, Any]) -> dict[int, float]:
    return {int(at): float(count) for at, count in table.items()}


def _stream(sums: Any, distance: Any) -> Stream:
    found = tuple(float(one) for one in sums)
    if len(found) != len(BETS):
        raise ValueError(f"expected {len(BETS)} sums, got {len(found)}")
    return Stream(found, float(distance))
