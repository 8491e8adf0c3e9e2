"""The rules of a valid model as data: rows of (name, scope, predicate, message), checked before and after every pass.

The predicate takes the subject and a `Context` (facts about the whole model, gathered once) and returns the
violations it finds as text, none for a valid subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

import onnx
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.ir.upgrade import ML_OPSET, OPSET
from lite_runtime.operators import OPERATORS, attributes

__all__ = [
    "ACTIVATION_ATTRS",
    "RULES",
    "WIDENED",
    "Context",
    "Rule",
    "Widened",
    "check",
    "schema",
    "takes",
    "violations",
]

_T = ir.AttributeType
ACTIVATION_ATTRS: Mapping[str, ir.AttributeType] = {
    "activation": _T.STRING,
    "activation_min": _T.FLOAT,
    "activation_max": _T.FLOAT,
    "activation_alpha": _T.FLOAT,
    "activation_beta": _T.FLOAT,
}
_LAYOUT: Mapping[str, ir.AttributeType] = {"layout": _T.STRING}


class Widened(NamedTuple):
    """An operator of our domain: an ONNX operator (`base`, "" for none) with more inputs and attributes."""

    inputs: tuple[int, int]
    attrs: Mapping[str, ir.AttributeType]
    base: str = ""
    outputs: tuple[int, int] = (1, 1)


_KINDS: Mapping[str, ir.AttributeType] = {
    "i": _T.INT, "f": _T.FLOAT, "s": _T.STRING, "I": _T.INTS, "F": _T.FLOATS, "S": _T.STRINGS,
}  # fmt: skip
_LATER = frozenset(("GroupedMatMul", "NarrowMatMul"))
"""Our operators that are created only in lite graphs and never occur in the IR."""


def _ours(op: str) -> Widened:
    """The specification of one of our operators, from its record."""
    record = OPERATORS[op]
    kinds = {name: _KINDS[attribute.kind] for name, attribute in attributes(op).items()}
    return Widened(record.inputs, kinds, outputs=record.outputs)


WIDENED: Mapping[str, Widened] = {
    **{
        op: Widened(record.inputs, _LAYOUT, op)
        for op, record in OPERATORS.items()
        if record.inputs == (1, 1) and "layout" in attributes(op)
    },
    **{op: _ours(op) for op in OPERATORS if build.domain_of(op) == build.DOMAIN and op not in _LATER},
    "Conv": Widened((2, 4), {**_LAYOUT, **ACTIVATION_ATTRS}, "Conv"),
    "ConvTranspose": Widened((2, 3), {**_LAYOUT, **ACTIVATION_ATTRS}, "ConvTranspose"),
    "MatMul": Widened((2, 4), {"transA": _T.INT, "transB": _T.INT, **ACTIVATION_ATTRS}),
    "MaxPool": Widened((1, 1), _LAYOUT, "MaxPool", (1, 1)),
    "InstanceNormalization": Widened((3, 3), _LAYOUT, "InstanceNormalization"),
    "BatchNormalization": Widened((5, 5), _LAYOUT, "BatchNormalization", (1, 5)),
    "LSTM": _ours("LSTM")._replace(outputs=(1, 3)),
    "GRU": _ours("GRU")._replace(outputs=(1, 2)),
    # on integers
    **{op: _ours(op) for op in ("QLinearConv", "QLinearMatMul")},
    "DynamicQuantizeLinear": Widened((1, 1), {"kept": _T.INT, "dtype": _T.STRING, "scheme": _T.STRING}, outputs=(1, 3)),
}  # fmt: skip


@lru_cache(maxsize=4096)
def schema(domain: str, op: str, version: int) -> onnx.defs.OpSchema | None:
    """ONNX's schema of the operator at that opset (its last one that was not withdrawn), or None."""
    for candidate in range(version, 0, -1):
        try:
            found = onnx.defs.get_schema(op, candidate, domain)
        except onnx.defs.SchemaError:
            return None
        if not found.deprecated:
            return found
        candidate = found.since_version
    return None


