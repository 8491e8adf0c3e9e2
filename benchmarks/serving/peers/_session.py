"""ONNX Runtime as all peers run it here: a given number of threads, and one call per batch of rows."""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import numpy as np
import onnxruntime


class Session:
    """A model. If a file is given, the number of calls by number of rows is written there twice a second."""

    def __init__(self, path: str, threads: int, tell: str = "") -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = self._session.get_inputs()[0]
        self.input, self.output = given.name, self._session.get_outputs()[0].name
        self.row = tuple(d if isinstance(d, int) else 1 for d in given.shape[1:])
        self._tell, self._told, self._rows = tell, 0.0, Counter[int]()

    def run(self, x: np.ndarray) -> np.ndarray:
        """The outputs for rows; x may be flat."""
        x = x.reshape(-1, *self.row)
        y = self._session.run([self.output], {self.input: x})[0]
        if self._tell:
            self._count(len(x))
        return y

    def rows(self, given: list[np.ndarray]) -> list[np.ndarray]:
        """One call for all inputs; returns each one's rows of the outputs."""
        sizes = [x.size for x in given]
        y = self.run(np.concatenate([x.reshape(-1) for x in given]))
        ends = np.cumsum(sizes)[:-1] * len(y) // sum(sizes)
        return np.split(y, ends)

    def _count(self, rows: int) -> None:
        self._rows[rows] += 1
        now = time.monotonic()
        if now > self._told + 0.5:
            self._told = now
            with open(f"{self._tell}.{os.getpid()}.new", "w") as file:
                json.dump(self._rows, file)
            os.replace(file.name, f"{self._tell}.{os.getpid()}")
