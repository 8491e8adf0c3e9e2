"""A runtime in a separate process (`edge/peers/_first.py`): the cost of its start, and whether a model crashes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np

from edge.peers import _first
from edge.peers.litert import LiteRT, is_tflite
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["Crashed", "check", "cold", "write_inputs"]

_SCRIPT = Path(_first.__file__)


class Crashed(MsedgeError):
    """A runtime crashed its process."""


def cold(name: str, model: Path, threads: int, inputs: Path, *, backend: str = "auto") -> tuple[float, int]:
    """Seconds from requesting a process to the first result, and that process's peak bytes of memory.

    inputs: an .npz written by `write_inputs`. Raises Crashed, or MsedgeError with the end of the process's stderr.
    """
    # -P: keeps the script's folder off the import path, because other files there have the names of runtimes.
    command = [sys.executable, "-P", "-W", "ignore", str(_SCRIPT), name, str(model), str(threads), backend, str(inputs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([*command, repr(perf_counter())], env=environment, capture_output=True, text=True)
    if done.returncode < 0:
        raise Crashed(f"{name} crashed on {model.name}: {signal.Signals(-done.returncode).name}")
    if done.returncode:
        raise MsedgeError(f"{name} failed on {model.name} in a separate process: {done.stderr.strip()[-500:]}")
    seconds, peak = done.stdout.split()[-2:]
    return float(seconds), int(peak)


def write_inputs(path: Path, inputs: Mapping[str, Array], model: Path | None = None) -> Path:
    """Write `inputs` as an .npz. model: a .tflite whose tensor names are used if its signature has other names."""
    if model is not None and is_tflite(model):
        tensors = {name: tensor for tensor, name in LiteRT(model).tensors.items()}
        inputs = {tensors[name]: array for name, array in inputs.items()}
    np.savez(path, **inputs)  # type: ignore[arg-type]
    return path


def check(name: str, model: Path, threads: int, inputs: Mapping[str, Array]) -> None:
    """Raise Crashed if running the model would crash the runtime's process.

    All other errors can be caught when they occur. OpenVINO 2026.4 crashes on a DenseNet quantised by ONNX Runtime.
    """
    shapes = tuple((n, array.dtype.str, array.shape) for n, array in inputs.items())
    words = _last_words(name, model, model.stat().st_mtime_ns, threads, shapes)
    if words:
        raise Crashed(words)


@cache
def _last_words(
    name: str, model: Path, changed: int, threads: int, shapes: tuple[tuple[str, str, tuple[int, ...]], ...]
) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            zeros = {n: np.zeros(shape, dtype) for n, dtype, shape in shapes}
            cold(name, model, threads, write_inputs(Path(folder) / "inputs.npz", zeros, model))
        except Crashed as error:
            return str(error)
        except MsedgeError:
            pass
    return ""
