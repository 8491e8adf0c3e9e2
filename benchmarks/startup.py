"""`python -m benchmarks.startup MODEL.tflite [--rounds N] [--json]`: time to the first result, memory, size.

Every contender is a separate process that imports, loads the model, runs it once and ends; they take turns. Seconds are
counted from before the process is created until it has its result; memory is the peak resident size (VmHWM). Ours is
the runtime as a device installs it (`lite_runtime.native.wheel`): `msedge` finds the program that an earlier start
stored; `msedge, first start` has an empty cache, so it unpacks its kernels and plans. No contender loads this
environment's site folder (`python -S`).
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from converter import convert
from lite_runtime.native import wheel
from lite_runtime.native.target import host
from lite_runtime.running.session import load

NUMPY = "numpy alone"
OURS, FIRST = "msedge", "msedge, first start"
SCRIPTS: Mapping[str, str] = {
    NUMPY: "import numpy",
    OURS: """
import numpy as np, lite_runtime
model = lite_runtime.load(bundle)
model.run({name: np.zeros(shape, dtype) for name, dtype, shape in inputs})
""",
    "litert": """
import numpy as np
from ai_edge_litert.interpreter import Interpreter
model = Interpreter(source, num_threads=1)
model.allocate_tensors()
for detail in model.get_input_details():
    model.set_tensor(detail["index"], np.zeros(detail["shape"], detail["dtype"]))
model.invoke()
for detail in model.get_output_details():
    model.get_tensor(detail["index"])
""",
    "onnxruntime": """
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 1, 3
model = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
model.run(None, {name: np.zeros(shape, dtype) for name, dtype, shape in inputs})
""",
}
PACKAGES: Mapping[str, str] = {"litert": "ai_edge_litert", "onnxruntime": "onnxruntime"}
_REPORT = """
import time
print(time.monotonic())
with open("/proc/self/status") as lines:
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


class Start(NamedTuple):
    """One contender's cold start: medians over processes."""

    name: str
    seconds: float
    least_seconds: float
    peak_bytes: int
    installed_bytes: int
    """Bytes on disk, including bytecode, without NumPy."""


def starts(source: Path, rounds: int) -> list[Start]:
    """Cold starts of every installed contender with a TensorFlow Lite model."""
    target = host()
    assert target is not None, "no native kernels on this processor"
    with tempfile.TemporaryDirectory() as held:
        folder = Path(held)
        device = folder / "device" / "lite_runtime"
        wheel.fill(str(device), [target.name])
        compileall.compile_dir(device, quiet=1)
        facts = _models(source, folder)
        names = [name for name in SCRIPTS if name not in PACKAGES or find_spec(PACKAGES[name])]
        taken: dict[str, list[tuple[float, int]]] = {name: [] for name in (*names, FIRST)}
        for turn in range(rounds + 1):
            for name in taken:
                cache = folder / (f"first{turn}" if name == FIRST else "cache")
                one = _start(SCRIPTS[OURS if name == FIRST else name], facts, device.parent, cache)
                if turn:
                    taken[name].append(one)
        return [_start_of(name, runs, device) for name, runs in taken.items()]


def _models(source: Path, folder: Path) -> dict[str, object]:
    """The model in every contender's format, and its inputs."""
    bundle, onnx = folder / "model.mslite", folder / "model.onnx"
    convert(source, output=bundle)
    convert(source, output=onnx, to="onnx")
    values = load(bundle).inputs()
    inputs = [(v.name, v.dtype, [d if isinstance(d, int) else 1 for d in v.shape or ()]) for v in values]
    return {"bundle": str(bundle), "source": str(source), "onnx": str(onnx), "inputs": inputs}


def _start(script: str, facts: Mapping[str, object], device: Path, cache: Path) -> tuple[float, int]:
    """Seconds and peak bytes of one process."""
    assert np.__file__
    path = os.pathsep.join((str(device), str(Path(np.__file__).parents[1])))
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment = {**kept, "PYTHONPATH": path, "MSEDGE_CACHE": str(cache)}
    given = "\n".join(f"{name} = {value!r}" for name, value in facts.items())
    command = [sys.executable, "-S", "-W", "ignore", "-c", given + "\n" + script + _REPORT]
    begin = time.monotonic()
    done = subprocess.run(command, env=environment, cwd=device, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    end, peak = done.stdout.split()
    return float(end) - begin, 1024 * int(peak)


def _start_of(name: str, runs: list[tuple[float, int]], device: Path) -> Start:
    seconds = [taken for taken, _ in runs]
    size = 0
    if name in PACKAGES:
        spec = find_spec(PACKAGES[name])
        assert spec is not None and spec.origin is not None
        size = _size(Path(spec.origin).parent)
    elif name != NUMPY:
        size = _size(device)
    return Start(name, statistics.median(seconds), min(seconds), int(statistics.median(b for _, b in runs)), size)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


COLUMNS: Mapping[str, Callable[[Start, Start], str]] = {
    "contender": lambda row, base: row.name,
    "ms": lambda row, base: f"{1e3 * row.seconds:.1f}",
    "over NumPy": lambda row, base: f"+{1e3 * (row.seconds - base.seconds):.1f}",
    "fastest": lambda row, base: f"{1e3 * row.least_seconds:.1f}",
    "peak MB": lambda row, base: f"{row.peak_bytes / 1e6:.1f}",
    "installed MB": lambda row, base: f"{row.installed_bytes / 1e6:.1f}",
}


def main() -> None:
    """A Markdown table, or JSON."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.startup", description="Cold start: time from process start to the first result."
    )
    parser.add_argument("model", type=Path, metavar="MODEL.tflite")
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="processes per contender")
    parser.add_argument("--json", action="store_true", help="JSON instead of Markdown")
    args = parser.parse_args()
    rows = starts(args.model, args.rounds)
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
        return
    print("|" + "|".join(COLUMNS) + "|\n|---" + "|---:" * (len(COLUMNS) - 1) + "|")
    for row in rows:
        print("|" + "|".join(cell(row, rows[0]) for cell in COLUMNS.values()) + "|")


if __name__ == "__main__":
    main()
