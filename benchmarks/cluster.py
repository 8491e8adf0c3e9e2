"""The scheduler of `cloud.cluster` against first in first out and static partitions: three mixes on 1,000 described
devices.

    python -m benchmarks.cluster --docs docs

Every job is one of four real steps (three of `msedge plan --model`, and the run file examples/training/digits.toml), at
the speed that the planner foretells for every slice: `benchmarks/cluster_speeds.json` keeps what it found; without the
file all is planned again (minutes). Lengths and arrivals are drawn by seeds. The baselines get the best of several
settings, chosen for each mix by its result. --docs puts the table between the marks of docs/cluster.md.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.marks import replace_between, require_marks
from cloud.cluster.baselines import Fifo, Static
from cloud.cluster.cluster import Cluster, Pool, Rules
from cloud.cluster.jobs import File, Job, Option, Serving, Training, TrainingTable
from cloud.cluster.prices import Ask, makespan_prices
from cloud.cluster.result import Outage, Result
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.simulate import Decides, simulate
from cloud.cluster.speeds import Speeds, jobs_of
from cloud.parallel.topology import DEVICES
from lite_runtime.errors import MsedgeError

__all__ = ["MIXES", "Mix", "Row", "compare", "main", "page"]

HERE = Path(__file__).parent
SPEEDS = HERE / "cluster_speeds.json"
STEPS = {
    "gpt": TrainingTable("gpt", model="gpt", steps=1),
    "mlp": TrainingTable("mlp", model="mlp", steps=1),
    "moe": TrainingTable("moe", model="moe", steps=1),
    "digits": TrainingTable("digits", config="digits.toml", steps=1),
}
HOUR, DAY = 3600.0, 86_400.0
EFFICIENCIES = (0.5, 0.7, 0.9)
ACCEPTS = (0.0, 0.3, 0.6)
PARTS = (1, 2, 4, 8, 16, 32)


def _pool(name: str, machines: int, devices: int) -> Pool:
    device, memory, inside, between = DEVICES[name]
    return Pool(name, machines, devices, 1, min(8, machines), memory, device, inside, between)


ONE = Cluster("125 machines of 8 H100", (_pool("h100", 125, 8),))
THREE = Cluster(
    "50 machines of 8 H100, 50 of 8 A100, 50 of 4 L4", (_pool("h100", 50, 8), _pool("a100", 50, 8), _pool("l4", 50, 4))
)


class Mix(NamedTuple):
    """`make`: jobs by the options of each step and random numbers."""

    name: str
    about: str
    cluster: Cluster
    make: Callable[[Mapping[str, tuple[Option, ...]], random.Random, float], list[Job]]


def _training(
    name: str, options: tuple[Option, ...], hours: float, arrives: float, priority: int = 0
) -> Training:  # fmt: skip
    """`hours`: on one of the fastest devices that it fits on."""
    smallest = min(option.size for option in options)
    speed = max(option.speed for option in options if option.size == smallest)
    return Training(name, options, max(1.0, hours * HOUR * speed * smallest), arrives=arrives, priority=priority)


def _sizes(known: Mapping[str, tuple[Option, ...]], draw: random.Random, share: float) -> list[Job]:
    """Many small jobs and a few large ones."""
    made: list[Job] = []
    for n in range(round(3000 * share)):
        kind = draw.choice(("mlp", "digits", "gpt"))
        made.append(_training(f"small-{n}", known[kind], draw.lognormvariate(0.0, 1.0), draw.uniform(0, 8 * HOUR)))
    for n in range(round(24 * share)):
        kind = draw.choice(("gpt", "moe"))
        made.append(_training(f"large-{n}", known[kind], draw.uniform(150, 450), draw.uniform(0, 8 * HOUR), 1))
    return made


def _all_kinds(known: Mapping[str, tuple[Option, ...]], draw: random.Random, count: int) -> list[Job]:
    """Jobs of all kinds and lengths. Those that gain nothing by a second device are no longer than half a day."""
    made: list[Job] = []
    for n in range(count):
        kind = draw.choice(("gpt", "mlp", "moe", "digits"))
        hours = min(draw.lognormvariate(1.5, 1.2), 12.0 if kind == "digits" else 200.0)
        made.append(_training(f"{kind}-{n}", known[kind], hours, draw.uniform(0, 12 * HOUR), draw.choice((0, 0, 0, 1))))
    return made


def _generations(known: Mapping[str, tuple[Option, ...]], draw: random.Random, share: float) -> list[Job]:
    """All kinds and lengths on devices of three generations."""
    return _all_kinds(known, draw, round(3000 * share))


SHAPE = (0.25, 0.2, 0.2, 0.25, 0.5, 0.8, 1.0, 0.95, 0.9, 0.8, 0.6, 0.35)
"""Requests of a day, in steps of two hours, as shares of the most."""


def _daily(known: Mapping[str, tuple[Option, ...]], draw: random.Random, share: float) -> list[Job]:
    """Three services whose load follows the day, and training beside them."""
    made: list[Job] = []
    for n, (most, shift) in enumerate(((1400.0, 0), (1000.0, 1), (700.0, 3))):
        rates = tuple((2 * HOUR * k, share * most * SHAPE[(k + shift) % 12]) for k in range(12))
        options = (Option(0, 1, 1 / 0.08), Option(1, 1, 1 / 0.14))
        made.append(Serving(f"service-{n}", options, rates, 0.5, period=DAY))
    return made + _all_kinds(known, draw, round(2000 * share))


MIXES = (
    Mix("sizes", "3,000 small jobs, 24 large ones", ONE, _sizes),
    Mix("generations", "3,000 jobs of all lengths, three generations of GPUs", THREE, _generations),
    Mix("daily", "2,000 jobs beside three services, whose load follows the day", THREE, _daily),
)


class Row(NamedTuple):
    """One scheduler on one mix. `setting`: of a baseline, the best."""

    mix: str
    name: str
    setting: str
    result: Result
    cpu: float


def jobs(mix: Mix, seed: int, share: float = 1.0) -> list[Job]:
    """The jobs of a mix, by arrival. `share`: of their number."""
    table = File(tuple(STEPS.values()), (), HERE.parent / "examples" / "training")
    known = {job.name: job.options for job in jobs_of(table, mix.cluster, Speeds(SPEEDS), _say) if job.options}
    made = mix.make(known, random.Random(f"{mix.name} {seed}"), share)
    return sorted(made, key=lambda job: (job.arrives, job.name))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def ours(cluster: Cluster, policy: str) -> Scheduler:
    """The scheduler with default rules."""
    return Scheduler(cluster, Rules(policy=policy))  # type: ignore[arg-type]


def compare(mix: Mix, made: list[Job]) -> Iterator[Row]:
    """All schedulers on one mix; of the baselines' settings the one with the least makespan."""
    cluster = mix.cluster
    yield _measured(mix, "ours, makespan", "", made, ours(cluster, "makespan"))
    yield _measured(mix, "ours, speed", "", made, ours(cluster, "speed"))
    ways = [(f"efficiency {e:g}, speed {a:g}", e, a) for e in EFFICIENCIES for a in ACCEPTS]
    yield _best(mix, "FIFO", made, {name: Fifo(cluster, efficiency=e, accepts=a) for name, e, a in ways})
    behind = {name: Fifo(cluster, efficiency=e, accepts=a, backfill=True) for name, e, a in ways}
    yield _best(mix, "FIFO with backfilling", made, behind)
    cuts = [(f"parts of {n}, speed {a:g}", n, a) for n in PARTS for a in ACCEPTS]
    yield _best(mix, "static partition", made, {name: Static(cluster, n, accepts=a) for name, n, a in cuts})


