"""Quantisation on real models and data: its cost in accuracy, independence of the order of samples, and agreement with
other runtimes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lite_runtime
from benchmarks.accuracy.measures import Task
from benchmarks.accuracy.published import TASKS
from converter import convert
from converter.quantize import Options
from converter.report import Sums, page
from tests import oracles
from tests.conftest import SHARED


def task(word: str) -> Task:
    for make in TASKS:
        try:
            found = make(SHARED / "models", SHARED / "data")
        except FileNotFoundError:
            continue
        if word in found.name:
            return found
    pytest.skip(f"no model and data for {word} in {SHARED}")


def first(it: Task, rows: int) -> dict[str, np.ndarray]:
    """Calibration rows. Quantising takes as long as they are many, and what most tests check holds with a few."""
    return {name: array[:rows] for name, array in it.calibration.items()}


def outputs(bundle: bytes, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = lite_runtime.load(bundle)
    count = len(next(iter(rows.values())))
    runs = [model.run({name: array[i : i + 1] for name, array in rows.items()}) for i in range(count)]
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


@pytest.mark.parametrize(
    ("word", "rows", "least", "bytes_at_most"), [("ic01", 32, 0.85, 98_496), ("ad01", 588, 0.875, 285_000)]
)
def test_accuracy_and_size_of_int8(word: str, rows: int, least: float, bytes_at_most: int) -> None:
    it = task(word)
    made = convert(it.model, quantize="int8", calibration=first(it, rows))
    assert it.metric is not None and it.metric.of(outputs(made.bundle, dict(it.evaluation))) >= least
    assert len(made.bundle) <= bytes_at_most
    assert made.report.ops_after.get("Conv", 0) + made.report.ops_after.get("MatMul", 0) == 0


@pytest.mark.parametrize("mode", ["int8", "w4"])
def test_the_order_of_samples_does_not_matter(mode: str) -> None:
    it = task("mnist")
    rows = first(it, 24)
    turned = {name: array[np.random.default_rng(3).permutation(24)] for name, array in rows.items()}
    assert (
        convert(it.model, quantize=mode, calibration=rows).bundle
        == convert(it.model, quantize=mode, calibration=turned).bundle
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "rows"), [("mnist", 8), ("ic01", 8), ("vit", 24)])
def test_onnxruntime_agrees_on_the_export(word: str, rows: int) -> None:
    it = task(word)
    options = Options(mode="int8", method="mse", gptq=False)
    few = first(it, rows)
    ours = lite_runtime.load(convert(it.model, quantize=options, calibration=few).bundle)
    exported = convert(it.model, quantize=options, calibration=few, to="onnx").bundle
    session = oracles.session(onnx.load_from_string(exported), fused=True)
    (name,) = (o.name for o in session.get_outputs())
    sums, same, count = Sums(), 0, 60
    for i in range(count):
        row = {key: array[i : i + 1] for key, array in it.evaluation.items()}
        (want,), got = session.run(None, row), ours.run(row)[name]
        sums.add(want, got)
        same += int(got.argmax() == want.argmax())
    assert same == count and sums.snr > 40


def test_the_report_of_a_real_model() -> None:
    it = task("vit")
    report = convert(it.model, quantize="int8", calibration=first(it, 8), explain=True).report
    assert len(report.layers) > 20 and report.outputs[0].snr > 20 and report.arena_bytes > 0
    text = page(report)
    assert text.count("<svg") >= 4 and "Layer by layer" in text and "why" in text
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text
