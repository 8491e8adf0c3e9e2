"""ONNX files as models to train: any opset brought to the engine's, and a batch of fixed size opened."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import onnx_ir as ir

from cloud._jax import shaped
from cloud.engine import lower
from cloud.errors import EngineError, TrainError
from converter import to_ir
from converter.errors import ConvertError
from converter.frontends.onnx import load
from converter.ir import build

__all__ = ["graph_of"]

_OLDEST_OPSET = 18
"""From this opset on, and with an open batch, a graph is trained as it is."""
_IR_VERSION = 11
"""Of files with the opset to which old ones are brought."""
_BATCH = "batch"


def graph_of(path: Path, rows: int = 0, key: str = "model.onnx") -> ir.Model:
    """The model of a file, for batches of `rows` (0: of any size). Raises TrainError, which begins with `key`, for
    files that cannot be read, and for a graph that fixes another batch where it cannot be opened, with the way out."""
    try:
        model = ir.load(path)
        opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        sizes = _sizes(model)
        if opset >= _OLDEST_OPSET and not any(isinstance(size, int) for size in sizes.values()):
            return model
        upgraded = to_ir(path)
    except ConvertError as error:
        raise TrainError(f"{key}: {error}") from error
    except Exception as error:  # library: ONNX's readers promise no type
        raise TrainError(f"{key}: cannot read {str(path)!r}: {error}; check the path") from error
    fixed = {size for size in _sizes(upgraded).values() if isinstance(size, int)}
    found = upgraded if not fixed or fixed == {rows} else _opened(path, upgraded, fixed, rows, key)
    found.ir_version = max(found.ir_version, _IR_VERSION)
    return found


def _sizes(model: ir.Model) -> dict[str, int | str | None]:
    """The first size of every input, by name."""
    fed = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    return {str(value.name): (build.dims(value) or (None,))[0] for value in fed}


def _opened(path: Path, model: ir.Model, fixed: set[int], rows: int, key: str) -> ir.Model:
    """The graph with an open batch."""
    if len(fixed) > 1:
        raise _refusal(path, fixed, rows, key, f"its inputs begin with {_sizes(model)}")
    (size,) = fixed
    try:
        source = load(path)
        for value in source.graph.inputs:
            dims = build.dims(value)
            if dims and dims[0] == size:
                value.shape = ir.Shape([_BATCH, *dims[1:]])
        for node in build.nodes(source):
            for value in node.outputs:  # inferred, or declared, for the fixed size
                value.shape = None
        made = to_ir(source)
        for node in build.nodes(made):
            _follow(made.graph, node, size)
        _check(made)
    except (ConvertError, EngineError) as error:
        raise _refusal(path, fixed, rows, key, str(error)) from error
    return made


def _follow(graph: ir.Graph, node: ir.Node, size: int) -> None:
    """A Reshape of batches whose constant shape begins with the fixed size copies the batch's size instead."""
    if not build.is_op(node, "Reshape") or build.attr(node, "allowzero", 0):
        return
    shape, before = build.array(node.inputs[1]), build.dims(node.inputs[0])
    if shape is None or before is None or not len(shape) or before[0] != _BATCH or shape[0] != size:
        return
    value = ir.Value(name=build.fresh(graph, f"{node.inputs[1].name}.open"), const_value=None)  # type: ignore[union-attr]
    tensor = ir.Tensor(np.array([0, *shape[1:]], np.int64), name=value.name)
    value.const_value, value.shape, value.dtype = tensor, ir.Shape([len(shape)]), ir.DataType.INT64
    graph.register_initializer(value)
    node.replace_input_with(1, value)


def _check(model: ir.Model) -> None:
    """Raise EngineError unless outputs have as many rows as inputs, for 2 and for 3."""
    function = lower(model, training=True)
    if any(spec.shape is None or not all(isinstance(d, int) for d in spec.shape[1:]) for spec in function.inputs):
        return  # other sizes are open too, and only data tell them
    for rows in (2, 3):
        given = {spec.name: shaped((rows, *(spec.shape or ())[1:]), spec.dtype) for spec in function.inputs}
        outputs, _ = jax.eval_shape(
            lambda inputs: function.apply(function.params, function.state, inputs, rng=jax.random.key(0), train=True),
            given,
        )
        for name, found in outputs.items():
            if not found.shape or found.shape[0] != rows:
                raise EngineError(f"output {name!r} has shape {list(found.shape)} for {rows} rows")


def _refusal(path: Path, fixed: set[int], rows: int, key: str, why: str) -> TrainError:
    sizes = " and ".join(map(str, sorted(fixed)))
    wanted = f"batches of {rows}" if rows else "batches of any size"
    return TrainError(
        f"{key}: {path.name!r} is for batches of {sizes}, and it cannot be opened for {wanted}: {why}. "
        f"Export it with an open batch (torch.onnx.export: dynamic_shapes or dynamic_axes; tf2onnx: a signature with "
        f"None), or train with train.batch = {min(fixed)}"
    )