def _best(mix: Mix, name: str, made: list[Job], ways: Mapping[str, Decides]) -> Row:
    found = []
    for setting, decides in ways.items():
        try:
            found.append(_measured(mix, name, setting, made, decides))
        except MsedgeError:  # a job fits in no such part
            continue
    return min(found, key=lambda row: row.result.makespan)


def _measured(mix: Mix, name: str, setting: str, made: list[Job], decides: Decides) -> Row:
    begun = time.process_time()
    result = simulate(mix.cluster, made, decides)
    return Row(mix.name, name, setting, result, time.process_time() - begun)


def least(mix: Mix, made: list[Job]) -> float:
    """A bound of every schedule's makespan from below: all jobs there at once, cut at will, beside the replicas that
    services need at least; and the job that would end last if it were alone."""
    asks = [Ask(n, job.options, job.steps) for n, job in enumerate(made) if isinstance(job, Training)]
    capacity = [pool.total for pool in mix.cluster.pools]
    for job in made:
        if isinstance(job, Serving):
            low = min(rate for _, rate in job.requests)
            capacity[0] -= min(job.needed(low, 1 / option.speed) for option in job.options)
    alone = max(made[ask.number].arrives + made[ask.number].starting + ask.least for ask in asks)
    return max(makespan_prices(asks, capacity).value, alone)


