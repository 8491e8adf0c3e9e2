"""Losses as graphs: each appends the loss of an output and `labels` to a model.

A loss is a scalar, a mean except for `inner_product`. For `evaluate`, there are also the number of values or examples
in the mean and, for classifiers, the number of correct ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build, shapes
from converter.ir.grad.tape import Tape, Term
from converter.training.ends import add_input
from converter.training.options import Loss, Training
from lite_runtime.operators import having

__all__ = ["LABELS", "Attached", "attach", "before"]

LABELS = "labels"
_FLOAT, _INT64 = ir.DataType.FLOAT, ir.DataType.INT64


class Attached(NamedTuple):
    """Scalars: float32, int64, and int64 for classifiers."""

    loss: ir.Value
    examples: ir.Value
    correct: ir.Value | None


def attach(model: ir.Model, output: ir.Value, training: Training) -> Attached:
    """Append `training.loss` of `output` to an adopted model, with `labels` as a new graph input.

    Raises TrainingError if the output's type or shape does not suit the loss.
    """
    if any(v.name == LABELS for v in model.graph.inputs):
        raise TrainingError(f"the model already has an input {LABELS!r}, the name reserved for labels; rename it")
    if output.dtype != _FLOAT or build.rank(output) is None:
        kind = output.dtype.name.lower() if output.dtype is not None else "unknown"
        raise TrainingError(
            f"loss: expected output {output.name!r} to be float32 of known rank, got {kind} {build.dims(output)}"
        )
    tape = Tape(model.graph)
    tape.hint = "loss"
    loss, examples, correct = _LOSSES[training.loss](tape, output, training)
    return Attached(loss.value, examples.cast(_INT64).value, None if correct is None else correct.cast(_INT64).value)


_RESHAPES = having("view") | {"Identity"}


def before(tape: Tape, output: ir.Value, *ops: str) -> Term:
    """The input of a last activation of these kinds, in the output's shape, or the output if there is none. Operators
    that keep all elements and their order may follow the activation; they are then applied to its input.

    Raises TrainingError for a softmax along another axis than the output's last.
    """
    between: list[ir.Node] = []
    node, value = output.producer(), output
    while node is not None and build.is_op(node, *_RESHAPES) and node.inputs[0] is not None:
        between.append(node)
        value = node.inputs[0]
        node = value.producer()
    if node is None or not build.is_op(node, *ops) or node.inputs[0] is None:
        return tape.term(output)
    if node.op_type != "Sigmoid" and not _along_last(node, output):
        raise TrainingError(
            f"softmax_cross_entropy: expected classes along the last axis of output {output.name!r}, got "
            f"{build.dims(output)}, and a {node.op_type} along axis {build.attr(node, 'axis', -1)} of "
            f"{build.dims(value)}; transpose the model's last layers"
        )
    logits = tape.term(node.inputs[0])
    for step in reversed(between):
        if step.op_type != "Identity":
            others = [None if v is None else tape.term(v) for v in step.inputs[1:]]
            attrs = {name: attribute.value for name, attribute in step.attributes.items()}
            logits = tape.op(step.op_type, logits, *others, shape=build.dims(step.outputs[0]), **attrs)
    return logits


def _along_last(softmax: ir.Node, output: ir.Value) -> bool:
    """Whether a softmax before operators that keep the order of elements was along the axis that is now the last: its
    own axis has the same length, and the axes after it have one element."""
    sizes, ended = build.dims(softmax.outputs[0]), build.dims(output)
    if not sizes or not ended:
        return False
    axis = build.attr(softmax, "axis", -1) % len(sizes)
    return sizes[axis] == ended[-1] and all(size == 1 for size in sizes[axis + 1 :])


_FEW = 4096
"""Classes that are compared one by one."""
_Parts = tuple[Term, Term, "Term | None"]
"""The loss, and counts of any type."""


def _softmax_cross_entropy(tape: Tape, output: ir.Value, training: Training) -> _Parts:
    """mean(log sum exp(logits) - logits[label]) over the labels that are a valid class; 0 if there are none."""
    logits = before(tape, output, "Softmax", "LogSoftmax")
    if not logits.rank or not isinstance(logits.shape[-1], int):
        raise TrainingError(
            f"softmax_cross_entropy: expected output {output.name!r} to end in an axis of classes of known size, got "
            f"{list(logits.shape)}"
        )
    labels = add_input(tape, LABELS, _named(logits.shape[:-1]), _INT64)
    classes = logits.size(-1)
    valid = labels.equals(labels.op("Clip", labels.number(0), labels.number(classes - 1)))
    index = tape.where(valid, labels, 0).unsqueeze(-1)
    missing = logits.op("ReduceLogSumExp", tape.ints([-1])) - _picked(logits, index)
    counted = _count(valid)
    loss = _total(tape.where(valid.unsqueeze(-1), missing, 0.0)) / counted.op("Max", counted.number(1.0))
    best = logits.op("ArgMax", axis=-1, keepdims=0)
    return loss, counted, _count(best.equals(labels))


def _picked(logits: Term, index: Term) -> Term:
    """The logit of each row's label. Of few classes by comparison, by kernels that a step has anyway; of many a look-up
    saves an array of the logits' size."""
    if logits.size(-1) > _FEW:
        return logits.op("GatherElements", index, axis=-1)
    hot = index.equals(logits.tape.const(np.arange(logits.size(-1)), np.int64))
    return logits.tape.where(hot, logits, 0.0).op("ReduceSum", logits.tape.ints([-1]))


