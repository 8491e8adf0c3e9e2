"""Updates that are killed at random system calls: half at any one, half at one that changes the disk.

Each goes on after that, sometimes after more than one kill.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.updates_faults import tracing
from benchmarks.updates_faults.world import VERSIONS, World

__all__ = ["killed"]

SLACK = 4096
"""Bytes by which the file of the state may differ."""
AGAIN = 0.3
"""Share of updates that are killed again as they go on."""


def killed(world: World, device: Path, count: int, seed: int = 0) -> dict[str, Any]:
    """Kill updates at `count` points. Returns what was found; raises AssertionError for the first update after which
    neither version runs, or something is left over."""
    rng, versions, calls = random.Random(seed), cycle(VERSIONS), Counter[int]()
    old = next(versions)
    world.offer(old)
    assert tracing.run(lambda: world.update(device)).code == 0
    new = next(versions)
    world.offer(new)
    whole = tracing.run(lambda: world.update(device), name=True)
    places = whole.changing or [0]
    world.offer(old := next(versions))
    assert tracing.run(lambda: world.update(device)).code == 0
    size = world.size(device)
    done, kept, updates, again = 0, Counter[str](), 0, 0
    while done < count:
        new = next(versions)
        world.offer(new)
        updates += 1
        while True:
            at = None if done >= count else rng.choice(places) if rng.random() < 0.5 else rng.randrange(whole.points)
            run = tracing.run(lambda: world.update(device), at)
            found = world.found(device)
            where = f"update {updates} from {old} to {new}, killed at point {run.points} (system call {run.calls})"
            assert not found.wrong and found.version in (old, new), f"{where}: {found}"
            if run.killed:
                done += 1
                calls[run.calls[-1]] += 1
                kept["old" if found.version == old else "new"] += 1
                if done >= count or rng.random() >= AGAIN:
                    run = tracing.run(lambda: world.update(device))
            if not run.killed:
                assert run.code == 0, f"{where}: exit code {run.code}"
                break
            again += 1
        found, left = world.found(device), world.leftovers(device)
        assert found.version == new and not found.wrong, f"{where}: at last {found}"
        assert not left, f"{where}: left over {left}"
        assert abs(world.size(device) - size) < SLACK, f"{where}: {world.size(device)} bytes instead of {size}"
        old = new
    return {
        "kills": done,
        "updates": updates,
        "killed_again": again,
        "points_of_an_update": whole.points,
        "points_that_change_the_disk": len(places),
        "old_ran": kept["old"],
        "new_ran": kept["new"],
        "neither_ran": 0,
        "left_over": 0,
        "system_calls": len(calls),
        "bytes_on_disk": world.size(device),
        "bytes_at_first": size,
    }
