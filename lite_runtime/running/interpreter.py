"""The interface of tflite_runtime's Interpreter over a bundle, so that code written for it needs few changes.

Details follow TensorFlow Lite's Python API: tensors are numbered, inputs first, then outputs; unknown sizes are 1 until
`resize_tensor_input`, and `shape_signature` shows them as -1.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from lite_runtime.bundle import Bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Value, numpy_dtype
from lite_runtime.running.session import Binding, Model, load

__all__ = ["Interpreter", "SignatureRunner", "scales_of"]


def _resolved(value: Value) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else 1 for d in value.shape or ())


def _details(index: int, value: Value, shape: tuple[int, ...], scales: Scales) -> dict[str, Any]:
    signature = [d if isinstance(d, int) else -1 for d in value.shape or ()]
    found = scales.get(value.name, _REAL)
    single = len(found["scales"]) == 1
    return {
        "name": value.name,
        "index": index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(signature, np.int32),
        "dtype": numpy_dtype(value.dtype).type,
        "quantization": (found["scales"][0], found["zero_points"][0]) if single else (0.0, 0),
        "quantization_parameters": {
            "scales": np.array(found["scales"], np.float32),
            "zero_points": np.array(found["zero_points"], np.int32),
            "quantized_dimension": found["dimension"],
            "block_size": 0,
        },
        "sparsity_parameters": {},
    }


Scales = Mapping[str, Mapping[str, Any]]
"""How stored integers mean real numbers, by input or output: "scales", "zero_points", "dimension"."""
_REAL: Mapping[str, Any] = {"scales": (), "zero_points": (), "dimension": 0}


def scales_of(held: Bundle, signature: str) -> Scales:
    """The entry of the bundle's metadata, as far as it is well formed: metadata are not checked when a file is read."""
    found = held.metadata.get("quantization")
    by_name = found.get(signature) if isinstance(found, Mapping) else None
    entries = by_name.items() if isinstance(by_name, Mapping) else ()
    return {name: entry for name, entry in entries if _well_formed(entry)}


