"""Writes the plan into the graph: QuantizeLinear and DequantizeLinear around operators that compute on integers.

`apply_static`: every planned tensor is quantised once, after its producer, and its readers share one DequantizeLinear.
`apply_dynamic`: contractions become MatMulInteger and ConvInteger on activations quantised at run time.
`apply_weights`: only weights become integers, followed by a DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build, kept
from converter.ir.build import Edit, attr
from converter.quantize.calibration.calibrate import Params
from converter.quantize.options import Options, matches
from converter.quantize.record import NodeStatus, TensorParams
from converter.quantize.rounding.bias import compensate
from converter.quantize.rounding.weights import SMALLEST, Place, Quantized, attach, per_channel, places, quantize_place
from converter.quantize.schemes import SCHEMES, Plan, weight_place
from converter.quantize.state import State
from lite_runtime.graph import Array

__all__ = ["apply_dynamic", "apply_static", "apply_weights", "round_weights"]

_BIAS_ROOM = float(2**30)
"""The limit of integer biases, so that adding the sums does not overflow 32 bits."""


# weights


def round_weights(state: State) -> None:
    """Weights of integer contractions as int8 with a scale for each channel, in `state.weights`."""
    found: dict[str, tuple[Place, Array, Array | float]] = {}
    for node, (place, value, weight) in _contractions(state):
        least = _least_scales(node, place, weight, state)
        _, _, before = found.get(value.name or "", (place, weight, 0.0))
        found[value.name or ""] = place, weight, np.maximum(before, least)  # several nodes may share a weight
    for name, (place, weight, least) in found.items():
        ready = state.weights.get(name)
        if ready is None or ready.block or (ready.scales < least).any():
            fresh = per_channel(weight, place.channels, search=True, least=least, name=name)
            state.weights[name] = fresh if ready is None or ready.block else _raised(ready, fresh, ready.scales < least)


def _raised(ready: Quantized, fresh: Quantized, where: Array) -> Quantized:
    """`ready` with the channels `where` ([channels] bool) from `fresh`: channels whose weights are so small that their
    bias would not fit. One dead channel, 1e-16 after its batch norm was folded, must not undo the rounding of the
    others."""
    shape = [-1 if i == ready.axis else 1 for i in range(ready.values.ndim)]
    values = np.where(where.reshape(shape), fresh.values, ready.values)
    shift = None if ready.shift is None else np.where(where, np.float32(0), ready.shift)
    return replace(ready, values=values, scales=np.where(where, fresh.scales, ready.scales), shift=shift)


def _least_scales(node: ir.Node, place: Place, weight: Array, state: State) -> Array | float:
    """Per channel: the weight scale below which the bias would not fit its integers."""
    x = node.inputs[1 - place.operand]
    bias = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    channels = weight.shape[place.channels]
    if bias is None or x is None or x not in state.params or bias.size % channels:
        return 0.0
    most = np.abs(bias.astype(np.float64)).reshape(-1, channels).max(axis=0)
    return np.asarray(most / (state.params[x].scale * _BIAS_ROOM), np.float32)


def _dequantized(value: ir.Value, readers: Sequence[ir.Node], quantized: Quantized) -> None:
    """Replace the initialiser by `quantized` for `readers`; other readers keep the floats."""
    if any(use.node not in readers for use in value.uses()) or value.is_graph_output():
        array = build.array(value)
        assert array is not None
        copy = Edit(readers[0]).const(array, hint=value.name or "")
        for node in readers:
            for index, operand in enumerate(node.inputs):
                if operand is value:
                    node.replace_input_with(index, copy)
        value = copy
    attach(value, quantized)


def _store(node: ir.Node, place: Place, value: ir.Value, quantized: Quantized, state: State, wanted: set[int]) -> None:
    """Attach the weight for all nodes of `wanted` (by id) that read it at the same operand."""
    readers = [use.node for use in value.uses() if id(use.node) in wanted and use.idx == place.operand]
    readers = [r for r in readers if r.graph is node.graph] or [node]
    name = value.name or ""
    _dequantized(value, list(dict.fromkeys(readers)), quantized)
    state.record.tensors[name] = TensorParams(
        name,
        f"int{quantized.bits}",
        quantized.scales.reshape(-1).tolist(),
        [0],
        quantized.axis,
        quantized.block,
    )


def _keeps_float(node: ir.Node, options: Options) -> bool:
    return matches(options.keep_float, node.name, node.op_type, *(v.name for v in node.outputs))


def apply_weights(state: State) -> None:
    """Every large constant weight becomes int8 or int4, except for nodes that the options keep in float."""
    nodes = [n for n in build.nodes(state.model) if not _keeps_float(n, state.options)]
    done = _weights_of(nodes, state)
    for node in build.nodes(state.model):
        if node.op_type in ("DequantizeLinear", "Constant"):
            continue
        stored = node in done
        why = "" if stored else "kept float by options" if _keeps_float(node, state.options) else "it has no weights"
        state.record.nodes.append(NodeStatus(build.title(node), node.op_type, "weights" if stored else "float", why))


def _weights_of(nodes: Iterable[ir.Node], state: State) -> set[ir.Node]:
    """Store the weights of these float nodes as integers; returns the nodes that had weights."""
    options, listed, done = state.options, list(nodes), set[ir.Node]()
    wanted = {id(node) for node in listed}
    bits, block = (4, options.block) if options.mode == "w4" else (8, options.block if options.mode == "w8" else 0)
    for node in listed:
        for place, value, weight in list(places(node, SMALLEST)):
            name, usual = value.name or "", place.block if options.block_size is None else 0
            made = state.weights.get(name) or quantize_place(
                weight, place, bits=4 if bits == 4 else 8, block=block or usual, name=name
            )
            done.update(use.node for use in value.uses() if id(use.node) in wanted)
            compensate(node, made.shift)
            _store(node, place, value, made, state, wanted)
    return done


# static: QuantizeLinear, DequantizeLinear


def apply_static(state: State) -> None:
    """The plan of an int8 or int16x8 model, with `state.params` and `state.weights`."""
    _note_nodes(state)
    constants = _Constants(state.model.graph)
    for node, (_, value, _) in list(_contractions(state)):
        compensate(node, state.weights[value.name or ""].shift)
    for node in state.plan.integer:
        _integer_bias(node, state)
    _contraction_weights(state)
    _weights_of([node for node in state.model.graph if node in state.plan.weights], state)
    for value in state.plan.tensors:
        _wrap(value, state.params[value], state.plan, constants)


def integer_ends(model: ir.Model) -> None:
    """Inputs and outputs that are quantised take and give the integers; those that are state stay as they are.

    The last step of all: what is done before compares the model with the float one on the same rows.
    """
    graph = model.graph
    left = kept.ends(graph)
    for value in graph.inputs:
        pairs = [use.node for use in value.uses() if build.is_op(use.node, "QuantizeLinear") and use.idx == 0]
        if pairs and value.name not in left:
            _take_integers(value, pairs)
    for value in list(graph.outputs):
        real = value.producer()
        if value.name in left or real is None or not build.is_op(real, "DequantizeLinear"):
            continue
        stored = real.inputs[0]
        producer = None if stored is None else stored.producer()
        if stored is not None and producer is not None and build.is_op(producer, "QuantizeLinear"):
            value.name, stored.name = stored.name, value.name
            graph.outputs[:] = [stored if output is value else output for output in graph.outputs]


def _take_integers(value: ir.Value, pairs: Sequence[ir.Node]) -> None:
    """Readers of `value` quantised read `value` itself, which becomes an integer input; others read it dequantised."""
    first, graph = pairs[0], value.graph
    scale, zero = first.inputs[1], first.inputs[2]
    assert graph is not None and scale is not None and zero is not None
    others = [use for use in value.uses() if use.node not in pairs]
    for node in pairs:
        result = node.outputs[0]
        for use in tuple(result.uses()):
            use.node.replace_input_with(use.idx, value)
    if others:
        real = _node("DequantizeLinear", [value, scale, zero], value, ir.DataType.FLOAT)
        graph.insert_before(next(iter(graph)), real)
        for use in others:
            use.node.replace_input_with(use.idx, real.outputs[0])
    value.type = ir.TensorType(first.outputs[0].dtype or ir.DataType.INT8)  # a new one: copies share the old type
    graph.remove(pairs, safe=True)


def _contractions(state: State) -> Iterator[tuple[ir.Node, tuple[Place, ir.Value, Array]]]:
    """Integer contractions with constant weights, and their weights."""
    for node, scheme in state.plan.integer.items():
        found = weight_place(node) if scheme.role == "contraction" else None
        if found is not None:
            yield node, found


def _contraction_weights(state: State) -> None:
    wanted = {id(n) for n, scheme in state.plan.integer.items() if scheme.role == "contraction"}
    for node, (place, value, _) in _contractions(state):
        _store(node, place, value, state.weights[value.name or ""], state, wanted)


def _integer_bias(node: ir.Node, state: State) -> None:
    """The bias in units of x_scale * w_scale, int32, if the result is int8; else it stays float."""
    plan, found = state.plan, weight_place(node)
    bias = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    x = node.inputs[0]
    if found is None or plan.integer[node].role != "contraction" or bias is None or x not in plan.tensors:
        return
    if state.options.mode != "int8" or not _ends_integer(node.outputs[0], plan):
        return
    quantized = state.weights[found[1].name or ""]
    if bias.ndim != 1 or bias.size % quantized.scales.size:
        return
    scales = np.tile(quantized.scales * np.float32(state.params[x].scale), bias.size // quantized.scales.size)
    stored = np.rint(bias.astype(np.float64) / scales)
    limits = np.iinfo(np.int32)
    edit = Edit(node)
    integers = edit.const(np.clip(stored, limits.min, limits.max), np.int32, hint=f"{node.inputs[2].name}.int32")  # type: ignore[union-attr]
    made = edit.op("DequantizeLinear", [integers, edit.const(scales.astype(np.float32))], {"axis": 0},
                   like=node.inputs[2])  # fmt: skip
    node.replace_input_with(2, made)


def _ends_integer(value: ir.Value, plan: Plan) -> bool:
    """Whether a contraction's result is quantised, directly or after the bias and activation that fuse with it."""
    while value not in plan.tensors:
        reader = build.sole_use(value)
        if reader is None or reader not in plan.integer or plan.integer[reader].role != "elementwise":
            return False
        value = reader.outputs[0]
    return True


