"""The compiled fleet compared with devices that run one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from cloud.errors import TrainError
from cloud.federated import JaxLearner, Simulator
from cloud.federated.simulator import _compute, _Lot
from cloud.zoo import mlp
from converter import convert
from federated import tree
from federated.algorithms import ALGORITHMS, Algorithm, algorithm_from
from federated.client.lite import LiteLearner, stacked
from federated.data import draw, pick
from federated.evaluation import before_after
from federated.learner import Batch, Learner
from federated.schedule import Schedule
from federated.server.rounds import choose, seed_of, wanted
from tests.cloud.federated.test_learner import examples

POOL = examples(60)
SHARDS = {f"d{i}": np.arange(12 * i, 12 * i + 6 + i) for i in range(5)}
SEED, STEPS, SIZE, FRACTION = 3, 2, 4, 0.6


@pytest.fixture(scope="module")
def learner() -> JaxLearner:
    return JaxLearner(mlp(5, 3, (4,)))


def simulator(algorithm: Algorithm, learner: JaxLearner, **more: Any) -> Simulator:
    return Simulator(algorithm, learner, POOL, SHARDS, steps=STEPS, size=SIZE, seed=SEED, **more)


class Looping:
    """The learner a device would have: one call a step, no loop compiled."""

    second_order = True

    def __init__(self, learner: JaxLearner) -> None:
        self.params = learner.params
        self.gradient, self.meta_gradient = jax.jit(learner.gradient), jax.jit(learner.meta_gradient)
        self.evaluate = jax.jit(learner.evaluate)

    def scan(self, step: Callable[[Any, Batch], tuple[Any, Any]], carry: Any, batches: Batch) -> tuple[Any, Any]:
        outs = []
        for i in range(len(batches.labels)):
            carry, out = step(carry, pick(batches, i))
            outs.append(out)
        return carry, stacked(outs)


@pytest.fixture(scope="module")
def looping(learner: JaxLearner) -> Looping:
    return Looping(learner)


class OneByOne:
    """The same fleet, one device after the other."""

    def __init__(self, algorithm: Algorithm, learner: Learner) -> None:
        self.algorithm, self.learner = algorithm, learner
        self.state = algorithm.init(learner.params)
        self.personal: dict[str, Any] = {}

    def own(self, name: str) -> Mapping[str, Any]:
        return self.personal.get(name) or self.algorithm.enrol(self.algorithm.broadcast(self.state))

    def round(self, number: int) -> None:
        broadcast, updates, weights = self.algorithm.broadcast(self.state), [], []
        names = choose(SHARDS, wanted(len(SHARDS), FRACTION, 1), SEED, number)
        for name in names:
            rng = np.random.default_rng(seed_of(SEED, "train", number, name))
            batches = draw(pick(POOL, SHARDS[name]), rng, STEPS * self.algorithm.batches_a_step, SIZE)
            update, self.personal[name] = self.algorithm.local(self.learner, broadcast, self.own(name), batches)
            updates.append(update.payload)
            weights.append(1 if self.algorithm.uniform else len(SHARDS[name]))
        mean = tree.weighted_mean(updates, weights)
        self.state = self.algorithm.apply(self.state, mean, len(names) / len(SHARDS))


@pytest.mark.parametrize(
    ("name", "group"),
    [("fedavg", 1), ("scaffold", 2), ("ditto", 1), ("meta_head", 2), ("meta_sgd_exact", 2), ("qfedavg", 2)],
)
def test_a_fleet_computes_what_its_devices_do(name: str, group: int, learner: JaxLearner, looping: Looping) -> None:
    run = simulator(ALGORITHMS[name](), learner, group=group)
    slow = OneByOne(ALGORITHMS[name](), looping)
    for number in (1, 2):
        report = run.round(FRACTION)
        slow.round(number)
        assert (report.round, len(report.devices), report.losses.shape) == (number, 3, (3,))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), run.state, slow.state)

    names = ["d0", "d3", "nobody", "d4"]
    support, query = [np.arange(5), np.arange(40, 48)] * 2, [np.arange(9), np.arange(30), np.arange(3), np.arange(7)]
    found = run.adapt(names, support, query, steps=2, size=3, seed=5)
    for i, who in enumerate(names):
        batches = draw(pick(POOL, support[i]), np.random.default_rng(seed_of(SEED, "evaluate", 5, i)), 2, 3)
        broadcast = slow.algorithm.broadcast(slow.state)
        pair = before_after(slow.algorithm, looping, broadcast, slow.own(who), batches, pick(POOL, query[i]))
        for ours, theirs in zip(found, pair, strict=True):
            np.testing.assert_allclose([leaf[i] for leaf in ours], np.asarray(theirs), rtol=1e-4)


def test_a_scheduled_fleet_computes_what_its_devices_do(learner: JaxLearner, looping: Looping) -> None:
    """Momentum, clipping, decay and a schedule, with the rates of each round set by hand on devices."""
    schedule = Schedule(local="step", every=1, factor=0.5, server="cosine", rounds=4)
    algorithm = algorithm_from({"name": "fedavg", "momentum": 0.5, "clip_norm": 0.4, "weight_decay": 0.1, "rate": 0.2})
    run, slow = simulator(algorithm, learner, schedule=schedule), OneByOne(algorithm, looping)
    for number in (1, 2, 3):
        run.round(FRACTION)
        slow.algorithm = dataclasses.replace(
            algorithm, rate=0.2 * 0.5 ** (number - 1), server_rate=(1 + np.cos(np.pi * (number - 1) / 4)) / 2
        )
        slow.learner = slow.algorithm.shaped(looping)
        slow.round(number)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), run.state, slow.state)
    plain = simulator(ALGORITHMS["fedavg"](rate=0.2), learner)
    plain.round(FRACTION)
    assert not np.allclose(run.state["params"]["head.weight"], plain.state["params"]["head.weight"], atol=1e-3)
    with pytest.raises(TrainError, match=r"schedule\.rounds: expected the round at which the cosine ends"):
        simulator(algorithm, learner, schedule=Schedule(local="cosine"))


def test_another_rate_compiles_nothing(learner: JaxLearner) -> None:
    run, other = (simulator(ALGORITHMS["fedavg"](rate=rate), learner) for rate in (0.1, 0.0))
    before = tree.scale(other.state["params"], 1)
    run.round()
    compiled = _compute._cache_size()
    other.round()
    other.round()
    assert _compute._cache_size() == compiled
    jax.tree.map(np.testing.assert_array_equal, before, other.state["params"])


def test_equal_seeds_are_equal_runs(learner: JaxLearner) -> None:
    runs = [simulator(ALGORITHMS["fedavg"](), learner) for _ in range(2)]
    reports = [[run.round(FRACTION) for _ in range(2)] for run in runs]
    assert [r.devices for r in reports[0]] == [r.devices for r in reports[1]]
    jax.tree.map(np.testing.assert_array_equal, runs[0].state, runs[1].state)


def test_batches_drawn_ahead_are_the_same_batches(learner: JaxLearner) -> None:
    ahead, late = (simulator(ALGORITHMS["fedavg"](), learner) for _ in range(2))
    for fraction in (0.4, 0.4, 1.0, 1.0):
        late._ahead = None
        reports = [run.round(fraction) for run in (ahead, late)]
        assert reports[0].devices == reports[1].devices
    jax.tree.map(np.testing.assert_array_equal, ahead.state, late.state)


def test_a_batch_of_all_examples_is_the_one_that_would_be_drawn(learner: JaxLearner) -> None:
    pool = Batch({"x": np.zeros((12, 5), np.float32)}, np.zeros(12, np.int32))
    shards = {"a": np.array([3, 0, 2, 1]), "b": np.arange(4, 12)}
    run = Simulator(ALGORITHMS["fedavg"](), learner, pool, shards, steps=1, size=4)
    names, rows = run._lot(_Lot(3, 1.0, 1))
    assert names == ["a", "b"]
    for name, own in zip(names, rows, strict=True):
        np.testing.assert_array_equal(own, np.sort(run._drawn(shards[name], ("train", 3, name), 1, 4)))


def test_empty_devices_are_named(learner: JaxLearner) -> None:
    with pytest.raises(TrainError, match="none of b, c"):
        Simulator(ALGORITHMS["fedavg"](), learner, Batch({}, np.zeros(1)),
                  {"a": np.arange(1), "b": np.arange(0), "c": np.arange(0)}, steps=1, size=1)  # fmt: skip


@pytest.mark.parametrize("name", ["fedavg", "meta_head", "qfedavg"])
def test_a_fleet_computes_what_devices_with_bundles_compute(name: str, learner: JaxLearner) -> None:
    bundle = convert(mlp(5, 3, (4,)), trainable="*").bundle
    slow = OneByOne(ALGORITHMS[name](), LiteLearner(bundle, backend="reference"))
    run = simulator(ALGORITHMS[name](), learner)
    for number in (1, 2):
        run.round(FRACTION)
        slow.round(number)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), run.state, slow.state)
