"""How many answers of the deployed file survive an adversary, with its gradients, its float twin's, or neither.

Whatever an attack found is put to the deployed file itself on the device runtime; that is what figures count. With a
float twin's gradients, attacks see the deployed file's answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cloud.audit.attacks import auto_pgd, deepfool, fgsm, hop_skip_jump, masked_gradients, pgd, square
from cloud.audit.attacks.losses import loss_of
from cloud.audit.attacks.results import Attacked, distances
from cloud.audit.attacks.turned import ChannelsFirst
from cloud.audit.pictures import side_by_side
from cloud.audit.section import Cell, Clock, Curves, Part, Picture, Section, Table
from cloud.audit.subject import Subject
from cloud.audit.victim import BLACK_BOX_ATTACKS, WhiteBox
from lite_runtime.graph import Array

__all__ = ["PART"]

MOST_ROWS, LEAST_ROWS = 128, 16
"""Examples that are attacked: fewer if time is short, and none below the least."""
STEPS: Mapping[str, int] = {"fgsm": 1, "auto_pgd": 100, "auto_pgd_margin": 100, "square": 1000, "pgd": 40}
"""Steps of each attack; Square takes fewer, but 100 at least, if time is short."""
LEAST_STEPS = 100
FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Of epsilon: where the curve has points."""
CHECKED_ROWS = 32
"""Examples on which signs of masked gradients are looked for."""
NEAR_ROWS = 16
"""Examples whose nearest adversarial example is sought."""
_QUESTIONS = 3500
"""That HopSkipJump asks for an example, at most about."""
_LOOPS = 2.0
"""Attacks are loops; to compile one takes so many times as long as to compile the gradient alone."""
_ELEMENTS = 1 << 25
"""The most numbers that HopSkipJump draws at once."""
_WHITE: Mapping[str, Callable[..., Attacked]] = {
    "auto_pgd": auto_pgd, "auto_pgd_margin": partial(auto_pgd, loss="margin"), "fgsm": fgsm, "pgd": pgd,
}  # fmt: skip
"""The margin has gradients where scores are so far apart that those of the cross-entropy are zero."""
_JUDGED = ("auto_pgd", "auto_pgd_margin", "fgsm")
"""White-box attacks without which `robust` is not given."""


def _figures(_: Subject) -> Mapping[str, str]:
    what = "accuracy that is left after"
    return {
        "accuracy": "accuracy on the examples that are attacked, before",
        "robust": f"{what} the best of AutoPGD, FGSM and Square on each example",
        "auto_pgd": f"{what} AutoPGD at epsilon",
        "auto_pgd_margin": f"{what} AutoPGD at epsilon, by the margin of the scores",
        "fgsm": f"{what} FGSM at epsilon",
        "square": f"{what} Square at epsilon, by scores alone",
        "pgd": f"{what} PGD at epsilon",
        "deepfool_distance": "median L2 distance at which DeepFool changes the answer",
        "hop_skip_jump_distance": "median L2 distance at which HopSkipJump changes the answer, by classes alone",
        "masked": "signs of masked gradients, 0 to 5",
    }  # fmt: skip


@dataclass
class _Run:
    """An attack after the other on the same examples."""

    subject: Subject
    clock: Clock
    rows: Array
    seconds: float
    """That a row of the deployed file takes."""
    robust: Array = field(init=False)
    figures: dict[str, float] = field(default_factory=dict)
    lines: list[tuple[Cell, ...]] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    found: Array | None = None
    """Inputs of the strongest attack so far, for pictures."""

    def __post_init__(self) -> None:
        self.robust = self.subject.right[self.rows].copy()

    @property
    def x(self) -> Array:
        return np.asarray(self.subject.data.x[self.rows])

    @property
    def y(self) -> Array:
        return np.asarray(self.subject.data.y[self.rows])

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"clip": self.subject.span, **more}

    def affordable(self, share: float, questions: int, most: int) -> int:
        """How many times the deployed file can be asked so many questions in a share of the time, at most `most`."""
        return int(min(share * self.clock.left / (questions * max(self.seconds, 1e-9)), most))

    def counted(self, name: str, on: str, inputs: Array, asked: float, seconds: float) -> None:
        """What the deployed file and its twin answer to inputs that an attack found."""
        twin = self.subject.twin
        kept = self.subject.model.logits(inputs).argmax(1) == self.y
        other = None if twin is None else float((twin.logits(inputs).argmax(1) == self.y).mean())
        share = float(kept.mean())
        if share <= min((v for k, v in self.figures.items() if k in STEPS), default=1.0):
            self.found = inputs
        self.figures[name] = share
        if name in (*_JUDGED, "square"):
            self.robust &= kept
        self.lines.append((name, on, other, share, float(self.robust.mean()), asked, seconds))


