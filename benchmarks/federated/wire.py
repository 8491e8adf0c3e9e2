"""`python -m benchmarks.federated.wire FILE.npz OUT.json`: compression, malicious devices and noise on HAR.

The people, model and rounds are those of `benchmarks.federated.har`: six people never train. Accuracy is that of the
global model, without adaptation, on the held-out quarter of the participants' examples and on all examples of the
unseen people: there the cost of a codec or a rule is visible, before fine-tuning compensates for it. Every update and
every broadcast is really serialised; numbers of bytes are means per device and round.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks.federated.har import people
from benchmarks.federated.people import BATCH, People, divided
from cloud.federated import JaxLearner
from federated.algorithms import FedAvg
from federated.codec import Codec, Spec
from federated.data import draw, pick
from federated.errors import FederatedError
from federated.messages.transforms import Transforms
from federated.privacy import Accountant, SeededSource
from federated.robust.attacks import flipped, liars
from federated.server.rounds import seed_of

__all__ = ["Setting", "run"]


RATE = 0.2
"""Rate of local SGD: in the middle of the grid that `people` searches."""


class Setting(NamedTuple):
    """One line of the table. `liars`: the share of devices that send their update times -10."""

    name: str
    up: Sequence[str] = ()
    down: Sequence[str] = ()
    privacy: Mapping[str, Any] = {}
    robust: Mapping[str, Any] = {}
    liars: float = 0.0


# A tenth of the changed elements, in both directions: elements left out of a difference are sent with a later one.
FEW = ["difference", "topk:0.1", "int8"]
BYTES = (
    Setting("fedavg, float32"),
    Setting("float16, both ways", ["float16"], ["float16"]),
    Setting("int8, both ways", ["int8"], ["int8"]),
    Setting("int4 up, int8 difference down", ["int4:256"], ["difference", "int8"]),
    Setting("mask 0.4 + int8 up, int8 difference down", ["mask:0.4", "int8"], ["difference", "int8"]),
    Setting("mask 0.4 + int4 up, int4 difference down", ["mask:0.4", "int4:256"], ["difference", "int4:256"]),
    Setting("top 10 % + int8 up", ["feedback", "topk:0.1", "int8"], FEW),
    Setting("top 5 % + int4 up", ["feedback", "topk:0.05", "int4"], ["difference", "topk:0.1", "int4"]),
    Setting("top 1 % + int8 up", ["feedback", "topk:0.01", "int8"], FEW),
    Setting("signds 1 %, epsilon 100, step 0.1", ["signds:0.01,epsilon=100,step=0.1"], FEW),
    Setting("signds 10 %, epsilon 100, step 0.1", ["signds:0.1,epsilon=100,step=0.1"], FEW),
    Setting("signds 10 %, epsilon 600, step 0.05", ["signds:0.1,epsilon=600,step=0.05"], FEW),
)  # fmt: skip

RULES = ("mean", "norm_bound", "median", "trimmed_mean", "krum", "multi_krum", "bulyan", "geometric_median")
LIARS = tuple(
    Setting(f"{rule}, {share:.0%} lie", robust={"rule": rule}, liars=share) for share in (0.0, 0.2) for rule in RULES
)
NOISE = tuple(
    Setting(f"central noise, epsilon {epsilon}", privacy={"clip": 1.0, "noise": "central", "epsilon": epsilon})
    for epsilon in (100.0, 30.0)
)
TABLES = {"bytes": BYTES, "liars": LIARS, "noise": NOISE}


class Row(NamedTuple):
    """Accuracy of the global model; bytes per device and round; the privacy budget spent (0: no guarantee)."""

    known: float
    unseen: float
    worst: float
    up: float
    down: float
    epsilon: float


def run(task: People, setting: Setting, seed: int, rounds: int, learner: JaxLearner, local: Any) -> Row:
    """FedAvg with all participants in every round. `local`: `FedAvg.local` of the learner, compiled."""
    fleet, algorithm = divided(task, seed, task.everyone()), FedAvg(rate=RATE)
    shards = {name: pick(task.pool, rows) for name, rows in fleet.train.items()}
    lying = liars(shards, setting.liars, seed)
    transforms, down = Transforms.of(setting.up, setting.privacy, setting.robust), Codec.parse(setting.down)
    multiplier, source = transforms.multiplier(rounds, 1.0), SeededSource(seed)
    state: Any = algorithm.init({name: np.asarray(leaf) for name, leaf in learner.params.items()})
    held: Any = None
    residuals: dict[str, Any] = {}
    sizes: dict[str, list[int]] = {"up": [], "down": []}
    for number in range(1, rounds + 1):
        rng = _rng(seed, "down", number)
        message = down.encode(algorithm.broadcast(state), rng, reference=held, whole=held is None)
        held = down.decode(message.data, Spec.of(state), reference=held)
        sizes["down"].append(len(message.data))
        updates, weights = [], []
        for name, data in shards.items():
            rng = _rng(seed, "train", number, name)
            update, _ = local(held, {}, draw(data, rng, task.batches, BATCH))
            payload = jax.tree.map(np.asarray, update.payload)
            sent = transforms.outgoing(flipped(payload) if name in lying else payload, source, multiplier).tree
            try:
                encoded = transforms.codec.encode(sent, rng, residual=residuals.get(name))
            except FederatedError:  # training diverged: this device has nothing to send
                continue
            residuals[name] = encoded.residual
            sizes["up"].append(len(encoded.data))
            updates.append(transforms.codec.decode(encoded.data, Spec.of(sent)))
            weights.append(1.0 if transforms.uniform else float(len(data.labels)))
        if not updates:
            break
        mean = transforms.combine(updates, weights, source, multiplier).tree
        state = algorithm.apply(state, mean, 1.0)
    known, unseen = (_accuracies(task, fleet, learner, algorithm.model(state), kind) for kind in (False, True))
    spent = transforms.charge(Accountant(), multiplier, 1.0, rounds)
    epsilon = spent.epsilon(1e-3) if setting.privacy else 0.0
    return Row(fmean(known), fmean(unseen), min(unseen), fmean(sizes["up"]), fmean(sizes["down"]), epsilon)


def _accuracies(task: People, fleet: Any, learner: JaxLearner, params: Any, unseen: bool) -> list[float]:
    """One accuracy per person, without adaptation."""
    found = []
    for name in sorted({asked.name for asked in fleet.asked}):
        if (name in fleet.unseen) != unseen:
            continue
        rows = np.flatnonzero(task.owner == name) if unseen else next(a.query for a in fleet.asked if a.name == name)
        right = learner.evaluate(params, pick(task.pool, rows))
        found.append(float(right.correct / right.examples))
    return found


def _rng(seed: int, *words: str | int) -> np.random.Generator:
    return np.random.default_rng(seed_of(seed, *words))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int)
    options = parser.parse_args(arguments)
    task = people(options.data)
    learner, algorithm = JaxLearner(task.model), FedAvg(rate=RATE)
    local = jax.jit(lambda broadcast, personal, batches: algorithm.local(learner, broadcast, personal, batches))
    rows = []
    for name in options.table or TABLES:
        for setting in TABLES[name]:
            start = time.perf_counter()
            found = [
                run(task, setting, seed, options.rounds or task.rounds, learner, local) for seed in range(options.seeds)
            ]
            mean = Row(*(fmean(values) for values in zip(*found, strict=True)))
            seeds = [row._asdict() for row in found]
            rows.append({"table": name, "name": setting.name, **mean._asdict(), "seeds": seeds})
            print(
                f"{name:6} {setting.name:44} known {mean.known:.4f}  unseen {mean.unseen:.4f}  worst {mean.worst:.4f}  "
                f"up {mean.up:8.0f}  down {mean.down:8.0f} bytes  epsilon {mean.epsilon:5.1f}  "
                f"{time.perf_counter() - start:.0f} s",
                flush=True,
            )
            options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
