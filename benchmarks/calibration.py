"""Calibration and out-of-distribution figures of deployed bundles, for people and speakers never seen.

    python -m benchmarks.calibration DATA OUT.json     # divisions in the file are not repeated

A convolutional network on each of: five activities from a phone's inertial signals (the sixth, lying, is the second
set; people are divided 18 / 6 / 6 into training, fit and test), and the spoken digits 0 to 7 (8 and 9 are the second
set; speakers are divided 4 / 1 / 1, so that in six divisions each speaker is the test once). Each is converted to
float and int8 bundles; everything is computed from the outputs of the bundles, and the calibration that is used is the
one read back from the file. The second set consists of the test's people alone. Prints the mean over the divisions with
the least and the largest.

A temperature that is fitted on few people need not suit others. *In turns*: the training people are divided into four;
a network is trained without each part and asked about it, and the fit has these answers too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

import lite_runtime
import msedge
from benchmarks.accuracy.examples import spoken_digits, untangled
from benchmarks.window_networks import trained
from cloud.audit import (
    fit_calibration,
    fit_mahalanobis,
    measure_calibration,
    measure_groups,
    separation,
    worst_decile,
)
from lite_runtime._files import write_atomically
from lite_runtime.calibration import with_calibration
from lite_runtime.graph import Array

DIVISIONS, TURNS = 6, 4
FALSE_ALARMS = 0.05


class Task(NamedTuple):
    """Inputs (n, channels, 1, steps), labels and people of all examples; which people are for what; the kernel."""

    x: Array
    y: Array
    who: Array
    parts: tuple[Array, Array, Array]
    classes: int
    """Labels from here on are the second set."""
    kernel: int


def motion(data: Path, seed: int) -> Task:
    """Activities of 30 people; lying, the last label, is kept out."""
    with np.load(data / "har_30_subjects.npz") as file:
        x, y, who = untangled(file["x"]), file["y"].astype(int), file["subject"]
    people = np.random.default_rng(seed).permutation(np.unique(who))
    return Task(x, y, who, (people[:18], people[18:24], people[24:]), 5, 9)


def speech(data: Path, seed: int) -> Task:
    """Spoken digits of six speakers, in the order that `spoken_digits` has; each band less its mean in the recording,
    which takes out what microphones and voices add."""
    (first, labels), (second, others) = spoken_digits(data)
    with np.load(data / "fsdd_spoken_digits.npz") as file:
        test, speaker = file["index"] < 10, file["speaker"]
    x, y = np.concatenate([first, second]), np.concatenate([labels, others]).astype(int)
    names = np.roll(np.random.default_rng(0).permutation(np.unique(speaker)), seed)
    who = np.concatenate([speaker[~test], speaker[test]])
    x = x.transpose(0, 2, 1, 3)
    return Task(x - x.mean(3, keepdims=True), y, who, (names[:4], names[4:5], names[5:]), 8, 5)


def network(task: Task, people: Array, seed: int) -> ir.Model:
    """A network trained by these people."""
    own = np.flatnonzero(np.isin(task.who, people) & (task.y < task.classes))
    return trained(task.x[own], task.y[own].astype(np.int32), task.classes, seed, kernel=task.kernel)


def in_turns(task: Task, seed: int, folder: Path) -> tuple[Array, Array]:
    """Logits and labels of the training people, each by a network that did not learn from them."""
    scores, labels = [], []
    for part in np.array_split(task.parts[0], TURNS):
        path = folder / "calibration-turn.mslite"
        msedge.convert(network(task, np.setdiff1d(task.parts[0], part), seed), output=path)
        rows = np.isin(task.who, part) & (task.y < task.classes)
        scores.append(lite_runtime.load(path).run({"x": task.x[rows]})["logits"])
        labels.append(task.y[rows])
    return np.concatenate(scores), np.concatenate(labels)


def figures(
    task: Task, source: ir.Model, turns: tuple[Array, Array], kind: Literal["none", "int8"], folder: Path
) -> dict[str, Any]:
    """What a bundle's outputs say before and after it is calibrated. turns: of `in_turns`."""
    known = task.y < task.classes
    train, fit, test = (np.isin(task.who, people) & known for people in task.parts)
    strange = np.isin(task.who, task.parts[2]) & ~known
    path = folder / f"calibration-{kind}.mslite"
    given = {"x": task.x[train][:512]} if kind == "int8" else None
    msedge.convert(source, output=path, quantize=kind, calibration=given)
    plain = lite_runtime.load(path)
    features = plain.outputs()[1].name
    first, held = plain.run({"x": task.x[train]}), plain.run({"x": task.x[fit]})
    distances = fit_mahalanobis(first[features], task.y[train], held[features], features, FALSE_ALARMS)
    calibration = fit_calibration(held["logits"], task.y[fit], "logits", false_alarms=FALSE_ALARMS, distances=distances)
    model = lite_runtime.load(with_calibration(path, calibration))
    inside, outside = model.run({"x": task.x[test]}), model.run({"x": task.x[strange]})
    near, far = model.confidence(inside), model.confidence(outside)
    kept, labels = model.calibration, task.y[test]
    assert kept is not None and kept.energy is not None and kept.mahalanobis is not None
    pooled = (np.concatenate([held["logits"], turns[0]]), np.concatenate([task.y[fit], turns[1]]))
    other = fit_calibration(*pooled, "logits", false_alarms=FALSE_ALARMS)
    found: dict[str, Any] = {"examples": len(labels), "second_set": int(strange.sum())}
    for name, temperature in (("before", 1.0), ("after", kept.temperature), ("in turns", other.temperature)):
        whole = measure_calibration(inside["logits"], labels, temperature)
        people = measure_groups(inside["logits"], labels, list(task.who[test]), temperature)
        found[name] = {
            **{key: value for key, value in whole._asdict().items() if key not in ("bins", "examples")},
            "worst_person_ece": worst_decile([one.ece for one in people.values()]),
            "temperature": temperature,
            "worst_person_accuracy": worst_decile([one.accuracy for one in people.values()], higher_is_worse=False),
        }
    for name, one, foreign, above in (
        ("energy", near.energy, far.energy, kept.energy.threshold),
        ("mahalanobis", near.distance, far.distance, kept.mahalanobis.above.threshold),
    ):
        assert one is not None and foreign is not None
        rates = {"false_alarms": float((one > above).mean()), "found": float((foreign > above).mean())}
        found[name] = {**separation(one, foreign)._asdict(), **rates}
    return found


