"""Ray Serve: an ONNX Runtime model with one replica and without request logs.

    ROWS=64 python ray_app.py MODEL.onnx PORT THREADS

ROWS above 1: `serve.batch` of up to this many rows, from the requests that wait when the previous batch is done, with
no further wait.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import ray
from _session import Session
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig
from starlette.requests import Request
from starlette.responses import Response

ROWS = int(os.environ["ROWS"])
QUIET = LoggingConfig(enable_access_log=False, log_level="ERROR")


@serve.deployment(num_replicas=1, max_ongoing_requests=256, logging_config=QUIET, ray_actor_options={"num_cpus": 1})
class Onnx:
    """Input as bytes or JSON numbers; the output has the same form."""

    def __init__(self, path: str, threads: int, rows: int, tell: str) -> None:
        self.session, self.many = Session(path, threads, tell), rows > 1

    @serve.batch(max_batch_size=max(ROWS, 1), batch_wait_timeout_s=0.0)
    async def batched(self, given: list[np.ndarray]) -> list[np.ndarray]:
        return self.session.rows(given)

    async def answer(self, x: np.ndarray) -> np.ndarray:
        return await self.batched(x) if self.many else self.session.run(x)

    async def __call__(self, request: Request) -> Any:
        if request.headers.get("content-type", "").startswith("application/json"):
            given = await request.json()
            return {"data": (await self.answer(np.asarray(given["data"], np.float32))).ravel().tolist()}
        return Response((await self.answer(np.frombuffer(await request.body(), np.float32))).tobytes())


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(sys.argv[2])), logging_config=QUIET)
    serve.run(Onnx.bind(sys.argv[1], int(sys.argv[3]), ROWS, os.environ.get("TELL", "")))
    while True:
        time.sleep(3600)