def _sigmoid_cross_entropy(tape: Tape, output: ir.Value, training: Training) -> _Parts:
    """mean(softplus(logits) - logits * label); correct: the prediction is on the label's side of one half."""
    logits = before(tape, output, "Sigmoid")
    labels = add_input(tape, LABELS, _named(logits.shape))
    right = (logits > 0.0).equals(labels > 0.5)
    return _mean(logits.op("Softplus") - logits * labels), labels.op("Size"), _count(right)


def _squared(tape: Tape, output: ir.Value, training: Training) -> _Parts:
    """mean((output - label)^2)"""
    y = tape.term(output)
    labels = add_input(tape, LABELS, _named(y.shape))
    error = y - labels
    return _mean(error * error), labels.op("Size"), None


def _huber(tape: Tape, output: ir.Value, training: Training) -> _Parts:
    """mean(q * (|e| - q / 2)) with q = min(|e|, delta): e^2 / 2 up to delta, a line beyond (Huber, 1964)."""
    y = tape.term(output)
    labels = add_input(tape, LABELS, _named(y.shape))
    error = (y - labels).op("Abs")
    near = error.op("Min", error.number(training.huber_delta))
    return _mean(near * (error - near * 0.5)), labels.op("Size"), None


def _inner_product(tape: Tape, output: ir.Value, training: Training) -> _Parts:
    """sum(output * label)"""
    y = tape.term(output)
    labels = add_input(tape, LABELS, _named(y.shape))
    return _total(y * labels), labels.op("Size"), None


_LOSSES: Mapping[Loss, Callable[[Tape, ir.Value, Training], _Parts]] = {
    "softmax_cross_entropy": _softmax_cross_entropy,
    "sigmoid_cross_entropy": _sigmoid_cross_entropy,
    "mse": _squared,
    "huber": _huber,
    "inner_product": _inner_product,
}


def _named(shape: build.Shape) -> tuple[int | str | None, ...]:
    """A shape for an input, without symbols that shape inference generated, which have no meaning there."""
    return tuple(None if isinstance(d, str) and shapes.made_up(d) else d for d in shape)


def _mean(x: Term) -> Term:
    return x.op("ReduceMean", keepdims=0)


def _total(x: Term) -> Term:
    return x.op("ReduceSum", keepdims=0)


def _count(true: Term) -> Term:
    """How many are true: summed as float32, exact up to 2^24."""
    return _total(true.cast(_FLOAT))
