"""The accuracy table: networks that convert, scores example by example, and the tables made of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from benchmarks.accuracy.__main__ import sampled
from benchmarks.accuracy.contenders import contenders
from benchmarks.accuracy.measures import Task, area, pixels, top1
from benchmarks.accuracy.page import Score, markdown, paired
from benchmarks.accuracy.trained import NETWORKS
from converter import Training, convert


def test_measures_count_example_by_example():
    labels = np.array([2, 0, 1, 1])
    scores = np.eye(3, dtype=np.float32)[[2, 0, 0, 1]]
    measure = top1(labels)
    assert measure.each({"y": scores}).tolist() == [1, 1, 0, 1] and measure.of({"y": scores}) == 0.75
    tokens = top1(np.array([[2, 0], [1, 1]])).each({"y": scores.reshape(2, 2, 3)})
    assert tokens.tolist() == [1, 0.5]
    masks = np.zeros((2, 1, 2, 2), np.float32)
    masks[:, 0, 0] = 1
    logits = np.array([[[[1, 1], [-1, -1]]], [[[1, -1], [1, -1]]]], np.float32)
    assert pixels(masks).each({"y": logits}).tolist() == [1, 1 / 3]
    auc = area(lambda outputs: outputs["y"], np.array([False, True, False]))
    assert auc.of({"y": np.array([1.0, 3.0, 2.0])}) == 1 and auc.of({"y": np.array([1.0, 0.0, 2.0])}) == 0


def test_tables():
    rng = np.random.default_rng(0)
    right = rng.random(400) < 0.9
    worse = right & (rng.random(400) < 0.8)
    each = {"fp32": right, "msedge": right, "other": worse}
    results = [
        Score("task", seed, name, 1000, 30.0, float(found.mean()), "top-1", found.astype(float).tolist())
        for seed in (0, 1)
        for name, found in each.items()
    ]
    measure = top1(np.zeros(400, int))
    assert f"| task | top-1 | 400 | {100 * right.mean():.2f} |" in markdown(results)
    row = paired(results, {"task": measure}).splitlines()[-1]
    difference = 100 * (right.mean() - worse.mean())
    assert "| +0.00 (+0.00 to +0.00) |" in row and f"| {difference:+.2f} (+" in row


@pytest.mark.parametrize("name", ("wrist gru", "motion mixer"))
def test_a_network_trains_and_quantises(name, tmp_path):
    network = next(n for n in NETWORKS if n.name == name)
    model = network.build()
    shape = [d if isinstance(d, int) else 8 for d in model.graph.inputs[0].shape]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    how = Training("*", loss=network.loss, optimizer="adam", batch_norm="train")
    learner = lite_runtime.load(convert(ir.to_proto(model), trainable=how).bundle)
    labels = np.arange(8) % 6
    first, *_, last = (float(learner.run({"x": x, "labels": labels}, "train_step")["loss"]) for _ in range(8))
    assert last < first
    ir.save(model, tmp_path / "m.onnx")
    task = Task(name, tmp_path / "m.onnx", {"x": x}, {"x": x})
    assert len(sampled(task, 1, None).calibration["x"]) == 6 and len(sampled(task, 0, 3).calibration["x"]) == 3
    outputs = {}
    for contender, make in contenders(task, ["fp32", "msedge"]):
        size, run = make()
        outputs[contender] = next(iter(run(task.evaluation).values()))
        assert size > 0
    error = np.abs(outputs["msedge"] - outputs["fp32"]).max() / np.abs(outputs["fp32"]).max()
    assert 0 < error < 0.2
