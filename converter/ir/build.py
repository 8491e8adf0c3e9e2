"""Reading and editing an `onnx_ir.Graph`: the small set of functions that every pass uses.

Reading: `array`, `scalar`, `dims`, `attr`, `sole_use`, `is_op`. Editing: `Edit`, which inserts operators before a node
and replaces its results by new values. Names made here end in `~<number>` and never collide.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from lite_runtime.graph.verify import MAX_NAME
from lite_runtime.operators import ONNX, OPERATORS, OURS

__all__ = [
    "DOMAIN",
    "DOMAIN_VERSION",
    "LONGEST",
    "Edit",
    "Shape",
    "adopt",
    "array",
    "attr",
    "constant_dims",
    "contradicted",
    "dims",
    "domain_of",
    "fresh",
    "get_attr",
    "graphs",
    "inner_graph",
    "is_op",
    "nbytes",
    "nested",
    "nodes",
    "quiet",
    "rank",
    "refresh_constants",
    "same_dims",
    "scalar",
    "set_attrs",
    "sole_reader",
    "sole_use",
    "source_of",
    "static_dims",
    "title",
]

Shape: TypeAlias = Sequence[int | str | None]
DOMAIN = OURS
"""Our operators: ONNX ones widened by a layout, a residual operand and an activation. `spec.WIDENED` lists them."""
DOMAIN_VERSION = 1
_OWN_NAME = re.compile(r"~(\d+)$")
_COUNTER = "msedge.names"
LONGEST = MAX_NAME - 64
"""The most characters of a name that a model's own names leave for what marks them as new."""
_WITH_GRAPHS = frozenset((ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS))


def graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """The model's graph and every subgraph below it; safe against edits."""
    found = {model.graph: None}
    _below(model.graph, found)
    yield from found


def _below(graph: ir.Graph, found: dict[ir.Graph, None]) -> None:
    """Add the subgraphs of a graph's nodes, depth first. `Graph.subgraphs` does the same through an iterator for every
    node, which took a tenth of the time of a conversion."""
    for inner in nested(graph):
        if inner not in found:
            found[inner] = None
            _below(inner, found)


def nested(graph: ir.Graph) -> list[ir.Graph]:
    """The graphs that are attributes of a graph's own nodes."""
    held = [a for node in graph for a in node.attributes.data.values() if a.type in _WITH_GRAPHS]
    return [g for a in held for g in ((a.value,) if a.type == ir.AttributeType.GRAPH else a.value)]


def nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node in topological order, those of subgraphs included; safe against edits at the current node."""
    for graph in list(graphs(model)):
        yield from list(graph)


def _names(graph: ir.Graph) -> Iterator[str]:
    yield from (v.name or "" for v in (*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield node.name or ""
        yield from (v.name or "" for v in node.outputs)


@contextmanager
def quiet() -> Iterator[None]:
    """The libraries log what they skip as warnings; skipping is fine here."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def adopt(model: ir.Model) -> None:
    """Prepare a model for `Edit`: one counter of fresh names for all its graphs, our own domain imported."""
    model.graph.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
    found = list(graphs(model))
    if any(_COUNTER not in g.meta for g in found):
        taken = (int(m.group(1)) for g in found for m in map(_OWN_NAME.search, _names(g)) if m)
        counter = itertools.count(max(taken, default=0) + 1)
        for g in found:
            g.meta[_COUNTER] = counter


def inner_graph(
    outer: ir.Graph, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], nodes: Sequence[ir.Node], name: str
) -> ir.Graph:
    """A graph for an attribute of a node of `outer`, from whose model it takes fresh names."""
    graph = ir.Graph(inputs, outputs, nodes=nodes, name=fresh(outer, name))
    graph.meta[_COUNTER] = outer.meta[_COUNTER]
    return graph


def refresh_constants(model: ir.Model) -> None:
    """Set the type and shape of initialisers from their contents."""
    for graph in graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None:
                continue
            shape, kind = tensor.shape.numpy(), value.type
            if value.shape is None or value.shape.frozen or dims(value) != shape:
                value.shape = ir.Shape(shape)
            if type(kind) is not ir.TensorType or kind.dtype != tensor.dtype:
                value.type = ir.TensorType(tensor.dtype)


def fix(graph: ir.Graph, trained: Collection[str]) -> None:
    """Float initialisers that are not `trained` become results of Constant nodes, under their names; running statistics
    of BatchNormalization stay initialisers."""
    norms = [node for node in graph if is_op(node, "BatchNormalization")]
    moved = {value for node in norms for value in node.inputs[3:5]}
    for name, value in list(graph.initializers.items()):
        held = value.const_value
        if name in trained or value in moved or held is None or not held.dtype.is_floating_point():
            continue
        node = ir.node("Constant", [], {"value": held}, num_outputs=1, name=f"{name}.constant")
        node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
        value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)
        del graph.initializers[name]
        graph.insert_before(graph[0], node)
        node.outputs[0].name = name