@dataclass
class Context:
    """Facts about a model that rules share."""

    model: ir.Model
    graph: ir.Graph
    visible: dict[ir.Value, int] = field(default_factory=dict)
    """Values defined so far in this graph and around it."""
    titles: dict[str, ir.Value] = field(default_factory=dict)

    def opset(self, domain: str) -> int | None:
        """The imported version of a domain."""
        return self.model.graph.opset_imports.get(domain)

    def schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """ONNX's schema of a node; for our operators, that of the base operator; for operators that are newer than the
        model's opset, that of the pinned one: ONNX's inference ends the process over some that lack operands."""
        op = node.op_type
        if node.domain == build.DOMAIN:
            op = WIDENED[op].base if op in WIDENED else ""
        domain = "" if node.domain == build.DOMAIN else node.domain
        version = self.opset(domain)
        if not op or not version:
            return None
        return schema(domain, op, version) or (schema(domain, op, OPSET) if not domain and version < OPSET else None)


Found = Iterator[str]
Scope = Literal["model", "graph", "node", "graph outputs"]


class Rule(NamedTuple):
    """A row: `find` yields what is wrong with one subject of `scope`."""

    name: str
    scope: Scope
    find: Callable[[Any, Context], Found]
    ops: frozenset[str] = frozenset()
    """Types of the nodes it is asked of; empty: all."""


def _pinned(model: ir.Model, context: Context) -> Found:
    version = context.opset("")
    if version is None or version < OPSET:
        yield f"expected ONNX opset {OPSET} or later after upgrading, got {version}"
    ml = context.opset("ai.onnx.ml")
    if ml is not None and ml < ML_OPSET:
        yield f"expected ai.onnx.ml opset {ML_OPSET}, got {ml}"


def _inlined(model: ir.Model, context: Context) -> Found:
    if model.functions:
        yield f"model-local functions must be inlined, found {', '.join(str(f) for f in model.functions)}"


def _defined(node: ir.Node, context: Context) -> Found:
    for index, value in enumerate(node.inputs):
        if value is not None and value not in context.visible:
            producer = value.producer()
            if producer is not None and producer.graph is not None:
                yield f"input {index}, {value.name!r}, is defined only later (nodes out of order, or a cycle)"
            else:
                yield f"input {index}, {value.name!r}, is not defined anywhere"


def _single_definition(node: ir.Node, context: Context) -> Found:
    for value in node.outputs:
        if not value.name and (value.uses() or value.is_graph_output()):
            yield "a result that is used has no name"
        elif value.name and context.titles.setdefault(value.name, value) is not value:
            yield f"the name {value.name!r} is already taken"


def _outputs_defined(graph: ir.Graph, context: Context) -> Found:
    names = set()
    for value in graph.outputs:
        if value not in context.visible:
            yield f"output {value.name!r} is not defined anywhere"
        if value.name in names:
            yield f"output {value.name!r} is listed twice"
        names.add(value.name)


def _known(node: ir.Node, context: Context) -> Found:
    """The lowering reports unknown operators of foreign domains, all together."""
    if node.domain == build.DOMAIN and node.op_type not in WIDENED:
        yield f"domain {build.DOMAIN} has no operator {node.op_type}"


def _arity(node: ir.Node, context: Context) -> Found:
    found = context.schema(node)
    widened = WIDENED.get(node.op_type) if node.domain == build.DOMAIN else None
    if widened is not None:
        spans = (widened.inputs, widened.outputs)
    elif found is not None:
        spans = ((found.min_input, found.max_input), (found.min_output, found.max_output))
    else:
        return
    given = _trimmed(node.inputs)
    for what, count, (low, high) in (("inputs", given, spans[0]), ("outputs", len(node.outputs), spans[1])):
        if not low <= count <= high:
            yield f"expected {low if low == high else f'{low} to {high}'} {what}, got {count}"


