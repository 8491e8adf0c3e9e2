"""Jobs: what trains and what serves, with a speed on every slice that it may have; from a TOML file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct

from cloud.cluster.cluster import READ, Cluster, Name
from cloud.cluster.queueing import replicas
from cloud.errors import ClusterError
from federated.tables import Count, NotNegative, Positive, Reader, Table, Whole, closest

__all__ = ["JOBS_TEMPLATE", "File", "Job", "Option", "Serving", "ServingTable", "Training", "TrainingTable",
           "allowed", "longest", "read_jobs", "serving_of", "training_of", "units_of"]  # fmt: skip

MOST_JOBS = 100_000


class Option(Struct, frozen=True):
    """A slice that a job may have: the pool's index, its units, and there steps (of a serving replica: requests) per
    second."""

    pool: int
    size: int
    speed: float


class Training(Struct, frozen=True, tag="training"):
    """A training job. `options`: no slice is larger and slower than another of its pool. `steps`: of the whole job.
    `arrives`, `deadline`: seconds of the cluster's clock, 0: none. `exact`: after the first start only slices of the
    same pool and size, so that its results do not depend on preemptions. `saving`: seconds from the signal to the end
    of its processes; `starting`: until the first step; `every`: seconds between checkpoints, which a lost machine
    costs at most."""

    name: str
    options: tuple[Option, ...]
    steps: float
    arrives: float = 0.0
    priority: int = 0
    weight: float = 1.0
    deadline: float = 0.0
    exact: bool = False
    saving: float = 30.0
    starting: float = 60.0
    every: float = 600.0


class Serving(Struct, frozen=True, tag="serving"):
    """A serving job: equal replicas, as many as its requests need. `options`: of a replica, the fastest first of each
    pool. `requests`: (second, requests per second from then on), repeated every `period` seconds if that is not 0. At
    least `share` of the requests has to be answered within `latency` seconds, by at least `least` replicas. It ends at
    the second `until`, 0: never."""

    name: str
    options: tuple[Option, ...]
    requests: tuple[tuple[float, float], ...]
    latency: float
    period: float = 0.0
    share: float = 0.99
    least: int = 1
    arrives: float = 0.0
    until: float = 0.0
    starting: float = 60.0

    def rate(self, time: float) -> float:
        """Requests per second that were declared for that second."""
        at = time - self.arrives
        at = at % self.period if self.period else at
        found = [rate for second, rate in self.requests if second <= at]
        return found[-1] if found else (self.requests[-1][1] if self.period else 0.0)

    def peak(self, start: float, end: float) -> float:
        """The most requests per second from `start` to `end`."""
        changes = {start, *self.changes(start, end)}
        return max(self.rate(time) for time in changes)

    def changes(self, start: float, end: float) -> list[float]:
        """The seconds in between at which the declared rate changes."""
        found: list[float] = []
        base = self.arrives + (math.floor((start - self.arrives) / self.period) * self.period if self.period else 0.0)
        while base <= end:
            found += [base + second for second, _ in self.requests if start < base + second <= end]
            if not self.period:
                break
            base += self.period
        return found

    def needed(self, rate: float, seconds: float) -> int:
        """Replicas that each take `seconds` for a request."""
        return max(self.least, replicas(rate, seconds, self.latency, self.share))


Job: TypeAlias = Training | Serving

_Seconds = NotNegative


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = READ


class TrainingTable(_Table, frozen=True):
    """A [[training]] table. `config`: a file of `msedge train`, or `model`: a step of `msedge plan --model`; the
    planner gives the speed on every slice. `speeds`: steps per second, measured, by pool and devices, used instead.
    `steps`: 0: as many as the file says. `devices`: allowed sizes of slices; (): all."""

    name: Name
    config: str = ""
    model: Literal["", "mlp", "gpt", "moe"] = ""
    speeds: Mapping[str, Mapping[str, Positive]] = {}
    steps: Whole = 0
    arrives: _Seconds = 0.0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    weight: Positive = 1.0
    deadline: _Seconds = 0.0
    pools: tuple[str, ...] = ()
    devices: tuple[Positive, ...] = ()
    exact: bool = False
    saving: _Seconds = 30.0
    starting: _Seconds = 60.0
    every: Positive = 600.0


_Rate = tuple[NotNegative, NotNegative]


class ServingTable(_Table, frozen=True):
    """A [[serving]] table. `bundle`: what `msedge cluster run` serves. `seconds`: of one request on a replica,
    measured, by pool. `devices`: of a replica. Other keys as of `Serving`."""

    name: Name
    latency: Positive
    seconds: Annotated[Mapping[str, Positive], Meta(min_length=1, description="seconds by pool, at least of one")]
    requests: Annotated[tuple[_Rate, ...], Meta(min_length=1, description="rows of [second, requests per second]")]
    bundle: str = ""
    devices: Positive = 1.0
    period: _Seconds = 0.0
    share: Annotated[float, Meta(gt=0, lt=1, description="a share above 0 and below 1")] = 0.99
    least: Count = 1
    arrives: _Seconds = 0.0
    until: _Seconds = 0.0
    starting: _Seconds = 60.0


class _File(_Table, frozen=True):
    training: tuple[TrainingTable, ...] = ()
    serving: tuple[ServingTable, ...] = ()


@dataclass(frozen=True)
class File:
    """A file of jobs, and the folder that relative paths begin in."""

    training: tuple[TrainingTable, ...]
    serving: tuple[ServingTable, ...]
    base: Path = Path()

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.base / text


def read_jobs(path: str | os.PathLike[str], cluster: Cluster) -> File:
    """The jobs in a TOML file (`JOBS_TEMPLATE`). Raises ClusterError, which names the file and the key."""
    where = f"{os.fspath(path)}: "
    file = READ.read(_File, READ.file(path), where)
    count = len(file.training) + len(file.serving)
    READ.need(0 < count <= MOST_JOBS, f"{where}training", f"1 to {MOST_JOBS} jobs", count)
    names: set[str] = set()
    for kind in ("training", "serving"):
        for index, said in enumerate(getattr(file, kind)):
            at = f"{where}{kind}[{index}]"
            READ.need(said.name not in names, f"{at}.name", "a name that no other job has", said.name)
            names.add(said.name)
            _check_training(said, cluster, at) if kind == "training" else _check_serving(said, cluster, at)
    return File(file.training, file.serving, Path(path).resolve().parent)


def _check_training(said: TrainingTable, cluster: Cluster, at: str) -> None:
    sources = [key for key in ("config", "model", "speeds") if getattr(said, key)]
    READ.need(bool(sources), f"{at}", "config, model or speeds", "none of them")
    READ.need(not (said.config and said.model), f"{at}.model", "none beside config", said.model)
    READ.need(bool(said.steps or said.config), f"{at}.steps", "at least 1 without config", said.steps)
    late = not said.deadline or said.deadline > said.arrives
    READ.need(late, f"{at}.deadline", f"0, or after arrives = {said.arrives:g}", said.deadline)
    for name in (*said.pools, *said.speeds):
        _pool_named(name, cluster, at)
    READ.need(all(name in (said.pools or cluster.places) for name in said.speeds), f"{at}.speeds",
              f"pools of {list(said.pools)}", [*said.speeds])  # fmt: skip
    for name, row in said.speeds.items():
        for devices in row:
            units_of(cluster, cluster.places[name], devices, f"{at}.speeds.{name}")
    allowed(said, cluster, at)


def _check_serving(said: ServingTable, cluster: Cluster, at: str) -> None:
    for name, seconds in said.seconds.items():
        _pool_named(name, cluster, at)
        units_of(cluster, cluster.places[name], f"{said.devices:g}", f"{at}.devices")
        READ.need(seconds <= said.latency, f"{at}.seconds.{name}", f"at most latency = {said.latency:g}", seconds)
    times = [second for second, _ in said.requests]
    READ.need(times == sorted({*times}), f"{at}.requests", "ascending seconds, each once", times)
    READ.need(times[0] == 0, f"{at}.requests[0]", "second 0 first", times[0])
    within = not said.period or times[-1] < said.period
    READ.need(within, f"{at}.period", f"0, or more than the last second of requests, {times[-1]:g}", said.period)
    ends = not said.until or said.until > said.arrives
    READ.need(ends, f"{at}.until", f"0, or after arrives = {said.arrives:g}", said.until)
    most = max(rate for _, rate in said.requests)
    for name, seconds in said.seconds.items():
        enough = replicas(most, seconds, said.latency, said.share) >= 0
        READ.need(enough, f"{at}.requests", f"rates that replicas on {name} can answer in time", most)


def _pool_named(name: str, cluster: Cluster, at: str) -> None:
    if name not in cluster.places:
        raise ClusterError(f"{at}: no pool {name!r}{closest(name, cluster.places)}")


def units_of(cluster: Cluster, pool: int, devices: str, at: str) -> int:
    """A number of devices as units of a pool. Raises ClusterError if the pool has no such slices."""
    said = cluster.pools[pool]
    try:
        units = float(devices) * said.parts
    except ValueError:
        units = 0.0
    known = ", ".join(map(said.words, said.sizes))
    READ.need(units in said.sizes, at, f"devices of a slice of {said.name}: one of {known}", devices)
    return round(units)


def allowed(said: TrainingTable, cluster: Cluster, at: str) -> list[tuple[int, int]]:
    """The slices that a job may have: pool's index and units. Raises ClusterError if there are none."""
    found = []
    for index, pool in enumerate(cluster.pools):
        if pool.name in (said.pools or cluster.places):
            found += [(index, size) for size in pool.sizes if size / pool.parts in said.devices or not said.devices]
    for devices in said.devices:
        fits = any(size / cluster.pools[index].parts == devices for index, size in found)
        READ.need(fits, f"{at}.devices", "sizes that slices of its pools have", devices)
    return found


