"""A table of how each operator is quantised, and `plan`, which applies it to a whole graph.

Roles:

- `contraction`: int8 operands and weights, exact integer sums; the result is int8 if an integer operator reads it, and
  otherwise float32 directly from the accumulator.
- `table`: a function of one int8 number, hence a look-up table; int8 before and after.
- `reduce`: pools, means, softmax: int8 in, int8 out, with separate (or fixed) parameters.
- `elementwise`: computed in float between int8 loads and stores, one pass for a whole chain.
- `movement`: moves integers; results keep the parameters of their operands.
- `reader`: accepts int8, and its result is not quantised (positions, for example).
- everything else stays float; `REASONS` says why if that is a decision, not a gap.

An operator with an integer form uses it only if that saves a conversion: its operand arrives as integers, and an
integer operator reads its result. So preprocessing before the first contraction, the last activation after the last
one, and the residual stream that feeds a LayerNorm stay float at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build, kept
from converter.ir.build import attr
from converter.quantize.calibration.calibrate import Params
from converter.quantize.options import Options, matches
from converter.quantize.rounding.weights import SMALLEST, Place, places
from lite_runtime.operators import having, require

__all__ = ["FIXED", "REASONS", "SCHEMES", "Plan", "Role", "Scheme", "fixed_params", "plan", "weight_place"]

Role = Literal["contraction", "table", "reduce", "elementwise", "movement", "reader"]


class Scheme(NamedTuple):
    """How an operator is quantised. `operands`: which of its inputs are activations; None for all."""

    role: Role
    operands: tuple[int, ...] | None = (0,)
    suits: Callable[[ir.Node], str] = lambda node: ""
    """The reason why this node stays float; "" if it does not."""


FIXED: Mapping[str, tuple[float, int]] = {
    "Softmax": (1 / 256, -128),
    "Sigmoid": (1 / 256, -128),
    "HardSigmoid": (1 / 256, -128),
    "Tanh": (1 / 128, 0),
}
"""Operators whose results lie in a known interval: int8 scale and zero point."""

REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        having("normalizes"),
        "a mean and variance of 8-bit numbers lose too much; float costs little",
    ),
    **dict.fromkeys(
        ("Exp", "Log", "Pow", "Reciprocal", "Sqrt", "Div", "LogSoftmax", "ReduceSumSquare", "ReduceLogSumExp"),
        "results span too many magnitudes for 8 bits",
    ),
    **dict.fromkeys(having("recurrent"), "errors add up over time steps; its weights are int8"),
    **dict.fromkeys(("Attention",), "the fused attention kernel keeps scores in float"),
    "BatchNormalization": "a scale and shift that cannot be folded into a convolution",
}  # fmt: skip


# which nodes suit their scheme


def weight_place(node: ir.Node) -> tuple[Place, ir.Value, np.ndarray] | None:
    """The constant weight of a contraction, of any size, with its place."""
    return next(places(node, 0), None)


def _with_weights(node: ir.Node) -> str:
    return "" if weight_place(node) is not None else "its weights are computed, not constant"


def _constant_bias(node: ir.Node) -> str:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return "" if bias is None or build.array(bias) is not None else "its bias is computed, not constant"


def _conv(node: ir.Node) -> str:
    return _with_weights(node) or _constant_bias(node)


def _matmul(node: ir.Node) -> str:
    constants = [v for v in node.inputs if build.array(v) is not None]
    return _with_weights(node) if constants else ""


def _gemm(node: ir.Node) -> str:
    if attr(node, "alpha", 1.0) != 1.0 or attr(node, "beta", 1.0) != 1.0 or attr(node, "transA", 0):
        return "alpha, beta or transA of Gemm have no integer form"
    return _with_weights(node) or _constant_bias(node)


def _pad(node: ir.Node) -> str:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    plain = attr(node, "mode", "constant") != "constant" or value is None or build.scalar(value) == 0
    return "" if plain else "it pads with a number other than zero"


def _resize(node: ir.Node) -> str:
    mode = attr(node, "mode", "nearest")
    return "" if mode in ("nearest", "linear") else f"{mode} interpolation overshoots its input's range"


def _single(node: ir.Node) -> str:
    return "" if len([v for v in node.outputs if v.uses() or v.is_graph_output()]) <= 1 else "it has several results"


_ELEMENTWISE = "Add Sub Mul Max Min Mean Sum PRelu Relu Clip Abs Neg Where SwiGLU".split()
"""Elementwise operators whose results fit in 8 bits if their operands do, and that are computed in chains anyway."""

SCHEMES: Mapping[str, Scheme] = {
    "Conv": Scheme("contraction", (0,), _conv),
    "ConvTranspose": Scheme("contraction", (0,), _conv),
    "Gemm": Scheme("contraction", (0,), _gemm),
    "MatMul": Scheme("contraction", (0, 1), _matmul),
    **{op: Scheme("table") for op in having("table")},
    **{op: Scheme("elementwise", None) for op in _ELEMENTWISE},
    **{op: Scheme("movement") for op in having("movement") | having("selects", "reduction")},
    "MaxPool": Scheme("movement", (0,), _single),
    "GlobalMaxPool": Scheme("movement"),
    "Concat": Scheme("movement", None),
    "Pad": Scheme("movement", (0,), _pad),
    "Resize": Scheme("movement", (0,), _resize),
    **{op: Scheme("reduce") for op in ("AveragePool", "GlobalAveragePool", "ReduceMean", "Softmax")},
    **{op: Scheme("reader") for op in ("ArgMax", "ArgMin")},
}

require((*SCHEMES, *REASONS, *FIXED), "quantisation schemes")


def fixed_params(node: ir.Node | None, dtype: str) -> Params | None:
    """The parameters of a result that always lies in a known interval."""
    if node is None or node.domain != "" or node.op_type not in FIXED:
        return None
    scale, zero = FIXED[node.op_type]
    return Params(scale, zero, dtype) if dtype == "int8" else Params(1 / 32768, 0, dtype)


# the plan of a graph


@dataclass
class Plan:
    """Which nodes compute on integers, which tensors are integers, and which share parameters."""

    integer: dict[ir.Node, Scheme] = field(default_factory=dict)
    weights: set[ir.Node] = field(default_factory=set)
    """Float nodes whose constant weights become int8."""
    reasons: dict[ir.Node, str] = field(default_factory=dict)
    """Why every other node stays float."""
    tensors: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Every tensor to be quantised, in graph order -> the tensor whose parameters it takes (itself, mostly)."""

    def reads_integers(self, node: ir.Node, value: ir.Value) -> bool:
        """Whether `node` takes the quantised form of `value`, where there is one."""
        if value not in self.tensors:
            return False
        producer = value.producer()
        return node in self.integer or (producer is not None and producer in self.integer)

    def enters(self, value: ir.Value) -> bool:
        """Whether a tensor adds new values to those that share its parameters, in contrast to values only moved."""
        producer = value.producer()
        scheme = None if producer is None else self.integer.get(producer)
        return producer is None or scheme is None or scheme.role != "movement" or producer.op_type == "Concat"