class _Constants:
    """Scales and zero points as initialisers, shared by tensors with equal parameters."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._made: dict[Any, ir.Value] = {}

    def of(self, params: Params) -> tuple[ir.Value, ir.Value]:
        """(scale, zero point), 0-d."""
        dtype = np.dtype(params.dtype)
        return (
            self._get(("scale", params.scale), np.float32(params.scale)),
            self._get((params.dtype, params.zero_point), dtype.type(params.zero_point)),
        )

    def _get(self, key: Any, number: Any) -> ir.Value:
        if key not in self._made:
            self._made[key] = Edit(next(iter(self._graph))).const(np.asarray(number), hint="quantization")
        return self._made[key]


def _wrap(value: ir.Value, params: Params, plan: Plan, constants: _Constants) -> None:
    """Quantise `value` after its producer; its integer readers read it through a DequantizeLinear."""
    producer, graph, name = value.producer(), value.graph, value.name or ""
    assert graph is not None
    readers = [use for use in value.uses() if plan.reads_integers(use.node, value)]
    made = value.is_graph_output() and producer in plan.integer
    operands = constants.of(params)
    pair = [_node("QuantizeLinear", [value, *operands], value, ir.DataType[params.dtype.upper()])]
    if readers or made:
        pair.append(_node("DequantizeLinear", [pair[0].outputs[0], *operands], value, ir.DataType.FLOAT))
    first = next(iter(graph))
    if producer is None:
        graph.insert_before(first, pair)
    else:
        graph.insert_after(producer, pair)
    for use in readers:
        use.node.replace_input_with(use.idx, pair[-1].outputs[0])
    if made:
        new = pair[-1].outputs[0]
        value.name, new.name = new.name, name
        graph.outputs[:] = [new if output is value else output for output in graph.outputs]


def _node(op: str, inputs: Sequence[ir.Value], like: ir.Value, dtype: ir.DataType) -> ir.Node:
    """A node with one result of `like`'s shape."""
    graph = like.graph
    assert graph is not None
    shape = build.dims(like)
    name = build.fresh(graph, like.name or op)
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=None if shape is None else ir.Shape(shape))
    return ir.Node("", op, inputs, outputs=[result], name=build.fresh(graph, op))