def training_of(said: TrainingTable, speeds: Mapping[tuple[int, int], float], steps: float) -> Training:
    """The job with its speeds by pool and units. Raises ClusterError if it can run nowhere."""
    found: list[Option] = []
    for (pool, size), speed in sorted(speeds.items()):
        best = max((one.speed for one in found if one.pool == pool), default=0.0)
        if speed > best:  # larger and not faster: never
            found.append(Option(pool, size, speed))
    if not found:
        raise ClusterError(
            f"{said.name}: expected a slice of the cluster that it fits in, got none: add memory or pools"
        )
    return Training(
        said.name, tuple(found), steps, said.arrives, said.priority, said.weight, said.deadline, said.exact,
        said.saving, said.starting, said.every,
    )  # fmt: skip


def serving_of(said: ServingTable, cluster: Cluster) -> Serving:
    """The job with its replicas' slices."""
    options = []
    for name, seconds in said.seconds.items():
        pool = cluster.places[name]
        options.append(Option(pool, units_of(cluster, pool, f"{said.devices:g}", said.name), 1.0 / seconds))
    return Serving(
        said.name, tuple(options), said.requests, said.latency, said.period, said.share, said.least, said.arrives,
        said.until, said.starting,
    )  # fmt: skip


def longest(jobs: Sequence[Job]) -> float:
    """The most seconds that a training job takes to save and to start."""
    return max((job.saving + job.starting for job in jobs if isinstance(job, Training)), default=0.0)


