"""Personalisation methods compared on seen and unseen people, with the same data, draws and search for each.

A seed decides which people are unseen and which examples are drawn. A participant keeps a quarter of each label's
examples for evaluation. Every person, seen or not, adapts to `SUPPORT` examples per label, drawn `DRAWS` times, in full
batches, and is evaluated on all others. Training and adaptation hyperparameters are chosen separately for each seed, by
the mean accuracy after adaptation of people held out of that seed's training people (as many as will be unseen), with a
grid of the same size for every algorithm.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud.federated import JaxLearner, Simulator
from cloud.federated.simulator import Rows
from federated.algorithms import Algorithm, algorithm_from
from federated.data import split, support_query
from federated.learner import Batch
from federated.server.rounds import seed_of

__all__ = ["GRIDS", "People", "contest", "main"]

SUPPORT, DRAWS, BATCH = 5, 3, 32
PACED = {"rate", "beta", "outer_rate"}
ADAPT_RATES = (0.03, 0.1, 0.3)


@dataclasses.dataclass(frozen=True)
class People:
    """All people's examples in one pool, the person of each example (names), and a model; `unseen` people never train.
    `rounds` rounds with `batches` batches per device."""

    pool: Batch
    owner: npt.NDArray[np.str_]
    model: ir.Model
    unseen: int
    rounds: int
    batches: int
    adapt_steps: tuple[int, ...] = (25, 100)
    """Numbers of adaptation steps that are tried."""
    pace: float = 1.0
    """Factor for the training rates of the grids: below 1 if these make training diverge."""

    def everyone(self) -> list[str]:
        """The names of all people."""
        return sorted(np.unique(self.owner).tolist())


@dataclasses.dataclass(frozen=True)
class Grid:
    """`train`: values of fields to try in training; `adapt`: the field with the adaptation rate, if any."""

    kind: str
    train: Mapping[str, Sequence[float]]
    adapt: str = "tuning_rate"
    pooled: bool = False
    """All training people as one device: what a data centre would train."""


GRIDS: Mapping[str, Grid] = {
    "local_only": Grid("local_only", {"rate": (0.05, 0.1, 0.15, 0.2)}, "rate"),
    "centralised": Grid("fedavg", {"rate": (0.05, 0.1, 0.15, 0.2)}, pooled=True),
    "fedavg": Grid("fedavg", {"rate": (0.05, 0.1, 0.15, 0.2)}),
    "fedprox": Grid("fedprox", {"rate": (0.1, 0.2), "mu": (0.01, 0.1)}),
    "scaffold": Grid("scaffold", {"rate": (0.05, 0.1, 0.15, 0.2)}),
    "fedmomentum": Grid("fedmomentum", {"rate": (0.03, 0.1), "server_rate": (0.3, 1.0)}),
    "fedadagrad": Grid("fedadagrad", {"rate": (0.1, 0.2), "server_rate": (0.01, 0.03)}),
    "fedadam": Grid("fedadam", {"rate": (0.1, 0.2), "server_rate": (0.003, 0.01)}),
    "fedyogi": Grid("fedyogi", {"rate": (0.1, 0.2), "server_rate": (0.003, 0.01)}),
    "reptile": Grid("reptile", {"rate": (0.1, 0.2), "server_rate": (0.5, 1.0)}),
    "perfedavg": Grid("perfedavg", {"beta": (0.1, 0.2), "alpha": (0.03, 0.1)}, "alpha"),
    "perfedavg_hf": Grid("perfedavg_hf", {"beta": (0.1, 0.2), "alpha": (0.03, 0.1)}, "alpha"),
    "fomaml": Grid("fomaml", {"rate": (0.03, 0.1), "server_rate": (0.003, 0.01)}, "rate"),
    "maml": Grid("maml", {"rate": (0.03, 0.1), "server_rate": (0.003, 0.01)}, "rate"),
    "meta_sgd": Grid("meta_sgd", {"rate": (0.03, 0.1), "server_rate": (0.003, 0.01)}, ""),
    "meta_sgd_exact": Grid("meta_sgd_exact", {"rate": (0.03, 0.1), "server_rate": (0.003, 0.01)}, ""),
    "pfedme": Grid("pfedme", {"rate": (0.02, 0.05), "outer_rate": (0.05, 0.1)}, "rate"),
    "ditto": Grid("ditto", {"rate": (0.1, 0.2), "penalty": (0.1, 1.0)}),
    "fedper": Grid("fedper", {"rate": (0.05, 0.1, 0.15, 0.2)}),
    "fedrep": Grid("fedrep", {"rate": (0.05, 0.1, 0.15, 0.2)}),
    "apfl": Grid("apfl", {"rate": (0.1, 0.2), "mixture": (0.25, 0.5)}),
    "meta_head": Grid("meta_head", {"rate": (0.1, 0.2), "sharpness": (0.05, 0.2)}),
}


class Asked(NamedTuple):
    """A person's evaluation examples in one draw."""

    name: str
    support: Rows
    query: Rows


