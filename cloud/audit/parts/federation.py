"""What a federated round's messages give back of devices' examples: gradient inversion of the bytes that were sent,
with each protection, by the very bundle that devices train.

An example is given back if the error of its reconstruction is at most a tenth of the best guess without messages, and
told apart if its reconstruction correlates better with it than with every other example.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from cloud.audit.pictures import rows_of
from cloud.audit.privacy.inversion import (
    Observed,
    Recovered,
    compare,
    first_dense,
    invert,
    labels_of,
    trained_function,
)
from cloud.audit.privacy.inversion.pictures import MARGIN
from cloud.audit.privacy.inversion.protections import SEEN, STANDARD, Protection, Target, stated, stated_names, targets
from cloud.audit.section import Cell, Clock, Curves, Part, Picture, Section, Table
from cloud.audit.subject import Subject
from cloud.errors import AuditError
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["PART"]

OTHERS = 500
"""Examples that no device has, at most: what chance gives, and what a reconstruction is told apart from."""
LEAST = 40
"""Examples without which nothing is said."""
STEPS, RESTARTS = (1200, 600, 300, 150), 2
"""Of a search: as many steps as there is time for."""
SURE = 0.01
_SHOWN = 8
"""Examples in a picture."""
_VALUES = 20
"""Values of an example in a table."""
_AXIS = 256
"""Points of a curve."""


def _names(subject: Subject) -> tuple[str, ...]:
    return (*(one.name for one in STANDARD), *(stated_names(subject.run) if subject.run is not None else ()))


def _pictured(subject: Subject) -> bool:
    return subject.kind in ("image", "spectrogram")


def _time_axis(shape: tuple[int, ...]) -> int:
    """As `corruptions.arranged`: the longest, the last of several."""
    return max(range(len(shape)), key=lambda axis: (shape[axis], axis))


def _figures(subject: Subject) -> Mapping[str, str]:
    titles = {one.name: one.title for one in STANDARD} | {
        "stated": "this run's own, as its server has it",
        "stated_model": "this run's own, the next model",
    }
    distance = (
        ("psnr", "decibels of reconstructions")
        if _pictured(subject)
        else ("error", "error of reconstructions, in standard deviations")
    )
    meanings = (
        ("recovered", "share of examples given back"),
        ("identified", "share of examples told apart from others"),
        ("gain", "decibels above chance"),
        distance,
        ("labels", "share of labels that are shown"),
    )
    return {
        f"{name}.{what}": f"{meaning}; protection: {titles[name]}"
        for what, meaning in meanings
        for name in _names(subject)
    }


def _lacking(subject: Subject) -> str:
    if subject.training is None:
        return "needs a bundle that can be trained: convert with --trainable, or name its run by --federation RUN.toml"
    return "" if len(subject.data) >= LEAST else f"needs {LEAST} examples, got {len(subject.data)}"


@dataclass
class _Units:
    """What errors are counted in: the range of images, otherwise standard deviations of each column or channel."""

    middle: Array
    width: Array
    span: tuple[float, float]

    @classmethod
    def of(cls, subject: Subject, x: Array) -> _Units:
        if _pictured(subject):
            return cls(np.zeros(1, np.float32), np.ones(1, np.float32), subject.span)
        axes = (0,) if subject.kind == "table" else (0, 1 + _time_axis(x.shape[1:]))
        middle, width = x.mean(axes, keepdims=True)[0], x.std(axes, keepdims=True)[0]
        width = np.where(width > 0, width, max(float(x.std()), 1e-12))
        scaled = (x - middle) / width
        return cls(middle, width, (float(scaled.min()), float(scaled.max())))

    def scaled(self, x: Array) -> Array:
        return np.asarray((x - self.middle) / self.width, np.float32)

    def plain(self, x: Array) -> Array:
        return np.asarray(x * self.width + self.middle, np.float32)


@dataclass
class _Found:
    """What one protection's messages gave."""

    protection: Protection
    targets: list[Target]
    images: list[Recovered] = field(default_factory=list)
    labels: int = 0
    """How many labels are right."""

    def all(self, what: Callable[[Recovered], Array]) -> Array:
        return np.concatenate([what(one) for one in self.images])

    @property
    def count(self) -> int:
        return sum(len(one.psnr) for one in self.images)

    @property
    def recovered(self) -> Array:
        return self.all(lambda one: one.given_back)

    @property
    def identified(self) -> Array:
        return self.all(lambda one: one.told_apart)

    def told_apart(self, others: int) -> bool:
        """Whether more examples are told apart than by chance."""
        chance = stats.binomtest(int(self.identified.sum()), self.count, 1 / (others + 1), alternative="greater")
        return bool(chance.pvalue < SURE)

    def verdict(self, others: int) -> str:
        if self.recovered.any():
            return "gives examples back"
        return "tells examples apart" if self.told_apart(others) else "no better than chance"