def _note_nodes(state: State) -> None:
    plan = state.plan
    for node in state.model.graph:
        if node in plan.integer:
            state.record.nodes.append(NodeStatus(build.title(node), node.op_type, "integer"))
        else:
            status = "weights" if node in plan.weights else "float"
            reason = plan.reasons.get(node, "")
            state.record.nodes.append(NodeStatus(build.title(node), node.op_type, status, reason))  # type: ignore[arg-type]


# dynamic: ranges measured at run time


def apply_dynamic(state: State) -> None:
    """Conv, Gemm and MatMul with constant weights compute on uint8 activations; other large weights become int8."""
    options, quantised = state.options, dict[ir.Value, tuple[ir.Value, ...]]()
    for node in build.nodes(state.model):
        if node.op_type == "Constant":
            continue
        why = _not_dynamic(node, options)
        if not why:
            state.record.nodes.append(NodeStatus(build.title(node), node.op_type, "dynamic"))
            _make_dynamic(node, state, quantised)
        elif not _keeps_float(node, options) and next(places(node, SMALLEST), None) is not None:
            state.record.nodes.append(NodeStatus(build.title(node), node.op_type, "weights", why))
        else:
            state.record.nodes.append(NodeStatus(build.title(node), node.op_type, "float", why))
    _weights_of([node for node in build.nodes(state.model) if not _keeps_float(node, options)], state)


