"""A loop's program that SIGKILL ends before and after each event that it has the hub keep, each time once.

    python -m tests.cloud.hub.killed_loop LOOP.toml FOLDER

FOLDER gets an empty file for each of these moments, before the signal.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from cloud.hub.loop.cycle import STEPS, Cycle
from cloud.hub.loop.plan import read_plan
from cloud.hub.loop.runner import Runner, client_of

__all__ = ["MOMENTS"]

MOMENTS = frozenset(
    f"{when} {what}" for when in ("before", "after") for what in ("began", *(f"done {step}" for step in STEPS))
)


def main(plan: Path, folder: Path) -> None:
    store = Runner._store

    def passed(moment: str) -> None:
        if moment in MOMENTS and not (folder / moment).exists():
            (folder / moment).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def killed(self: Runner, cycle: Cycle, kind: str, step: str, *more: Any) -> Cycle:
        words = f"{kind} {step}".strip()
        passed(f"before {words}")
        found = store(self, cycle, kind, step, *more)
        passed(f"after {words}")
        return found

    Runner._store = killed  # type: ignore[method-assign]
    read = read_plan(plan)
    Runner(read, client_of(read), print).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
