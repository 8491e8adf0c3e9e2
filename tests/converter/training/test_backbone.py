"""A frozen part on integers before a float head that trains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from converter import convert
from converter.training import Training
from lite_runtime import Model, load
from tests.converter.training.models import INT8, batches, cnn, shaken


def _made(trainable: Any, mode: Any) -> tuple[Model, Any, Any]:
    source = shaken(cnn())
    x, labels = batches(source, 4, 32, 1)[0]
    calibration = {"x": x} if mode is INT8 else None
    training = Training(trainable, optimizer="sgd", learning_rate=0.1)
    conversion = convert(source, trainable=training, quantize=mode, calibration=calibration)
    return load(conversion.bundle), x, labels


@pytest.mark.parametrize("mode", [INT8, "dynamic"], ids=["int8", "dynamic"])
@pytest.mark.parametrize(("trainable", "integer"), [(("head.*",), 3), (("last.*", "head.*"), 2)])
def test_what_comes_before_the_first_parameter_runs_on_integers(mode: Any, trainable: Any, integer: int) -> None:
    model, x, labels = _made(trainable, mode)
    for graph in model.bundle.signatures.values():
        assert [node.op for node in graph.nodes].count("QLinearConv") == integer
    plain = load(convert(shaken(cnn())).bundle).run({"x": x})["logits"]
    assert np.abs(model.run({"x": x})["logits"] - plain).max() < 0.1 * np.ptp(plain)
    losses = [float(model.run({"x": x, "labels": labels}, "train_step")["loss"]) for _ in range(20)]
    assert losses[-1] < losses[0]


def test_gradients_of_the_head_are_slopes_of_the_loss() -> None:
    model, x, labels = _made(("head.*",), INT8)
    feed = {"x": x, "labels": labels}
    got, start = model.run(feed, "gradients"), model.state_dict()
    for name in ("head.weight", "head.bias"):
        direction = np.random.default_rng(0).standard_normal(start[name].shape).astype(np.float32)
        losses = []
        for sign in (1, -1):
            model.load_state_dict({name: start[name] + np.float32(sign * 0.05) * direction}, strict=False)
            losses.append(float(model.run(feed, "evaluate")["loss"]))
        model.load_state_dict(start)
        slope = (losses[0] - losses[1]) / 0.1
        assert slope == pytest.approx(float((got[f"grad/{name}"] * direction).sum()), rel=2e-2, abs=1e-4)
