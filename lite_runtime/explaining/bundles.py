"""A bundle on the device runtime as what is explained, with gradients if it has the signature `explain`.

The signature has the inputs of `predict` and `along/<output>`, float32 of that output's shape. Its results are
`scores`, that output or, if it is a softmax, what it is of, and `slope/<input>`, the gradient of the sum of `along`
times the scores (`converter.explaining`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.subject import Limits, Subject
from lite_runtime.graph import Array, Value, numpy_dtype

__all__ = ["ALONG", "SCORES", "SIGNATURE", "SLOPE", "Runs", "position_of", "subject_of"]

SIGNATURE, ALONG, SLOPE, SCORES = "explain", "along/", "slope/", "scores"
NOTHING: Mapping[str, Array] = {}


class Runs(Protocol):
    """What is needed of a model: `lite_runtime.Model`, or what runs one elsewhere."""

    @property
    def signatures(self) -> Sequence[str]:
        """Its signatures."""

    def inputs(self, signature: str = "predict") -> Sequence[Value]:
        """The inputs of one."""

    def outputs(self, signature: str = "predict") -> Sequence[Value]:
        """Its outputs."""

    def run(self, inputs: Mapping[str, Any], signature: str = "predict") -> Mapping[str, Any]:
        """Outputs by name."""


def subject_of(
    model: Runs, name: str = "bundle", *, given: str | None = None, output: str | None = None,
    held: Mapping[str, Array] = NOTHING, plain: bool = False, position: int = -1, limits: Limits | None = None,
) -> Subject:  # fmt: skip
    """A loaded bundle: its signature `explain`, if it is of the output, otherwise `predict`.

    plain: `predict` in any case, the model as it is deployed: without gradients, of integers if the bundle is.

    given: the input that is explained; by default the only one that is not in `held`. held: values of the others, with
    a batch axis of 1. output: the scores; by default the first. position: of scores [rows, positions, outputs], as of a
    language model, those that are explained; negative ones count from the end. Raises ExplainError for a model of
    another form.
    """
    if "predict" not in model.signatures:
        raise ExplainError(f"{name}: expected a signature 'predict', got {', '.join(model.signatures)}")
    inputs, outputs = model.inputs(), {value.name: value for value in model.outputs()}
    value = _explained(name, inputs, given, held)
    output = output or next(iter(outputs))
    if output not in outputs:
        raise ExplainError(f"{name}: expected an output of {', '.join(outputs)}, got {output!r}")
    return _Bundle(model, name, value, inputs, output, held, plain, position).subject(limits)


def position_of(name: str, position: int, count: int) -> int:
    """A position of scores from 0 on. Raises ExplainError if there are not so many."""
    if not -count <= position < count:
        raise ExplainError(f"{name}: expected a position from {-count} to {count - 1}, got {position}")
    return position % count


def _explained(name: str, inputs: Sequence[Value], given: str | None, held: Mapping[str, Array]) -> Value:
    names = [value.name for value in inputs]
    if unknown := sorted(held.keys() - set(names)):
        raise ExplainError(f"{name}: expected inputs of {', '.join(names)}, got {unknown[0]!r}")
    others = [value for value in inputs if value.name not in held]
    found = [value for value in others if given in (None, value.name)]
    if len(found) != 1 or len(others) != 1:
        raise ExplainError(
            f"{name}: expected one input to explain and a value for each other, got {', '.join(names)} with values for "
            f"{', '.join(held) or 'none'}"
        )
    value = found[0]
    if value.kind != "tensor" or value.dtype == "string" or not value.shape:
        raise ExplainError(f"{name}: expected a tensor of numbers with a batch axis, got {value.name} {value.dtype}")
    return value


class _Bundle:
    """What runs rows of the explained input."""

    def __init__(
        self, model: Runs, name: str, value: Value, inputs: Sequence[Value], output: str, held: Mapping[str, Array],
        plain: bool, position: int,
    ) -> None:  # fmt: skip
        self._model, self._name, self._input, self._output = model, name, value.name, output
        self._held = {key: np.asarray(array) for key, array in held.items()}
        if wrong := [key for key, array in self._held.items() if array.ndim == 0 or len(array) != 1]:
            raise ExplainError(
                f"{name}: expected a batch axis of 1 of {wrong[0]!r}, got {list(self._held[wrong[0]].shape)}"
            )
        first, *rest = value.shape or ()
        if opened := [str(size) for size in rest if not isinstance(size, int)]:
            raise ExplainError(
                f"{name}: expected an input with all sizes known but the first, got open ones ({', '.join(opened)}); "
                "convert with --input-shape"
            )
        self._fixed = first if isinstance(first, int) else 0
        self._shape = tuple(size for size in rest if isinstance(size, int))
        self._dtype = numpy_dtype(value.dtype)
        zeros = np.zeros((self._fixed or 1, *self._shape), self._dtype)
        scores = self._run("predict", zeros)[output]
        self._check(scores)
        self._position = None if scores.ndim < 3 else position_of(name, position, scores.shape[1])
        self._form = scores.shape[1:] if self._position is None else scores.shape[2:]
        self._outputs = int(np.prod(self._form))
        ends: set[str] = set()
        if SIGNATURE in model.signatures and not plain:
            ends = {v.name for v in (*model.inputs(SIGNATURE), *model.outputs(SIGNATURE))}
        self._slope = f"{SLOPE}{value.name}"
        self._signed = {self._slope, f"{ALONG}{output}"} <= ends

    def _check(self, scores: object) -> None:
        if not isinstance(scores, np.ndarray) or scores.ndim not in (1, 2, 3) or scores.dtype.kind not in "fiu":
            form = f"{scores.dtype}{list(scores.shape)}" if isinstance(scores, np.ndarray) else "a sequence"
            raise ExplainError(
                f"{self._name}: expected scores [rows, outputs], [rows] or [rows, positions, outputs], got "
                f"{self._output} {form}"
            )

    def subject(self, limits: Limits | None) -> Subject:
        """What is explained."""
        return Subject(
            self._name, self._shape, self._outputs, self._scores, self._gradient if self._signed else None,
            dtype=self._dtype, meaning="logit" if self._signed else f"output {self._output}", limits=limits,
        )  # fmt: skip

    def _scores(self, x: Array) -> Array:
        if self._signed:
            return self._explained(x, 0, SCORES).reshape(len(x), -1)
        found = [self._run("predict", self._filled(part))[self._output][: len(part)] for part in self._batches(x)]
        scores = np.concatenate(found)
        return (scores if self._position is None else scores[:, self._position]).reshape(len(x), -1)

    def _gradient(self, x: Array, target: int) -> Array:
        return self._explained(x, target, self._slope)

    def _explained(self, x: Array, target: int, result: str) -> Array:
        found = []
        for part in self._batches(x):
            filled = self._filled(part)
            along = np.zeros((len(filled), self._outputs), np.float32)
            along[:, target] = 1.0
            more = {f"{ALONG}{self._output}": along.reshape(len(filled), *self._form)}
            found.append(self._run(SIGNATURE, filled, more)[result][: len(part)])
        return np.concatenate(found)

    def _batches(self, x: Array) -> list[Array]:
        size = self._fixed or max(1, len(x))
        return [x[start : start + size] for start in range(0, len(x), size)]

    def _filled(self, x: Array) -> Array:
        """A batch of the size that the bundle takes."""
        missing = self._fixed - len(x) if self._fixed else 0
        return np.concatenate([x, np.repeat(x[:1], missing, axis=0)]) if missing > 0 else x

    def _run(self, signature: str, x: Array, more: Mapping[str, Array] = NOTHING) -> dict[str, Array]:
        held = {key: np.repeat(array, len(x), axis=0) for key, array in self._held.items()}
        return {
            key: np.asarray(array)
            for key, array in self._model.run({self._input: x, **held, **more}, signature).items()
        }