TASKS: Mapping[str, Callable[[Path, int], Task]] = {"motion": motion, "speech": speech}
SHOWN: Mapping[str, tuple[str, str]] = {
    "accuracy": ("before", "accuracy"),
    **{f"{said}, {name}": (name, key)
       for said, key in (("calibration error", "ece"), ("of the worst person", "worst_person_ece"),
                         ("likelihood (negative logarithm)", "nll"))
       for name in ("before", "after", "in turns")},
    **{f"{name}: {said}": (name, key) for name in ("energy", "mahalanobis")
       for said, key in (("area under the curve", "auroc"), ("FPR95", "fpr95"), ("false alarms", "false_alarms"))},
}  # fmt: skip
"""What the table has, and where it is in a division's figures."""


def table(made: Mapping[str, Any], kind: str) -> None:
    """Print the mean over divisions, the least and the largest."""
    print(f"| {kind} | " + " | ".join(TASKS) + " |\n" + "|---" * (1 + len(TASKS)) + "|")
    for name, (part, key) in SHOWN.items():
        cells = []
        for task in TASKS:
            values = [made[f"{task}/{seed}"][kind][part][key] for seed in range(DIVISIONS) if f"{task}/{seed}" in made]
            cells.append(f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else "")
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with har_30_subjects.npz and fsdd_spoken_digits.npz")
    parser.add_argument("out", type=Path, help="JSON; the bundles are written beside it")
    args = parser.parse_args()
    made: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    kinds: tuple[Literal["none", "int8"], ...] = ("none", "int8")
    for name, load in TASKS.items():
        for seed in range(DIVISIONS):
            if f"{name}/{seed}" in made:
                continue
            task = load(args.data, seed)
            source, turns = network(task, task.parts[0], seed), in_turns(task, seed, args.out.parent)
            made[f"{name}/{seed}"] = {kind: figures(task, source, turns, kind, args.out.parent) for kind in kinds}
            write_atomically(args.out, json.dumps(made, indent=1).encode())
    for kind in kinds:
        table(made, kind)


if __name__ == "__main__":
    main()
