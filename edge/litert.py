"""LiteRT as the peer for TensorFlow Lite models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.oracle import OracleError
from lite_runtime.graph import Array, Value, dtype_name

__all__ = ["LiteRT", "is_tflite"]


def is_tflite(path: Path) -> bool:
    """Whether the file identifier of TensorFlow Lite stands where FlatBuffers puts it."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"TFL3"


class LiteRT:
    """One .tflite in LiteRT with its default delegates, on CPU. Names are the signature's where the file has one.

    `signature`: which one, by its key; without it the first, or the main subgraph of a file that names none.
    """

    def __init__(self, source: Path | bytes, *, threads: int = 1, signature: str | None = None) -> None:
        from ai_edge_litert.interpreter import Interpreter

        given = {"model_content": source} if isinstance(source, bytes) else {"model_path": str(source)}
        self.model: Any = source
        try:
            self._interpreter = Interpreter(**given, num_threads=threads)
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise OracleError(f"LiteRT cannot load the source model: {error}") from None
        keys = list(self._interpreter.get_signature_list())
        self._runner = self._interpreter.get_signature_runner(signature or keys[0]) if keys else None
        self._entries = self._details("input")
        self._results = self._details("output")
        self.inputs = tuple(
            Value(name, dtype_name(d["dtype"]), tuple(None if n < 0 else int(n) for n in d["shape_signature"]))
            for name, d in self._entries.items()
        )
        self.outputs = tuple(self._results)

    def _details(self, side: str) -> dict[str, dict[str, Any]]:
        if self._runner is not None:
            return dict(getattr(self._runner, f"get_{side}_details")())
        return {d["name"]: d for d in getattr(self._interpreter, f"get_{side}_details")()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Outputs by name. Inputs of another shape than the last run's resize the model first."""
        try:
            if self._runner is not None:
                return dict(self._runner(**inputs))
            return self._invoke(inputs)
        except (ValueError, RuntimeError) as error:
            raise OracleError(f"LiteRT cannot run the source model: {error}") from None

    def _invoke(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        it, resized = self._interpreter, False
        for name, detail in self._entries.items():
            if tuple(detail["shape"]) != inputs[name].shape:
                it.resize_tensor_input(detail["index"], inputs[name].shape)
                detail["shape"], resized = inputs[name].shape, True
        if resized:
            it.allocate_tensors()
        for name, detail in self._entries.items():
            it.set_tensor(detail["index"], inputs[name])
        it.invoke()
        return {name: it.get_tensor(detail["index"]) for name, detail in self._results.items()}
