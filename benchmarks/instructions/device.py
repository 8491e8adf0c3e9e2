"""Runs a model some times on an emulated processor: python device.py msedge|onnxruntime|litert MODEL RUNS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np


def given(shape: Any, dtype: Any) -> Any:
    """An input of integers, so that no function of the system has a part in it; open sizes are 1."""
    rng, dtype = np.random.Generator(np.random.PCG64(7)), np.dtype(dtype)
    shape = [size if isinstance(size, int) and size > 0 else 1 for size in shape]
    if dtype.itemsize == 1:
        return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape, dtype)
    whole = rng.integers(0, 5, shape) if dtype.kind in "iu" else rng.integers(-1024, 1024, shape) / np.float32(512)
    return whole.astype(dtype)


def msedge(path: str) -> Callable[[], Any]:
    """One thread, kernels alone."""
    import lite_runtime

    model = lite_runtime.load(path, threads=1, backend="native")
    inputs = {port.name: given(port.shape or (), port.dtype) for port in model.inputs()}
    return lambda: model.run(inputs)


def onnxruntime(path: str) -> Callable[[], Any]:
    """One thread; results are new arrays, as ours are."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": "float32", "tensor(int8)": "int8", "tensor(uint8)": "uint8", "tensor(int64)": "int64"}
    inputs = {port.name: given(port.shape, types[port.type]) for port in session.get_inputs()}
    return lambda: session.run(None, inputs)


def litert(path: str) -> Callable[[], Any]:
    """One thread, with XNNPACK where it can; inputs and results are copied, as ours are."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    interpreter.allocate_tensors()
    ports = interpreter.get_input_details()
    details = [(port["index"], given(port["shape"].tolist(), port["dtype"])) for port in ports]
    outputs = [port["index"] for port in interpreter.get_output_details()]

    def run() -> list[Any]:
        for index, array in details:
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in outputs]

    return run


if __name__ == "__main__":
    run = {"msedge": msedge, "onnxruntime": onnxruntime, "litert": litert}[sys.argv[1]](sys.argv[2])
    for _ in range(int(sys.argv[3])):
        run()
