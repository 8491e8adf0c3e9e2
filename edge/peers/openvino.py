"""OpenVINO as a peer, for ONNX and TensorFlow Lite models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.peers._first import OPENVINO as SETTINGS
from edge.peers._first import import_openvino
from edge.peers.litert import LiteRT, is_tflite
from edge.peers.oracle import OracleError
from lite_runtime.graph import Array

__all__ = ["OpenVINO"]


class OpenVINO:
    """One source model in OpenVINO on CPU; inputs are shared, outputs copied. Names are those of the source; for a
    .tflite, those of its signature.

    Tensors are set one by one: passing them to `infer` takes 20 µs more.
    """

    def __init__(self, source: Path, *, threads: int = 1) -> None:
        openvino = import_openvino()
        self.model, self._tensor = source, openvino.Tensor
        core = openvino.Core()
        try:
            model = core.read_model(str(source))
            compiled = core.compile_model(model, "CPU", {**SETTINGS, "INFERENCE_NUM_THREADS": str(threads)})
        except RuntimeError as error:
            raise OracleError(f"OpenVINO cannot load the source model: {_reason(error)}") from None
        self._request = compiled.create_infer_request()
        names = LiteRT(source).tensors if is_tflite(source) else {}
        self._inputs = [_names(port, names) for port in model.inputs]
        # Results of a compiled model also have names of fused nodes; those of the model have only the file's names.
        self._outputs = [min(_names(port, names)) for port in model.outputs]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Outputs by name."""
        request = self._request
        try:
            for i, names in enumerate(self._inputs):
                array = next(inputs[name] for name in names if name in inputs)
                request.set_input_tensor(i, self._tensor(array, shared_memory=True))
            request.infer(share_outputs=True)
            return {name: request.get_output_tensor(i).data.copy() for i, name in enumerate(self._outputs)}
        except RuntimeError as error:
            raise OracleError(f"OpenVINO cannot run the source model: {_reason(error)}") from None


def _names(port: Any, signature: Mapping[str, str]) -> set[str]:
    """The source's names of an input or output. signature: its names by the names of the tensors."""
    names = set(port.get_names())
    return {signature[name] for name in names if name in signature} or names


def _reason(error: RuntimeError) -> str:
    """The line of OpenVINO's report that states the error: the last one that is not a heading or summary."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in reversed(lines) if not line.startswith("--") and not line.endswith(":")), lines[-1])
