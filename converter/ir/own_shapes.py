"""Types and shapes of the results of our own domain's operators, which frontends need before ONNX's inference runs, of
ONNX's operators that its inference does not support, and of operators that the program has registered; ranks of images
from those of convolutions' weights.

`fill` sets what is unknown; `RULES` has a row for each of our operators, `ONNX` and `ML` for each of ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import onnx
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Shape, attr, dims, operand
from converter.ir.node_shapes import infer_node
from lite_runtime import custom
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import OPSET, Attr, Node, Spec, dtype_name, numpy_dtype
from lite_runtime.operators import having, require
from lite_runtime.ops.registry import INFERS, DataDependent, Inference

__all__ = ["ML", "ONNX", "RULES", "Known", "fill"]

Known = tuple["ir.DataType | None", "Shape | None"]
"""Of one result: its element type and its shape, None where unknown."""
Rule = Callable[[ir.Node], "Sequence[Known]"]
_FLOAT = ir.DataType.FLOAT


def fill(model: ir.Model) -> int:
    """Set types and shapes of operators' results that have none; the number of values that gained something.

    ONNX's operators that read such a result follow at once, so that a long chain needs no run of the engine a link.
    """
    count, tables = 0, {build.DOMAIN: RULES, "": ONNX, "ai.onnx.ml": ML}
    gained = set[ir.Value]()
    for node in build.nodes(model):
        count += _rank_of_images(node)
        rule = tables.get(node.domain, {}).get(node.op_type) or _registered(node)
        if rule is None and not gained.isdisjoint(node.inputs):
            gained.update(_followed(node))
        ends = not node.domain and any(v.is_graph_output() for v in node.outputs)
        asked = ends or any(v.dtype is None or v.shape is None for v in node.outputs)
        for value, (dtype, shape) in zip(node.outputs, rule(node), strict=False) if rule and asked else ():
            if not node.domain and dtype is not None and value.dtype not in (None, dtype):
                raise build.contradicted(value, f"as {value.dtype}", dtype)
            if value.dtype is None and dtype is not None:
                value.type = ir.TensorType(dtype)
                gained.add(value)
                count += 1
            if value.shape is None and shape is not None:
                value.shape = ir.Shape(shape)
                gained.add(value)
                count += 1
    return count


def _followed(node: ir.Node) -> list[ir.Value]:
    """Results of an operator of ONNX that had no shape and have one now."""
    unknown = [value for value in node.outputs if value.shape is None and not value.is_graph_output()]
    inner = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    if not unknown or inner or node.domain or any(v is not None and v.dtype is None for v in node.inputs):
        return []
    infer_node(node)
    return [value for value in unknown if value.shape is not None]


def _registered(node: ir.Node) -> Rule | None:
    """The rule of an operator that the program has registered."""
    if node.domain in ("", build.DOMAIN) or custom.record(custom.key(node.domain, node.op_type)) is None:
        return None
    return _by_trials


_TRIALS = (13, 17)
"""Sizes that stand for open ones when a registered operator is asked for its results."""


def _by_trials(node: ir.Node) -> list[Known]:
    """What the operator's own rule says for two choices of open sizes: sizes on which both agree are known, and a
    result's size that is an open one in both has its name."""
    names = list(dict.fromkeys(d for v in node.inputs for d in (dims(v) or ()) if isinstance(d, str)))
    attributes = {key: _plain(value) for key, value in node.attributes.items()}
    rule = INFERS[custom.key(node.domain, node.op_type)]
    found = []
    for first in _TRIALS:
        sizes = {name: first + 6 * i for i, name in enumerate(names)}
        specs = [None if v is None else _spec(v, sizes, first - 2) for v in node.inputs]
        if any(v is not None and spec is None for v, spec in zip(node.inputs, specs, strict=True)):
            return []
        lite = Node(custom.key(node.domain, node.op_type), tuple("x" if s else "" for s in specs), ("y",), attributes)
        try:
            found.append((sizes, rule(Inference(lite, specs, [None] * len(specs)))))
        except (DataDependent, MsedgeError):
            return []
    (sizes, one), (others, two) = found
    pairs = [(name, sizes[name], others[name]) for name in names]
    known: list[Known] = []
    for a, b in zip(one, two, strict=False):
        same = len(a.shape) == len(b.shape)
        shape = [_agreed(m, n, pairs) for m, n in zip(a.shape, b.shape, strict=True)] if same else None
        known.append((ir.DataType.from_numpy(numpy_dtype(a.dtype)), shape))
    return known


