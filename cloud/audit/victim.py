"""What is attacked: a model as a function from inputs to one score a class, with gradients where there are any.

    from_onnx("model.onnx")        white box: the cloud engine's function
    from_bundle("model.mslite")    white box: the bundle's own float graph as a JAX function
    open_bundle("model.mslite")    black box: the device runtime, predictions alone; integer bundles too

The class of the highest score is the model's answer.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

import lite_runtime
from cloud.audit.kernels import Kernels, kernels_of
from cloud.audit.lifting import function_of_graph, without_softmax
from cloud.engine import EngineFunction, lower
from cloud.errors import AuditError, EngineError
from converter import to_ir
from lite_runtime import bundle
from lite_runtime.calibration.confidence import Confidence
from lite_runtime.calibration.description import Calibration
from lite_runtime.graph import Value
from lite_runtime.running.interpreter import Scales, scales_of

__all__ = ["BLACK_BOX_ATTACKS", "BlackBox", "Forward", "Stored", "Victim", "WhiteBox", "from_bundle", "from_onnx",
           "open_bundle"]  # fmt: skip

Array: TypeAlias = npt.NDArray[Any]
Forward: TypeAlias = Callable[[Any], Any]
"""Inputs (rows, ...) float32 to scores (rows, classes) float32, traceable by JAX."""

BLACK_BOX_ATTACKS = ("square", "hop_skip_jump")
"""Attacks that use predictions alone."""
MOST_ROWS = 256
"""The most rows of one call of the model by `logits`: few enough for a processor's cache."""
_ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinear", "ConvInteger", "MatMulInteger")
"""How the names of operators begin that round activations to integers."""
_TOLERANCE = 1e-3
"""The greatest difference between a bundle's scores and those of its JAX function, relative to the largest score."""


class Victim(ABC):
    """A classifier of float32 inputs. `queries`: rows that it was asked for so far, those with a gradient included.
    `rounds`: whether it rounds activations to integers, so that small changes of the input change no score."""

    rounds: bool = False

    def __init__(self, name: str, shape: tuple[int, ...], classes: int) -> None:
        if classes < 2:
            raise AuditError(f"{name}: expected scores of at least 2 classes, got {classes}")
        self.name, self.shape, self.classes, self.queries = name, shape, classes, 0

    @property
    def has_gradient(self) -> bool:
        """Whether white-box attacks work."""
        return isinstance(self, WhiteBox)

    def white(self) -> WhiteBox:
        """The victim itself, if it has gradients. Raises AuditError, which names the attacks that remain, otherwise."""
        if isinstance(self, WhiteBox):
            return self
        raise AuditError(
            f"{self.name}: this attack needs a gradient, and there is none of a model that only predicts; "
            f"{' and '.join(BLACK_BOX_ATTACKS)} need predictions alone, or attack its float twin by from_onnx"
        )

    @property
    def any_size(self) -> bool:
        """Whether a batch of another size costs no compilation worth mentioning."""
        return True

    def logits(self, x: Array) -> Array:
        """Scores (rows, classes) float32 for inputs (rows, *shape) float32. Raises AuditError for another shape."""
        x = self.checked(x)
        self.queries += len(x)
        parts = [self._scores(x[start : start + MOST_ROWS]) for start in range(0, len(x), MOST_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.classes), np.float32)

    def checked(self, x: Array) -> Array:
        """The inputs as float32. Raises AuditError for another shape and for values that are not finite."""
        x = np.asarray(x, np.float32)
        if x.shape[1:] != self.shape or x.ndim == 0:
            raise AuditError(f"{self.name}: expected inputs of shape [rows, *{list(self.shape)}], got {list(x.shape)}")
        if not np.isfinite(x).all():
            raise AuditError(f"{self.name}: expected finite inputs, got NaN or infinity; leave these rows out")
        return x

    def counted(self, rows: int) -> None:
        """Add rows that an attack evaluated inside a compiled loop."""
        self.queries += rows

    @abstractmethod
    def _scores(self, x: Array) -> Array:
        """Scores of at most MOST_ROWS rows."""


