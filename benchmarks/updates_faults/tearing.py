"""Updates that end by a power failure: what the disk may contain after it, at random points of its writes."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.updates_faults import tracing
from benchmarks.updates_faults.blocks import after, read_log, recording
from benchmarks.updates_faults.images import attached, made, mounted
from benchmarks.updates_faults.world import World

__all__ = ["torn"]

MEGABYTES = 16


def torn(world: World, work: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """Record an update from version 1 to 2 on a disk, then start an agent on what may be left at `count` points."""
    image, at = made(work / "torn.img", MEGABYTES), work / "torn"
    world.offer("1")
    with mounted(image, at):
        assert tracing.run(lambda: world.update(at / "device")).code == 0
    world.offer("2")
    with recording(image, work / "fuse", work / "log") as disk, attached(disk) as device, mounted(device, at):
        begun = (work / "log").stat().st_size
        assert tracing.run(lambda: world.update(at / "device")).code == 0
        assert world.found(at / "device").version == "2"
        ended = (work / "log").stat().st_size
    writes, base = read_log(work / "log"), image.read_bytes()
    first, last = (len(read_log(_cut(work, size))) for size in (begun, ended))
    rng, seen, kept = random.Random(seed), Counter[str](), work / "left.img"
    for number in range(count):
        point = last if number % 20 == 0 else rng.randint(first, last)
        kept.write_bytes(after(base, writes[:point], rng))
        seen[_started(world, kept, at, f"point {point} of {first} to {last}", last == point)] += 1
    return {
        "points": count, "writes": last - first, "flushes": sum(one.data is None for one in writes[first:last]),
        "old_ran": seen["1"], "new_ran": seen["2"], "neither_ran": 0, "left_over": 0,
    }  # fmt: skip


def _started(world: World, image: Path, at: Path, where: str, done: bool) -> str:
    """The version that runs after a power failure; the update is completed after that."""
    with mounted(image, at):
        device = at / "device"
        found = world.found(device)
        assert not found.wrong and found.version in (("2",) if done else ("1", "2")), f"{where}: {found}"
        assert tracing.run(lambda: world.update(device)).code == 0, where
        last, over = world.found(device), world.leftovers(device)
        assert last.version == "2" and not last.wrong and not over, f"{where}, then: {last}, left over {over}"
        return found.version


def _cut(work: Path, size: int) -> Path:
    part = work / "part"
    with open(work / "log", "rb") as log:
        part.write_bytes(log.read(size))
    os.sync()
    return part
