"""`python -m benchmarks.federated.sinusoid OUT.json`: sinusoids from 10 examples (Finn, Abbeel, Levine 2017, 5.1).

Tasks y = a sin(x - p), a ~ U[0.1, 5], p ~ U[0, pi], x ~ U[-5, 5]; an MLP 1-40-40-1 with ReLU; 25 tasks per meta-step,
10 examples for adaptation and 10 for evaluation; Adam on the server. MAML trains with one step of rate 0.01, Meta-SGD
with one step of learned rates. Evaluation is on 600 new tasks: the mean squared error over 100 new points of each after
some steps on its 10 examples. There are 4,000 training tasks of 100 points, while the paper always draws new ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cloud.federated import JaxLearner, Simulator
from cloud.zoo import mlp
from federated.algorithms import algorithm_from
from federated.data import join, sinusoids

__all__ = ["CONTENDERS", "errors"]

TASKS, POINTS, META_BATCH, SHOTS, NEW = 4000, 100, 25, 10, 600
ADAM = {"server_rate": 0.001, "tau": 1e-6, "beta2": 0.999}


class Contender(NamedTuple):
    """An algorithm and its fields; the numbers of adaptation steps after which it is evaluated."""

    fields: Mapping[str, Any]
    steps: tuple[int, ...]


CONTENDERS: Mapping[str, Contender] = {
    "fedavg": Contender({"rate": 0.01, "tuning_rate": 0.01}, (1, 10, 100)),
    "maml": Contender({"rate": 0.01, **ADAM}, (1, 5, 10)),
    "meta_sgd_exact": Contender({"rate": 0.01, **ADAM}, (1,)),
}


def errors(name: str, rounds: int, seed: int) -> dict[str, float]:
    """The mean squared error on new tasks, before adaptation and after each number of steps."""
    tasks = sinusoids(np.random.default_rng(seed), TASKS + NEW, POINTS + SHOTS)
    owned = {f"{i:05}": np.arange(POINTS) + i * (POINTS + SHOTS) for i in range(TASKS)}
    algorithm = algorithm_from({"name": name, **CONTENDERS[name].fields})
    learner = JaxLearner(mlp(1, 1, (40, 40), seed), "mean_squared_error")
    steps = 2 // algorithm.batches_a_step
    run = Simulator(algorithm, learner, join(tasks), owned, steps=steps, size=SHOTS, seed=seed, group=META_BATCH)
    for _ in range(rounds):
        run.round(META_BATCH / TASKS)
    starts = [(TASKS + i) * (POINTS + SHOTS) for i in range(NEW)]
    support, query = ([np.arange(a + lo, a + hi) for a in starts] for lo, hi in ((0, SHOTS), (SHOTS, SHOTS + POINTS)))
    found: dict[str, float] = {}
    for count in CONTENDERS[name].steps:
        before, after = run.adapt(["new"] * NEW, support, query, steps=count, size=SHOTS)
        found["before"], found[f"{count} steps"] = (float(np.mean(each.loss)) / POINTS for each in (before, after))
    return found


def main() -> None:
    """All contenders, one row each."""
    parser = argparse.ArgumentParser(description="Sinusoids from 10 examples: a table and its JSON.")
    parser.add_argument("out", type=Path, metavar="FILE.json")
    parser.add_argument("--rounds", type=int, default=20000, metavar="N")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--only", default=",".join(CONTENDERS), metavar="NAME,…")
    args = parser.parse_args()
    rows = []
    for name in args.only.split(","):
        for seed in range(args.seeds):
            rows.append({"algorithm": name, "seed": seed, "rounds": args.rounds, **errors(name, args.rounds, seed)})
            print(rows[-1], file=sys.stderr, flush=True)
            args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
