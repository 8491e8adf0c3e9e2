"""A training job's speed on every slice, by the planner's own cost, kept in a file so that nothing is planned twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from cloud.cluster.cluster import READ, Cluster
from cloud.cluster.jobs import (
    File,
    Job,
    Serving,
    Training,
    TrainingTable,
    allowed,
    serving_of,
    training_of,
    units_of,
)
from cloud.cluster.places import Board, Place
from cloud.errors import ClusterError, PlanError
from lite_runtime._files import write_atomically

if TYPE_CHECKING:
    from cloud.parallel.graph import Graph
    from cloud.parallel.topology import Topology

__all__ = ["Speeds", "check_room", "jobs_of"]

VERSION = 1


class _Kept(Struct, forbid_unknown_fields=True):
    """The file: seconds of a step by the step's digest and the topology's; 0 where it does not fit."""

    version: int
    seconds: dict[str, dict[str, float]]


class Speeds:
    """Seconds of steps that the planner found. `path`: the file that they are kept in, None: none. Raises ClusterError
    for a file that is none."""

    limit: ClassVar[float] = 10.0
    """Seconds of a search by default."""

    def __init__(self, path: str | os.PathLike[str] | None = None, seconds: float = limit) -> None:
        self.path, self.seconds = path, seconds
        self.known: dict[str, dict[str, float]] = {}
        if path is not None and Path(path).exists():
            self.known = _read(path)

    def of(self, graphs: Mapping[int, Graph], topology: Topology) -> float:
        """Seconds of a step on a slice, by the plan that `msedge plan` would show; 0 if none fits its memory. `graphs`:
        by their number of parts (`cloud.parallel.tracing.trace.variants`). Raises `PlanError` if the planner had too
        few seconds to find one."""
        from cloud.parallel.explaining.inquiry import Wanted, inquire
        from cloud.parallel.solving.solve import Infeasible
        from cloud.parallel.tracing.trace import digest

        name = digest(graphs[1])
        kept = self.known.setdefault(name, {})
        if topology.digest not in kept:
            found: list[float] = []
            failed: list[PlanError] = []
            for parts, graph in graphs.items():
                try:
                    wanted = Wanted(seconds=max(self.seconds / len(graphs), 1.0), parts=parts)
                    found.append(inquire(graph, topology, wanted).plan.estimate.step_seconds)
                except Infeasible:
                    continue
                except PlanError as error:
                    failed.append(error)
            if failed and not found:
                raise PlanError(f"{topology.name}: {failed[0]}; allow more with --seconds")
            kept[topology.digest] = min(found, default=0.0)
            self._save()
        return kept[topology.digest]

    def _save(self) -> None:
        """After every search: a search is long, and whoever stops the program goes on from there."""
        if self.path is not None:
            made = {"version": VERSION, "seconds": self.known}
            write_atomically(self.path, (json.dumps(made, indent=1, sort_keys=True) + "\n").encode(), ClusterError)


def _read(path: str | os.PathLike[str]) -> dict[str, dict[str, float]]:
    where = f"{os.fspath(path)}: "
    try:
        words = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ClusterError(f"{where}expected speeds as --speeds writes them: {error}") from None
    kept = READ.read(_Kept, words, where)
    READ.need(kept.version == VERSION, f"{where}version", str(VERSION), kept.version)
    for name, row in kept.seconds.items():
        for topology, seconds in row.items():
            READ.need(0.0 <= seconds < 1e9, f"{where}seconds.{name}.{topology}", "seconds of a step", seconds)
    return kept.seconds


def jobs_of(
    file: File, cluster: Cluster, speeds: Speeds, say: Callable[[str], None] = lambda line: None
) -> list[Job]:  # fmt: skip
    """All jobs of a file, in its order, with a speed on every slice. Raises ClusterError, also for jobs that together
    do not fit: the peaks of serving jobs beside the smallest slice of every training job."""
    traced: dict[tuple[str, str], dict[int, Graph]] = {}
    made: list[Job] = []
    for said in file.training:
        found, steps = _measured(said, cluster), said.steps
        if found:
            steps = steps or _total(said, file)
        else:
            key = (said.config, said.model)
            if key not in traced:
                say(f"{said.name}: planning the step of {said.config or said.model} on every slice")
                traced[key] = _traced(said, file, cluster)
            steps = steps or _total(said, file)
            found = _planned(said, cluster, speeds, traced[key])
        made.append(training_of(said, found, float(steps)))
    made += [serving_of(said, cluster) for said in file.serving]
    check_room(made, cluster)
    return made


def _measured(said: TrainingTable, cluster: Cluster) -> dict[tuple[int, int], float]:
    """Speeds of the file, by pool and units."""
    found: dict[tuple[int, int], float] = {}
    for name, row in said.speeds.items():
        pool = cluster.places[name]
        found |= {(pool, units_of(cluster, pool, devices, said.name)): speed for devices, speed in row.items()}
    return found


def _planned(
    said: TrainingTable, cluster: Cluster, speeds: Speeds, graphs: dict[int, Graph]
) -> dict[tuple[int, int], float]:
    found = {}
    for pool, size in allowed(said, cluster, said.name):
        seconds = speeds.of(graphs, cluster.pools[pool].topology(size))
        if seconds > 0:
            found[pool, size] = 1.0 / seconds
    return found


def _traced(said: TrainingTable, file: File, cluster: Cluster) -> dict[int, Graph]:
    """The graphs of a job's step, by their number of parts."""
    from cloud.parallel.tracing.trace import variants

    if said.model:
        from cloud.parallel.explaining.examples import EXAMPLES

        example = EXAMPLES[said.model]()
        return variants(example.step, example.state, example.batch)
    from cloud.train.jobs.config import read
    from cloud.train.jobs.planning import step_of

    sizes = tuple({size // pool.parts for pool in cluster.pools for size in pool.sizes if size > pool.parts})
    step, state, batch = step_of(read(file.path(said.config)))
    return variants(step, state, batch, sizes=sizes)


def _total(said: TrainingTable, file: File) -> int:
    """The steps of a job's run file. Raises ClusterError if they are not known before it runs."""
    from cloud.train.jobs.config import read
    from cloud.train.jobs.job import job_of

    total = job_of(read(file.path(said.config))).total
    if not total:
        raise ClusterError(f"{said.name}.steps: expected a number, as that of {said.config} is known only when it runs")
    return total


def check_room(jobs: Sequence[Job], cluster: Cluster) -> None:
    """Raises ClusterError for jobs that could never run beside the others: the peaks of all serving jobs at once, each
    in the first of its pools with room, have to leave every training job a slice."""
    board = Board(cluster)
    for number, job in enumerate(jobs):
        if isinstance(job, Serving) and not _held(board, job, number):
            raise ClusterError(
                f"{job.name}: expected room for all of its replicas at the peak, beside the other serving jobs, got "
                "none: add machines, or serve fewer requests"
            )
    for job in jobs:
        if isinstance(job, Training) and not any(board.find(option.pool, option.size) for option in job.options):
            raise ClusterError(
                f"{job.name}: expected a slice for it beside the serving jobs at their peak, got none: add machines or "
                "allow it smaller slices"
            )


def _held(board: Board, job: Serving, number: int) -> bool:
    """Take the replicas of the peak, all in one pool; whether there is room."""
    for option in job.options:
        count = job.needed(max(rate for _, rate in job.requests), 1.0 / option.speed)
        taken: list[Place] = []
        while len(taken) < count and (place := board.find(option.pool, option.size)):
            board.take(place, number)
            taken.append(place)
        if len(taken) == count:
            return True
        for place in taken:
            board.leave(place)
    return False