JOBS_TEMPLATE = """\
# Jobs for a cluster: msedge cluster plan cluster.toml jobs.toml. Lines that begin with # show defaults.

[[training]]
name = "words"
model = "gpt"                    # a step of msedge plan --model; or config = "run.toml", a file of msedge train
steps = 20000                    # 0: as many as the run file says
# arrives = 0.0                  # seconds
# priority = 0                   # higher ones come first
# weight = 1.0                   # for the policy "speed"
# deadline = 0.0                 # second by which it should end; 0: none
# pools = []                     # where it may run; []: everywhere
# devices = []                   # sizes of slices that it may have; []: all
# exact = false                  # true: it continues on slices of one size only, with the same bits
# saving = 30.0                  # seconds from the signal until its devices are free
# starting = 60.0                # seconds until the first step
# every = 600.0                  # seconds between its checkpoints
# [training.speeds.new]          # steps per second, measured, by pool and devices
# 8 = 12.5

[[serving]]
name = "answers"
latency = 0.5                    # seconds, for 99 of 100 requests (share = 0.99)
seconds = { new = 0.05, small = 0.12 }              # of a request on a replica, measured
requests = [[0, 20], [28800, 120], [72000, 20]]     # per second, from that second on
period = 86400                   # the requests repeat after so many seconds; 0: they do not
# bundle = ""                    # what msedge cluster run serves
# devices = 1                    # of a replica
# least = 1                      # replicas
# arrives = 0.0
# until = 0.0                    # second at which it ends; 0: never
"""
