"""A JAX function as an ONNX model, checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cloud._jax import shaped
from cloud.engine import lower
from cloud.errors import TrainError
from lite_runtime.errors import MissingExtraError

__all__ = ["to_onnx"]

_OPSET = 22
_ROWS = 3
_TOLERANCE = 1e-4


def to_onnx(function: Callable[..., Any], examples: Mapping[str, jax.ShapeDtypeStruct]) -> ir.Model:
    """`function(*inputs)` as ONNX, by jax2onnx; inputs are named as in `examples`, their first dimension has any size.

    The model's outputs (by `cloud.engine`) are compared with the function's on random inputs. Raises TrainError if they
    differ by more than 1e-4 of the largest, or if jax2onnx cannot export an operator.
    """
    try:
        from jax2onnx import to_onnx as convert
    except ImportError:
        raise MissingExtraError("jax2onnx", "flax", "models written in JAX are exported with it") from None
    inputs = _random(examples)
    found = jax.jit(function)(*inputs.values())
    names = list(found) if isinstance(found, Mapping) else ["output"]
    specs = [shaped((_rows(), *spec.shape[1:]), spec.dtype) for spec in examples.values()]
    try:
        with warnings.catch_warnings(), _unpatched():
            warnings.simplefilter("ignore", DeprecationWarning)  # it uses names that Flax has deprecated
            model: ir.Model = convert(
                _flat(function), specs, opset=_OPSET, return_mode="ir", input_names=list(examples), output_names=names
            )
    except Exception as error:  # library: jax2onnx promises no type
        raise TrainError(f"jax2onnx cannot export this model: {type(error).__name__}: {error}") from error
    wanted = found if isinstance(found, Mapping) else {"output": found}
    _check(model, inputs, wanted)
    return model


@contextmanager
def _unpatched() -> Iterator[None]:
    """Afterwards `jax.numpy` has the functions that it had before.

    jax2onnx replaces `jnp.cumsum` when it is first used, and leaves it replaced: `jnp.cumsum(x, 1)`, which JAX's own
    libraries use too, then raises TypeError. It replaces the function again for each model that it traces.
    """
    held = dict(vars(jnp))
    try:
        yield
    finally:
        for name, value in held.items():
            if vars(jnp).get(name) is not value:
                setattr(jnp, name, value)


def _check(model: ir.Model, inputs: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    function = lower(model)
    given = {spec.name: np.asarray(inputs[spec.name], spec.dtype) for spec in function.inputs}
    outputs, _ = function.apply(function.params, function.state, given)
    for name, expected in wanted.items():
        apart = float(np.max(np.abs(np.asarray(outputs[name]) - expected), initial=0))
        if not apart <= _TOLERANCE * max(1.0, float(np.max(np.abs(expected), initial=0))):
            raise TrainError(
                f"the exported model's output {name!r} differs by {apart:.3g} from the function's on random inputs; "
                "jax2onnx may export one of its operations differently"
            )


def _rows() -> Any:
    return jax.export.symbolic_shape("batch")[0]


def _flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """With several outputs as a tuple, which jax2onnx supports."""

    def call(*inputs: Any) -> Any:
        found = function(*inputs)
        return tuple(found.values()) if isinstance(found, Mapping) else found

    return call


def _random(examples: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, npt.NDArray[Any]]:
    """Floats about zero; integers 0 and 1, which are valid indices of every table."""
    rng = np.random.default_rng(0)

    def one(spec: jax.ShapeDtypeStruct) -> npt.NDArray[Any]:
        shape = (_ROWS, *spec.shape[1:])
        drawn = rng.normal(size=shape) if np.issubdtype(spec.dtype, np.floating) else rng.integers(0, 2, shape)
        return drawn.astype(spec.dtype)

    return {name: one(spec) for name, spec in examples.items()}