TITLES = (
    "mix", "scheduler", "all done after, h", "× ours", "mean, h", "held", "without devices at most, h", "late", "CPU s",
)  # fmt: skip


def page(rows: Mapping[str, list[Row]], bounds: Mapping[str, float]) -> str:
    """The table."""
    lines = [f"| {' | '.join(TITLES)} |", "|---" * len(TITLES) + "|"]
    for name, found in rows.items():
        mix = next(one for one in MIXES if one.name == name)
        lines.append(f"| {mix.about} | no schedule is faster than | {bounds[name] / HOUR:.1f} | | | | | | |")
        for row in found:
            result, setting = row.result, f" ({row.setting})" if row.setting else ""
            cells = (
                "", f"{row.name}{setting}", f"{result.makespan / HOUR:.1f}",
                f"{result.makespan / found[0].result.makespan:.2f}", f"{result.mean / HOUR:.1f}", f"{result.used:.0%}",
                f"{result.gap / HOUR:.1f}", f"{result.late:.2%}" if result.requests else "", f"{row.cpu:.1f}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def trouble(mix: Mix, made: list[Job], seed: int) -> str:
    """The makespan policy where speeds are foretold wrong, and where machines are lost."""
    base = simulate(mix.cluster, made, ours(mix.cluster, "makespan")).makespan
    wrong = simulate(mix.cluster, made, ours(mix.cluster, "makespan"), error=0.2, seed=seed).makespan
    draw = random.Random(f"outages {seed}")
    gone = []
    for pool, one in enumerate(mix.cluster.pools):
        for machine in range(one.machines):
            if draw.random() < 0.2:
                start = draw.uniform(0, base * 0.8)
                gone.append(Outage(pool, machine, start, start + draw.uniform(HOUR, 4 * HOUR)))
    lost = simulate(mix.cluster, made, ours(mix.cluster, "makespan"), outages=gone).makespan
    lines = f"true speeds differ by 20 %: {wrong / base:.3f}", f"{len(gone)} machines lost for hours: {lost / base:.3f}"
    return f"{mix.name}: {'; '.join(lines)}"


def main() -> int:
    """Exit code 1 if ours is less than 1.3 times as fast as FIFO or the static partition on a mix."""
    parser = argparse.ArgumentParser(prog="benchmarks.cluster", description="Schedulers on three mixes of jobs.")
    parser.add_argument("--only", default="", metavar="MIX", help=f"one of {', '.join(mix.name for mix in MIXES)}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of lengths and arrivals (0)")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="of the jobs, for a short run (1)")
    parser.add_argument("--trouble", action="store_true", help="wrong speeds and lost machines, instead of the table")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="where cluster.md gets the table")
    args = parser.parse_args()
    if args.docs:
        require_marks(args.docs / "cluster.md", "schedulers")
    rows: dict[str, list[Row]] = {}
    bounds: dict[str, float] = {}
    for mix in MIXES:
        if args.only not in ("", mix.name):
            continue
        made = jobs(mix, args.seed, args.share)
        if args.trouble:
            print(trouble(mix, made, args.seed), flush=True)
            continue
        rows[mix.name], bounds[mix.name] = [], least(mix, made)
        for row in compare(mix, made):
            _say(f"{mix.name}: {row.name} {row.setting}: {row.result.makespan / HOUR:.2f} h, {row.cpu:.1f} CPU s")
            rows[mix.name].append(row)
    if args.trouble:
        return 0
    text = page(rows, bounds)
    print(text)
    if args.docs:
        replace_between(args.docs / "cluster.md", "schedulers", text)
    return 0 if all(_faster(found) for found in rows.values()) else 1


def _faster(rows: list[Row]) -> bool:
    others = [row for row in rows if row.name in ("FIFO", "static partition")]
    return all(row.result.makespan >= 1.3 * rows[0].result.makespan for row in others)


if __name__ == "__main__":
    sys.exit(main())
