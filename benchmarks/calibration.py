"""Calibration and out-of-distribution figures of deployed bundles, for people and speakers never seen.

    python -m benchmarks.calibration DATA OUT.json

Two perceptrons with one hidden layer: five activities from a phone's inertial signals (the sixth, lying, is the second
set; people are divided 18 / 6 / 6 into training, fit and test), and the spoken digits 0 to 7 (8 and 9 are the second
set; speakers are divided 4 / 1 / 1). Each is converted to float and int8 bundles; everything is computed from the
outputs of the bundles, and the calibration that is used is the one read back from the file. The second set consists of
the test's people alone. 20 seconds; needs the extras `convert`, `cloud` and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.neural_network import MLPClassifier

import lite_runtime
import msedge
from benchmarks.accuracy.examples import spoken_digits
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

FALSE_ALARMS = 0.05


class Task(NamedTuple):
    """Inputs (n, size), labels and people of all examples, and which people are for what."""

    x: Array
    y: Array
    who: Array
    parts: tuple[Array, Array, Array]
    classes: int
    """Labels from here on are the second set."""


def motion(data: Path) -> Task:
    """Activities of 30 people; lying, the last label, is kept out."""
    with np.load(data / "har_30_subjects.npz") as file:
        x, y, who = file["x"].astype(np.float32), file["y"].astype(int), file["subject"]
    people = np.random.default_rng(0).permutation(np.unique(who))
    return Task(x.reshape(len(x), -1), y, who, (people[:18], people[18:24], people[24:]), 5)


def speech(data: Path) -> Task:
    """Spoken digits of six speakers, in the order that `spoken_digits` has."""
    (first, labels), (second, others) = spoken_digits(data)
    with np.load(data / "fsdd_spoken_digits.npz") as file:
        test, speaker = file["index"] < 10, file["speaker"]
    x, y = np.concatenate([first, second]), np.concatenate([labels, others]).astype(int)
    names = np.random.default_rng(0).permutation(np.unique(speaker))
    who = np.concatenate([speaker[~test], speaker[test]])
    return Task(x.reshape(len(x), -1), y, who, (names[:4], names[4:5], names[5:]), 8)


def network(task: Task, seed: int) -> onnx.ModelProto:
    """A trained perceptron with the outputs `logits` and `features`, the hidden layer's."""
    own = np.isin(task.who, task.parts[0]) & (task.y < task.classes)
    model = MLPClassifier(64, batch_size=128, random_state=seed, alpha=0.0)
    for _ in range(12):
        model.partial_fit(task.x[own], task.y[own], classes=np.arange(task.classes))
    arrays = dict(zip(("w", "v", "a", "b"), [*model.coefs_, *model.intercepts_], strict=True))
    held = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
            for name, size in (("x", task.x.shape[1]), ("logits", task.classes), ("features", 64))]  # fmt: skip
    nodes = [helper.make_node("Gemm", ["x", "w", "a"], ["h"]), helper.make_node("Relu", ["h"], ["features"]),
             helper.make_node("Gemm", ["features", "v", "b"], ["logits"])]  # fmt: skip
    graph = helper.make_graph(nodes, "perceptron", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def figures(task: Task, source: onnx.ModelProto, kind: Literal["none", "int8"], folder: Path) -> dict[str, Any]:
    """What a bundle's outputs say before and after it is calibrated."""
    known = task.y < task.classes
    train, fit, test = (np.isin(task.who, people) & known for people in task.parts)
    strange = np.isin(task.who, task.parts[2]) & ~known
    path = folder / f"calibration-{kind}.mslite"
    given = {"x": task.x[train][:512]} if kind == "int8" else None
    msedge.convert(source, output=path, quantize=kind, calibration=given)
    plain = lite_runtime.load(path)
    first, held = plain.run({"x": task.x[train]}), plain.run({"x": task.x[fit]})
    distances = fit_mahalanobis(first["features"], task.y[train], held["features"], "features", FALSE_ALARMS)
    calibration = fit_calibration(held["logits"], task.y[fit], "logits", false_alarms=FALSE_ALARMS, distances=distances)
    model = lite_runtime.load(with_calibration(path, calibration))
    inside, outside = model.run({"x": task.x[test]}), model.run({"x": task.x[strange]})
    near, far = model.confidence(inside), model.confidence(outside)
    kept, labels = model.calibration, task.y[test]
    assert kept is not None and kept.energy is not None and kept.mahalanobis is not None
    found: dict[str, Any] = {"temperature": kept.temperature, "examples": len(labels), "second_set": int(strange.sum())}
    for name, temperature in (("before", 1.0), ("after", kept.temperature)):
        whole = measure_calibration(inside["logits"], labels, temperature)
        people = measure_groups(inside["logits"], labels, list(task.who[test]), temperature)
        found[name] = {
            **{key: value for key, value in whole._asdict().items() if key not in ("bins", "examples")},
            "worst_person_ece": worst_decile([one.ece for one in people.values()]),
            "worst_person_accuracy": worst_decile([one.accuracy for one in people.values()], higher_is_worse=False),
        }
    for name, one, other, above in (
        ("energy", near.energy, far.energy, kept.energy.threshold),
        ("mahalanobis", near.distance, far.distance, kept.mahalanobis.above.threshold),
    ):
        assert one is not None and other is not None
        rates = {"false_alarms": float((one > above).mean()), "found": float((other > above).mean())}
        found[name] = {**separation(one, other)._asdict(), **rates}
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder with har_30_subjects.npz and fsdd_spoken_digits.npz")
    parser.add_argument("out", type=Path, help="JSON; the bundles are written beside it")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    made: dict[str, Any] = {"stated_false_alarms": FALSE_ALARMS, "seed": args.seed}
    for task in (motion, speech):
        there = task(args.data)
        source = network(there, args.seed)
        kinds: tuple[Literal["none", "int8"], ...] = ("none", "int8")
        made[task.__name__] = {kind: figures(there, source, kind, args.out.parent) for kind in kinds}
    write_atomically(args.out, json.dumps(made, indent=1).encode())
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
