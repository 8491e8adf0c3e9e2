"""Selecting the initialisers to train, and making them inputs of the graph, so that no pass folds them.

A *parameter* is a float32 initialiser with at least one axis that the loss depends on and that no operator reads as a
setting (bounds, scales, running statistics).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build
from converter.quantize.options import matches
from converter.training.reach import ancestors
from converter.training.unquantized import stored, unquantize
from lite_runtime.graph import Array
from lite_runtime.operators import OPERATORS

__all__ = ["batch_norms", "choose", "constants", "output", "parameters", "thaw"]

_STATISTICS = (3, 4)
"""Operands of BatchNormalization that training updates without a gradient."""
_SHOWN = 40


def output(model: ir.Model, name: str) -> ir.Value:
    """The graph output of that name, or the first for ""; for a quantised output, the value before quantisation. Raises
    TrainingError."""
    found = [v for v in model.graph.outputs if name in ("", v.name)]
    if not found:
        names = ", ".join(repr(v.name) for v in model.graph.outputs)
        raise TrainingError(f"output: expected one of {names or 'the outputs, but there are none'}, got {name!r}")
    last = found[0].producer()
    if last is not None and build.is_op(last, "QuantizeLinear") and last.inputs[0] is not None:
        return last.inputs[0]
    return found[0]


def parameters(model: ir.Model, loss_of: ir.Value) -> dict[str, ir.Value]:
    """Every parameter that `loss_of` depends on, by name, in the order of their first use."""
    wanted = ancestors(model.graph, loss_of)
    found: dict[str, ir.Value] = {}
    for node in model.graph:
        if node in wanted:
            found.update((v.name or "", v) for v in node.inputs if v is not None and _is_parameter(v))
    return found


def _is_parameter(value: ir.Value) -> bool:
    if not value.is_initializer() or value.const_value is None or not value.name or value.is_graph_output():
        return False
    if value.const_value.dtype != ir.DataType.FLOAT or not len(value.const_value.shape):
        return False
    return not any(use.idx in _settings(use.node.op_type) for use in value.uses())


def _settings(op: str) -> tuple[int, ...]:
    """The operands of an operator that are no parameters."""
    if op == "BatchNormalization":
        return _STATISTICS
    return OPERATORS[op].settings if op in OPERATORS else ()


def choose(model: ir.Model, globs: Iterable[str], output_name: str) -> dict[str, ir.Value]:
    """The parameters that an output depends on and whose names match. Those stored as integers become float32 first,
    and so do values that depend on them.

    Raises TrainingError for a glob without a match, listing the available ones.
    """
    globs, loss_of = tuple(globs), output(model, output_name)
    integers = stored(model, loss_of)
    known = {name: build.dims(value) for name, value in parameters(model, loss_of).items()}
    known |= {name: build.dims(nodes[0].inputs[0]) for name, nodes in integers.items()}
    for glob in globs:
        if not any(matches((glob,), name) for name in known):
            raise TrainingError(
                f"trainable: no parameter that the output {(output_name or model.graph.outputs[0].name)!r} depends on "
                f"matches {glob!r}; there are {_listed(known)}"
            )
    unquantize(model, globs, integers)
    found = parameters(model, output(model, output_name))
    return {name: value for name, value in found.items() if matches(globs, name)}


def _listed(known: Mapping[str, build.Shape | None]) -> str:
    if not known:
        return "none: expected float32 initialisers that are not settings of operators"
    texts = [f"{name!r} {list(shape or ())}" for name, shape in known.items()]
    return ", ".join(texts[:_SHOWN]) + (f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


def batch_norms(model: ir.Model, trained: Mapping[str, ir.Value] | Iterable[str]) -> Iterator[ir.Node]:
    """BatchNormalizations whose scale or shift is among `trained`, by name."""
    names = set(trained)
    for node in model.graph:
        if build.is_op(node, "BatchNormalization") and {v.name for v in node.inputs[1:3] if v is not None} & names:
            yield node


def constants(values: Iterable[ir.Value]) -> dict[str, Array]:
    """Contents by name, as copies."""
    found = {}
    for value in values:
        assert value.const_value is not None
        found[value.name or ""] = value.const_value.numpy().copy()
    return found


def thaw(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Initialisers become graph inputs of their shape."""
    graph = model.graph
    for value in values:
        assert value.const_value is not None
        graph.initializers.pop(value.name or "")
        value.shape = ir.Shape(value.const_value.shape.numpy())
        value.type = ir.TensorType(value.const_value.dtype)
        value.const_value = None
        graph.inputs.append(value)