@dataclasses.dataclass(frozen=True)
class Fleet:
    """One division of people: rows for training, and every person's evaluation examples."""

    seed: int
    train: Mapping[str, Rows]
    asked: Sequence[Asked]
    unseen: tuple[str, ...]


def divided(people: People, seed: int, everyone: Sequence[str]) -> Fleet:
    """A fleet of `everyone`, some of whom only take part after training."""
    order = [str(name) for name in np.random.default_rng(seed_of(seed, "people")).permutation(sorted(everyone))]
    unseen = tuple(order[: people.unseen])
    train: dict[str, Rows] = {}
    asked: list[Asked] = []
    for name in order:
        rng = np.random.default_rng(seed_of(seed, "test", name))
        rows = np.flatnonzero(people.owner == name)
        own = kept = Batch({"row": rows}, people.pool.labels[rows])
        if name not in unseen:
            own, kept = split(own, 0.75, rng)
            train[name] = own.inputs["row"]
        for _ in range(DRAWS):
            few, others = support_query(own, SUPPORT, rng)
            asked.append(Asked(name, few.inputs["row"], (others if name in unseen else kept).inputs["row"]))
    return Fleet(seed, train, asked, unseen)


def trained(people: People, fleet: Fleet, learner: JaxLearner, grid: Grid, algorithm: Algorithm) -> Simulator:
    """A run on the training people; all algorithms draw the same number of batches, whatever their steps use."""
    shards, batches = fleet.train, people.batches
    if grid.pooled:
        shards, batches = {"everyone": np.concatenate(list(fleet.train.values()))}, batches * len(fleet.train)
    steps = max(1, batches // algorithm.batches_a_step)
    run = Simulator(algorithm, learner, people.pool, shards, steps=steps, size=BATCH, seed=fleet.seed)
    for _ in range(people.rounds):
        run.round()
    return run


class Adapting(NamedTuple):
    """How devices adapt: the number of full batches of their support; the rate, None: the training rate."""

    steps: int
    rate: float | None


def people_scores(run: Simulator, fleet: Fleet, grid: Grid, how: Adapting) -> dict[str, tuple[float, float]]:
    """Each person's accuracy before and after adaptation, the mean over draws."""
    original = run.algorithm
    if how.rate is not None:
        changes: Any = {grid.adapt: how.rate}
        run.algorithm = dataclasses.replace(original, **changes)
    names, support, query = zip(*fleet.asked, strict=True)
    size = max(map(len, support))
    before, after = run.adapt(names, support, query, steps=how.steps, size=size, seed=fleet.seed)
    run.algorithm = original
    found: dict[str, list[tuple[float, float]]] = {}
    for name, a, b, count in zip(names, before.correct, after.correct, before.examples, strict=True):
        found.setdefault(name, []).append((float(a / count), float(b / count)))
    return {name: (fmean(a for a, _ in pairs), fmean(b for _, b in pairs)) for name, pairs in found.items()}


class Choice(NamedTuple):
    """The best hyperparameters of the search on held-out people."""

    train: dict[str, float]
    adapt: Adapting
    accuracy: float


def searched(people: People, learner: JaxLearner, grid: Grid, seed: int) -> Choice:
    """The best point of the grid for people held out of this seed's training people."""
    fleet = divided(people, seed_of(seed, "search"), list(divided(people, seed, people.everyone()).train))
    fleet = dataclasses.replace(fleet, asked=[one for one in fleet.asked if one.name in fleet.unseen])
    ways = [Adapting(steps, rate) for steps in people.adapt_steps for rate in (ADAPT_RATES if grid.adapt else (None,))]
    choices = []
    for values in itertools.product(*grid.train.values()):
        fields = dict(zip(grid.train, values, strict=True))
        fields |= {name: people.pace * fields[name] for name in PACED & fields.keys()}
        run = trained(people, fleet, learner, grid, algorithm_from({"name": grid.kind, **fields}))
        for way in ways:
            scores = people_scores(run, fleet, grid, way)
            choices.append(Choice(fields, way, fmean(after for _, after in scores.values())))
    return max(choices, key=lambda choice: choice.accuracy)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The mean, and the mean of the worst tenth (at least one)."""
    return {"mean": fmean(values), "worst": fmean(sorted(values)[: max(1, len(values) // 10)])}


def contest(people: People, seeds: Sequence[int], names: Sequence[str], out: Path) -> list[dict[str, Any]]:
    """One row per algorithm, written to `out` as soon as it is known: the chosen hyperparameters and, for seen and
    unseen people before and after adaptation, the mean accuracy and that of the worst tenth, as means over seeds and
    for each seed."""
    rows: list[dict[str, Any]] = []
    learner = JaxLearner(people.model)
    for name in names:
        begin, grid = time.perf_counter(), GRIDS[name]
        row: dict[str, Any] = {"algorithm": name, "chosen": [], "seeds": []}
        for seed in seeds:
            choice = searched(people, learner, grid, seed)
            row["chosen"].append(choice._asdict())
            fleet = divided(people, seed, people.everyone())
            run = trained(people, fleet, learner, grid, algorithm_from({"name": grid.kind, **choice.train}))
            scores = people_scores(run, fleet, grid, choice.adapt)
            groups = {"unseen": fleet.unseen, "seen": tuple(fleet.train)}
            row["seeds"].append(
                {
                    f"{group} {when}": spread([scores[who][i] for who in members])
                    for group, members in groups.items()
                    for i, when in enumerate(("before", "after"))
                }
            )
        row["mean"] = {
            key: {kind: fmean(seed[key][kind] for seed in row["seeds"]) for kind in ("mean", "worst")}
            for key in row["seeds"][0]
        }
        row["seconds"] = time.perf_counter() - begin
        rows.append(row)
        print(line(row), file=sys.stderr, flush=True)
        out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


def line(row: Mapping[str, Any]) -> str:
    """A row of the Markdown table: percent, mean / worst tenth."""
    cells = [
        f"{100 * row['mean'][key]['mean']:.1f} / {100 * row['mean'][key]['worst']:.1f}"
        for key in ("unseen before", "unseen after", "seen before", "seen after")
    ]
    return f"| {row['algorithm']} | {' | '.join(cells)} |"


def main(people: People, arguments: Sequence[str] | None = None) -> None:
    """The command line of a comparison."""
    parser = argparse.ArgumentParser(
        description="Compares all algorithms on seen and unseen people; writes a table and JSON."
    )
    parser.add_argument("out", type=Path, metavar="FILE.json")
    parser.add_argument("--only", default=",".join(GRIDS), metavar="NAME,…", help="algorithms")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    args = parser.parse_args(arguments)
    rows = contest(people, range(args.seeds), args.only.split(","), args.out)
    print("| algorithm | unseen, before | unseen, after | seen, before | seen, after |\n|---|---|---|---|---|")
    print("\n".join(map(line, rows)))