def _well_formed(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or set(entry) != set(_REAL):
        return False
    scales, zeros = entry["scales"], entry["zero_points"]
    if not isinstance(scales, list | tuple) or not isinstance(zeros, list | tuple) or len(scales) != len(zeros):
        return False
    whole = (entry["dimension"], *zeros)
    return all(isinstance(v, int) for v in whole) and all(isinstance(v, int | float) for v in scales)


class SignatureRunner:
    """Calls one signature with keyword arguments."""

    def __init__(self, model: Model, signature: str) -> None:
        self._model, self._signature = model, signature

    def __call__(self, **inputs: Array) -> dict[str, Array]:
        """The signature's outputs by name."""
        return self._model.run(inputs, self._signature)

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        """Details by input name."""
        return self._described(self._model.inputs(self._signature))

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        """Details by output name."""
        return self._described(self._model.outputs(self._signature))

    def _described(self, values: tuple[Value, ...]) -> dict[str, dict[str, Any]]:
        scales = scales_of(self._model.bundle, self._signature)
        return {v.name: _details(i, v, _resolved(v), scales) for i, v in enumerate(values)}


class Interpreter:
    """Runs the signature `predict` (or the only one) of a bundle."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | None = None,
        num_threads: int | None = None,
    ) -> None:
        if (model_path is None) == (model_content is None):
            raise InputError("give either model_path or model_content")
        source = model_path if model_path is not None else model_content
        assert source is not None
        self._model = load(source, threads=num_threads or 1)
        names = self._model.signatures
        self._signature = "predict" if "predict" in names else names[0]
        self._inputs = self._model.inputs(self._signature)
        self._outputs = self._model.outputs(self._signature)
        self._shapes = [_resolved(v) for v in self._inputs]
        self._binding: Binding | None = None
        self._arrays: list[Array] = []
        """The tensors by number; outputs once they exist, none before `allocate_tensors`."""
        self._count = len(self._inputs)
        self._stale = True
        """Whether the output arrays have been replaced."""
        self._resized = False

    def allocate_tensors(self) -> None:
        """Allocate inputs, filled with zeros, and outputs once: `invoke` reads and writes them in place.

        After a resize, state that the model keeps between runs is reset.
        """
        if self._resized:
            self._model.reset_state()
            self._resized = False
        shapes = {v.name: shape for v, shape in zip(self._inputs, self._shapes, strict=True)}
        self._binding = self._model.bind(shapes, self._signature)
        self._arrays = [self._binding.inputs[v.name] for v in self._inputs]
        self._stale = True

    def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None:
        """Change an input's shape; `allocate_tensors` must be called afterwards. strict: only unknown sizes may change.

        Raises InputError for a shape that the input cannot have.
        """
        value = self._input(input_index)
        shape = tuple(int(d) for d in tensor_size)
        fixed = value.shape or ()
        if strict and any(isinstance(d, int) and d != s for d, s in zip(fixed, shape, strict=False)):
            raise InputError(f"input {value.name}: {list(shape)} changes a fixed size of {list(fixed)}")
        self._shapes[input_index] = shape
        self._resized = True
        self._binding, self._arrays = None, []

    def set_tensor(self, tensor_index: int, value: Array) -> None:
        """Copy an array into an input. Raises InputError for another shape or dtype, or before `allocate_tensors`."""
        if self._binding is None or not 0 <= tensor_index < self._count:
            self._input(tensor_index)
            raise self._misused(tensor_index)
        target = self._arrays[tensor_index]
        array = value if type(value) is np.ndarray else np.asarray(value)
        if array.dtype != target.dtype or array.shape != target.shape:
            raise InputError(
                f"input {self._inputs[tensor_index].name}: expected {target.dtype}{list(target.shape)}, got"
                f" {array.dtype}{list(array.shape)}; convert it, or call resize_tensor_input and allocate_tensors first"
            )
        target[...] = array

    def invoke(self) -> None:
        """Compute the outputs."""
        if self._binding is None:
            raise self._misused(0)
        self._binding()
        if self._stale:
            self._arrays[self._count :] = [self._binding.outputs[v.name] for v in self._outputs]
            self._stale = not self._binding.fixed

    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Array:
        """A copy of an input or output."""
        if 0 <= tensor_index < len(self._arrays):
            return self._arrays[tensor_index].copy()
        raise self._misused(tensor_index)

    def tensor(self, tensor_index: int) -> Callable[[], Array]:
        """A function that returns the input or output itself, not a copy."""

        def live() -> Array:
            if 0 <= tensor_index < len(self._arrays):
                return self._arrays[tensor_index]
            raise self._misused(tensor_index)

        return live

    def get_input_details(self) -> list[dict[str, Any]]:
        """Details of the inputs."""
        pairs = enumerate(zip(self._inputs, self._shapes, strict=True))
        return [_details(i, v, s, self._scales) for i, (v, s) in pairs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """Details of the outputs; shapes are exact after `invoke`."""
        start = self._count
        invoked = len(self._arrays) > start
        shapes = [a.shape for a in self._arrays[start:]] if invoked else map(_resolved, self._outputs)
        pairs = enumerate(zip(self._outputs, shapes, strict=True))
        return [_details(start + i, v, s, self._scales) for i, (v, s) in pairs]

    def get_tensor_details(self) -> list[dict[str, Any]]:
        """Details of inputs and outputs."""
        return self.get_input_details() + self.get_output_details()

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Input and output names of every signature."""
        return {
            name: {
                "inputs": [v.name for v in self._model.inputs(name)],
                "outputs": [v.name for v in self._model.outputs(name)],
            }
            for name in self._model.signatures
        }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A callable for one signature."""
        name = signature_key or self._signature
        self._model.inputs(name)
        return SignatureRunner(self._model, name)

    def reset_all_variables(self) -> None:
        """Reset the state that the model keeps between runs to its values when loaded."""
        self._model.reset_state()

    @cached_property
    def _scales(self) -> Scales:
        return scales_of(self._model.bundle, self._signature)

    def _input(self, index: int) -> Value:
        if not 0 <= index < len(self._inputs):
            raise InputError(f"expected an input index below {len(self._inputs)}, got {index}")
        return self._inputs[index]

    def _misused(self, index: int) -> InputError:
        """Explains the misuse when a tensor does not exist."""
        if self._binding is None:
            return InputError("call allocate_tensors() first")
        if 0 <= index < self._count + len(self._outputs):
            return InputError("call invoke() before reading outputs")
        return InputError(f"expected a tensor index below {self._count + len(self._outputs)}, got {index}")
