"""Ray Serve: an ONNX Runtime model, one replica, dynamic batches of up to 32 with no wait.

    python ray_app.py MODEL.onnx PORT THREADS
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import onnxruntime
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=1, max_ongoing_requests=256)
class Onnx:
    """Input as bytes, or as JSON numbers; the same comes back."""

    def __init__(self, path: str, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0]
        self.shape = [d if isinstance(d, int) else 1 for d in self.input.shape]

    def run(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {self.input.name: x.reshape(self.shape)})[0]

    async def __call__(self, request: Request) -> Any:
        if request.headers.get("content-type", "").startswith("application/json"):
            given = await request.json()
            return {"data": self.run(np.asarray(given["data"], np.float32)).ravel().tolist()}
        return Response(self.run(np.frombuffer(await request.body(), np.float32)).tobytes())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[2])})
    serve.run(Onnx.bind(sys.argv[1], int(sys.argv[3])))
    while True:
        time.sleep(3600)
