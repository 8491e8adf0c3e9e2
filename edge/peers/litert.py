"""LiteRT as the peer for TensorFlow Lite models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edge.peers.detections import clear, counted
from edge.peers.oracle import OracleError
from lite_runtime.graph import Array, Value, dtype_name

__all__ = ["PLAINER", "Kernels", "LiteRT", "is_tflite"]

Kernels = Literal["delegate", "own", "reference"]
PLAINER: dict[Kernels, Kernels] = {"delegate": "own", "own": "reference", "reference": "reference"}
"""The next kernels with fewer optimisations."""
_RESOLVERS: dict[Kernels, str] = {
    "delegate": "AUTO",
    "own": "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "reference": "BUILTIN_REF",
}


def is_tflite(path: Path) -> bool:
    """Whether the file has TensorFlow Lite's file identifier at the position that FlatBuffers defines."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"TFL3"


class LiteRT:
    """One .tflite in LiteRT on CPU, with its default delegate; without if that fails to prepare the model, as XNNPACK
    does for some models that LiteRT's own kernels run. Names are those of the signature, if the file has one.

    Detections that are not meant are 0, see `edge.peers.detections`.

    `kernels`: "own" and "reference" are LiteRT's, without the delegate. `signature`: the key of a signature; None: the
    first one, or the main subgraph if the file has no signature. `keep`: the values within the model stay readable.
    """

    def __init__(
        self,
        source: Path | bytes,
        *,
        threads: int = 1,
        signature: str | None = None,
        kernels: Kernels = "delegate",
        keep: bool = False,
    ) -> None:
        self.model: Any = source
        self.kernels: Kernels = kernels
        """Those that run the model: "own" also where the delegate failed."""
        self._threads, self._signature, self._keep = threads, signature, keep
        self._may_fall_back = kernels == "delegate"
        try:
            self._open()
        except (ValueError, RuntimeError) as error:
            self._fall_back(error)

    def _open(self) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        given = {"model_content": self.model} if isinstance(self.model, bytes) else {"model_path": str(self.model)}
        with warnings.catch_warnings():  # it warns that keeping all values takes memory
            warnings.simplefilter("ignore", UserWarning)
            self._interpreter = Interpreter(
                **given,
                num_threads=self._threads,
                experimental_op_resolver_type=OpResolverType[_RESOLVERS[self.kernels]],
                experimental_preserve_all_tensors=self._keep,
            )
        allocated = True
        try:
            self._interpreter.allocate_tensors()
        except (ValueError, RuntimeError):
            if all(n >= 0 for d in self._interpreter.get_input_details() for n in d["shape_signature"]):
                raise
            allocated = False  # the stored sizes may be too small; the first run gives others
        keys = list(self._interpreter.get_signature_list())
        self._runner = self._interpreter.get_signature_runner(self._signature or keys[0]) if keys else None
        given_by, made_by = self._details("input"), self._details("output")
        from converter.frontends.tflite.signatures import distinct

        called = distinct([name for name, _ in (*given_by, *made_by)])
        self._entries = dict(zip(called, (d for _, d in given_by), strict=False))
        self._results = dict(zip(called[len(given_by) :], (d for _, d in made_by), strict=True))
        if self._is_main():
            self._runner = None  # the plain interface takes a third of the time
        self._called = dict(zip((name for name, _ in made_by), self._results, strict=True))
        self.inputs = tuple(
            Value(name, dtype_name(d["dtype"]), tuple(None if n < 0 else int(n) for n in d["shape_signature"]))
            for name, d in self._entries.items()
        )
        self.outputs = tuple(self._results)
        sides = self._entries, self._results
        self._given, self._made = ([(name, d["index"]) for name, d in side.items()] for side in sides)
        self._shapes = {n: tuple(map(int, d["shape"])) if allocated else None for n, d in self._entries.items()}
        data = self.model if isinstance(self.model, bytes) else Path(self.model).read_bytes()
        self._counted = counted(data, {d["index"]: name for name, d in self._results.items()})
        self.tensors = {d["name"]: name for side in sides for name, d in side.items()}
        """Names of inputs and outputs by the names of their tensors in the file."""

    def _fall_back(self, error: Exception) -> None:
        """Open the model without the delegate. Raises OracleError, with the first `error`, if that fails too."""
        self._may_fall_back, self.kernels = False, "own"
        try:
            self._open()
        except (ValueError, RuntimeError):
            raise OracleError(f"LiteRT cannot load the source model: {error}") from None

    def values(self) -> dict[str, tuple[str, Array]]:
        """After a run with `keep`: by the name of each tensor, the operator that made it and its real values. Tensors
        within the delegate that it did not fill are missing."""
        details = {d["index"]: d for d in self._interpreter.get_tensor_details()}
        found: dict[str, tuple[str, Array]] = {}
        for op in self._interpreter._get_ops_details():
            for index in op["outputs"]:
                detail = details[int(index)]
                try:
                    array = self._interpreter.get_tensor(detail["index"])
                except ValueError:
                    continue
                found[detail["name"]] = (op["op_name"], _dequantized(array, detail["quantization_parameters"]))
        return found

    def _details(self, side: str) -> list[tuple[str, dict[str, Any]]]:
        """(name, details) of every input or output. A tensor without a name has the one that the converter gives it."""
        if self._runner is not None:
            return list(getattr(self._runner, f"get_{side}_details")().items())
        details = getattr(self._interpreter, f"get_{side}_details")()
        return list({d["index"]: (d["name"] or f"tensor {d['index']}", d) for d in details}.values())

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
            made = self._run(inputs)
        except (ValueError, RuntimeError) as error:
            if not self._may_fall_back:
                raise OracleError(f"LiteRT cannot run the source model: {error}") from None
            self._fall_back(error)
            return self.run(inputs)
        self._may_fall_back = False  # the model may have state by now
        return made

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        made = self._invoke(inputs)
        clear(made, self._counted)
        return made

    def _invoke(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        if self._runner is not None:
            made = self._runner(**inputs)
            return {name: made[own] for own, name in self._called.items()}
        it = self._interpreter
        for name, index in self._given:
            if inputs[name].shape != self._shapes[name]:
                self._resize(inputs)
            it.set_tensor(index, inputs[name])
        it.invoke()
        return {name: it.get_tensor(index) for name, index in self._made}

    def _resize(self, inputs: Mapping[str, Array]) -> None:
        self._shapes = {name: array.shape for name, array in inputs.items()}
        for name, index in self._given:
            self._interpreter.resize_tensor_input(index, inputs[name].shape)
        self._interpreter.allocate_tensors()


def _dequantized(array: Array, params: Mapping[str, Any]) -> Array:
    scales, zeros = params["scales"], params["zero_points"]
    if array.dtype.kind not in "iu" or len(scales) == 0:
        return array
    shape = [-1 if k == params["quantized_dimension"] and len(scales) > 1 else 1 for k in range(array.ndim)]
    real = (array.astype(np.float64) - zeros.reshape(shape)) * scales.reshape(shape)
    return np.asarray(real, np.float32)