def plan(model: ir.Model, options: Options) -> Plan:
    """The plan of the main graph (nodes of subgraphs stay float) for the static modes."""
    found = Plan()
    candidates = dict(_candidates(model, options, found))
    _settle(candidates, found, integer_outputs=options.io == "int8")
    found.integer = candidates
    for node in model.graph:
        if node not in candidates:
            found.reasons.setdefault(node, _reason(node))
    tensors = list(_tensors(model, found, options))
    shared = _shared(found, set(tensors))
    found.tensors = {value: shared.get(value, value) for value in tensors}
    return found


def _reason(node: ir.Node) -> str:
    if node.op_type in REASONS:
        return REASONS[node.op_type]
    return f"{node.op_type} has no integer form" if any(map(_is_float, node.outputs)) else "it computes no floats"


def _candidates(model: ir.Model, options: Options, found: Plan) -> Iterator[tuple[ir.Node, Scheme]]:
    """Nodes that could be integer, by themselves; the others get their reasons."""
    for node in model.graph:
        scheme = SCHEMES.get(node.op_type)
        names = (node.name, node.op_type, *(v.name for v in node.outputs))
        if matches(options.keep_float, *names):
            found.reasons[node] = "kept float by options"
            continue
        has_weights = next(places(node, SMALLEST), None) is not None
        if matches(options.weight_only, *names):
            found.reasons[node] = "its activations are kept float by options"
        elif scheme is not None and node.domain in ("", build.DOMAIN):
            why = _unsuited(node, scheme)
            if not why:
                yield node, scheme
                continue
            found.reasons[node] = why
        if has_weights:
            found.weights.add(node)


def _unsuited(node: ir.Node, scheme: Scheme) -> str:
    if not any(_is_float(v) for v in _operands(node, scheme)):
        return "none of its operands is a float32 activation"
    return scheme.suits(node)


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


def _operands(node: ir.Node, scheme: Scheme) -> list[ir.Value]:
    """The float activations a scheme quantises; no constants."""
    indices = range(len(node.inputs)) if scheme.operands is None else scheme.operands
    values = [node.inputs[i] for i in indices if i < len(node.inputs)]
    return [v for v in values if v is not None and _is_float(v) and build.array(v) is None]


