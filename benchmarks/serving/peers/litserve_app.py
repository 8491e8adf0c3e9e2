"""LitServe: an ONNX Runtime model, batching off, one worker, its fastest on two cores.

    python litserve_app.py MODEL.onnx PORT THREADS
"""

import base64
import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime


class Onnx(litserve.LitAPI):
    """Input as base64 of its bytes, or as JSON numbers."""

    def setup(self, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(sys.argv[3])
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0].name

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        if "b64" in request:
            return np.frombuffer(base64.b64decode(request["b64"]), np.float32).reshape(request["shape"])
        return np.asarray(request["data"], np.float32).reshape(request["shape"])

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {self.input: x})[0]

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"data": output.ravel().tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Onnx(), accelerator="cpu", workers_per_device=1)
    server.run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="error")
