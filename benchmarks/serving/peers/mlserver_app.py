"""MLServer: an ONNX Runtime model under the V2 protocol, batching off, no worker processes: its best on two cores.

    python mlserver_app.py MODEL.onnx PORT THREADS
"""

from __future__ import annotations

import asyncio
import base64
import sys

import numpy as np
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Onnx(MLModel):
    """Input as JSON numbers, or as base64 of its bytes where the content type says so."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(sys.argv[3])
        self.session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
        given = self.session.get_inputs()[0]
        self.input, self.shape = given.name, [d if isinstance(d, int) else 1 for d in given.shape]
        self.output = self.session.get_outputs()[0].name
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if given.datatype == "BYTES":
            raw = base64.b64decode(given.data.root[0])
            x = np.frombuffer(raw, np.float32).reshape(self.shape)
        else:
            x = np.asarray(given.data.root, np.float32).reshape(given.shape)
        (y,) = self.session.run([self.output], {self.input: x})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output(self.output, y)])


async def main() -> None:
    """Serve until killed."""
    settings = Settings(
        http_port=int(sys.argv[2]),
        grpc_port=int(sys.argv[2]) + 1,
        metrics_port=int(sys.argv[2]) + 2,
        parallel_workers=0,
        host="127.0.0.1",
        debug=False,
    )
    await MLServer(settings).start([ModelSettings(name="model", implementation=Onnx)])


asyncio.run(main())