class _Slopes(NamedTuple):
    """A white box, the seconds that a row's score and gradient take, and those that a program's compilation takes."""

    victim: WhiteBox
    seconds: float
    compiling: float

    @classmethod
    def of(cls, subject: Subject, white: WhiteBox) -> _Slopes:
        x, y = subject.data.x[:64], subject.data.y[:64]
        loss = loss_of("ce", False, white.classes)
        times = [time.monotonic()]
        for _ in range(2):
            white.gradient(loss, x, y)
            times.append(time.monotonic())
        return cls(white, (times[2] - times[1]) / len(x), _LOOPS * (times[1] - times[0]))

    def affordable(self, clock: Clock) -> int:
        """How many examples AutoPGD may be tried on, in a fifth of the time that its compilation leaves."""
        left = 0.2 * max(clock.left - self.compiling, 0.0)
        return int(np.clip(left / (STEPS["auto_pgd"] * max(self.seconds, 1e-9)), 0, MOST_ROWS))

    def fit(self, clock: Clock, passes: float, programs: int) -> bool:
        """Whether there is time for so many rows with their gradients, by so many programs."""
        return passes * self.seconds + programs * self.compiling < clock.left


def _measure(subject: Subject, clock: Clock) -> Section:
    rate = _seconds_of_row(subject)
    slopes = None if subject.white is None else _Slopes.of(subject, subject.white)
    count = MOST_ROWS if slopes is None else slopes.affordable(clock)
    rows = subject.sample(max(count, LEAST_ROWS))
    run = _Run(subject, clock, rows, rate)
    run.figures["accuracy"] = float(subject.right[rows].mean())
    if clock.over or count < LEAST_ROWS:
        run.undone.append(f"No attack: {LEAST_ROWS} examples would take longer than the budget allows; raise --budget.")
        return _section(run)
    if slopes is None:
        run.notes.append(
            f"No white box: {subject.no_gradient}. {' and '.join(BLACK_BOX_ATTACKS)} remain, which need predictions "
            "alone."
        )
    else:
        _by_gradients(run, slopes, _JUDGED)
    _by_scores(run)
    if slopes is not None:
        _checks(run, slopes)
    _nearest_by_classes(run)
    if slopes is not None:
        _nearest_by_gradients(run, slopes)
        _by_epsilon(run, slopes)
        _by_gradients(run, slopes, ("pgd",))
    if {"square", *(_JUDGED if slopes is not None else ())} <= {*run.figures}:
        run.figures["robust"] = float(run.robust.mean())
    return _section(run)


def _seconds_of_row(subject: Subject) -> float:
    """That the deployed file takes for one of many rows."""
    x = subject.data.x[:256]
    begun = time.monotonic()
    subject.model.logits(x)
    return (time.monotonic() - begun) / len(x)


def _where(run: _Run) -> str:
    return "the file's own gradients" if run.subject.own is not None else "its float twin's gradients"


