"""Scores and gradients of an ONNX model by the device runtime's kernels, in three programs: the model alone, the model
with what its gradient needs, and the gradient of one weighted sum of scores. XLA's gradients of convolutions are
several times slower on a processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

import lite_runtime
from cloud.audit.phases import split_phases
from converter import convert, to_ir
from converter.cutting import cut
from converter.errors import ConvertError, TrainingError
from converter.ir import build
from converter.ir.build import Edit
from converter.ir.grad import differentiate
from converter.ir.grad.tape import Tape
from converter.passes.channels_last import to_first, to_last
from converter.training.ends import add_input, add_output

__all__ = ["Kernels", "kernels_of"]

Array = npt.NDArray[Any]
_WEIGHTS, _SLOPE, _TOTAL = "weights of scores", "slope", "total"


class Kernels:
    """`model`: one input, of which the first output depends; a Softmax that gives it is left out. Raises TrainingError
    or ConvertError for a model that has no gradient here."""

    def __init__(self, model: ir.Model) -> None:
        model = to_ir(model.clone())
        graph = model.graph
        scores = _before_softmax(graph.outputs[0])
        tape = Tape(graph)
        weights = add_input(tape, _WEIGHTS, build.dims(scores) or ())
        total = (tape.term(scores) * weights).op("ReduceSum", keepdims=0)
        slope = differentiate(model, total.value, [graph.inputs[0]])[graph.inputs[0].name or ""]
        graph.outputs.clear()
        tape = Tape(graph)
        add_output(tape, total.value, _TOTAL)
        add_output(tape, slope, _SLOPE)
        self._input, self._output = str(graph.inputs[0].name), str(scores.name)
        first, rest = cut(model, [self._input])
        _hand_over_channels_last(first, rest)
        split_phases(rest)
        plain = first.clone()
        plain.graph.outputs[:] = [value for value in plain.graph.outputs if value.name == self._output]
        self._plain, self._forward, self._backward = (
            lite_runtime.load(convert(part).bundle) for part in (plain, first, rest)
        )

    def scores(self, x: Array) -> Array:
        """(rows, classes) float32."""
        return np.asarray(self._plain.run({self._input: x})[self._output])

    def linearised(self, x: Array) -> tuple[Array, Any]:
        """Scores, and the function from weights of scores (rows, classes) to the gradient of their weighted sum."""
        kept = dict(self._forward.run({self._input: x}))

        def pull(weights: Array) -> Array:
            return np.asarray(self._backward.run({**kept, _WEIGHTS: weights.astype(np.float32)})[_SLOPE])

        return kept[self._output], pull


def _hand_over_channels_last(first: ir.Model, rest: ir.Model) -> None:
    """Images that `rest` reads of `first` have their channels last, as in the kernels: neither program transposes them.
    In place."""
    tape, edit = Tape(first.graph), Edit(rest.graph[0])
    for at, value in enumerate(first.graph.outputs):
        rank, name = build.rank(value) or 0, value.name
        place = next(i for i, given in enumerate(rest.graph.inputs) if given.name == name)
        if rank not in (3, 4, 5):
            continue
        last = tape.term(value).op("Transpose", perm=to_last(rank)).value
        value.name, last.name = build.fresh(first.graph, f"{name}.first"), name
        first.graph.outputs[at] = last
        old, new = rest.graph.inputs[place], ir.Value(name=name, type=last.type, shape=last.shape)
        old.name = build.fresh(rest.graph, f"{name}.old")
        rest.graph.inputs[place] = new
        ir.convenience.replace_all_uses_with(old, edit.op("Transpose", [new], {"perm": to_first(rank)}, like=old))


def _before_softmax(value: ir.Value) -> ir.Value:
    node = value.producer()
    if node is not None and node.op_type in ("Softmax", "LogSoftmax") and node.inputs[0] is not None:
        return node.inputs[0]
    return value


def kernels_of(model: ir.Model) -> Kernels | None:
    """None where an operator has no rule for its gradient."""
    try:
        return Kernels(model)
    except (ConvertError, TrainingError):
        return None
