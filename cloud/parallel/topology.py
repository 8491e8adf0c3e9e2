"""The hardware of a step: devices, their memory, and links in levels; from a file, a preset or the local devices."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from cloud.errors import PlanError
from cloud.parallel.plan import Mesh
from federated.tables import Count, Fraction, Positive, Reader

__all__ = ["DEVICES", "PRESETS", "Device", "Level", "Topology", "meshes", "read_topology"]

MOST_AXES = 3
MOST_DEVICES = 1 << 16
"""The most devices in a file, because every mesh of them is enumerated."""


@dataclass(frozen=True, slots=True)
class Level:
    """`size` groups connected by links of one kind: seconds before a collective's first byte arrives, and the bytes per
    second that one device sends while all send, as collectives achieve them (not the link's nominal figure)."""

    size: int
    latency: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Device:
    """Peak FLOP/s of contractions by dtype name ("float32" is JAX's default precision, TF32 on devices that have it),
    bytes/s of its memory, and the seconds of the smallest operator."""

    flops: Mapping[str, float]
    bandwidth: float
    launch: float

    def peak(self, dtype: str) -> float:
        """FLOP/s in `dtype`; for one that is not in the table, float32's, halved for each doubling of its width."""
        if dtype in self.flops:
            return self.flops[dtype]
        return self.flops["float32"] * (0.5 if dtype in ("float64", "int64", "uint64", "complex64") else 1.0)


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels from the slowest links to the fastest; `memory` bytes per device; `overlap`: the share of a collective
    that computing hides, for collectives that only gather inputs of the step or only reduce its outputs."""

    name: str
    levels: tuple[Level, ...]
    memory: float
    device: Device
    overlap: float = 0.0

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(level.size for level in self.levels)

    @property
    def shares(self) -> tuple[int, ...]:
        """Numbers of devices that may share a batch: all, and those of the fastest links."""
        return tuple(size for size in dict.fromkeys((self.size, self.levels[-1].size)) if size > 1)

    @property
    def digest(self) -> str:
        """Digest of all fields but the name: 32 hexadecimal digits, the same in every process."""
        text = json.dumps({**asdict(self), "name": ""}, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @classmethod
    def named(cls, name: str) -> Topology:
        """The preset of that name, or the file at that path. Raises `PlanError`."""
        if name in PRESETS:
            return PRESETS[name]
        if not Path(name).is_file():
            raise PlanError(f"topology: expected a TOML file or one of {', '.join(PRESETS)}; got {name!r}")
        return read_topology(name)

    @classmethod
    def of_devices(cls, devices: Sequence[Any]) -> Topology:
        """The topology of JAX devices: a level for processes if there are several, and one for the devices of each.
        Raises `PlanError` for devices that are not in the table and for processes with different numbers of devices."""
        kind = f"{devices[0].platform} {devices[0].device_kind}".lower()
        known = next((name for name in DEVICES if name in kind), "")
        if not known:
            raise PlanError(f"expected devices of kind {', '.join(DEVICES)}; got {kind!r}: give a topology file")
        hosts = Counter(device.process_index for device in devices)
        if len(set(hosts.values())) != 1:
            raise PlanError(f"expected processes with equally many devices; got {dict(hosts)} (process: devices)")
        stats = (devices[0].memory_stats() if known != "cpu" else None) or {}
        device, memory, inside, between = DEVICES[known]
        outer = (replace(between, size=len(hosts)),) if len(hosts) > 1 else ()
        levels = (*outer, replace(inside, size=len(devices) // len(hosts)))
        return cls(f"{len(devices)} x {known}", levels, float(stats.get("bytes_limit", memory)), device)


def meshes(topology: Topology, most: int = MOST_AXES) -> list[Mesh]:
    """Every mesh of at most `most` axes: each level's size in factors, in ascending order only, as the links of one
    level are the same. Fewest axes first; one device gives one axis of size 1."""
    found = []
    for parts in product(*(list(_factors(level.size)) for level in topology.levels)):
        sizes = tuple(size for part in parts for size in part)
        levels = tuple(index for index, part in enumerate(parts) for _ in part)
        if len(sizes) <= most:
            found.append(Mesh(sizes, levels) if sizes else Mesh((1,), (0,)))
    if not found:
        raise PlanError(
            f"topology {topology.name}: {len(topology.levels)} levels do not fit a mesh of {most} axes: merge levels "
            "with similar links"
        )
    return sorted(found, key=lambda mesh: (len(mesh.sizes), mesh.sizes))


def _factors(size: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Ascending factors of `size`, none of them 1."""
    if size == 1:
        yield ()
        return
    for first in range(least, size + 1):
        if size % first == 0 and (first == size or size // first >= first):
            for rest in _factors(size // first, first):
                yield first, *rest


# Public figures: dense peak without sparsity; links at the share that large collectives are known to achieve (about
# 80 % on NVLink, 85 % on InfiniBand, half on PCIe without peer access). Launch: a small kernel in a captured graph.
# Each: the device, its memory, the links inside a machine and those between machines.
_H100 = Device({"bfloat16": 989e12, "float16": 989e12, "float32": 494e12, "float64": 67e12}, 3.35e12, 3e-6)
_A100 = Device({"bfloat16": 312e12, "float16": 312e12, "float32": 156e12, "float64": 19.5e12}, 2.04e12, 3e-6)
_L4 = Device({"bfloat16": 121e12, "float16": 121e12, "float32": 60e12, "float64": 0.47e12}, 3.0e11, 3e-6)
_CPU = Device({"float32": 5e10, "float64": 2.5e10, "bfloat16": 1e10, "float16": 1e10}, 1e10, 2e-6)
DEVICES: Mapping[str, tuple[Device, float, Level, Level]] = {
    "h100": (_H100, 80e9, Level(8, 10e-6, 360e9), Level(2, 20e-6, 42e9)),
    "a100": (_A100, 80e9, Level(8, 10e-6, 240e9), Level(2, 20e-6, 21e9)),
    "l4": (_L4, 24e9, Level(4, 20e-6, 12e9), Level(2, 40e-6, 3e9)),
    "cpu": (_CPU, 4e9, Level(8, 30e-6, 2e9), Level(2, 200e-6, 0.5e9)),
}
"""Name (as in JAX's `device_kind`) to the device, its memory, and links inside a machine and between machines."""


def _preset(name: str, device: str, *sizes: int, memory: float | None = None, between: Level | None = None) -> Topology:
    figures, bytes_, inside, outside = DEVICES[device]
    links = (inside,) if len(sizes) == 1 else (between or outside, inside)
    levels = tuple(replace(link, size=size) for link, size in zip(links, sizes, strict=True))
    return Topology(name, levels, memory or bytes_, figures)


PRESETS: Mapping[str, Topology] = {
    topology.name: topology
    for topology in (
        _preset("h100x8", "h100", 8),
        _preset("a100x8", "a100", 8),
        _preset("h100x2x8", "h100", 2, 8),
        _preset("l4x4", "l4", 4),
        _preset("cpu8", "cpu", 8),
        # Two machines of four devices; 100 Gbit/s Ethernet between the machines, shared by the four.
        _preset("2x4-slow", "h100", 2, 4, between=Level(2, 40e-6, 3e9)),
        _preset("4-small", "a100", 4, memory=16e9),
    )
}


def read_topology(path: str | Path) -> Topology:
    """The TOML file `path`:

        name = "ours"
        memory = 80e9               # bytes per device; optional if `device` is a name
        overlap = 0.5               # optional, default 0
        device = "h100"             # or a table: flops = {float32 = 494e12}, bandwidth = 3.35e12, launch = 3e-6
        [[levels]]                  # slowest links first
        size = 8
        latency = 10e-6             # seconds
        bandwidth = 360e9           # bytes per second, of one device

    Raises `PlanError`, which names the file and the field."""
    where = f"topology {path}: "
    file = _READ.read(_File, _READ.file(path), where)
    if isinstance(file.device, str):
        _READ.need(file.device in DEVICES, f"{where}device", f"one of {', '.join(DEVICES)} or a table", file.device)
        device, memory, _, _ = DEVICES[file.device]
    else:
        device, memory = Device(file.device.flops, file.device.bandwidth, file.device.launch), 0.0
        _READ.need("float32" in device.flops, f"{where}device.flops", "float32 among its types", [*device.flops])
    memory = file.memory if file.memory is not None else memory
    _READ.need(memory > 0, f"{where}memory", "a number above 0 (required if the device is a table)", None)
    levels = tuple(Level(level.size, level.latency, level.bandwidth) for level in file.levels)
    devices = math.prod(level.size for level in levels)
    _READ.need(devices <= MOST_DEVICES, f"{where}levels", f"at most {MOST_DEVICES} devices in total", devices)
    rates = [level.bandwidth for level in levels]
    _READ.need(rates == sorted(rates), f"{where}levels", "the slowest links first: bandwidths that do not fall", rates)
    most = f"at most that of the device's memory ({device.bandwidth:g}), which links read and write"
    _READ.need(rates[-1] <= device.bandwidth, f"{where}levels[{len(levels) - 1}].bandwidth", most, rates[-1])
    return Topology(file.name or Path(path).stem, levels, memory, device, file.overlap)


_READ = Reader(PlanError, "or name a preset")
_Name = Annotated[str, Meta(description=f"one of {', '.join(DEVICES)}")]
_TYPES = ("float8", "bfloat16", "float16", "float32", "float64", "int8")
_Type = Annotated[str, Meta(pattern=rf"\A(?:{'|'.join(_TYPES)})\Z", description=f"types of {', '.join(_TYPES)}")]


class _Level(Struct, forbid_unknown_fields=True):
    size: Count
    latency: Positive
    bandwidth: Positive


class _Device(Struct, forbid_unknown_fields=True):
    flops: Mapping[_Type, Positive]
    bandwidth: Positive
    launch: Positive


class _File(Struct, forbid_unknown_fields=True):
    device: _Name | _Device
    levels: Annotated[
        list[_Level], Meta(min_length=1, description="at least one [[levels]] table, slowest links first")
    ]
    name: Annotated[str, Meta(min_length=1, description="a non-empty string")] | None = None
    memory: Positive | None = None
    overlap: Fraction = 0.0