def _by_gradients(run: _Run, slopes: _Slopes, names: tuple[str, ...]) -> None:
    for name in names:
        if not slopes.fit(run.clock, STEPS[name] * len(run.rows) / 2, 1):
            run.undone.append(f"Out of time before {name}.")
            continue
        begun = time.monotonic()
        more: dict[str, Any] = {} if name == "fgsm" else {"steps": STEPS[name], "seed": run.subject.seed}
        found = _WHITE[name](slopes.victim, run.x, run.y, epsilon=run.subject.epsilon, **run.settings(**more))
        took = time.monotonic() - begun
        run.counted(name, _where(run), found.inputs, float(found.queries.mean()), took)


def _by_scores(run: _Run) -> None:
    """Square, on the deployed file."""
    steps = run.affordable(0.3, len(run.rows), STEPS["square"])
    if steps < LEAST_STEPS:
        run.undone.append(f"Out of time before square: {LEAST_STEPS} questions an example would take longer.")
        return
    begun = time.monotonic()
    turned = ChannelsFirst(run.subject)
    found = square(
        turned, turned.arranged(run.x), run.y, epsilon=run.subject.epsilon,
        **run.settings(steps=steps, seed=run.subject.seed),
    )  # fmt: skip
    took = time.monotonic() - begun
    run.counted("square", "the file's scores", turned.back(found.inputs), float(found.queries.mean()), took)
    if steps < STEPS["square"]:
        run.notes.append(f"Square asked at most {steps} times an example, not {STEPS['square']}, for lack of time.")


def _checks(run: _Run, slopes: _Slopes) -> None:
    """Signs that gradients mislead, on the model that they are of."""
    white = run.subject.own or run.subject.twin
    assert white is not None
    right = white.logits(run.x).argmax(1) == run.y
    rows = np.flatnonzero(right)[:CHECKED_ROWS]
    if not len(rows):
        run.undone.append("No check for masked gradients: the white box answers none of the examples correctly.")
        return
    if not slopes.fit(run.clock, 400 * len(rows), 6):
        run.undone.append("Out of time before the checks for masked gradients.")
        return
    found = masked_gradients(
        white, run.x[rows], run.y[rows], epsilon=run.subject.epsilon,
        **run.settings(steps=20, questions=200, samples=50, seed=run.subject.seed),
    )  # fmt: skip
    run.figures["masked"] = float(sum(check.fired for check in found))
    for check in found:
        if check.fired:
            run.warnings.append(
                f"Gradients may mislead ({check.name}): {check.text}. Rates of attacks by gradients say nothing then."
            )
    if not run.figures["masked"]:
        run.notes.append(f"None of {len(found)} signs of masked gradients was seen, on {len(rows)} examples.")


def _by_epsilon(run: _Run, slopes: _Slopes) -> None:
    """Accuracy at several distances, by PGD."""
    if not slopes.fit(run.clock, len(FACTORS) * STEPS["pgd"] * len(run.rows) / 2, 1):
        run.undone.append("Out of time before the curve over epsilon.")
        return
    kept: list[float | None] = []
    beside: list[float | None] = []
    low, high = map(np.float32, run.subject.span)
    signs = np.random.default_rng(run.subject.seed).choice([np.float32(-1), np.float32(1)], run.x.shape)
    for factor in FACTORS:
        inputs = run.x
        if factor:
            epsilon = factor * run.subject.epsilon
            settings = run.settings(steps=STEPS["pgd"], seed=run.subject.seed)
            inputs = pgd(slopes.victim, run.x, run.y, epsilon=epsilon, **settings).inputs
        kept.append(float((run.subject.model.logits(inputs).argmax(1) == run.y).mean()))
        noisy = np.clip(run.x + signs * np.float32(factor * run.subject.epsilon), low, high)
        beside.append(float((run.subject.model.logits(noisy).argmax(1) == run.y).mean()))
    x = tuple(factor * run.subject.epsilon for factor in FACTORS)
    series = {"PGD": kept, "random signs": beside}
    run.curves.append(
        Curves("Accuracy of the deployed file by the size of the change", x, series, "epsilon", share=True)
    )


