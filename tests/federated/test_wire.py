"""The benchmark of codecs, rules and noise: its settings are valid, and a round of it runs."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")

from benchmarks.federated.people import People
from benchmarks.federated.wire import RATE, TABLES, Setting, run
from cloud.zoo import mlp
from federated.algorithms import FedAvg
from federated.codec import Codec
from federated.learner import Batch
from federated.messages.transforms import Transforms
from tests.federated.fleets import Softmax


@pytest.mark.parametrize("setting", [setting for table in TABLES.values() for setting in table], ids=lambda s: s.name)
def test_settings_go_together(setting: Setting) -> None:
    Transforms.of(setting.up, setting.privacy, setting.robust)
    Codec.parse(setting.down)


def test_rounds_run_and_bytes_are_counted() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 240).astype(np.int32)
    x = (np.eye(3, 60)[labels] * 3 + rng.normal(size=(240, 60))).astype(np.float32)
    owner = np.array([f"p{at % 6}" for at in range(240)])
    people = People(Batch({"x": x}, labels), owner, mlp(60, 3), unseen=2, rounds=4, batches=5)
    learner, algorithm = Softmax(60, 3), FedAvg(rate=RATE)  # the model's; nothing to compile: JAX would take 20 s
    setting = Setting("few", ["feedback", "topk:0.2", "int8"], ["difference", "topk:0.2", "int8"])

    def local(*arguments: object) -> object:
        return algorithm.local(learner, *arguments)  # type: ignore[arg-type]

    whole = run(people, Setting("all"), 0, 4, learner, local)
    few = run(people, setting, 0, 4, learner, local)
    assert whole.known > 0.7 and few.known > 0.6
    assert few.up < whole.up / 3 and few.down < whole.down
