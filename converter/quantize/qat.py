"""Quantisation-aware training: a graph that rounds like the device, with float weights, and its conversion back.

    record = fake_quantize(model, Options(mode="int8"), samples)     # model: IR after PREPARE, as for `quantize`
    ... train `model` with anything that reads ONNX and passes gradients through rounding (cloud.train does) ...
    freeze(model)                                                    # now the same form as `quantize` writes

The fake-quantised graph is that of `quantize`, with two differences: every weight is a float initialiser followed by
QuantizeLinear and DequantizeLinear, where `quantize` stores integers followed by DequantizeLinear only, and biases are
plain floats. So training computes what the device computes, except for the rounding of biases to 32 bits. PREPARE folds
batch norms and drops dropout first: weights train in the form that the device stores, with statistics frozen (Jacob et
al., 2018, arXiv:1712.05877, fold as well, but keep updating statistics; a few epochs at a low rate do not need that).

Scales are separate initialisers. Constant during training, they keep the values from calibration and the search for the
least squared error; learned together with the weights they are LSQ (Esser et al., 2020, arXiv:1902.08153). Constant
is the default: over three small networks on MNIST with four-bit weights, learning them helped one and hurt two, all
within 0.4 % (see `cloud.train.quantize_aware`).

Trained weights may take the least integer too, -128 in eight bits, which post-training quantisation never uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter import export
from converter.errors import QuantizeError
from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import cleanup, quantized
from converter.quantize import apply
from converter.quantize.calibration.data import Samples, Source
from converter.quantize.calibration.data import load as calibration_data
from converter.quantize.options import Options, matches
from converter.quantize.record import Record
from converter.quantize.rounding.weights import Bits, per_channel, width
from converter.quantize.schemes import SCHEMES, weight_place
from converter.quantize.state import State, Step
from converter.quantize.steps import STEPS
from lite_runtime.reference.quantize import quantize as to_integers

__all__ = ["Scales", "fake_quantize", "freeze", "scales"]

_BIAS_ROOM = 2.0**30
"""The limit of integer biases, so that adding the sums does not overflow 32 bits."""


def fake_quantize(
    model: ir.Model, options: Options, samples: Samples | Source, *, weight_bits: Bits = 8,
    narrow: Sequence[str] = ("*",),
) -> Record:  # fmt: skip
    """Convert `model` (IR after PREPARE) in place to a trainable one that rounds as its static quantisation does.

    The result is standard ONNX. `options`: of mode int8 or int16x8, with float inputs and outputs; GPTQ and bias
    correction are left to training. `weight_bits` 4 gives contractions int4 weights with one scale per channel, except
    channels of fewer than 32 weights, which keep eight bits; `narrow`: globs of the nodes that get them. Raises
    QuantizeError.
    """
    if not options.static or options.io != "float32":
        raise QuantizeError(
            f"training on quantised activations takes mode 'int8' or 'int16x8' with io 'float32', got mode "
            f"{options.mode!r} with io {options.io!r}: gradients need float inputs and outputs"
        )
    if weight_bits not in (4, 8):
        raise QuantizeError(f"weight_bits: expected 4 or 8, got {weight_bits!r}")
    if not isinstance(samples, Samples):
        samples = calibration_data(samples, model)
    options = replace(options, gptq=False, bias_correction=False)
    record = Record(options.mode, asdict(options), len(samples), samples.digest, findings=list(samples.findings))
    build.adopt(model)
    state = State(model, options, samples, record)
    for step in _STEPS:
        if step is _NARROW and weight_bits == 4:
            _round_to_four_bits(state, narrow)
        elif step is not _NARROW and step.applies(options):
            step.run(state)
    export.standardize(model)
    return record


def _round_to_four_bits(state: State, narrow: Sequence[str] = ("*",)) -> None:
    for node, scheme in state.plan.integer.items():
        chosen = scheme.role == "contraction" and matches(narrow, node.name)
        placed = weight_place(node) if chosen else None
        if placed is not None and width(placed[2], placed[0], 4) == 4:
            place, value, weight = placed
            name = value.name or ""
            state.weights[name] = per_channel(weight, place.channels, bits=4, search=True, name=name)


def _write(state: State) -> None:
    """Write integers as `quantize` does, then restore the floats in front of them."""
    floats = {
        (node, index): value
        for node in state.model.graph
        for index, value in enumerate(node.inputs)
        if value is not None and value.is_initializer() and value.dtype == ir.DataType.FLOAT
    }
    apply.apply_static(state)
    for (node, index), value in floats.items():
        _thaw(node, index, value)


def _thaw(node: ir.Node, index: int, floats: ir.Value) -> None:
    """If `node` reads integers that represent the initialiser `floats`: let it read `floats`, rounded if a weight."""
    operand, graph = node.inputs[index], node.graph
    made = None if operand is None else operand.producer()
    if made is None or graph is None or not build.is_op(made, "DequantizeLinear"):
        return
    stored = made.inputs[0]
    if stored is None or not stored.is_initializer():  # an activation, or a weight already restored for another reader
        return
    integers, steps = build.array(stored), build.array(made.inputs[1])
    assert integers is not None and steps is not None
    if floats.name not in graph.initializers:
        graph.register_initializer(floats)
    if integers.dtype == np.int32:
        node.replace_input_with(index, floats)
        return
    edit = Edit(made)
    zeros = edit.const(np.zeros(steps.shape, integers.dtype), hint=f"{floats.name}.zero")
    attrs = {"axis": attr(made, "axis", 1), "block_size": attr(made, "block_size", 0) or None}
    rounded = edit.op("QuantizeLinear", [floats, made.inputs[1], zeros], attrs, shape=integers.shape)
    rounded.type = stored.type
    made.replace_input_with(0, rounded)


_NARROW = Step("round weights to four bits", lambda options: True, _round_to_four_bits)
"""Called by `fake_quantize` itself, with its globs."""


def _trainable_steps() -> tuple[Step, ...]:
    """The steps of `quantize`, with the floats kept in front of the integers."""
    steps: list[Step] = []
    for step in STEPS:
        if step.run is apply.round_weights:
            steps.append(_NARROW)
        steps.append(Step("write rounding", step.applies, _write) if step.run is apply.apply_static else step)
    return tuple(steps)


_STEPS = _trainable_steps()


class Scales(NamedTuple):
    """Names of initialisers that hold scales: of weights, and of activations."""

    weights: tuple[str, ...]
    activations: tuple[str, ...]


def scales(model: ir.Model) -> Scales:
    """The scales of a fake-quantised model, in graph order, each once; a trainer may learn them too."""
    found: tuple[dict[str, None], dict[str, None]] = {}, {}
    for node in model.graph:
        if build.is_op(node, "QuantizeLinear") and node.inputs[1] is not None and node.inputs[1].is_initializer():
            weight = node.inputs[0] is not None and node.inputs[0].is_initializer()
            found[not weight][node.inputs[1].name or ""] = None
    return Scales(*map(tuple, found))


def freeze(model: ir.Model) -> int:
    """Replace weights before a QuantizeLinear by its integers, and biases by int32 in units of input times weight scale
    where `quantize` does so. In place; the number of initialisers that became integers.

    Raises QuantizeError for weights or scales that are NaN or infinite after training, and scales that are not
    positive.
    """
    build.adopt(model)
    count = sum(_freeze_weight(node) for node in list(model.graph) if build.is_op(node, "QuantizeLinear"))
    count += sum(_freeze_bias(node) for node in list(model.graph))
    cleanup.unused(model)
    return count


def _freeze_weight(node: ir.Node) -> bool:
    weight, steps, zeros = (build.array(v) for v in (*node.inputs, None)[:3])
    if steps is not None and not (np.isfinite(steps) & (steps > 0)).all():
        raise QuantizeError(
            f"the scales of QuantizeLinear {build.title(node)!r} are not all finite and positive "
            f"(the smallest is {steps.min()}): "
            "train them at a lower rate, or leave them constant"
        )
    if weight is None or steps is None:
        return False
    name = node.inputs[0].name if node.inputs[0] is not None else ""
    if not np.isfinite(weight).all():
        raise QuantizeError(f"weight {name!r} holds NaN or infinity: its training diverged; lower the learning rate")
    values = to_integers(weight, steps, zeros, attr(node, "axis", 1), attr(node, "block_size", 0))
    edit = Edit(node)
    edit.replace(edit.const(values, hint=f"{name}.{values.dtype}"))
    return True


def _freeze_bias(node: ir.Node) -> bool:
    """The bias of a contraction with int8 input and output."""
    scheme = SCHEMES.get(node.op_type)
    bias = build.array(node.inputs[2]) if scheme is not None and len(node.inputs) > 2 else None
    if scheme is None or scheme.role != "contraction" or bias is None or bias.ndim != 1 or bias.dtype != np.float32:
        return False
    x, weight = quantized.dequantized(node.inputs[0]), quantized.stored(node.inputs[1])
    if x is None or x.parameters.dtype != ir.DataType.INT8 or x.parameters.scales is None or weight is None:
        return False
    if bias.size % weight.scale.size or not _ends_integer(node.outputs[0]):
        return False
    steps = np.tile(weight.scale.reshape(-1) * x.parameters.scales, bias.size // weight.scale.size).astype(np.float32)
    whole = np.rint(bias.astype(np.float64) / steps)
    if np.abs(whole).max(initial=0) > _BIAS_ROOM:  # left to the integer passes, which compare it with the sums
        return False
    old = node.inputs[2]
    edit = Edit(node)
    integers = edit.const(whole, np.int32, hint=f"{old.name if old is not None else ''}.int32")
    made = edit.op("DequantizeLinear", [integers, edit.const(steps)], {"axis": 0}, like=old)
    node.replace_input_with(2, made)
    return True


def _ends_integer(value: ir.Value) -> bool:
    """Whether it is quantised, directly or after the activation that fuses with its producer."""
    while not any(build.is_op(use.node, "QuantizeLinear") for use in value.uses()):
        reader = build.sole_use(value)
        scheme = None if reader is None else SCHEMES.get(reader.op_type)
        if reader is None or scheme is None or scheme.role != "elementwise":
            return False
        value = reader.outputs[0]
    return True