def fresh(graph: ir.Graph, hint: str) -> str:
    """A name that no value of the whole (adopted) model has; deterministic. Of a long hint, its start."""
    return f"{_OWN_NAME.sub('', hint)[:LONGEST] or 'value'}~{next(graph.meta[_COUNTER])}"


def array(value: ir.Value | None) -> np.ndarray | None:
    """The contents of a constant (an initialiser, or a Constant node's result), else None."""
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    held = node.attributes.data.get("value") if node is not None and is_op(node, "Constant") else None
    if held is None or held.is_ref() or held.type != ir.AttributeType.TENSOR:
        return None
    return held.as_tensor().numpy()


def contradicted(value: ir.Value, declared: object, given: object) -> ConvertError:
    """The error for a declaration of a value that its operator contradicts."""
    return ConvertError(
        f"value {value.name!r} is declared {declared}, but its operator gives {given}; correct the declaration, or "
        "export the model again"
    )


def nbytes(tensor: ir.TensorProtocol) -> int:
    """Bytes that a tensor takes in memory; onnx_ir gives none for text, of which this counts the references."""
    return 8 * tensor.size if tensor.dtype == ir.DataType.STRING else tensor.nbytes


def scalar(value: ir.Value | None) -> float | None:
    """The number in a constant of one element, else None."""
    found = array(value)
    if found is None or found.size != 1 or found.dtype.kind not in "iufb":
        return None
    return float(found.reshape(-1)[0])


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def dims(value: ir.Value | None) -> tuple[int | str | None, ...] | None:
    """The shape with known sizes as ints, symbolic ones as names; None when the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(_dim(d) for d in value.shape)


def static_dims(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dimension is known, else None."""
    shape = dims(value)
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return tuple(int(d) for d in shape if d is not None)


def same_dims(a: ir.Value | None, b: ir.Value | None) -> bool:
    """Whether both shapes are known and provably equal (equal sizes, equal symbols)."""
    left, right = dims(a), dims(b)
    return left is not None and right is not None and None not in left and left == right


def rank(value: ir.Value | None) -> int | None:
    """The number of dimensions, where known."""
    return None if value is None or value.shape is None else len(value.shape)


def get_attr(node: ir.Node, name: str) -> Any:
    """An attribute's Python value, or None."""
    found = node.attributes.data.get(name)  # the mapping around `data` raises and catches where a key is missing
    return None if found is None else found.value


def attr(node: ir.Node, name: str, default: Any) -> Any:
    """An attribute's Python value, or `default`."""
    found = node.attributes.data.get(name)
    return default if found is None else found.value


def set_attrs(node: ir.Node, **values: Any) -> None:
    """Set attributes from Python values; None removes one."""
    for name, value in values.items():
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = _attribute(name, value)


def _attribute(name: str, value: Any) -> ir.Attr:
    if isinstance(value, ir.Attr):
        return value
    if isinstance(value, bool | np.integer):
        value = int(value)
    if isinstance(value, np.floating):
        value = float(value)
    if isinstance(value, tuple | list):
        if all(isinstance(v, int | np.integer) for v in value):
            return ir.AttrInt64s(name, [int(v) for v in value])
        if all(isinstance(v, int | float | np.number) for v in value):
            return ir.AttrFloat32s(name, [float(v) for v in value])
    if isinstance(value, np.ndarray):
        value = ir.tensor(value)
    return ir.convenience.convert_attribute(name, value)


def domain_of(op: str) -> str:
    """The domain that an operator with a record has in the IR: ONNX's, or ours for those that ONNX does not have."""
    domain = OPERATORS[op].domain
    return domain if domain in ONNX else DOMAIN


def is_op(node: ir.Node | None, *ops: str, domain: str = "") -> bool:
    """Whether the node is one of these operators of `domain`."""
    return node is not None and node.domain == domain and node.op_type in ops


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Operand `index` of the node; None if it is left out."""
    return node.inputs[index] if len(node.inputs) > index else None


def sole_use(value: ir.Value) -> ir.Node | None:
    """The one node that reads `value`, if nothing else does and it is not a graph output."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    return next(iter(uses)).node


def sole_reader(value: ir.Value) -> bool:
    """Whether at most one node reads `value` (possibly as several operands) and it is not a graph output."""
    return not value.is_graph_output() and len({id(use.node) for use in value.uses()}) <= 1