@dataclass
class _Run:
    """An attack after the other."""

    subject: Subject
    clock: Clock
    x: Array
    y: Array
    others: Array
    units: _Units
    found: list[_Found]
    undone: list[str]
    steps: int = STEPS[0]
    most: float = math.inf
    """Examples of a message for which there is time."""
    pace: float = 0.0
    """Seconds of a search by step and example, both restarts together; 0 where inputs come by a division."""

    def attack(self, one: _Found, target: Target) -> None:
        images = self._inverted(target.observed, self.steps)
        x = self.units.scaled(target.x)
        one.images.append(compare(self.units.scaled(images), x, self.others, clip=self.units.span))
        shown, truth = Counter(_labels(target.observed)), Counter(map(int, target.y))
        one.labels += (shown & truth).total()

    def _inverted(self, observed: Observed, steps: int) -> Array:
        try:
            settings = {"steps": steps, "restarts": RESTARTS, "clip": self.subject.span, "seed": self.subject.seed}
            images = invert(observed, **settings)  # type: ignore[arg-type]
        except AuditError:  # a gradient without anything in it
            return np.zeros((0, *observed.input[1]), np.float32)
        return np.asarray(images.reshape(len(images), *self.subject.model.shape))

    def choose_steps(self) -> None:
        """As many as fit for the first message of every protection."""
        first = [one.targets[0].observed for one in self.found]
        if not first or first_dense(first[0]) is not None:
            return
        times = [time.monotonic()]
        for steps in (2, 20):
            self._inverted(first[0], steps)
            times.append(time.monotonic())
        self.pace = (times[2] - times[1]) / 20 / first[0].examples
        programs = len({observed.examples for observed in first}) - 1
        left = 0.8 * self.clock.left - programs * (times[1] - times[0])
        sizes = sorted(observed.examples for observed in first)
        for count in range(len(sizes), 0, -1):  # without the largest sums, if there is no time for these
            self.most = sizes[count - 1]
            self.steps = next((steps for steps in STEPS if steps * sum(sizes[:count]) * self.pace <= left), 0)
            if self.steps:
                return

    def affordable(self, target: Target) -> bool:
        size = target.observed.examples
        return size <= self.most and self.pace * self.steps * size <= self.clock.left and not self.clock.over


def _labels(observed: Observed) -> list[int]:
    try:
        return list(map(int, labels_of(observed)))
    except AuditError:
        return []


