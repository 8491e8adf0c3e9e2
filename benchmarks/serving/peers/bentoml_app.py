"""BentoML: an ONNX Runtime model as a service with one worker and adaptive batching, as its guide has it.

    MODEL=model.onnx THREADS=1 bentoml serve bentoml_app:Onnx --port PORT
"""

import os
from typing import Annotated

import bentoml
import numpy as np
import onnxruntime
from bentoml.validators import ContentType


@bentoml.service(workers=1, traffic={"timeout": 60})
class Onnx:
    """Input as JSON numbers or, to `raw`, as bytes."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["THREADS"])
        self.session = onnxruntime.InferenceSession(os.environ["MODEL"], options, providers=["CPUExecutionProvider"])
        self.input = self.session.get_inputs()[0]

    @bentoml.api
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.session.run(None, {self.input.name: x.astype(np.float32)})[0]

    @bentoml.api
    def raw(self, x: Annotated[bytes, ContentType("application/octet-stream")], /) -> bytes:
        shape = [d if isinstance(d, int) else 1 for d in self.input.shape]
        y = self.session.run(None, {self.input.name: np.frombuffer(x, np.float32).reshape(shape)})[0]
        return bytes(y.tobytes())
