"""A fifth of the devices send their update times -10: the remaining accuracy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from federated import tree
from federated.algorithms import FedAvg
from federated.data import draw, join
from federated.learner import Batch
from federated.robust import aggregator_from
from federated.robust.attacks import flipped, liars
from tests.federated.fleets import Softmax

SHARE = 0.2


def world(devices: int = 20, examples: int = 200, inputs: int = 10, classes: int = 4) -> dict[str, Batch]:
    """Devices whose examples follow one rule, each from a different region of inputs."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=(inputs, classes))
    shards = {}
    for at in range(devices):
        x = (rng.normal(size=(examples, inputs)) + 0.1 * rng.normal(size=inputs)).astype("f4")
        shards[f"d{at:02}"] = Batch({"x": x}, (x @ rule).argmax(axis=1))
    return shards


@cache
def accuracy(rule: str, share: float) -> float:
    """Accuracy of FedAvg after 30 rounds, over all devices' examples."""
    shards, learner, algorithm = world(), Softmax(10, 4), FedAvg(rate=0.2)
    lying = liars(shards, share, seed=1)
    assert len(lying) == round(20 * share)
    state, rng, combine = algorithm.init(learner.params), np.random.default_rng(0), aggregator_from(rule)
    for _ in range(30):
        updates = []
        for name, data in shards.items():
            update, _ = algorithm.local(learner, algorithm.broadcast(state), {}, draw(data, rng, 5, 20))
            updates.append(flipped(update.payload) if name in lying else update.payload)
        state = algorithm.apply(state, combine(updates, [1.0] * len(updates)).tree, 1.0)
    found = learner.evaluate(algorithm.model(state), join(list(shards.values())))
    return float(found.correct / found.examples)


@pytest.mark.parametrize("rule", ["median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median"])
def test_robust_rules_keep_the_accuracy(rule: str) -> None:
    assert accuracy("mean", 0.0) > 0.85
    assert accuracy(rule, SHARE) > accuracy("mean", 0.0) - 0.02


def test_the_mean_is_destroyed() -> None:
    assert accuracy("mean", SHARE) < accuracy("mean", 0.0) - 0.3


def test_the_seed_decides_which_devices_attack() -> None:
    names = [f"d{at}" for at in range(50)]
    assert liars(names, 0.3, 1) == liars(reversed(names), 0.3, 1) != liars(names, 0.3, 2)
    np.testing.assert_array_equal(flipped({"w": np.ones(2)})["w"], [-10, -10])
    assert tree.total(flipped({"w": np.ones(2)}, 2.0)) == -4
