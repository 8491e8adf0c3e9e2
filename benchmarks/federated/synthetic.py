"""`python -m benchmarks.federated.synthetic OUT.json`: Synthetic(0.5, 0.5) by pFedMe's protocol (T. Dinh et al. 2020).

100 users of seed 0 (205,795 examples), three quarters of each for training; 10 users per round, R = 20 local steps of
batches of 20; softmax regression (MLR) and one hidden layer of 20 units (DNN). As in the paper, accuracy is over all
users' test examples together: for the users' initial model (pFedMe's participants: their theta), after one batch of
their training examples (Per-FedAvg's step) and after 20 (fine-tuning of FedAvg). The rates are the best of a small
grid, by accuracy on a tenth of the training examples that is held out in the search.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from cloud.federated import JaxLearner, Simulator
from cloud.federated.simulator import Rows
from cloud.zoo import mlp
from federated.algorithms import Algorithm, algorithm_from
from federated.data import join, synthetic
from federated.learner import Batch

__all__ = ["GRIDS", "MODELS"]

STEPS, BATCH, PART = 20, 20, 0.1
MODELS: Mapping[str, tuple[int, ...]] = {"MLR": (), "DNN": (20,)}
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "fedavg": {"rate": (0.005, 0.02, 0.05), "tuning_rate": (0.005, 0.02)},
    "perfedavg": {"beta": (0.005, 0.02, 0.05), "alpha": (0.01, 0.03)},
    "pfedme": {"rate": (0.01, 0.03), "outer_rate": (0.01, 0.03), "penalty": (15.0, 30.0)},
}


@dataclasses.dataclass(frozen=True)
class Users:
    """All users' examples, and the indices of each user's training and test examples."""

    pool: Batch
    train: Mapping[str, Rows]
    test: Mapping[str, Rows]


def users(share: float, seed: int) -> Users:
    """pFedMe's users; `share` of each user's examples is for training, drawn by seed."""
    parts = synthetic(0.5, 0.5)
    rng, begin = np.random.default_rng(seed), 0
    train, test = {}, {}
    for i, part in enumerate(parts):
        order = begin + rng.permutation(len(part.labels))
        cut = int(share * len(order))
        train[f"{i:02}"], test[f"{i:02}"] = order[:cut], order[cut:]
        begin += len(order)
    return Users(join(parts), train, test)


def held_back(whole: Users) -> Users:
    """For the search: a tenth of the training examples is used for evaluation instead."""
    cuts = {name: len(rows) // 10 for name, rows in whole.train.items()}
    return Users(
        whole.pool,
        {name: rows[cuts[name] :] for name, rows in whole.train.items()},
        {name: rows[: cuts[name]] for name, rows in whole.train.items()},
    )


def accuracy(
    learner: JaxLearner, whole: Users, algorithm: Algorithm, rounds: int, seed: int
) -> tuple[float, float, float]:
    """Accuracy over all users' examples together: before adaptation, after one batch, after `STEPS`."""
    run = Simulator(algorithm, learner, whole.pool, whole.train, steps=STEPS, size=BATCH, seed=seed, group=5)
    for _ in range(rounds):
        run.round(PART)
    names = list(whole.train)
    support, query = [whole.train[name] for name in names], [whole.test[name] for name in names]
    before, once = run.adapt(names, support, query, steps=1, size=BATCH, seed=seed)
    _, after = run.adapt(names, support, query, steps=STEPS, size=BATCH, seed=seed)
    shares = (float(each.correct.sum() / each.examples.sum()) for each in (before, once, after))
    return next(shares), next(shares), next(shares)


def _made(name: str, fields: Mapping[str, float]) -> Algorithm:
    return algorithm_from({"name": name, **fields})


def main() -> None:
    """Both models with every algorithm, one row each."""
    parser = argparse.ArgumentParser(description="Synthetic(0.5, 0.5) by pFedMe's protocol: a table and its JSON.")
    parser.add_argument("out", type=Path, metavar="FILE.json")
    parser.add_argument("--rounds", type=int, default=600, metavar="N")
    parser.add_argument("--search-rounds", type=int, default=150, metavar="N")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--only", default=",".join(GRIDS), metavar="NAME,…")
    args = parser.parse_args()
    rows = []
    for (model, hidden), name in itertools.product(MODELS.items(), args.only.split(",")):
        learner, grid = JaxLearner(mlp(60, 10, hidden)), GRIDS[name]
        trials = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        search, made = held_back(users(0.75, 0)), partial(_made, name)
        scores = [accuracy(learner, search, made(trial), args.search_rounds, 0)[-1] for trial in trials]
        best = trials[int(np.argmax(scores))]
        found = [accuracy(learner, users(0.75, seed), made(best), args.rounds, seed) for seed in range(args.seeds)]
        before, once, after = (fmean(column) for column in zip(*found, strict=True))
        row = {"model": model, "algorithm": name, "chosen": best, "before": before, "once": once, "after": after}
        rows.append({**row, "seeds": found})
        print(row, file=sys.stderr, flush=True)
        args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