_SOURCE_KEYS = ("source_location", "pkg.torch.onnx.stack_trace", "namespace", "pkg.torch.onnx.name_scopes")


def title(node: ir.Node) -> str:
    """A node's name, or that of its first result."""
    return node.name or (node.outputs[0].name if node.outputs else "") or node.op_type


def source_of(node: ir.Node) -> str:
    """The source location of this node in its author's code, from exporters' metadata; a stack trace's last line."""
    for key in _SOURCE_KEYS:
        text = node.metadata_props.get(key, "").strip()
        if text:
            return text.splitlines()[-1].strip()
    return next(iter((node.doc_string or "").strip().splitlines()), "").strip()


def constant_dims(shape: Shape | None) -> list[int] | None:
    """`shape` as a Reshape target: at most one size unknown (-1); None if that is impossible."""
    if shape is None or sum(not isinstance(d, int) for d in shape) > 1:
        return None
    if any(d == 0 for d in shape):
        return None
    return [d if isinstance(d, int) else -1 for d in shape]


class Edit:
    """Changes around one node; new nodes are inserted just before it."""

    def __init__(self, node: ir.Node) -> None:
        graph = node.graph
        assert graph is not None, "a node outside any graph cannot be edited"
        self.node, self.graph = node, graph
        self._hint = node.outputs[0].name or node.op_type

    def const(self, values: Any, dtype: Any = None, hint: str = "") -> ir.Value:
        """A new initialiser of this graph."""
        contents = np.asarray(values, dtype)
        name = fresh(self.graph, hint or self._hint)
        # `ir.tensor` also takes tensors of other libraries, and asks for every one: it takes ten times as long.
        tensor = ir.Tensor(np.ascontiguousarray(contents).reshape(contents.shape), name=name)
        kind, shape = ir.TensorType(tensor.dtype), ir.Shape(contents.shape)
        value = ir.Value(name=name, type=kind, shape=shape, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def ints(self, values: int | Iterable[int]) -> ir.Value:
        """An int64 constant: a vector, or a scalar for a single int."""
        return self.const(values if isinstance(values, int) else list(values), np.int64)

    def scalar_like(self, number: float, like: ir.Value) -> ir.Value:
        """A 0-d constant of `like`'s element type."""
        assert like.dtype is not None
        return self.const(np.asarray(number, like.dtype.numpy()))

    def op(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        shape: Shape | None = None,
        like: ir.Value | None = None,
    ) -> ir.Value:
        """Insert an operator; its first result. `like` lends its type (and its shape, unless `shape` is given)."""
        return self.ops(op, inputs, attrs, domain=domain, outputs=outputs, shape=shape, like=like)[0]

    def ops(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        shape: Shape | None = None,
        like: ir.Value | None = None,
    ) -> tuple[ir.Value, ...]:
        """Insert an operator; all its results."""
        results = [ir.Value(name=fresh(self.graph, self._hint)) for _ in range(outputs)]
        if like is not None:
            results[0].type = like.type
            if shape is None and like.shape is not None:
                results[0].shape = ir.Shape(dims(like) or ())
        if shape is not None:
            results[0].shape = ir.Shape(shape)
        attributes = [_attribute(k, v) for k, v in (attrs or {}).items() if v is not None]
        node = ir.Node(domain, op, inputs, attributes, outputs=results)
        node.name = self._node_name()
        node.metadata_props.update(self.node.metadata_props)
        self.graph.insert_before(self.node, node)
        return tuple(results)

    def _node_name(self) -> str:
        return fresh(self.graph, self.node.name or self._hint)

    def replace(self, *values: ir.Value | None) -> None:
        """Replace the node's results by `values`, in order, and remove the node. None: that result is unused."""
        for old, new in zip(self.node.outputs, itertools.chain(values, itertools.repeat(None)), strict=False):
            if new is not None:
                self._take_over(old, new)
            elif old.uses() or old.is_graph_output():
                given = f"only the first {len(values)} of its results" if len(values) > 1 else "only its first result"
                raise ConvertError(f"{self.node.op_type} {title(self.node)!r}: {given} can be used, not {old.name!r}")
        self.graph.remove(self.node, safe=True)

    def _take_over(self, old: ir.Value, new: ir.Value) -> None:
        if new.type is None:
            new.type = old.type
        if new.shape is None or (old.shape is not None and not new.shape.is_static() and old.shape.is_static()):
            new.shape = None if old.shape is None else ir.Shape(dims(old) or ())
        if old.is_graph_output():
            movable = new.producer() is not None and new.graph is self.graph
            if not movable or new.is_graph_output():
                new = self.op("Identity", [new], like=old)
            name, old.name = old.name, fresh(self.graph, "replaced")
            new.name = name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        else:
            old.replace_all_uses_with(new)