def _trimmed(values: Any) -> int:
    count = len(values)
    while count and values[count - 1] is None:
        count -= 1
    return count


def _required_inputs(node: ir.Node, context: Context) -> Found:
    found = context.schema(node)
    if found is None:
        return
    for (name, needed), value in zip(_formal_inputs(found), node.inputs, strict=False):
        if value is None and needed:
            yield f"required input {name!r} is left out"


# An OpSchema builds new Python objects for all its inputs or attributes whenever it is asked for one.


@lru_cache(maxsize=4096)
def _formal_inputs(found: onnx.defs.OpSchema) -> tuple[tuple[str, bool], ...]:
    """Per formal input: its name, and whether it must be there."""
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return tuple((formal.name, formal.option == single) for formal in found.inputs)


@lru_cache(maxsize=4096)
def _formal_attributes(found: onnx.defs.OpSchema) -> Mapping[str, tuple[int, bool]]:
    """Per attribute: its type, and whether it must be there."""
    return {name: (_attr_type(formal), formal.required) for name, formal in found.attributes.items()}


def _attributes(node: ir.Node, context: Context) -> Found:
    found = context.schema(node)
    own = WIDENED[node.op_type].attrs if node.domain == build.DOMAIN and node.op_type in WIDENED else {}
    formal = _formal_attributes(found) if found is not None else {}
    for name, value in node.attributes.data.items():
        if value.is_ref():
            yield f"attribute {name!r} refers to a function's attribute outside any function"
        elif name in own:
            if value.type != own[name]:
                yield f"attribute {name!r}: expected {own[name].name}, got {value.type.name}"
        elif name in formal:
            wanted, _ = formal[name]
            if value.type.value != wanted:
                yield f"attribute {name!r}: expected {ir.AttributeType(wanted).name}, got {value.type.name}"
        elif found is not None or own:
            has = ", ".join(sorted({*formal, *own})) or "none"
            yield f"attribute {name!r} is unknown to {node.op_type}; it has {has}"
    for name, (_, needed) in formal.items():
        if needed and name not in node.attributes:
            yield f"required attribute {name!r} is missing"


def _attr_type(formal: onnx.defs.OpSchema.Attribute) -> int:
    return int(getattr(formal.type, "value", 0))  # nanobind's enum, missing in its stub


_DTYPE_TEXT = {d: f"tensor({onnx.TensorProto.DataType.Name(d.value).lower()})" for d in ir.DataType if d.value} | {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.DOUBLE: "tensor(double)",
}


@lru_cache(maxsize=4096)
def _type_table(found: onnx.defs.OpSchema) -> tuple[tuple[str, str, frozenset[str], bool], ...]:
    """Per formal input: (name, type variable, allowed types, variadic and mixed)."""
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in found.type_constraints}
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return tuple(
        (
            p.name,
            p.type_str,
            allowed.get(p.type_str, frozenset((p.type_str,))),
            p.option == variadic and not p.is_homogeneous,
        )
        for p in found.inputs
    )


def takes(op: str, index: int, dtype: ir.DataType) -> bool:
    """Whether operand `index` of ONNX's operator may have that element type, at the pinned opset."""
    found = schema("", op, OPSET)
    table = _type_table(found) if found is not None else ()
    return bool(table) and _DTYPE_TEXT.get(dtype, "") in table[min(index, len(table) - 1)][2]


def _dtypes(node: ir.Node, context: Context) -> Found:
    found = context.schema(node)
    if found is None:
        return
    bound: dict[str, str] = {}
    table = _type_table(found)
    for index, value in enumerate(node.inputs):
        if value is None or not isinstance(value.type, ir.TensorType) or not table:
            continue
        name, variable, allowed, mixed = table[min(index, len(table) - 1)]
        got = _DTYPE_TEXT[value.type.dtype] if value.type.dtype.value else ""
        if not got or not allowed:
            continue
        if got not in allowed:
            yield f"input {name!r} is {got}; {node.op_type} takes {', '.join(sorted(allowed))}"
        elif not mixed and bound.setdefault(variable, got) != got:
            yield f"inputs of type {variable} must agree: {name!r} is {got}, an earlier one {bound[variable]}"


