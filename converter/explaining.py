"""The signature `explain`: a model's scores and their gradients with respect to its inputs, as one more graph.

| inputs | outputs |
|---|---|
| the model's, and `along/<output>`: float32, as the first output | `scores`, `slope/<input>` of each float input |

The slopes are the gradients of the sum of `along` times the scores: with a 1 at one class in each row, of that class's
score. Scores are the first output, or the input of the softmax that gives it. The graph is that of the float model,
also in a bundle whose `predict` is of integers. `lite_runtime.explaining` runs it.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build
from converter.ir.grad import differentiate
from converter.ir.grad.tape import Tape
from converter.passes import cleanup
from converter.training.ends import add_input, add_output
from converter.training.losses import before
from lite_runtime.explaining.bundles import ALONG, SCORES, SLOPE

__all__ = ["explaining"]

_FLOAT = ir.DataType.FLOAT


def explaining(model: ir.Model) -> ir.Model:
    """The graph of the signature, made of a copy of a model in inference form.

    Raises TrainingError for an output that is not float32 [rows] or [rows, classes], no float32 input, and operators
    without a gradient, all of which it lists.
    """
    model = model.clone()
    build.adopt(model)
    output = model.graph.outputs[0] if model.graph.outputs else None
    sizes = None if output is None else build.dims(output)
    if output is None or output.dtype != _FLOAT or sizes is None or len(sizes) not in (1, 2):
        raise TrainingError(
            f"explainable: expected a first output of float32 [rows, classes] or [rows], got {output and output.name} "
            f"{output and output.dtype}{list(sizes or ())}"
        )
    inputs = [value for value in model.graph.inputs if value.dtype == _FLOAT]
    if not inputs:
        raise TrainingError("explainable: expected an input of float32, as others have no gradient, got none")
    name, tape = str(output.name), Tape(model.graph)
    model.graph.outputs.clear()
    _free(model, {SCORES, *(f"{SLOPE}{value.name}" for value in inputs)})
    scores = before(tape, output, "Softmax", "LogSoftmax")
    along = add_input(tape, f"{ALONG}{name}", sizes)
    total = (scores * along).op("ReduceSum", keepdims=0)
    try:
        found = differentiate(model, total.value, inputs)
    except TrainingError as error:
        raise TrainingError(f"explainable: the scores are differentiated, but {error}") from None
    tape = Tape(model.graph)
    add_output(tape, scores.value, SCORES)
    for value in inputs:
        add_output(tape, found[str(value.name)], f"{SLOPE}{value.name}")
    cleanup.unused(model)
    return model


def _free(model: ir.Model, names: set[str]) -> None:
    """Rename results that have these names."""
    for node in model.graph:
        for value in node.outputs:
            if value.name in names:
                value.name = build.fresh(model.graph, value.name)
