"""See the package."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.updates_faults.filling import filled
from benchmarks.updates_faults.images import made, mounted, possible
from benchmarks.updates_faults.killing import killed
from benchmarks.updates_faults.tearing import torn
from benchmarks.updates_faults.world import World

KILLS, FULL, TORN = 500, 100, 200
LARGE, SMALL = 64, 12
"""Megabytes of the images."""


def main(words: list[str] | None = None) -> int:
    """The command; prints the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.updates_faults", description=__doc__)
    for name, count in (("kills", KILLS), ("full", FULL), ("torn", TORN), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"default {count}")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if why := possible(work):
            print(f"no images can be mounted here: {why}", file=sys.stderr)
            return 1
        found: dict[str, Any] = {}
        for title, count in (("kills", args.kills), ("full", args.full), ("torn", args.torn)):
            if count:
                begun = time.monotonic()
                found[title] = _run(title, World(work / f"{title}-hub"), work, count, args.seed)
                found[title]["seconds"] = round(time.monotonic() - begun, 1)
                print(json.dumps({title: found[title]}), file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))
    return 0


def _run(title: str, world: World, work: Path, count: int, seed: int) -> dict[str, Any]:
    if title == "torn":
        return torn(world, work, count, seed)
    image = made(work / f"{title}.img", SMALL if title == "full" else LARGE)
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(mounted(image, work / title))
        return (filled if title == "full" else killed)(world, at / "device", count, seed)


if __name__ == "__main__":
    sys.exit(main())
