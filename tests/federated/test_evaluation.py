"""Figures over devices: means in which each counts once, the worst tenth, and baselines."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np

from federated.algorithms import algorithm_from
from federated.data import draw
from federated.evaluation import Score, before_after, centralised, score, summarise
from federated.learner import Batch, Evaluation
from tests.federated.quadratic import Quadratic, at, batches

LEARNER = Quadratic()


def shard(seed: int, n: int = 40) -> Batch:
    return at(batches(1, n, seed), 0)


def scored(accuracies: list[float]) -> list[Score]:
    return [Score(str(i), 10, a / 2, a, 2 - a, 1 - a) for i, a in enumerate(accuracies)]


def test_a_score_is_of_means() -> None:
    found = score("kim", Evaluation(np.float32(3.0), 2, 4), Evaluation(np.float32(1.0), np.float32(3), 4))
    assert found == Score("kim", 4, 0.5, 0.75, 0.75, 0.25)


def test_the_worst_tenth_is_one_device_of_few_and_ten_of_a_hundred() -> None:
    few = summarise(scored([0.9, 0.5, 0.7]))
    assert few.devices == 3 and math.isclose(few.accuracy_after.mean, 0.7)
    assert math.isclose(few.accuracy_after.worst_decile, 0.5) and math.isclose(few.loss_after.worst_decile, 0.5)
    assert math.isclose(few.accuracy_before.worst_decile, 0.25) and math.isclose(few.loss_before.worst_decile, 1.5)
    many = summarise(scored([i / 100 for i in range(100)]))
    assert math.isclose(many.accuracy_after.worst_decile, 0.045) and math.isclose(many.loss_after.mean, 1 - 0.495)


def test_devices_count_once_however_many_examples_they_have() -> None:
    scores = [Score("big", 1000, 0, 1.0, 0, 0), Score("small", 1, 0, 0.0, 0, 0)]
    assert summarise(scores).accuracy_after.mean == 0.5


def test_devices_without_evaluation_examples_do_not_count() -> None:
    nothing = score("mute", Evaluation(np.float32(0), 0, 0), Evaluation(np.float32(0), 0, 0))
    found = summarise([*scored([0.5]), nothing])
    assert (found.devices, found.silent, found.accuracy_after.mean) == (1, 1, 0.5)
    assert math.isnan(summarise([nothing]).accuracy_after.mean)


def test_summaries_are_plain_data() -> None:
    found = summarise(scored([0.5, 0.25]))
    assert json.loads(json.dumps(asdict(found)))["accuracy_after"] == {"mean": 0.375, "worst_decile": 0.25}


def test_adapting_helps_a_device_that_was_never_seen() -> None:
    algorithm = algorithm_from({"name": "fedavg", "tuning_rate": 0.1})
    broadcast = algorithm.broadcast(algorithm.init(LEARNER.params))
    data = shard(3)
    support = draw(data, np.random.default_rng(0), 50, 20)
    before, after = before_after(algorithm, LEARNER, broadcast, algorithm.enrol(broadcast), support, data)
    found = score("new", before, after)
    assert found.examples == 40 and found.loss_after < 0.01 * found.loss_before
    assert found.accuracy_after > found.accuracy_before


def test_the_data_centre_finds_what_fits_everybody_best() -> None:
    devices = [shard(seed) for seed in range(3)]
    params = centralised(LEARNER, LEARNER.params, devices, 300, 120, 0.2, np.random.default_rng(0))
    z = np.concatenate([np.c_[d.inputs["x"], np.ones(40)] for d in devices])
    best, *_ = np.linalg.lstsq(z, np.concatenate([d.labels for d in devices]), rcond=None)
    np.testing.assert_allclose(np.concatenate([params["body.w"], params["head.b"]]), best, atol=1e-3)