_DYNAMIC: Mapping[str, str] = {"Conv": "ConvInteger", "Gemm": "MatMulInteger", "MatMul": "MatMulInteger"}


def _not_dynamic(node: ir.Node, options: Options) -> str:
    if _keeps_float(node, options):
        return "kept float by options"
    if node.op_type not in _DYNAMIC or node.domain != "":
        return f"{node.op_type} does not support ranges measured at run time"
    if matches(options.weight_only, node.name, node.op_type, *(v.name for v in node.outputs)):
        return "its activations are kept float by options"
    found = weight_place(node)
    if found is None or found[0].operand != 1:
        return "it has no constant weights on its right"
    if any(v is None or v.dtype != ir.DataType.FLOAT for v in node.inputs[:2]):
        return "its operands are not float32"
    return SCHEMES[node.op_type].suits(node)


def _make_dynamic(node: ir.Node, state: State, quantised: dict[ir.Value, tuple[ir.Value, ...]]) -> None:
    """y = float(sum (x_q - x_zero) w_q) * (x_scale * w_scale) + bias"""
    found, x = weight_place(node), node.inputs[0]
    assert found is not None and x is not None
    place, value, weight = found
    name, edit = value.name or "", Edit(node)
    rounded = state.weights.setdefault(name, per_channel(weight, place.channels, search=True, name=name))
    if x not in quantised or not _visible(quantised[x][0], node):
        quantised[x] = _dynamic_quantize(edit, x)
    stored, scale, zero = quantised[x]
    integers = rounded.values
    if node.op_type == "Gemm" and attr(node, "transB", 0):
        integers = np.ascontiguousarray(integers.T)
    tail = (1,) * (weight.ndim - 2) if node.op_type == "Conv" else ()
    attrs = dict(node.attributes) if node.op_type == "Conv" else {}
    y = node.outputs[0]
    operands = [stored, edit.const(integers, hint=f"{name}.int8"), zero]
    total = edit.op(_DYNAMIC[node.op_type], operands, attrs, shape=build.dims(y))
    total.dtype = ir.DataType.INT32
    factor = edit.op("Mul", [scale, edit.const(rounded.scales.reshape(-1, *tail), hint=f"{name}.scale")])
    factor.dtype = ir.DataType.FLOAT
    result = edit.op("Mul", [edit.op("Cast", [total], {"to": ir.DataType.FLOAT.value}, like=y), factor], like=y)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None:
        array = build.array(bias)
        assert array is not None
        shaped = edit.const(array.reshape(-1, *tail), hint=bias.name or "") if tail else bias
        result = edit.op("Add", [result, shaped], like=y)
    edit.replace(result)
    state.record.tensors[name] = TensorParams(name, "int8", rounded.scales.reshape(-1).tolist(), [0], rounded.axis)


def _dynamic_quantize(edit: Edit, x: ir.Value) -> tuple[ir.Value, ...]:
    """(integers, scale, zero point) of x."""
    made = edit.ops("DynamicQuantizeLinear", [x], outputs=3, shape=build.dims(x))
    for value, dtype in zip(made, (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8), strict=True):
        value.dtype = dtype
    made[1].shape, made[2].shape = ir.Shape(()), ir.Shape(())
    return made


def _visible(value: ir.Value, node: ir.Node) -> bool:
    """Whether `node` is in the graph that produces `value`."""
    producer = value.producer()
    return producer is not None and producer.graph is node.graph