class WhiteBox(Victim):
    """A model that JAX differentiates. `forward(weights, x)` is pure; `weights` is any tree of arrays. `function`: its
    steps, of a model that was read from a file; `weights` are then its parameters and state. `kernels` makes what
    computes the same faster, or None; it is asked when scores are first wanted."""

    def __init__(
        self, name: str, forward: Callable[[Any, Any], Any], weights: Any, shape: tuple[int, ...], classes: int,
        function: EngineFunction | None = None, *, kernels: Callable[[], Kernels | None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(name, shape, classes)
        self._forward, self._weights, self.function = forward, weights, function
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._ask_kernels = kernels

    def compiled(self, core: Callable[..., Any], **fixed: Any) -> Callable[..., Any]:
        """`core(forward, *arguments, **fixed)` as a compiled function of the arguments; compiled once for each core,
        `fixed` (hashable) and shape. Weights are arguments of the program, not constants in it."""
        key = (core, *sorted(fixed.items()))
        if key not in self._compiled:
            run = jax.jit(lambda weights, *given: core(lambda x: self._forward(weights, x), *given, **fixed))
            self._compiled[key] = lambda *given: run(self._weights, *given)
        return self._compiled[key]

    @cached_property
    def _kernels(self) -> Kernels | None:
        return self._ask_kernels()

    @property
    def any_size(self) -> bool:
        """See `Victim`."""
        return self._kernels is not None

    def linearised(self, x: Array) -> tuple[Array, Callable[[Array], Array]]:
        """Scores (rows, classes), and the function from weights of them to the gradient (rows, *shape) of their
        weighted sum. `x` is not checked, and counts as one query a row."""
        self.counted(len(x))
        if self._kernels is not None:
            return self._kernels.linearised(x)
        scores, back = self.compiled(_vjp)(x)
        return np.asarray(scores), lambda weights: np.asarray(_pulled(back, np.asarray(weights, np.float32)))

    def gradient(self, loss: Callable[[Any, Any], Any], x: Array, labels: Array) -> tuple[Array, Array]:
        """Losses (rows,) and their gradients with respect to the inputs (rows, *shape). `loss`: of `attacks.losses`."""
        scores, pull = self.linearised(self.checked(x))
        values, weights = loss(scores, np.asarray(labels, np.int32))
        return values, pull(weights)

    def _scores(self, x: Array) -> Array:
        if self._kernels is not None:
            return self._kernels.scores(x)
        rows = 1 << max(len(x) - 1, 0).bit_length()  # few sizes, so that few programs are compiled
        padded = np.concatenate([x, np.broadcast_to(x[:1], (rows - len(x), *self.shape))])
        return np.asarray(self.compiled(_plain)(padded))[: len(x)]


def _vjp(forward: Forward, x: Any) -> Any:
    return jax.vjp(forward, x)


@jax.jit
def _pulled(back: Any, weights: Any) -> Any:
    return back(weights)[0]


def _plain(forward: Forward, x: Any) -> Any:
    return forward(x)


class Stored(NamedTuple):
    """How a bundle's integers mean real numbers: (integer - zero) * scale."""

    dtype: np.dtype[Any]
    scale: float
    zero: int

    def real(self, x: Array) -> Array:
        """Integers as float32."""
        return np.asarray((x.astype(np.float32) - self.zero) * np.float32(self.scale), np.float32)

    def integers(self, x: Array) -> Array:
        """Real numbers as the nearest integers that can be stored."""
        ends = np.iinfo(self.dtype)
        whole = np.clip(np.rint(x / np.float32(self.scale)) + self.zero, ends.min, ends.max)
        return np.asarray(whole.astype(self.dtype))


class BlackBox(Victim):
    """A bundle on the device runtime. Where its input or output holds integers, inputs and scores are the real numbers
    that these mean, and inputs are rounded to them; `stored` says how, and is None for a float32 input.

    scales: how integers mean real numbers, as in a bundle's metadata. rounds: see `Victim`.
    """

    def __init__(
        self, name: str, model: lite_runtime.Model, scales: Scales = MappingProxyType({}), *, rounds: bool = False
    ) -> None:
        found = model.inputs()
        outputs = model.outputs()
        if len(found) != 1 or found[0].shape is None or not found[0].shape:
            raise AuditError(f"{name}: expected a model with one input of known rank, got {_listed(found)}")
        self.stored = _stored(name, found[0], scales)
        self._scores_stored = _stored(name, outputs[0], scales)
        self._model, self._input, self._output, self.rounds = model, found[0].name, outputs[0].name, rounds
        first, *rest = found[0].shape
        self._fixed = first if isinstance(first, int) else 0
        shape = _known_sizes(name, rest)
        zeros = np.zeros((self._fixed or 1, *shape), np.float32)
        scores = self._run(zeros)
        if scores.ndim != 2:
            raise AuditError(f"{name}: expected scores [rows, classes], got {list(scores.shape)}")
        super().__init__(name, shape, scores.shape[1])

    @property
    def calibration(self) -> Calibration | None:
        """That of the bundle, if it is of `predict`. Raises BundleError for a damaged one."""
        found = self._model.calibration
        return found if found is not None and found.signature == "predict" else None

    def confidence(self, x: Array) -> Confidence | None:
        """What the bundle's calibration says of inputs (rows, *shape); None if there is none."""
        if self.calibration is None:
            return None
        x = self.checked(x)
        self.queries += len(x)
        parts = [self._outputs(part) for part in _parts(x, self._fixed or MOST_ROWS)]
        return self._model.confidence({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _scores(self, x: Array) -> Array:
        return np.concatenate([self._run(part) for part in _parts(x, self._fixed or MOST_ROWS)])

    def _run(self, x: Array) -> Array:
        scores = self._outputs(x)[self._output]
        return scores.astype(np.float32) if self._scores_stored is None else self._scores_stored.real(scores)

    def _outputs(self, x: Array) -> dict[str, Array]:
        """Outputs of up to as many rows as a bundle with a fixed batch takes; the batch is filled up."""
        filled = np.concatenate([x, np.repeat(x[:1], self._fixed - len(x), axis=0)]) if self._fixed else x
        given = filled if self.stored is None else self.stored.integers(filled)
        found = self._model.run({self._input: given})
        return {name: array[: len(x)] for name, array in found.items() if isinstance(array, np.ndarray) and array.ndim}


def _listed(values: Iterable[Value]) -> str:
    return ", ".join(f"{v.name} {v.dtype}{list(v.shape or ())}" for v in values)


def _stored(name: str, value: Value, scales: Scales) -> Stored | None:
    """How a value's integers mean real numbers; None for floats. Raises AuditError for other dtypes, and for integers
    whose scale is not known."""
    if value.dtype == "float32":
        return None
    known = scales.get(value.name, {"scales": (), "zero_points": ()})
    if value.dtype not in ("int8", "uint8", "int16"):
        raise AuditError(f"{name}: expected float32 or integers of 8 or 16 bits, got {value.name} of {value.dtype}")
    if len(known["scales"]) != 1 or not known["scales"][0] > 0:
        raise AuditError(
            f"{name}: expected one scale for the integers of {value.name}, got {len(known['scales'])} in the bundle's "
            "metadata; convert the model again, with float32 inputs and outputs"
        )
    return Stored(np.dtype(value.dtype), float(known["scales"][0]), int(known["zero_points"][0]))


def _parts(x: Array, rows: int) -> Iterator[Array]:
    return (x[start : start + rows] for start in range(0, len(x), rows))


def _known_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    if open_sizes := [str(size) for size in sizes if not isinstance(size, int)]:
        raise AuditError(
            f"{name}: expected an input with all sizes known but the first, got open ones ({', '.join(open_sizes)}); "
            "convert with input_shapes"
        )
    return tuple(sizes)


def from_onnx(model: str | os.PathLike[str] | ir.Model, name: str = "") -> WhiteBox:
    """An ONNX model through the cloud engine. One float32 input, first output [rows, classes].

    A Softmax that gives the output is left out, so that scores are logits. Raises AuditError for a model of another
    form or with operators that the engine does not have, ConvertError for a file that cannot be read.
    """
    name = name or (str(model.graph.name) if isinstance(model, ir.Model) else Path(model).name)
    found = model if isinstance(model, ir.Model) else to_ir(model)
    try:
        function = lower(found)
    except EngineError as error:
        raise AuditError(f"{name}: {error}; convert it and attack the bundle as a black box") from None
    return _white(name, function, lambda: kernels_of(found))


def from_bundle(source: str | os.PathLike[str] | bytes, name: str = "") -> WhiteBox:
    """A float bundle's `predict` as a JAX function: its graph as it is stored, fused operators included, with its first
    parameters if it can be trained.

    Raises AuditError for operators that the engine does not have (all integer bundles), and if the function's scores
    differ from the runtime's.
    """
    black = open_bundle(source, name)
    function = function_of_graph(bundle.read(source).at_first("predict"), black.name)
    white = _white(black.name, function)
    x = np.random.default_rng(0).random((2, *black.shape), np.float32)
    ours, runtime = white.logits(x), black.logits(x)
    if without_softmax(function.program).outputs != function.program.outputs[:1]:
        ours = np.asarray(jax.nn.softmax(ours) if runtime.min() >= 0 else jax.nn.log_softmax(ours))
    difference = float(np.abs(ours - runtime).max())
    if not difference <= _TOLERANCE * max(1.0, float(np.abs(runtime).max())):
        raise AuditError(
            f"{black.name}: its JAX function's scores differ from the runtime's by {difference:.3g}; attack it as a "
            "black box, or its ONNX model by from_onnx"
        )
    white.queries = 0
    return white


def open_bundle(source: str | os.PathLike[str] | bytes, name: str = "") -> BlackBox:
    """A bundle on the device runtime, float or integer: `logits` alone. Raises AuditError for a model that is no
    classifier of one float32 input, BundleError for a file that is no bundle."""
    name = name or ("bundle" if isinstance(source, bytes) else Path(source).name)
    model = lite_runtime.load(source)
    if "predict" not in model.signatures:
        raise AuditError(f"{name}: expected a signature 'predict', got {', '.join(model.signatures)}")
    read = bundle.read(source)
    rounds = any(node.op.startswith(_ROUNDING) for node in read.signatures["predict"].walk())
    return BlackBox(name, model, scales_of(read, "predict"), rounds=rounds)


def _white(name: str, function: EngineFunction, kernels: Callable[[], Kernels | None] = lambda: None) -> WhiteBox:
    if len(function.inputs) != 1 or function.inputs[0].dtype != np.float32 or not function.inputs[0].shape:
        raise AuditError(
            f"{name}: expected a model with one float32 input of known rank, got "
            f"{', '.join(f'{spec.name} {spec.dtype}{list(spec.shape or ())}' for spec in function.inputs)}"
        )
    spec = function.inputs[0]
    rows, *sizes = spec.shape or ()
    if isinstance(rows, int) and rows != 1:
        raise AuditError(f"{name}: expected an open batch, or one of 1, got an input of sizes {[rows, *sizes]}")
    shape = _known_sizes(name, sizes)
    output = function.outputs[0].name
    run = EngineFunction(
        function.inputs, function.outputs[:1], function.params, function.state, False, function.opset,
        without_softmax(function.program),
    )  # fmt: skip

    def batch(weights: Mapping[str, Any], x: Any) -> Any:
        return run.apply(weights["params"], weights["state"], {spec.name: x})[0][output]

    def forward(weights: Mapping[str, Any], x: Any) -> Any:
        if rows != 1:
            return batch(weights, x)
        return jax.vmap(lambda row: batch(weights, row[None])[0])(x)  # sizes for one row may be constants in the graph

    weights = {"params": function.params, "state": function.state}
    scores = jax.eval_shape(forward, weights, jnp.zeros((2, *shape), jnp.float32))
    if len(scores.shape) != 2 or scores.shape[0] != 2:
        raise AuditError(f"{name}: expected scores [rows, classes], got {list(scores.shape)} for 2 rows")
    return WhiteBox(name, forward, weights, shape, scores.shape[1], run, kernels=kernels)