def _agreed(m: int, n: int, names: Sequence[tuple[str, int, int]]) -> int | str | None:
    return m if m == n else next((name for name, a, b in names if (a, b) == (m, n)), None)


def _spec(value: ir.Value, sizes: Mapping[str, int], unknown: int) -> Spec | None:
    shape = dims(value)
    if shape is None or value.dtype is None or value.dtype == ir.DataType.STRING:
        return None
    known = tuple(d if isinstance(d, int) else unknown if d is None else sizes[d] for d in shape)
    return Spec(dtype_name(value.dtype.numpy()), known)


def _plain(attribute: ir.Attr) -> Attr:
    """The attribute as lite graphs have it."""
    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    return tuple(value) if isinstance(value, list | tuple) else value


def _rank_of_images(node: ir.Node) -> bool:
    """A convolution's input has the rank of its weights."""
    if not build.is_op(node, "Conv", "ConvTranspose") or len(node.inputs) < 2:
        return False
    images, rank = node.inputs[0], build.rank(node.inputs[1])
    if images is None or images.shape is not None or rank is None:
        return False
    images.shape = ir.Shape([None] * rank)
    return True


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _as_input(node: ir.Node) -> list[Known]:
    return [(_dtype(operand(node, 0)), dims(operand(node, 0)))]


def _look_up(node: ir.Node) -> list[Known]:
    return [(_dtype(node.inputs[1]), dims(node.inputs[0]))]


def _sixteen_bits(node: ir.Node) -> list[Known]:
    return [(ir.DataType.INT16, dims(node.inputs[0]))]


def _rescale(node: ir.Node) -> list[Known]:
    """`x, multiplier, shift, y_zero_point`: the zero point's type."""
    shapes = [ir.Value(name=v.name, shape=v.shape) for v in node.inputs[:3] if v is not None]
    return [(_dtype(node.inputs[3]), _by_onnx("Sum", node, shapes))]


def _dynamic_quantize(node: ir.Node) -> list[Known]:
    shape, kept = dims(node.inputs[0]), attr(node, "kept", 0)
    integers = ir.DataType.INT8 if attr(node, "dtype", "uint8") == "int8" else ir.DataType.UINT8
    ranges: Shape | None = () if not kept else None if shape is None else (*shape[:kept], *[1] * (len(shape) - kept))
    return [(integers, shape), (_FLOAT, ranges), (integers, ranges)]


def _unpack(node: ir.Node) -> list[Known]:
    signed = attr(node, "signed", 1)
    return [(ir.DataType.INT8 if signed else ir.DataType.UINT8, tuple(attr(node, "shape", ())))]


def _kept_boxes(node: ir.Node) -> list[Known]:
    scores, most = build.static_dims(node.inputs[1]), build.array(node.inputs[2])
    rows = None
    if scores is not None and len(scores) == 3 and most is not None and most.size == 1:
        rows = scores[0] * scores[1] * min(max(int(most.item()), 0), scores[2])
    return [(ir.DataType.INT64, (rows, 3)), (ir.DataType.INT64, (1,))]


def _broadcast(node: ir.Node) -> list[Known]:
    return [(_dtype(node.inputs[0]), _by_onnx("Add", node, [node.inputs[0], node.inputs[3]]))]


def _pooled(op: str) -> Rule:
    """`x, x_scale, x_zero, y_scale, y_zero, ...`: the shape that ONNX's operator gives for x, the type of y_zero."""

    def rule(node: ir.Node) -> list[Known]:
        return [(_dtype(node.inputs[4]), _by_onnx(op, node, [node.inputs[0], *node.inputs[5:]]))]

    return rule


def _contracted(op: str) -> Rule:
    """`x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias`: float32 without a y_zero."""

    def rule(node: ir.Node) -> list[Known]:
        zero = operand(node, 7)
        dtype = _FLOAT if zero is None else zero.dtype
        return [(dtype, _by_onnx(op, node, [node.inputs[0], node.inputs[3]]))]

    return rule


