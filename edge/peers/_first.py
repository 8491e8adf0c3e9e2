"""A script that `edge/peers/apart.py` runs as a separate process: it measures a runtime's start up to its first result.

Arguments: runtime, model, threads, our backend, inputs (.npz), `perf_counter` when the process was requested. Prints
the seconds since then and the peak bytes of resident memory. Imports only the modules that this runtime needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np

OPENVINO: Mapping[str, str] = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": "NO",
}
"""Settings for the lowest latency: one stream, float32 arithmetic for float32 models (integers stay integers), and
threads that are not pinned to cores. Pinning gains nothing if all cores are idle and loses most of the time if not."""

Inputs = dict[str, np.ndarray]


def _numpy(path: str, threads: int, inputs: Inputs, backend: str) -> None:
    """The baseline that every runtime includes: importing NumPy and reading the inputs."""


def _msedge(path: str, threads: int, inputs: Inputs, backend: str) -> None:
    import lite_runtime

    lite_runtime.load(path, threads=threads, backend=backend).run(inputs)


def _onnxruntime(path: str, threads: int, inputs: Inputs, backend: str) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)


def _litert(path: str, threads: int, inputs: Inputs, backend: str) -> None:
    from ai_edge_litert.interpreter import Interpreter

    model: Any = Interpreter(path, num_threads=threads)
    details = {d["name"]: d for d in model.get_input_details()}
    for name, array in inputs.items():
        if tuple(details[name]["shape"]) != array.shape:
            model.resize_tensor_input(details[name]["index"], array.shape)
    model.allocate_tensors()
    for name, array in inputs.items():
        model.set_tensor(details[name]["index"], array)
    model.invoke()
    for detail in model.get_output_details():
        model.get_tensor(detail["index"])


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, for which it would fork a process that sends data to its vendor."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # cannot be imported: a stub is used
    import openvino

    return openvino


def _openvino(path: str, threads: int, inputs: Inputs, backend: str) -> None:
    openvino = import_openvino()
    compiled = openvino.Core().compile_model(path, "CPU", {**OPENVINO, "INFERENCE_NUM_THREADS": str(threads)})
    compiled.create_infer_request().infer(inputs, share_inputs=True)


RUNTIMES: Mapping[str, Callable[[str, int, Inputs, str], None]] = {
    "numpy": _numpy,
    "msedge": _msedge,
    "onnxruntime": _onnxruntime,
    "litert": _litert,
    "openvino": _openvino,
}


def _peak_bytes() -> int:
    """Peak bytes of this process alone: `ru_maxrss` would include the parent's memory at the time of the fork."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    runtime, model_path, workers, how, arrays, asked = sys.argv[1:]
    RUNTIMES[runtime](model_path, int(workers), dict(np.load(arrays)), how)
    taken = perf_counter() - float(asked)
    print(taken, _peak_bytes())
