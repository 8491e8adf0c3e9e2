"""LitServe: an ONNX Runtime model with one worker.

    ROWS=64 QUEUE=fast python litserve_app.py MODEL.onnx PORT THREADS

ROWS above 1: batches of up to this many rows, from the requests that wait when the worker is free. QUEUE=fast: messages
between its processes use ZeroMQ.
"""

import base64
import os
import sys
from typing import Any

import litserve
import numpy as np
from _session import Session

ROWS = int(os.environ["ROWS"])


class Onnx(litserve.LitAPI):
    """Input as base64 of its bytes, or as JSON numbers."""

    def setup(self, device: str) -> None:
        self.session = Session(sys.argv[1], int(sys.argv[3]), os.environ.get("TELL", ""))

    def decode_request(self, request: dict[str, Any]) -> np.ndarray:
        if "b64" in request:
            return np.frombuffer(base64.b64decode(request["b64"]), np.float32).reshape(request["shape"])
        return np.asarray(request["data"], np.float32).reshape(request["shape"])

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(x)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"data": output.ravel().tolist()}


class Batches(Onnx):
    """The same, for several requests at a time."""

    def batch(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        return inputs

    def predict(self, x: list[np.ndarray]) -> list[np.ndarray]:  # type: ignore[override]
        return self.session.rows(x)

    def unbatch(self, output: list[np.ndarray]) -> list[np.ndarray]:
        return output


if __name__ == "__main__":
    api = Batches(max_batch_size=ROWS, batch_timeout=0.0) if ROWS > 1 else Onnx()
    fast = os.environ.get("QUEUE") == "fast"
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=fast)
    server.run(port=int(sys.argv[2]), host="127.0.0.1", generate_client_file=False, log_level="error")
