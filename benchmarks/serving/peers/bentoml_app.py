"""BentoML: an ONNX Runtime model as a service with one worker, with request logs and metrics off.

    MODEL=model.onnx THREADS=1 ROWS=64 bentoml serve bentoml_app:Onnx --port PORT

ROWS above 1: adaptive batching of up to this many rows. BentoML batches arrays; bytes must be read by an API without
batching, which passes them to a second service with batching, as its documentation recommends for several services.
"""

import os
from typing import Annotated

import bentoml
import numpy as np
from _session import Session
from bentoml.validators import ContentType

ROWS = int(os.environ["ROWS"])
QUIET = {"metrics": {"enabled": False}, "logging": {"access": {"enabled": False}}, "traffic": {"timeout": 60}}


def session() -> Session:
    """The model, one per service."""
    return Session(os.environ["MODEL"], int(os.environ["THREADS"]), os.environ.get("TELL", ""))


if ROWS > 1:

    @bentoml.service(workers=1, **QUIET)
    class Batches:
        """The model behind `raw`."""

        def __init__(self) -> None:
            self.session = session()

        @bentoml.api(batchable=True, max_batch_size=ROWS, max_latency_ms=30000)
        def rows(self, x: np.ndarray) -> np.ndarray:
            return self.session.run(x)

    @bentoml.service(workers=1, **QUIET)
    class Onnx:
        """Input as JSON numbers, batched here, or as bytes to `raw`."""

        batches = bentoml.depends(Batches)

        def __init__(self) -> None:
            self.session = session()

        @bentoml.api(batchable=True, max_batch_size=ROWS, max_latency_ms=30000)
        def predict(self, x: np.ndarray) -> np.ndarray:
            return self.session.run(x.astype(np.float32))

        @bentoml.api
        async def raw(self, x: Annotated[bytes, ContentType("application/octet-stream")], /) -> bytes:
            rows = np.frombuffer(x, np.float32).reshape(-1, *self.session.row)
            return bytes((await self.batches.to_async.rows(rows)).astype(np.float32).tobytes())

else:

    @bentoml.service(workers=1, **QUIET)
    class Onnx:  # type: ignore[no-redef]
        """Input as JSON numbers, or as bytes to `raw`."""

        def __init__(self) -> None:
            self.session = session()

        @bentoml.api
        def predict(self, x: np.ndarray) -> np.ndarray:
            return self.session.run(x.astype(np.float32))

        @bentoml.api
        def raw(self, x: Annotated[bytes, ContentType("application/octet-stream")], /) -> bytes:
            return bytes(self.session.run(np.frombuffer(x, np.float32)).tobytes())