def _settle(nodes: dict[ir.Node, Scheme], found: Plan, *, integer_outputs: bool) -> None:
    """Drop nodes that would gain nothing, until all remaining ones read and write integers."""
    changed = True
    while changed:
        changed = False
        for node, scheme in list(nodes.items()):
            why = "" if scheme.role == "contraction" else _idle(node, scheme, nodes, integer_outputs)
            if why:
                del nodes[node]
                found.reasons[node] = why
                changed = True


def _idle(node: ir.Node, scheme: Scheme, nodes: Mapping[ir.Node, Scheme], integer_outputs: bool) -> str:
    arriving = [v.producer() in nodes for v in _operands(node, scheme)]
    readers = [use.node for v in node.outputs for use in v.uses()]
    wanted = [reader in nodes for reader in readers]
    if integer_outputs:
        wanted += [True for v in node.outputs if v.is_graph_output()]
        arriving = [a or v.is_graph_input() for a, v in zip(arriving, _operands(node, scheme), strict=True)]
    if scheme.role == "reader":
        return "" if any(arriving) else "its operand is float"
    if not any(wanted):
        return "nothing after it computes on integers: float straight from the accumulator costs nothing"
    if scheme.role == "movement" and any(arriving) is False and all(wanted):
        return ""
    return "" if any(arriving) else "nothing before it computes on integers"


# which tensors


def _tensors(model: ir.Model, found: Plan, options: Options) -> Iterator[ir.Value]:
    """Tensors that get parameters, in graph order."""
    for value in model.graph.inputs:
        if _is_float(value) and any(_takes(use.node, value, found) for use in value.uses()):
            yield value
    for node in model.graph:
        for value in node.outputs:
            if _is_float(value) and _quantised(model, node, value, found, options):
                yield value


def _takes(node: ir.Node, value: ir.Value, found: Plan) -> bool:
    """Whether an integer node reads `value`, the result of a float node, as integers. Elementwise chains accept floats
    too."""
    scheme = found.integer.get(node)
    return scheme is not None and scheme.role != "elementwise" and any(v is value for v in _operands(node, scheme))


def _quantised(model: ir.Model, node: ir.Node, value: ir.Value, found: Plan, options: Options) -> bool:
    scheme = found.integer.get(node)
    if scheme is None:
        return any(_takes(use.node, value, found) for use in value.uses())
    if scheme.role == "reader":
        return False
    if options.io == "int8" and value.is_graph_output() and value.name not in kept.ends(model.graph):
        return True
    if not any(use.node in found.integer for use in value.uses()):
        return False
    return not _fuses_on(node, scheme, value, found)


def _fuses_on(node: ir.Node, scheme: Scheme, value: ir.Value, found: Plan) -> bool:
    """Whether `value` only passes from its operator to one that computes with it in the same pass.

    1. A contraction's bias: MatMul -> Add of a constant vector.
    2. A contraction's activation: Conv, Add -> Relu, Clip.
    3. Elementwise after elementwise.
    """
    reader = build.sole_use(value)
    if reader is None or reader not in found.integer or found.integer[reader].role != "elementwise":
        return False
    if scheme.role == "elementwise":
        return True
    return scheme.role == "contraction" and (_is_activation(reader) or _is_bias(node, reader, value))


def _is_activation(node: ir.Node) -> bool:
    bounds = node.inputs[1:] if node.op_type == "Clip" else ()
    return node.op_type in ("Relu", "Clip") and all(v is None or build.scalar(v) is not None for v in bounds)


def _is_bias(node: ir.Node, reader: ir.Node, value: ir.Value) -> bool:
    """MatMul(x, w) + vector over the columns."""
    if node.op_type != "MatMul" or reader.op_type != "Add":
        return False
    other = build.array(next((v for v in reader.inputs if v is not value), None))
    width = (build.dims(value) or (None,))[-1]
    return other is not None and other.shape[-1:] in ((width,), (1,), ()) and other.size in (1, width)


# which share parameters


def _shared(found: Plan, tensors: set[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Tensor -> the first of all tensors that movement ties to it.

    A Concat ties those operands that nothing else reads; others keep a finer scale for their other readers.
    """
    parent: dict[ir.Value, ir.Value] = {}

    def root(value: ir.Value) -> ir.Value:
        while value in parent:
            value = parent[value]
        return value

    for node, scheme in found.integer.items():
        if scheme.role != "movement":
            continue
        results = [v for v in node.outputs if v in tensors]
        operands = [v for v in _operands(node, scheme) if v in tensors]
        if node.op_type == "Concat":
            operands = [v for v in operands if build.sole_reader(v) and not _is_fixed(root(v))]
        group = [root(v) for v in (*operands, *results)]
        for other in group[1:]:
            if other is not group[0]:
                parent[other] = group[0]
    return {value: root(value) for value in tensors}


def _is_fixed(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.domain == "" and producer.op_type in FIXED
