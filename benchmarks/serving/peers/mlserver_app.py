"""MLServer: an ONNX Runtime model under the V2 protocol, without worker processes and metrics, with uvloop.

    ROWS=64 python mlserver_app.py MODEL.onnx PORT THREADS

ROWS above 1: adaptive batches of up to this many requests, which wait a millisecond for one another; with a shorter
wait MLServer does not batch.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys

import numpy as np
from _session import Session
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from mlserver.utils import install_uvloop_event_loop

ROWS = int(os.environ["ROWS"])
WAIT = 0.001


class Onnx(MLModel):
    """Input as JSON numbers, or as base64 of its bytes if the datatype says so."""

    async def load(self) -> bool:
        self.session = Session(sys.argv[1], int(sys.argv[3]), os.environ.get("TELL", ""))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if given.datatype == "BYTES":
            x = np.frombuffer(b"".join(base64.b64decode(text) for text in given.data.root), np.float32)
        else:
            x = np.asarray(given.data.root, np.float32)
        y = self.session.run(x)
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output(self.session.output, y)])


async def main() -> None:
    """Serve until killed."""
    settings = Settings(
        http_port=int(sys.argv[2]),
        grpc_port=int(sys.argv[2]) + 1,
        metrics_endpoint=None,
        parallel_workers=0,
        host="127.0.0.1",
        debug=False,
    )
    batches = {"max_batch_size": ROWS, "max_batch_time": WAIT} if ROWS > 1 else {}
    await MLServer(settings).start([ModelSettings(name="model", implementation=Onnx, **batches)])


install_uvloop_event_loop()
asyncio.run(main())
