"""A cluster: pools of equal machines and the slices that a job can have of them; from a TOML file.

A slice is part of a device, some devices of one machine, or whole machines of one switch. It always lies in one pool,
as plans are made for equal devices. Devices are counted in units: a device that several jobs may share has several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from cloud.errors import ClusterError
from cloud.parallel.topology import DEVICES, MOST_DEVICES, Device, Level, Topology
from federated.tables import Count, NotNegative, Positive, Reader, Table, Whole

__all__ = ["READ", "TEMPLATE", "Cluster", "Name", "Pool", "Rules", "read_cluster"]

READ = Reader(ClusterError, "msedge cluster template prints one")
Name = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9._-]{0,62}\Z", description="a name of a-z 0-9 . _ -")]


@dataclass(frozen=True)
class Pool:
    """Equal machines. `devices`: of each machine; `parts`: how many jobs may share a device; `switch`: so many machines
    are connected alike, and a slice does not reach beyond them; `memory`: bytes per device; `inside`, `between`: links
    of devices of a machine, and of machines, as a topology has them; `down`: machines that are not there."""

    name: str
    machines: int
    devices: int
    parts: int
    switch: int
    memory: float
    device: Device
    inside: Level
    between: Level
    down: tuple[int, ...] = ()

    @property
    def units(self) -> int:
        """Units of one machine."""
        return self.devices * self.parts

    @property
    def total(self) -> int:
        """Units of the pool, with those of machines that are down."""
        return self.machines * self.units

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Units that a slice may have, ascending: shares of a device, divisors of a machine, powers of two of
        machines."""
        inside = [n for n in range(1, self.units + 1) if self.units % n == 0]
        whole = [n for n in inside if n % self.parts == 0 or self.parts % n == 0]
        counts = [1 << k for k in range(1, self.switch.bit_length()) if 1 << k <= self.switch]
        return (*whole, *(self.units * count for count in counts))

    def words(self, size: int) -> str:
        """Units as devices: "8", "0.25"."""
        return f"{size / self.parts:g}"

    def topology(self, size: int) -> Topology:
        """The devices of a slice of `size` units as the planner sees them; a share of a device has that share of its
        speed and memory."""
        share = min(1.0, size / self.parts)
        flops = {name: share * value for name, value in self.device.flops.items()}
        device = replace(self.device, flops=flops, bandwidth=share * self.device.bandwidth)
        count = max(1, size // self.parts)
        inner = replace(self.inside, size=min(count, self.devices))
        outer = (replace(self.between, size=count // self.devices),) if count > self.devices else ()
        return Topology(f"{self.words(size)} x {self.name}", (*outer, inner), share * self.memory, device)


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = READ


class _Link(_Table, frozen=True):
    latency: Positive
    bandwidth: Positive


class _Device(_Table, frozen=True):
    flops: Mapping[str, Positive]
    bandwidth: Positive
    launch: NotNegative


class _Pool(_Table, frozen=True):
    name: Name
    device: Annotated[str, Meta(description=f"one of {', '.join(DEVICES)}")] | _Device
    machines: Count
    devices: Count
    parts: Annotated[int, Meta(ge=1, le=16)] = 1
    switch: Whole = 0
    memory: Positive | None = None
    inside: _Link | None = None
    between: _Link | None = None
    down: tuple[Whole, ...] = ()


class Rules(_Table, frozen=True):
    """[rules]. policy: "makespan" (the time until everything is done) or "speed" (the sum of weighted speeds). Seconds:
    `round` between two decisions about everybody; `quantum`: nobody who has just begun is stopped before; `patience`:
    who has had no devices for so long comes next, whatever others' priorities are."""

    policy: Literal["makespan", "speed"] = "makespan"
    round: Positive = 300.0
    quantum: Positive = 900.0
    patience: Positive = 7200.0

    def bound(self, ahead: int, saving: float) -> float:
        """The most seconds that a training job has no devices, if `ahead` others had become due before it, and saving
        takes at most `saving`: while no machine is lost. See docs/cluster.md."""
        return self.patience + (ahead + 1) * (self.quantum + saving + 2 * self.round)


class _File(_Table, frozen=True):
    pools: Annotated[tuple[_Pool, ...], Meta(min_length=1, description="at least one [[pools]] table")]
    name: str = ""
    rules: Rules = Rules()


@dataclass(frozen=True)
class Cluster:
    """Pools in the order of the file."""

    name: str
    pools: tuple[Pool, ...]
    rules: Rules = field(default_factory=Rules)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """A pool's index by its name."""
        return {pool.name: index for index, pool in enumerate(self.pools)}

    @property
    def devices(self) -> int:
        """Number of devices."""
        return sum(pool.machines * pool.devices for pool in self.pools)


def read_cluster(path: str | Path) -> Cluster:
    """The cluster in a TOML file (`TEMPLATE`). Raises ClusterError, which names the file and the key, also where keys
    contradict each other."""
    where = f"{path}: "
    file = READ.read(_File, READ.file(path), where)
    pools: list[Pool] = []
    for index, said in enumerate(file.pools):
        at = f"{where}pools[{index}]"
        known = {pool.name for pool in pools}
        READ.need(said.name not in known, f"{at}.name", "a name that no other pool has", said.name)
        pools.append(_pool(said, at))
    devices = sum(pool.machines * pool.devices for pool in pools)
    READ.need(devices <= MOST_DEVICES, f"{where}pools", f"at most {MOST_DEVICES} devices in total", devices)
    there = any(len(pool.down) < pool.machines for pool in pools)
    READ.need(there, f"{where}pools", "a machine that is not down", "none")
    rules = file.rules
    READ.need(rules.quantum >= rules.round, f"{where}rules.quantum", f"at least round = {rules.round:g}", rules.quantum)
    longer = rules.patience >= rules.quantum
    READ.need(longer, f"{where}rules.patience", f"at least quantum = {rules.quantum:g}", rules.patience)
    return Cluster(file.name or Path(path).stem, tuple(pools), rules)


def _pool(said: _Pool, at: str) -> Pool:
    """One [[pools]] table. Raises ClusterError."""
    if isinstance(said.device, str):
        READ.need(said.device in DEVICES, f"{at}.device", f"one of {', '.join(DEVICES)} or a table", said.device)
        device, memory, *links = DEVICES[said.device]
        inside, between = (replace(link, size=1) for link in links)
    else:
        device = Device(said.device.flops, said.device.bandwidth, said.device.launch)
        READ.need("float32" in device.flops, f"{at}.device.flops", "float32 among its types", [*device.flops])
        for key in ("memory", "inside", "between"):
            needed = getattr(said, key) is not None or (key, said.machines) == ("between", 1)
            READ.need(needed, f"{at}.{key}", "a value, as the device is a table", None)
        memory, inside, between = 0.0, Level(1, 0.0, 1.0), Level(1, 0.0, 1.0)
    memory = said.memory if said.memory is not None else memory
    inside = Level(1, said.inside.latency, said.inside.bandwidth) if said.inside else inside
    between = Level(1, said.between.latency, said.between.bandwidth) if said.between else between
    if said.machines > 1:
        slower = between.bandwidth <= inside.bandwidth
        READ.need(slower, f"{at}.between.bandwidth", f"at most that of inside, {inside.bandwidth:g}", between.bandwidth)
    switch = said.switch or said.machines
    READ.need(switch <= said.machines, f"{at}.switch", f"at most machines, {said.machines}", said.switch)
    wrong = [machine for machine in said.down if machine >= said.machines]
    READ.need(not wrong, f"{at}.down", f"machines from 0 to {said.machines - 1}", wrong[:1])
    READ.need(len({*said.down}) == len(said.down), f"{at}.down", "each machine once", list(said.down))
    return Pool(said.name, said.machines, said.devices, said.parts, switch, memory, device, inside, between, said.down)


TEMPLATE = """\
# A cluster: msedge cluster plan cluster.toml jobs.toml. Lines that begin with # show defaults.
# name = ""                      # the file's

[rules]
# policy = "makespan"            # or speed: the sum of weighted speeds
# round = 300.0                  # seconds between two decisions about all jobs
# quantum = 900.0                # seconds that a job keeps what it got, at least
# patience = 7200.0              # seconds without devices after which a job comes next, whatever the priorities

[[pools]]                        # equal machines; a job's slice lies in one pool
name = "new"
device = "h100"                  # or a100, l4, cpu, or a table as of a topology file:
#                                { flops = { float32 = 494e12 }, bandwidth = 3.35e12, launch = 3e-6 }
machines = 4
devices = 8                      # of each machine
# parts = 1                      # so many jobs may share a device
# switch = 4                     # machines that are connected alike, all; no slice reaches beyond
# memory = 80e9                  # bytes per device
# inside = { latency = 10e-6, bandwidth = 360e9 }       # of devices in a machine: seconds, bytes/s
# between = { latency = 20e-6, bandwidth = 42e9 }       # of machines, per device
# down = []                      # machines that are not there, from 0

[[pools]]
name = "small"
device = "l4"
machines = 8
devices = 4
"""
