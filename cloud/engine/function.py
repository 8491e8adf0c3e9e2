"""`lower`: an `onnx_ir.Model` as a pure JAX function of parameters, state and inputs."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

from cloud._jax import canonical_dtype
from cloud.engine.compiling import compiled, weights_of
from cloud.engine.lowering import Context, Program, Step, Tensor
from cloud.engine.precision import NARROW, as_computed, narrowest
from cloud.engine.prepare import STATISTICS, batch_norms, prepared
from cloud.errors import EngineError
from lite_runtime.operators import OPERATORS

__all__ = ["EngineFunction", "TensorSpec", "lower"]

_OLDEST_OPSET = 18


@dataclass(frozen=True)
class TensorSpec:
    """A typed input or output. A dim is a size, the name of a symbolic size, or None; shape None: rank unknown."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True, eq=False)
class EngineFunction:
    """A lowered model. `params` and `state` are flat dicts, initialiser name -> array, with the values of the model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    params: dict[str, jax.Array]
    state: dict[str, jax.Array]
    training: bool
    opset: int
    program: Program = field(repr=False)

    def apply(
        self, params: Mapping[str, Any], state: Mapping[str, Any], inputs: Mapping[str, Any],
        *, rng: jax.Array | None = None, train: bool = False,
    ) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
        """Outputs by name, and the state after the call (unchanged unless `train`).

        Pure, so it can be jitted, differentiated and mapped. `train` puts BatchNormalization and Dropout in their
        training form; `rng` is a `jax.random.key`, needed if the model draws random numbers. 64-bit types are computed
        as 32-bit ones unless `jax_enable_x64` is set.

        If parameters or inputs are bfloat16 or float16 where the model has float32, the whole model is computed in
        that type, except for operators that must not be (`cloud.engine.precision`). Raises EngineError for missing or
        unknown inputs and parameters, and for those of another shape or dtype.
        """
        if train and not self.training:
            raise EngineError("this function was lowered for inference; use lower(model, training=True) to train it")
        _check_names("params", self.params, params)
        _check_names("state", self.state, state)
        env = {**params, **state, **_checked_inputs(self.inputs, inputs)}
        statistics = dict(state)
        run = _Run(self.opset, train, rng, statistics, narrowest({**params, **inputs}) if self._is_wide else None)
        results = run.program(self.program, env, (), statistics)
        outputs = (value if isinstance(value, list) else jnp.asarray(value) for value in results)
        return dict(zip((spec.name for spec in self.outputs), outputs, strict=True)), statistics

    def results(self, step: Step, operands: Sequence[Tensor]) -> Sequence[Tensor]:
        """The results of one step of `program`, in its inference form, for other operands than it has there."""
        return _Run(self.opset, False, None, {})._step(step, operands, {}, None)

    @property
    def _is_wide(self) -> bool:
        """Whether the model itself has no float types other than float32 and float64."""
        return all(spec.dtype.itemsize >= 4 or spec.dtype.kind in "iub" for spec in self.inputs) and not narrowest(
            {**self.params, **self.program.constants}
        )


@dataclass(frozen=True)
class _Run:
    """One evaluation: the values that all its nodes share."""

    opset: int
    train: bool
    rng: jax.Array | None
    statistics: MutableMapping[str, Tensor]
    narrow: np.dtype[Any] | None = None

    def program(
        self, program: Program, around: Mapping[str, Tensor], operands: Sequence[Tensor],
        statistics: MutableMapping[str, Tensor] | None,
    ) -> list[Tensor]:  # fmt: skip
        env = {**around, **program.constants, **dict(zip(program.inputs, operands, strict=False))}
        for step in program.steps:
            values = [self._look_up(env, name, statistics) for name in step.inputs]
            results = self._step(step, values, env, statistics)
            for name, value in zip(step.outputs, results, strict=False):
                env[name] = np.asarray(value) if isinstance(value, np.generic) else value
        return [env[name] for name in program.outputs]

    @staticmethod
    def _look_up(env: Mapping[str, Tensor], name: str, statistics: Mapping[str, Tensor] | None) -> Tensor:
        if not name:
            return None
        return statistics[name] if statistics and name in statistics else env[name]

    def _step(
        self, step: Step, values: Sequence[Tensor], env: Mapping[str, Tensor],
        statistics: MutableMapping[str, Tensor] | None,
    ) -> Sequence[Tensor]:  # fmt: skip
        def subgraph(program: Program, operands: Sequence[Tensor], salt: Any = 0) -> list[Tensor]:
            rng = None if self.rng is None else jax.random.fold_in(self.rng, salt)
            around = env if self.narrow is None else {n: as_computed(step.op, v, self.narrow) for n, v in env.items()}
            return _Run(self.opset, self.train, rng, {}).program(program, around, operands, None)

        context = Context(
            step.where, step.inputs, step.outputs, self.opset, self.train and not step.still, statistics, self.rng,
            step.index, subgraph,
        )  # fmt: skip
        extra = {"context": context} if step.row.wants_context else {}
        if self.narrow is not None:
            values = [as_computed(step.op, value, self.narrow) for value in values]
        try:
            with jax.named_scope(step.where):
                result = step.row.function(*values, **step.attributes, **extra)
        except EngineError as error:
            raise EngineError(f"{step.where}: {error}") from None
        except (TypeError, ValueError, IndexError) as error:
            shapes = ", ".join("-" if v is None else f"{v.dtype}{list(v.shape)}" for v in values if hasattr(v, "shape"))
            reason = str(error).strip().partition("\n")[0]
            raise EngineError(f"{step.where}: operands do not fit the operator ({shapes}): {reason}") from error
        return result if isinstance(result, tuple) else (result,)


def _check_names(what: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    if missing := sorted(expected.keys() - got.keys()):
        raise EngineError(f"{what} lacks {', '.join(map(repr, missing))}; start from EngineFunction.{what}")
    if unknown := sorted(got.keys() - expected.keys()):
        raise EngineError(f"{what} has {', '.join(map(repr, unknown))}, which this model does not have")


def _checked_inputs(specs: Sequence[TensorSpec], given: Mapping[str, Any]) -> dict[str, jax.Array]:
    """The inputs as JAX arrays, with names, dtypes and shapes checked against the model."""
    names = [spec.name for spec in specs]
    if set(names) != set(given):
        raise EngineError(f"expected inputs {names}, got {sorted(given)}")
    sizes: dict[str, int] = {}
    return {spec.name: jnp.asarray(_checked_input(spec, given[spec.name], sizes)) for spec in specs}


def _checked_input(spec: TensorSpec, value: Any, sizes: dict[str, int]) -> Any:
    value = value if hasattr(value, "dtype") else np.asarray(value)
    narrowed = spec.dtype == np.float32 and value.dtype in NARROW
    if value.dtype not in (spec.dtype, canonical_dtype(spec.dtype)) and not narrowed:
        raise EngineError(
            f"input {spec.name!r}: expected {spec.dtype}, got {value.dtype}; "
            f"convert it with .astype({str(spec.dtype)!r})"
        )
    if spec.shape is None:
        return value
    fits = len(spec.shape) == value.ndim and all(
        sizes.setdefault(dim, size) == size if isinstance(dim, str) else dim in (None, size)
        for dim, size in zip(spec.shape, value.shape, strict=False)
    )
    if not fits:
        known = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise EngineError(
            f"input {spec.name!r}: expected shape {list(spec.shape)}{f' with {known}' if known else ''}, "
            f"got {list(value.shape)}"
        )
    return value


def lower(
    model: ir.Model, *, training: bool = False, trainable: Sequence[str] | None = None, frozen: Sequence[str] = ()
) -> EngineFunction:
    """Translate `model` (ai.onnx, opset 18 or later) into a JAX function; `model` is not changed.

    `trainable`: glob patterns of initialisers to train. By default all float initialisers of rank 1 or more
    that do not configure an operator (as bounds of Clip or scales of QuantizeLinear do); the running statistics of
    BatchNormalization go to `state`. Results of Constant nodes, and initialisers in subgraphs, are constants. Gradients
    pass straight through a QuantizeLinear that a DequantizeLinear reads; scales that match `trainable` get LSQ
    gradients. `frozen`: patterns of initialisers that training does not change: a BatchNormalization whose scale is
    among them is always in its inference form, and its statistics stay.

    Raises `EngineError`, which lists every unsupported operator with the names of its nodes.
    """
    copy = prepared(model)
    opset = _opset(copy)
    weights = weights_of(copy.graph)
    statistics = {
        value.name
        for node in batch_norms(copy.graph)
        for value in (node.inputs[i] for i in STATISTICS)
        if value is not None and value.name in weights
    }
    trained = _trainable(copy.graph, weights.keys() - statistics, trainable)
    constants = {name: array for name, array in weights.items() if name not in trained and name not in statistics}
    program = compiled(copy.graph, constants)
    fed = [value for value in copy.graph.inputs if value.name not in weights]
    return EngineFunction(
        inputs=tuple(_spec(value) for value in fed),
        outputs=tuple(_spec(value) for value in copy.graph.outputs),
        params={name: jnp.asarray(array) for name, array in weights.items() if name in trained},
        state={name: jnp.asarray(array) for name, array in weights.items() if name in statistics},
        training=training,
        opset=opset,
        program=_with_still_norms(program, frozen),
    )


def _with_still_norms(program: Program, frozen: Sequence[str]) -> Program:
    def still(step: Step) -> bool:
        return step.op == "BatchNormalization" and any(fnmatch.fnmatchcase(step.inputs[1], p) for p in frozen)

    return replace(program, steps=tuple(replace(step, still=True) if still(step) else step for step in program.steps))


def _opset(model: ir.Model) -> int:
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx"))
    if opset is None or opset < _OLDEST_OPSET:
        raise EngineError(
            f"expected a model of ai.onnx opset {_OLDEST_OPSET} or later, got {opset}; "
            "converter.to_ir(model) upgrades it"
        )
    return opset


def _is_float(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.dtype.is_floating_point()


def _trainable(graph: ir.Graph, names: set[str], patterns: Sequence[str] | None) -> set[str]:
    floats = {name for name in names if _is_float(graph.initializers[name])}
    if patterns is not None:
        chosen = {name for name in floats if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
        if not chosen:
            raise EngineError(f"no float initialiser matches {list(patterns)}; there are {sorted(floats)}")
        return chosen
    return {name for name in floats if _looks_trainable(graph.initializers[name])}


def _looks_trainable(value: ir.Value) -> bool:
    assert value.const_value is not None
    settings = any(n.op_type in OPERATORS and operand in OPERATORS[n.op_type].settings for n, operand in value.uses())
    return not settings and len(value.const_value.shape) > 0


def _spec(value: ir.Value) -> TensorSpec:
    shape = None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)
    dtype = np.dtype(np.float32) if value.dtype is None else value.dtype.numpy()
    return TensorSpec(str(value.name), dtype, shape)
