"""LiteRT as the peer for TensorFlow Lite models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.peers.oracle import OracleError
from lite_runtime.graph import Array, Value, dtype_name

__all__ = ["LiteRT", "is_tflite"]


def is_tflite(path: Path) -> bool:
    """Whether the file has TensorFlow Lite's file identifier at the position that FlatBuffers defines."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"TFL3"


class LiteRT:
    """One .tflite in LiteRT with its default delegates, on CPU. Names are those of the signature, if the file has one.

    `signature`: the key of a signature; None: the first one, or the main subgraph if the file has no signature.
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
        if self._is_main():
            self._runner = None  # the plain interface takes a third of the time
        self.inputs = tuple(
            Value(name, dtype_name(d["dtype"]), tuple(None if n < 0 else int(n) for n in d["shape_signature"]))
            for name, d in self._entries.items()
        )
        self.outputs = tuple(self._results)
        sides = self._entries, self._results
        self._given, self._made = ([(name, d["index"]) for name, d in side.items()] for side in sides)
        self._shapes = {name: tuple(map(int, d["shape"])) for name, d in self._entries.items()}
        self.tensors = {d["name"]: name for side in sides for name, d in side.items()}
        """Names of inputs and outputs by the names of their tensors in the file."""

    def _details(self, side: str) -> dict[str, dict[str, Any]]:
        if self._runner is not None:
            return dict(getattr(self._runner, f"get_{side}_details")())
        return {d["name"]: d for d in getattr(self._interpreter, f"get_{side}_details")()}

    def _is_main(self) -> bool:
        """Whether the signature is the main subgraph, tensor by tensor."""
        it = self._interpreter
        both = (self._entries, it.get_input_details()), (self._results, it.get_output_details())
        return all(
            sorted((d["index"], d["name"]) for d in ours.values()) == sorted((d["index"], d["name"]) for d in main)
            for ours, main in both
        )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Outputs by name. If an input's shape differs from the last run, the model is resized first.

        This method does as little as possible besides calling LiteRT, which runs some models in a microsecond.
        """
        try:
            if self._runner is not None:
                return dict(self._runner(**inputs))
            it = self._interpreter
            for name, index in self._given:
                if inputs[name].shape != self._shapes[name]:
                    self._resize(inputs)
                it.set_tensor(index, inputs[name])
            it.invoke()
            return {name: it.get_tensor(index) for name, index in self._made}
        except (ValueError, RuntimeError) as error:
            raise OracleError(f"LiteRT cannot run the source model: {error}") from None

    def _resize(self, inputs: Mapping[str, Array]) -> None:
        self._shapes = {name: array.shape for name, array in inputs.items()}
        for name, index in self._given:
            self._interpreter.resize_tensor_input(index, self._shapes[name])
        self._interpreter.allocate_tensors()
