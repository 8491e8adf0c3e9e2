"""A process of devices: `python -m edge.demo.updates.crew`, which reads a line of JSON for each thing it is asked.

A device is one thread for each of its three tasks, and has nothing in common with the others but this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edge.demo.updates.device import Device, Said
from edge.demo.updates.scene import mine_in
from lite_runtime.errors import MsedgeError

__all__ = ["Crew", "environment"]

_ENROLLING = 8


class Crew:
    """A process of devices, seen from outside, which waits for what it is told first (see `main`). Raises MsedgeError
    if it ends."""

    def __init__(self, log: Path) -> None:
        with log.open("a") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge.demo.updates.crew"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=file, text=True, env=environment(),
            )  # fmt: skip
        self._log = log

    def say(self, words: Mapping[str, Any]) -> None:
        """Ask something; `heard` gives the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def heard(self) -> Any:
        """The answer, when it is there."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> MsedgeError:
        self._process.wait()
        return MsedgeError(f"a process of devices ended: {self._log.read_text()[-1500:]}")

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def environment() -> dict[str, str]:
    """Of processes of the demo: they find the same packages, and use one thread for products of matrices."""
    found = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main() -> int:
    """Answer requests until standard input ends. The first has `folder`, `scene` (a folder of what devices see), `url`,
    `root`, `streams`, `names` and `tokens` of the devices here, `drawn`, `every`."""
    words = json.loads(sys.stdin.readline())
    lock = threading.Lock()

    def log(line: str) -> None:
        with lock:
            print(line, file=sys.stderr, flush=True)

    root = Path(words["root"]).read_bytes()
    said = Said(words["url"], root, words["streams"], words["drawn"], words["every"])

    def made(pair: tuple[str, str]) -> Device:
        name, token = pair
        return Device(name, Path(words["folder"], name), mine_in(Path(words["scene"], f"{name}.npz")), token, said, log)

    pairs = list(zip(words["names"], words["tokens"], strict=True))
    with ThreadPoolExecutor(_ENROLLING) as pool:
        devices = list(pool.map(made, pairs))
    for device in devices:
        device.start()
    _answer({"enrolled": len(devices)})
    for line in sys.stdin:
        asked = json.loads(line)["ask"]
        _answer(_DO[asked](devices))
    for device in devices:
        device.stop()
    for device in devices:
        device.join()
    return 0


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


def _each(call: Callable[[Device], Any]) -> Callable[[Sequence[Device]], list[Any]]:
    return lambda devices: [call(device) for device in devices]


def _change(device: Device) -> bool:
    if device.mine.changes:
        device.change()
    return device.mine.changes


_DO: Mapping[str, Callable[[Sequence[Device]], list[Any]]] = {
    "personalise": _each(lambda device: device.personalise()),
    "talk": _each(lambda device: device.talks.set()),
    "hush": _each(lambda device: device.talks.clear()),
    "change": _each(_change),
    "measure": _each(Device.measure),
}
"""What a crew may be asked."""


if __name__ == "__main__":
    sys.exit(main())
