"""A SuperNode that is started again when it ends: `python -m federated.transport.node` with flower-supernode's options.

A SuperLink counts a node as connected until it has missed its heartbeats for a minute, and refuses a node with the same
key in the meantime (Flower 1.41: code 2004, the SuperNode ends with exit code 1). A node that was killed and restarted
within that minute would therefore stay away; started again and again, it is let in when the minute is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

__all__ = ["keep"]

FIRST, LONGEST = 2.0, 30.0
"""Seconds until the next start: doubled from the first to the longest while the node ends at once."""
STEADY = 60.0
"""A node that ran for so many seconds was let in."""


def keep(command: Sequence[str | os.PathLike[str]], *, first: float = FIRST, longest: float = LONGEST) -> int:
    """Run a command until it ends with exit code 0, or until this process gets SIGTERM or SIGINT, which is passed on;
    returns the last exit code."""
    running: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for process in running:
            process.send_signal(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        pause = first
        while True:
            begun = time.monotonic()
            with subprocess.Popen(command) as process:
                running[:] = [process]
                if asked:  # between two starts
                    process.terminate()
                code = process.wait()
            running.clear()
            if code == 0 or asked:
                return code
            pause = first if time.monotonic() - begun > STEADY else pause
            print(f"node: the SuperNode ended with exit code {code}; it is started again in {pause:g} s",
                  file=sys.stderr, flush=True)  # fmt: skip
            if _waited(pause, asked):
                return code
            pause = min(2 * pause, longest)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _waited(seconds: float, asked: Sequence[int]) -> bool:
    """Wait; whether a signal came meanwhile (`time.sleep` goes on after one)."""
    until = time.monotonic() + seconds
    while not asked and time.monotonic() < until:
        time.sleep(min(0.2, seconds))
    return bool(asked)


if __name__ == "__main__":
    beside = Path(sys.executable).parent / "flower-supernode"
    raise SystemExit(keep([beside if beside.exists() else "flower-supernode", *sys.argv[1:]]))
