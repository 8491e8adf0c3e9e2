"""Schedules, groups of parameters and layers, against their definitions."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import optax
import pytest

from cloud.errors import TrainError
from cloud.train import SCHEDULES, WARMUPS, Group, JaxTask, Shape, Trainer, decay_mask, schedule
from cloud.train.stepping.groups import grouped
from cloud.train.stepping.layers import layers_of
from cloud.train.tasks import OnnxTask
from tests.cloud.models import tiny_net

PARAMS = {
    "stem": {"w": np.ones((4, 8), np.float32), "b": np.ones(8, np.float32)},
    "block10": {"w": np.ones((8, 8), np.float32)},
    "head": {"w": np.ones((8, 2), np.float32)},
}


def net(params: Any, x: Any) -> Any:
    hidden = x @ params["stem"]["w"] + params["stem"]["b"]
    return hidden @ params["block10"]["w"] @ params["head"]["w"]


TASK = JaxTask(net, PARAMS)


def cosine(done: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * done))


PLACES = (0, 25, 50, 75, 100)
EXPECTED: dict[str, tuple[Shape, list[float]]] = {
    "constant": (Shape(), [1] * 5),
    "linear": (Shape(end=0.2), [1, 0.8, 0.6, 0.4, 0.2]),
    "cosine": (Shape(end=0.2), [0.2 + 0.8 * cosine(t / 100) for t in PLACES]),
    "polynomial": (Shape(power=3), [(1 - t / 100) ** 3 for t in PLACES]),
    "exponential": (Shape(end=0.01), [0.01 ** (t / 100) for t in PLACES]),
    "step": (Shape(factor=0.5, at=(0.25, 0.6)), [1, 0.5, 0.5, 0.25, 0.25]),
    "cosine_restarts": (Shape(cycles=2, stretch=3), [1, 1, cosine(1 / 3), cosine(2 / 3), 0]),
    "one_cycle": (Shape(rise=0.5, start=0.1, end=0), [0.1, 0.55, 1, 0.5, 0]),
    "inverse_sqrt": (Shape(), [(1 + t) ** -0.5 for t in PLACES]),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedules_as_defined(kind: str) -> None:
    shape, expected = EXPECTED[kind]
    rate = jax.jit(jax.vmap(schedule(kind, 2.0, 100, shape=shape)))
    np.testing.assert_allclose(rate(np.array(PLACES)), np.array(expected) * 2, atol=1e-5)


def test_warm_ups_rise_to_the_rate_and_what_follows_begins_there() -> None:
    for rises, half in {"linear": 0.5, "cosine": 0.5, "quadratic": 0.25}.items():
        rate = schedule("cosine", 3.0, 110, warmup=10, rises=rises, shape=Shape(floor=0.2))
        found = [float(rate(step)) for step in (0, 5, 10, 60, 110)]
        np.testing.assert_allclose(found, [0.6, 3 * (0.2 + 0.8 * half), 3, 1.5, 0], atol=1e-5)
    assert {*WARMUPS} == {"linear", "cosine", "quadratic"}
    np.testing.assert_allclose(float(schedule("inverse_sqrt", 1.0, 100, warmup=16)(16 + 48)), 0.5, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, options, said",
    [
        ("cosin", {}, "one of constant, linear, .* for the schedule, got 'cosin'"),
        ("one_cycle", {"warmup": 3}, "which rises itself"),
        ("linear", {"rises": "fast"}, "one of linear, cosine, quadratic for the warm-up"),
        ("exponential", {}, "a share above 0 for an exponential for end"),
    ],
)
def test_schedules_that_make_no_sense(kind: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainError, match=said):
        schedule(kind, 1.0, 10, **options)
    with pytest.raises(TrainError, match="rising shares between 0 and 1 for at"):
        Shape(at=(0.5, 0.5))


def moved(optimizer: optax.GradientTransformation) -> dict[str, float]:
    """How far the first element of every parameter goes with a gradient of 1."""
    ones = jax.tree.map(np.ones_like, PARAMS)
    updates, _ = optimizer.update(ones, optimizer.init(PARAMS), PARAMS)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): round(float(np.ravel(leaf)[0]), 6)
        for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
    }


def test_groups_have_rates_decay_and_optimisers_of_their_own() -> None:
    """The first group that matches counts; a group's rate multiplies its own optimiser too."""
    decayed = optax.chain(optax.add_decayed_weights(0.5), optax.sgd(0.1))
    groups = [Group(["*/b"], 3.0), Group(["head/*", "stem/b"], 2.0, decayed)]
    found = moved(grouped(optax.sgd(0.1), groups, TASK))
    assert found == {"block10/w": -0.1, "head/w": -0.3, "stem/b": -0.3, "stem/w": -0.1}
    plain = optax.sgd(0.1)
    assert grouped(plain, [], TASK) is plain
    with pytest.raises(TrainError, match=r"got \['tail/\*'\], which match none of \['block10/w', .*"):
        grouped(plain, [Group(["tail/*"])], TASK)
    with pytest.raises(TrainError, match="expected a list of patterns"):
        Group("head/*")  # type: ignore[arg-type]


def test_no_decay_of_norms_and_biases() -> None:
    found = moved(optax.adamw(0.1, weight_decay=1.0, mask=decay_mask))
    assert found["stem/w"] == pytest.approx(-0.2, rel=1e-4) and found["stem/b"] == pytest.approx(-0.1, rel=1e-4)


def test_rates_decay_from_the_last_layer_to_the_first() -> None:
    found = moved(grouped(optax.sgd(1.0), [Group(["stem/b"], 2.0)], TASK, 0.5))
    assert found == {"block10/w": -0.5, "head/w": -1, "stem/b": -0.5, "stem/w": -0.25}
    named = moved(grouped(optax.sgd(1.0), [], TASK, 0.5, ["head/*", "stem/*"]))
    assert named == {"block10/w": -1, "head/w": -0.5, "stem/b": -1, "stem/w": -1}
    with pytest.raises(TrainError, match="layer_decay together with layers"):
        Trainer(TASK, layers=["stem*"])


def test_layers_are_in_the_order_of_computation() -> None:
    assert layers_of(TASK) == [("stem/w", "stem/b"), ("block10/w",), ("head/w",)]
    model = tiny_net()
    weights = dict(model.graph.initializers)
    model.graph.initializers.clear()
    for name in sorted(weights):  # an order that means nothing
        model.graph.initializers[name] = weights[name]
    layers = layers_of(OnnxTask(model))
    assert [layer[0].partition(".")[0] for layer in layers] == ["stem", "head"]
    with pytest.raises(TrainError, match=r"patterns of layers, got \['tail'\]"):
        layers_of(TASK, ["stem*", "tail"])


def test_frozen_parameters_and_groups_train_together() -> None:
    x, y = np.ones((8, 4), np.float32), np.zeros(8, np.int32)
    sgd = optax.sgd(0.1, momentum=0.9)
    run = Trainer(TASK, freeze=["stem/*"], optimizer=optax.adam(0.1), groups=[Group(["head/*"], 0.5, sgd)], clip=1.0)
    run.fit((x, y), steps=2, batch_size=8)
    assert np.array_equal(run.params["stem"]["w"], PARAMS["stem"]["w"])
    assert not np.array_equal(run.params["head"]["w"], PARAMS["head"]["w"])