def _nearest_by_gradients(run: _Run, slopes: _Slopes) -> None:
    rows = slice(0, NEAR_ROWS)
    if not slopes.fit(run.clock, 50 * slopes.victim.classes * NEAR_ROWS, 1):
        run.undone.append("Out of time before deepfool.")
        return
    found = deepfool(slopes.victim, run.x[rows], run.y[rows], **run.settings())
    _median(run, "deepfool", _where(run), found)


def _nearest_by_classes(run: _Run) -> None:
    """HopSkipJump, on the deployed file."""
    count = run.affordable(0.5, _QUESTIONS, NEAR_ROWS)
    if count < 4:
        run.undone.append("Out of time before hop_skip_jump.")
        return
    batch = int(np.clip(_ELEMENTS // (350 * int(np.prod(run.subject.model.shape))), 1, 64))
    begun = time.monotonic()
    found = hop_skip_jump(
        run.subject.model, run.x[:count], run.y[:count], norm="L2", batch=batch,
        **run.settings(iterations=10, directions=100, most_directions=350, seed=run.subject.seed),
    )  # fmt: skip
    _median(run, "hop_skip_jump", "the file's classes", found, time.monotonic() - begun)


def _median(run: _Run, name: str, on: str, found: Attacked, seconds: float | None = None) -> None:
    moved = found.success & (found.distances > 0)
    if not moved.any():
        run.undone.append(f"{name} found no example in {len(found.success)} tries.")
        return
    run.figures[f"{name}_distance"] = float(np.median(found.distances[moved]))
    length = float(np.median(np.sqrt((run.x.reshape(len(run.x), -1).astype(np.float64) ** 2).sum(1))))
    took = "" if seconds is None else f", {found.queries.mean():.0f} questions each"
    run.notes.append(
        f"{name} ({on}) changes {moved.sum()} of {len(moved)} answers within a median L2 distance of "
        f"{run.figures[f'{name}_distance']:.3g}{took}; inputs have a median length of {length:.4g}."
    )


def _section(run: _Run) -> Section:
    subject = run.subject
    low, high = subject.span
    notes = [
        f"{len(run.rows)} examples; changes of each value by at most epsilon {subject.epsilon:.4g}, "
        f"{subject.epsilon / (high - low):.2%} of the range {low:.4g} to {high:.4g}.",
        *run.notes,
    ]  # fmt: skip
    columns = (
        "attack",
        "by",
        "left on the float twin",
        "left on the file",
        "left after all above",
        "questions",
        "seconds",
    )
    table = Table("Accuracy that is left", columns, tuple(run.lines), shares=columns[2:5])
    return Section(
        PART.name, PART.title, run.figures, tables=(table,) if run.lines else (), curves=tuple(run.curves),
        pictures=_pictures(run), notes=tuple(notes), undone=tuple(run.undone), warnings=tuple(run.warnings),
        shares=("accuracy", "robust", *STEPS),
    )  # fmt: skip


def _pictures(run: _Run) -> tuple[Picture, ...]:
    """Examples of the strongest attack: before, after, and the change."""
    subject = run.subject
    if run.found is None or subject.kind not in ("image", "spectrogram"):
        return ()
    answers = subject.model.logits(run.found).argmax(1)
    low, high = subject.span
    shown = []
    for i in np.flatnonzero(subject.right[run.rows] & (answers != run.y))[:4]:
        change = run.found[i] - run.x[i]
        most = max(float(np.abs(change).max()), 1e-30)
        middle = (change / most + 1) / 2 * (high - low) + low
        far = float(distances(run.x[i : i + 1], run.found[i : i + 1], "Linf")[0])
        turn = f"{subject.classes[run.y[i]]} becomes {subject.classes[answers[i]]}"
        words = f"{turn}; the change, {far:.3g} at most, enlarged"
        shown.append(Picture(words, side_by_side([run.x[i], run.found[i], middle], subject.kind, subject.span)))
    return tuple(shown)


PART = Part("attacks", "Attacks", _figures, _measure, share=5.0)