def _quantized_blocks(node: ir.Node) -> list[Known]:
    shape, block = dims(operand(node, 0)), attr(node, "block_size", 32)
    last = shape[-1] if shape else None
    table = None if shape is None else (*shape[:-1], last // block if isinstance(last, int) and block else None)
    return [(ir.DataType.INT8, shape), (_FLOAT, table), (_FLOAT, table)]


def _block_product(node: ir.Node) -> list[Known]:
    shape, columns = dims(operand(node, 0)), attr(node, "K" if attr(node, "transposed", 0) else "N", None)
    return [(_FLOAT, None if shape is None else (*shape[:-1], columns))]


def _adapted(node: ir.Node) -> list[Known]:
    return [(_FLOAT, dims(operand(node, 1)))]


def _block_rows(node: ir.Node) -> list[Known]:
    shape = dims(operand(node, 1))
    return [(_FLOAT, None if shape is None else (*shape, attr(node, "K", None)))]


def _attended(node: ir.Node) -> list[Known]:
    """The result has as many features as all heads have values; the caches are those given."""
    query, value, heads, shared = dims(operand(node, 0)), dims(operand(node, 2)), *(
        attr(node, name, 0) for name in ("num_heads", "kv_num_heads")
    )
    last = value[-1] if value else None
    wide = last // shared * heads if isinstance(last, int) and shared else None
    caches = [(_dtype(operand(node, i)), dims(operand(node, i))) for i in (3, 4)]
    return [(_FLOAT, (query[0] if query else None, wide)), *caches]


def _like(*operands: int) -> Rule:
    """Results of the types and shapes of these operands."""

    def rule(node: ir.Node) -> list[Known]:
        return [(_dtype(v), dims(v)) for v in (operand(node, i) for i in operands)]

    return rule


def _conv_weight_grad(node: ir.Node) -> list[Known]:
    last = attr(node, "layout", "NCHW") == "NHWC"
    x, dy = (dims(v) for v in node.inputs)
    if x is None or dy is None:
        return [(_dtype(node.inputs[0]), None)]
    channels, filters = (s[-1 if last else 1] for s in (x, dy))
    deep = channels // attr(node, "group", 1) if isinstance(channels, int) else None
    return [(_dtype(node.inputs[0]), (filters, deep, *attr(node, "kernel_shape", ())))]


def _recurrent(states: int) -> Rule:
    """All hidden states, then the last of each state."""

    def rule(node: ir.Node) -> list[Known]:
        x, r, dtype = dims(node.inputs[0]), dims(node.inputs[2]), _dtype(node.inputs[0])
        if x is None or r is None:
            return [(dtype, None)] * (1 + states)
        (time, batch), (count, _, hidden) = x[:2], r
        if attr(node, "layout", 0):
            return [(dtype, (time, batch, count, hidden)), *[(dtype, (time, count, hidden))] * states]
        return [(dtype, (time, count, batch, hidden)), *[(dtype, (count, batch, hidden))] * states]

    return rule


_FEW = 16
"""Constant vectors of at most so many elements may be sizes, scales or axes, on which the result's shape depends."""
_OURS = ("layout", "activation", "activation_min", "activation_max", "transB", "rounding", "multiplier", "shift")


def _by_onnx(op: str, node: ir.Node, operands: Sequence[ir.Value | None]) -> Shape | None:
    """The result that ONNX's own rule for `op` infers for float operands with these shapes."""
    first, last = dims(operands[0]), attr(node, "layout", "NCHW") == "NHWC"
    if first is None or (last and len(first) < 3):
        return None
    shapes = [(first[0], first[-1], *first[1:-1]) if last else first, *(dims(v) for v in operands[1:])]
    if attr(node, "transB", 0) and shapes[1] is not None:
        shapes[1] = (*shapes[1][:-2], shapes[1][-1], shapes[1][-2])
    names = [f"operand{i}" if v is not None else "" for i, v in enumerate(operands)]
    kept = [a for name, a in node.attributes.items() if name not in _OURS]
    inputs = [ir.Value(name=n) if n else None for n in names]
    proto = ir.serde.serialize_node(ir.Node("", op, inputs, kept, outputs=[ir.Value(name="y")]))
    contents = {n: build.array(v) for n, v in zip(names[1:], operands[1:], strict=True)}
    constants = {
        n: onnx.numpy_helper.from_array(a, n)
        for n, a in contents.items()
        if a is not None and a.ndim < 2 and a.size <= _FEW
    }
    kinds = {
        n: onnx.helper.make_tensor_type_proto(constants[n].data_type if n in constants else int(_FLOAT), s)
        for n, s in zip(names, shapes, strict=True)
        if n
    }
    try:
        found = onnx.shape_inference.infer_node_outputs(_schema(op), proto, kinds, constants)["y"].tensor_type
    except (onnx.shape_inference.InferenceError, KeyError, RuntimeError, ValueError):
        return None
    if not found.HasField("shape"):
        return None
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in found.shape.dim]
    return [shape[0], *shape[2:], shape[1]] if last else shape