def _measure(subject: Subject, clock: Clock) -> Section:
    assert subject.training is not None  # see `_lacking`
    plans, undone = list(STANDARD), list[str]()
    try:
        function = trained_function(subject.training)
    except MsedgeError as error:
        return Section(PART.name, PART.title, undone=(f"{error}.",))
    try:
        plans += stated(subject.run, len(subject.data) // 2) if subject.run is not None else []
    except MsedgeError as error:
        undone.append(f"This run's own protection: {error}.")
    order = np.random.default_rng(subject.seed).permutation(len(subject.data))
    x, y = subject.data.x[order].astype(np.float32), subject.data.y[order]
    most = max(one.devices * one.examples for one in plans)
    units = _Units.of(subject, x)
    run = _Run(subject, clock, x, y, units.scaled(x[most:][:OTHERS]), units, [], undone)
    fitting = x[:most].reshape(most, *(int(size) for size in (function.inputs[0].shape or ())[1:] if size is not None))
    for one, found in targets(subject.training, function, plans, fitting, y[:most], subject.seed):
        if isinstance(found, str):
            run.undone.append(f"{one.title}: {found}.")
        else:
            run.found.append(_Found(one, [Target(t.observed, t.x.reshape(-1, *x.shape[1:]), t.y) for t in found]))
    run.choose_steps()
    if run.found and not run.steps:
        run.undone.append(f"A search of {STEPS[-1]} steps for each protection would take longer; raise --budget.")
        return Section(PART.name, PART.title, undone=tuple(run.undone))
    for at in range(max((len(one.targets) for one in run.found), default=0)):
        for each in run.found:
            if at < len(each.targets) and run.affordable(each.targets[at]):
                run.attack(each, each.targets[at])
    run.undone += [f"{each.protection.title}: out of time." for each in run.found if not each.images]
    run.found = [each for each in run.found if each.images]
    return _section(run)


def _section(run: _Run) -> Section:
    subject, others = run.subject, len(run.others)
    figures: dict[str, float] = {}
    for one in run.found:
        psnr = one.all(lambda each: each.psnr)
        values = {
            "recovered": float(one.recovered.mean()), "identified": float(one.identified.mean()),
            "gain": float((psnr - one.all(lambda each: each.chance)).mean()), "labels": one.labels / one.count,
            **({"psnr": float(psnr.mean())} if _pictured(subject) else {"error": _error(psnr, run.units)}),
        }  # fmt: skip
        figures |= {f"{one.protection.name}.{what}": value for what, value in values.items()}
    names = _names(subject)
    return Section(
        PART.name, PART.title, figures, tables=_tables(run, figures), curves=_curves(run), pictures=_pictures(run),
        notes=tuple(_notes(run)), undone=tuple(run.undone), warnings=tuple(_warnings(run, others)),
        shares=tuple(f"{name}.{what}" for name in names for what in ("recovered", "identified", "labels")),
        shown=tuple(f"{name}.recovered" for name in (*names[len(STANDARD):], *names)),
    )  # fmt: skip


def _error(psnr: Array, units: _Units) -> float:
    """The root of the mean square, in standard deviations."""
    return float((units.span[1] - units.span[0]) * np.sqrt((10 ** (-psnr / 10)).mean()))


def _tables(run: _Run, figures: Mapping[str, float]) -> tuple[Table, ...]:
    unit = "psnr" if _pictured(run.subject) else "error"
    rows: list[tuple[Cell, ...]] = []
    for one in run.found:
        name, p = one.protection.name, one.protection
        chance = one.all(lambda each: each.chance)
        rows.append((
            p.title, p.devices, p.examples, int(one.recovered.sum()), one.count, figures[f"{name}.identified"],
            round(figures[f"{name}.{unit}"], 2),
            round(float(chance.mean()) if unit == "psnr" else _error(chance, run.units), 2),
            figures[f"{name}.labels"], one.verdict(len(run.others)),
        ))  # fmt: skip
    columns = ("protection", "devices", "examples each", "given back", "of", "told apart",
               "decibels" if unit == "psnr" else "error", "by chance", "labels shown", "verdict")  # fmt: skip
    found = [Table("What one round gives back", columns, tuple(rows), shares=("told apart", "labels shown"))]
    if run.subject.kind == "table" and run.found:
        found.append(_first_example(run))
    return tuple(found)


def _first_example(run: _Run) -> Table:
    """Value by value, beside what each message gives."""
    one = run.found[0].images[0]
    shown = [run.units.plain(one.originals)[0].ravel()]
    shown += [run.units.plain(each.images[0].images)[0].ravel() for each in run.found]
    count = min(_VALUES, shown[0].size)
    rows = tuple((at, *(float(f"{values[at]:.4g}") for values in shown)) for at in range(count))
    columns = ("value", "original", *(each.protection.name for each in run.found))
    return Table("The first device's example, its first values, beside its reconstructions", columns, rows, folded=True)


def _curves(run: _Run) -> tuple[Curves, ...]:
    """The first device's example over time, beside its reconstructions, of the channel that varies most."""
    if run.subject.kind not in ("series", "sound") or not run.found:
        return ()
    shape = run.x.shape[1:]
    time_axis = _time_axis(shape)

    def channels(example: Array) -> Array:
        return np.moveaxis(run.units.plain(example), time_axis, -1).reshape(-1, shape[time_axis])

    first = run.found[0].images[0].originals[0]
    at = int(channels(first).std(1).argmax())
    step = -(-shape[time_axis] // _AXIS)
    x = tuple(map(float, range(0, shape[time_axis], step)))
    original = channels(first)[at, ::step].tolist()
    return tuple(
        Curves(f"Protection: {one.protection.title}", x,
               {"original": original, "given back": channels(one.images[0].images[0])[at, ::step].tolist()}, "time")
        for one in run.found
    )  # fmt: skip


def _pictures(run: _Run) -> tuple[Picture, ...]:
    if not _pictured(run.subject):
        return ()
    shown = []
    for one in run.found:
        originals, images = one.all(lambda each: each.originals), one.all(lambda each: each.images)
        there = images.reshape(len(images), -1).any(1)
        best = np.lexsort((-one.all(lambda each: each.psnr), ~there))[:_SHOWN]
        words = (
            f"{one.protection.title}: {int(one.recovered.sum())} of {one.count} given back, "
            f"{one.all(lambda each: each.psnr).mean():.0f} decibels, {one.all(lambda each: each.chance).mean():.0f} by "
            "chance"
        )
        rows = [list(originals[best]), list(images[best])]
        shown.append(Picture(words, rows_of(rows, run.subject.kind, run.subject.span)))
    return tuple(shown)


def _notes(run: _Run) -> list[str]:
    if not run.found:
        return []
    common = Counter(map(int, run.y)).most_common(1)[0][1] / len(run.y)
    how = (
        "The first layer is dense, so that examples come by a division (Phong et al. 2018)."
        if not run.pace
        else f"By a search of {run.steps} steps and {RESTARTS} starts (Geiping et al. 2020)"
        + (f", not {STEPS[0]}, for lack of time." if run.steps < STEPS[0] else ".")
    )
    notes = [
        f"The server inverts the bytes of one round. {how} An attack that fails is no proof: others may find more.",
        f"An example is given back if its error is at most a tenth ({MARGIN:g} decibels less) of the best guess without"
        f" messages, which is the mean of {len(run.others)} other examples or the nearest of as many as are sought; it "
        "is told apart if its reconstruction correlates better with it than with each of them. By chance, one in "
        f"{len(run.others) + 1} is. The most frequent class is the label of {common:.0%}.",
    ]
    if _pictured(run.subject):
        notes.append("Pictures: above the examples of devices, below what was made of their messages; best ones first.")
    plain = next((one for one in run.found if one.protection.name == "plain"), None)
    if plain is not None and plain.verdict(len(run.others)) == "no better than chance":
        notes.append(
            "This attack gets nothing from messages without protection either, so that what it does not get with "
            "protection says nothing for the protection."
        )
    return notes


def _warnings(run: _Run, others: int) -> list[str]:
    by_name = {one.protection.name: one for one in run.found}
    found = []
    for one in run.found:
        p, count = one.protection, int(one.recovered.sum())
        under = f"Under this run's own protection, {SEEN[p.seen]}"
        if p.name.startswith("stated") and count:
            found.append(f"{under} gives {count} of {one.count} examples back. {_HELPS}")
        elif p.name.startswith("stated") and one.told_apart(others):
            apart = int(one.identified.sum())
            found.append(f"{under} tells {apart} of {one.count} examples apart. {_HELPS}")
    if run.subject.run is None and "plain" in by_name and (count := int(by_name["plain"].recovered.sum())):
        found.append(
            f"A message without protection gives its example back: {count} of {by_name['plain'].count}. Name the "
            "protection of your run by --federation."
        )
    total = by_name.get("secure_sum")
    if total is not None:
        sums = f"A secure sum of {total.protection.devices} devices with one example each"
        if count := int(total.recovered.sum()):
            why = "" if run.pace else ": a unit of the first layer that answers to one alone shows it in the sum"
            found.append(f"{sums} gives {count} of {total.count} back{why}. {_HELPS}")
        elif total.told_apart(others):
            found.append(f"{sums} tells {int(total.identified.sum())} of {total.count} examples apart. {_HELPS}")
    return found


_HELPS = "Noise helps; larger batches and more devices lower the share, not to zero (docs/audit.md, Privacy)."


PART = Part("federation", "What a federated round gives back", _figures, _measure, share=2.0, lacking=_lacking)
