"""Updates on a disk that gets full at random points."""

from __future__ import annotations

import os
import random
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.updates_faults import tracing
from benchmarks.updates_faults.killing import SLACK
from benchmarks.updates_faults.world import VERSIONS, World

__all__ = ["filled"]


def filled(world: World, device: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """Let the disk have from nothing to a bit more than an update takes, `count` times; half of the agents are not told
    how much is free. The disk must be small: all of the rest is filled."""
    rng, versions, ended = random.Random(seed), cycle(VERSIONS), Counter[str]()
    old = next(versions)
    world.offer(old)
    assert tracing.run(lambda: world.update(device)).code == 0
    size = 0
    ballast = device.parent / "ballast"
    for number in range(count):
        new = next(versions)
        world.offer(new)
        left = rng.randrange(int(1.3 * world.bytes))
        _fill(ballast, left)
        run = tracing.run(partial(world.update, device, silent=number % 2 == 0))
        found, over = world.found(device), world.leftovers(device)
        where = f"update {number} from {old} to {new} with {left} bytes"
        assert run.code == 0 and not found.wrong and found.version in (old, new), f"{where}: {run} {found}"
        assert not over, f"{where}: left over {over}"
        ended["old" if found.version == old else "new"] += 1
        ballast.unlink()
        assert tracing.run(lambda: world.update(device)).code == 0
        found, over = world.found(device), world.leftovers(device)
        assert found.version == new and not found.wrong and not over, f"{where}, then enough: {found} {over}"
        size = size or world.size(device)
        assert abs(world.size(device) - size) < SLACK, f"{where}: {world.size(device)} bytes instead of {size}"
        old = new
    return {
        "points": count, "old_ran": ended["old"], "new_ran": ended["new"], "neither_ran": 0, "left_over": 0,
        "most_bytes_left": int(1.3 * world.bytes), "bytes_of_an_update": world.bytes,
    }  # fmt: skip


def _fill(path: Path, left: int) -> None:
    """Fill the disk but for so many bytes."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        found = os.fstatvfs(handle)
        want = found.f_bavail * found.f_frsize - left
        while want > 0:
            try:
                os.posix_fallocate(handle, 0, want)
                break
            except OSError:
                want -= found.f_frsize  # blocks that say where the file's blocks are
    finally:
        os.close(handle)