@lru_cache(maxsize=64)
def _schema(op: str) -> onnx.defs.OpSchema:
    return onnx.defs.get_schema(op, OPSET)


RULES: Mapping[str, Rule] = {
    **{op: _as_input for op in having("elementwise") if build.domain_of(op) == build.DOMAIN},
    **dict.fromkeys(("FixedPointSigmoid", "FixedPointTanh", "InterpolatedTable"), _sixteen_bits),
    "FixedPointDiv": lambda node: [(ir.DataType.INT32, _by_onnx("Sum", node, node.inputs))],
    "Inverse": _as_input,
    "LookupTable": _look_up,
    "Rescale": _rescale,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "DynamicQuantizeBlocks": _quantized_blocks,
    "MatMulNBits": _block_product,
    "LoraMatMul": _adapted,
    "GatherBlockQuantized": _block_rows,
    "PagedAttention": _attended,
    "Unpack4": _unpack,
    "NonMaxSuppressionPadded": _kept_boxes,
    **dict.fromkeys(having("scaled", "quantised"), _broadcast),
    "ConvWeightGrad": _conv_weight_grad,
    **dict.fromkeys(("MaxPoolGrad", "AveragePoolGrad"), _like(0)),
    **dict.fromkeys(("BatchNormalizationGrad", "LayerNormalizationGrad"), _like(1, 2, 2)),
    "LSTM": _recurrent(2),
    "GRU": _recurrent(1),
    "LSTMGrad": _like(0, 1, 2, 4, 6, 7),
    "GRUGrad": _like(0, 1, 2, 4, 6),
    "QLinearResize": lambda node: [(_dtype(node.inputs[0]), _by_onnx("Resize", node, list(node.inputs)))],
    "QLinearSoftmax": _pooled("Softmax"),
    **{f"QLinear{op}": _pooled(op) for op in ("AveragePool", "GlobalAveragePool", "ReduceMean")},
    **{op: _contracted(op.removeprefix("QLinear")) for op in having("accumulates", "quantised")},
}

def _tree_scores(node: ir.Node) -> list[Known]:
    rows, targets = dims(operand(node, 0)), attr(node, "n_targets", None)
    return [(_dtype(operand(node, 0)), (rows[0] if rows else None, targets))]


def _decisions(node: ir.Node) -> list[Known]:
    """A support vector machine's scores; its labels before them, if it is a classifier."""
    rows = (dims(operand(node, 0)) or (None,))[0]
    if node.op_type == "SVMRegressor":
        return [(_FLOAT, (rows, 1))]
    return [(ir.DataType.STRING if attr(node, "classlabels_strings", ()) else ir.DataType.INT64, (rows,)),
            (_FLOAT, (rows, None))]  # fmt: skip


ONNX: Mapping[str, Rule] = {
    **dict.fromkeys(("GroupNormalization", "MeanVarianceNormalization"), _as_input),
    "RMSNormalization": lambda node: [(_dtype(operand(node, 1)), dims(operand(node, 0)))],  # onnx 1.23 gives input 0's
    "RegexFullMatch": lambda node: [(ir.DataType.BOOL, dims(operand(node, 0)))],
}
"""ONNX functions that ONNX's inference does not expand, and operators that it has no safe rule for."""
ML: Mapping[str, Rule] = {
    "TreeEnsemble": _tree_scores,
    **dict.fromkeys(("SVMClassifier", "SVMRegressor"), _decisions),
    **dict.fromkeys(("Binarizer", "Imputer"), _as_input),
    **dict.fromkeys(("Scaler", "Normalizer"), lambda node: [(_FLOAT, dims(operand(node, 0)))]),
}
"""Operators of ai.onnx.ml, of most of which ONNX's inference knows nothing."""
require((*RULES, *ONNX, *ML), "rules for types and shapes")