_CONSTANTS = frozenset((_T.TENSOR, _T.INT, _T.INTS, _T.FLOAT, _T.FLOATS, _T.STRING, _T.STRINGS))


def _one_value(node: ir.Node, context: Context) -> Found:
    kinds = [attribute.type for attribute in node.attributes.values()]
    if len(kinds) != 1 or kinds[0] not in _CONSTANTS:
        got = ", ".join(f"{a.name!r} of type {a.type.name}" for a in node.attributes.values())
        yield f"expected one attribute that holds its value, got {got or 'none'}"


def _parts(node: ir.Node, context: Context) -> Found:
    """ONNX's inference ends the process over parts that no size or result is there for."""
    wanted = build.attr(node, "num_outputs", None)
    sizes = build.get_attr(node, "split")
    given = build.array(node.inputs[1]) if len(node.inputs) > 1 else None
    count = wanted if wanted is not None else len(sizes) if sizes is not None else None if given is None else given.size
    if count is not None and count != len(node.outputs):
        yield f"expected as many results as parts, {count}, got {len(node.outputs)}"


_TERM = re.compile(r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?")


def _equation(node: ir.Node, context: Context) -> Found:
    """ONNX's inference never returns from an equation with a dot that belongs to no ellipsis."""
    equation = build.attr(node, "equation", "")
    if not isinstance(equation, str):
        yield f"expected an equation that is text, got {equation!r}"
        return
    terms = equation.replace("->", ",", 1).split(",")
    if not all(_TERM.fullmatch(term) for term in terms):
        yield f"expected terms of letters and at most one ellipsis in the equation, got {equation!r}"


def _batch_axes(node: ir.Node, context: Context) -> Found:
    """ONNX's inference ends the process over a negative number."""
    count, rank = build.attr(node, "batch_dims", 0), build.rank(node.inputs[0]) if node.inputs else None
    if not isinstance(count, int) or not 0 <= count < (rank or 1 << 31):
        yield f"expected batch_dims from 0 to the rank of its data, got {count!r}"


_KEEP_SIZE = frozenset(("DepthToSpace", "Flatten", "Reshape", "SpaceToDepth", "Squeeze", "Transpose", "Unsqueeze"))


def _same_size(node: ir.Node, context: Context) -> Found:
    """A wrong size that is only declared is found by inference; it does not count the elements of a Reshape."""
    if not node.inputs or not node.outputs:
        return
    given, made = build.static_dims(node.inputs[0]), build.static_dims(node.outputs[0])
    if given is not None and made is not None and prod(given) != prod(made):
        yield f"expected as many elements as its operand's {list(given)} has, got {list(made)}"


def _permutes(node: ir.Node, context: Context) -> Found:
    perm, rank = build.get_attr(node, "perm"), build.rank(node.inputs[0]) if node.inputs else None
    if perm is None:
        return
    if sorted(perm) != list(range(len(perm))) or (rank is not None and len(perm) != rank):
        yield f"perm {list(perm)} is not a permutation of the input's {'' if rank is None else f'{rank} '}axes"


_AXIS_OPS = frozenset(
    "ArgMax ArgMin Compress Concat Flatten Gather GatherElements Hardmax LayerNormalization LogSoftmax "
    "RMSNormalization ScatterElements Softmax Split TopK".split()
)


def _axis_in_range(node: ir.Node, context: Context) -> Found:
    axis, rank = build.get_attr(node, "axis"), build.rank(node.inputs[0]) if node.inputs else None
    if not isinstance(axis, int) or rank is None:
        return
    if not -rank <= axis < rank + (node.op_type == "Flatten"):
        yield f"axis {axis} is out of range for an input of {rank} dimensions"


def _steps(node: ir.Node, context: Context) -> Found:
    """Scales of a quantiser: one, one for each index of its axis, or blocks; a zero point for each."""
    if not build.is_op(node, "QuantizeLinear", "DequantizeLinear") or len(node.inputs) < 2:
        return
    shape, scale = build.dims(node.inputs[0]), build.static_dims(node.inputs[1])
    zero = build.static_dims(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale is not None and zero is not None and prod(scale) != prod(zero):
        yield f"expected as many zero points as scales, got {list(zero)} for {list(scale)}"
    if shape is None or scale is None or prod(scale) == 1 or build.get_attr(node, "block_size"):
        return
    axis = build.attr(node, "axis", 1)
    if not -len(shape) <= axis < len(shape):
        yield f"axis {axis} is out of range for an input of {len(shape)} dimensions"
    elif isinstance(shape[axis], int) and scale != (shape[axis],):
        yield f"expected one scale or {shape[axis]} along axis {axis}, got {list(scale)}"


_LEAST: Mapping[str, tuple[tuple[int, float], ...]] = {
    "ConstantOfShape": ((0, 0),),
    "Expand": ((1, 0),),
    "Reshape": ((1, -1),),
    "Resize": ((1, 1e-9), (2, 1e-9), (3, 0)),
    "Tile": ((1, 0),),
    "Upsample": ((1, 1e-9),),
}
"""Operator -> (operand, least value): below it a size would be negative, which crashes ONNX's inference."""
_MOST = 1 << 31
"""Sizes and factors beyond this overflow in ONNX's inference."""
_POSITIVE = ("kernel_shape", "strides", "dilations", "group", "blocksize")


def _sizes(node: ir.Node, context: Context) -> Found:
    for index, least in _LEAST.get(node.op_type, ()) if node.domain == "" else ():
        found = build.array(node.inputs[index]) if index < len(node.inputs) else None
        roi = node.op_type == "Resize" and index == 1 and len(node.inputs) > 2
        if found is None or not found.size or roi or found.dtype.kind not in "iuf":
            continue
        if not ((found >= least) & (found <= _MOST)).all():
            yield f"operand {index}: expected sizes of {least:g} to {_MOST}, got {found.reshape(-1).tolist()}"
    given = node.attributes.data
    for name in _POSITIVE:
        if name not in given:
            continue
        value = given[name].value
        values = value if isinstance(value, tuple | list) else (value,)
        if any(isinstance(v, int) and v < 1 for v in values):
            yield f"attribute {name!r}: expected sizes of at least 1, got {value}"
    kernel, rank = build.get_attr(node, "kernel_shape"), build.rank(node.inputs[0]) if node.inputs else None
    if isinstance(kernel, tuple | list) and rank is not None and len(kernel) != rank - 2:  # another type has a rule
        yield f"attribute 'kernel_shape': expected {rank - 2} sizes for an input of rank {rank}, got {list(kernel)}"


def _constants(graph: ir.Graph, context: Context) -> Found:
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            yield f"initializer {name!r} has no contents"
            continue
        shape = build.dims(value)
        if shape is not None and tuple(tensor.shape) != shape:
            yield f"initializer {name!r} is declared {list(shape)} but holds {list(tensor.shape)}"
        if value.dtype is not None and value.dtype != tensor.dtype:
            yield f"initializer {name!r} is declared {value.dtype.name} but holds {tensor.dtype.name}"
        if tensor.size != prod(tensor.shape.numpy()):
            yield f"initializer {name!r}: {tensor.size} elements do not match {list(tensor.shape)}"


def _subgraph_inputs(graph: ir.Graph, context: Context) -> Found:
    for value in graph.inputs:
        if value.name in graph.initializers:
            yield f"{value.name!r} is both an input and an initializer"


RULES: tuple[Rule, ...] = (
    Rule("opset pinned", "model", _pinned),
    Rule("functions inlined", "model", _inlined),
    Rule("constants fill their shapes", "graph", _constants),
    Rule("inputs are not constants", "graph", _subgraph_inputs),
    Rule("operands defined before use", "node", _defined),
    Rule("every name defined once", "node", _single_definition),
    Rule("operator known", "node", _known),
    Rule("numbers of operands", "node", _arity),
    Rule("required operands present", "node", _required_inputs),
    Rule("attributes", "node", _attributes),
    Rule("value of a constant", "node", _one_value, frozenset(("Constant",))),
    Rule("element types", "node", _dtypes),
    Rule("sizes", "node", _sizes),
    Rule("quantised steps", "node", _steps, frozenset(("QuantizeLinear", "DequantizeLinear"))),
    Rule("permutations", "node", _permutes, frozenset(("Transpose",))),
    Rule("axes in range", "node", _axis_in_range, _AXIS_OPS),
    Rule("parts of a split", "node", _parts, frozenset(("Split",))),
    Rule("equations", "node", _equation, frozenset(("Einsum",))),
    Rule("batch axes", "node", _batch_axes, frozenset(("GatherND",))),
    Rule("elements kept", "node", _same_size, _KEEP_SIZE),
    Rule("graph outputs defined", "graph outputs", _outputs_defined),
)


def violations(model: ir.Model, *, upgraded: bool = True) -> Iterator[str]:
    """All violations of the rules, as text that names rule and node. `upgraded=False`: at the model's own opset."""
    context = Context(model, model.graph)
    for rule in RULES:
        if rule.scope == "model" and (upgraded or rule.find is not _pinned):
            yield from (f"{rule.name}: {text}" for text in rule.find(model, context))
    yield from _graph_violations(model.graph, context)


_OF_SCOPE = {scope: [r for r in RULES if r.scope == scope] for scope in ("graph", "node", "graph outputs")}


@cache
def _of_nodes(op: str) -> tuple[Rule, ...]:
    """The rules for nodes of a type; "" for a type whose definition is not known."""
    return tuple(rule for rule in _OF_SCOPE["node"] if not rule.ops or op in rule.ops)


_FORM = frozenset(("numbers of operands", "required operands present", "attributes", "value of a constant"))
"""Rules that those after them, which read operands and attributes, depend on: they are not asked of a node that breaks
one of these."""


def _graph_violations(graph: ir.Graph, context: Context) -> Iterator[str]:
    inner = Context(context.model, graph, dict(context.visible), dict(context.titles))
    for value in (*graph.inputs, *graph.initializers.values()):
        inner.visible[value] = 1
        if value.name:
            inner.titles[value.name] = value
    for rule in _OF_SCOPE["graph"]:
        yield from (f"{rule.name}: {text}" for text in rule.find(graph, inner))
    for node in graph:
        known = node.domain == build.DOMAIN or inner.schema(node) is not None
        for rule in _of_nodes(node.op_type if known else ""):
            found = list(rule.find(node, inner))
            yield from (f"{rule.name}: {node.domain or 'ai.onnx'}::{node.op_type} {node.name!r}: {t}" for t in found)
            if found and rule.name in _FORM:
                break
        for attribute in node.attributes.data.values():
            if attribute.type == _T.GRAPH and not attribute.is_ref():
                yield from _graph_violations(attribute.as_graph(), inner)
        inner.visible.update(dict.fromkeys(node.outputs, 1))
    for rule in _OF_SCOPE["graph outputs"]:
        yield from (f"{rule.name}: {text}" for text in rule.find(graph, inner))


_SHOWN = 8


def check(model: ir.Model, when: str, *, upgraded: bool = True) -> None:
    """Raise ConvertError listing the violations, if any. `when` says which pass ran: "before fold_batch_norm"."""
    found = list(violations(model, upgraded=upgraded))
    if found:
        more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        lines = "\n  ".join(found[:_SHOWN])
        raise ConvertError(f"the model is invalid {when}:\n  {lines}{more}")
