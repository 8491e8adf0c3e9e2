"""The interface in which rules are written: `Term`, a value with arithmetic, and `Tape`, the graph it is written to.

    g * (1 - y * y)         four nodes (constants are shared), appended with their types and shapes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from converter.errors import TrainingError
from converter.ir import build, own_shapes, spec
from lite_runtime.graph import OPSET
from lite_runtime.operators import having

__all__ = ["Number", "Operand", "Tape", "Term"]

Number: TypeAlias = "float | Term"
Operand: TypeAlias = "Term | None"

_CONTENTS_UP_TO = 1024
"""The most elements of a constant that inference uses: shapes, axes, pads."""


class Tape:
    """Appends operators to a graph. The graph's model must have been adopted (`build.adopt`)."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.nodes = graph, list[ir.Node]()
        self.hint = "grad"
        """The prefix of new values' names."""
        self._constants: dict[tuple[Any, ...], Term] = {}

    def term(self, value: ir.Value) -> Term:
        """A value of the graph as a Term."""
        return Term(self, value)

    def const(self, values: Any, dtype: Any = None) -> Term:
        """A constant, made once for equal contents."""
        array = np.asarray(values, dtype)
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape))
            tensor.name = build.fresh(self.graph, self.hint)
            kind, shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
            value = ir.Value(name=tensor.name, type=kind, shape=shape, const_value=tensor)
            self.graph.register_initializer(value)
            self._constants[key] = self.term(value)
        return self._constants[key]

    def ints(self, values: int | Iterable[int]) -> Term:
        """An int64 constant: a vector, or a scalar for a single int."""
        return self.const(values if isinstance(values, int) else list(values), np.int64)

    def op(self, op: str, *inputs: Operand, shape: build.Shape | None = None, domain: str = "", **attrs: Any) -> Term:
        """Append an operator; its first result. `shape` gives what inference cannot determine."""
        return self.ops(op, inputs, 1, shape=shape, domain=domain, **attrs)[0]

    def ops(
        self,
        op: str,
        inputs: Sequence[Operand],
        outputs: int,
        *,
        shape: build.Shape | None = None,
        domain: str = "",
        **attrs: Any,
    ) -> tuple[Term, ...]:
        """Append an operator; its first `outputs` results."""
        results = [ir.Value(name=build.fresh(self.graph, self.hint)) for _ in range(outputs)]
        given = [None if x is None else x.value for x in inputs]
        node = ir.Node(domain, op, given, [], outputs=results, name=build.fresh(self.graph, self.hint))
        build.set_attrs(node, **attrs)
        for value, (dtype, found) in zip(results, _inferred(node), strict=False):
            value.type = None if dtype is None else ir.TensorType(dtype)
            value.shape = None if found is None else ir.Shape(found)
        if shape is not None:
            results[0].shape = ir.Shape(shape)
        self.graph.append(node)
        self.nodes.append(node)
        return tuple(self.term(value) for value in results)

    def where(self, condition: Term, a: Number, b: Number) -> Term:
        """`a` where the condition holds, else `b`; at least one of them a Term."""
        like = a if isinstance(a, Term) else b
        assert isinstance(like, Term), "a choice between two numbers has no type"
        return self.op("Where", condition, like.number(a), like.number(b))

    def zeros_like(self, x: Term) -> Term:
        """Zeros of the shape and type of `x`."""
        zero = self.const(np.zeros((), x.dtype.numpy()))
        return self.op("Expand", zero, x.sizes(), shape=x.shape)

    def sweep(self, kept: Iterable[ir.Value]) -> None:
        """Remove unused operators and constants of this tape."""
        wanted = set(kept)
        for node in reversed(self.nodes):
            if not any(v.uses() or v in wanted or v.is_graph_output() for v in node.outputs):
                self.graph.remove(node, safe=True)
        self.nodes = [node for node in self.nodes if node.graph is not None]
        for term in self._constants.values():
            if not term.value.uses() and term.value not in wanted:
                self.graph.initializers.pop(term.value.name or "")


class Term:
    """A value on a tape. Arithmetic appends operators; numbers take the type of the other Term."""

    __slots__ = ("tape", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tape: Tape, value: ir.Value) -> None:
        self.tape, self.value = tape, value

    # what it is

    @property
    def dtype(self) -> ir.DataType:
        """Its element type."""
        if self.value.dtype is None:
            raise TrainingError(f"the type of {self.value.name!r} is unknown: declare it, or run shape inference")
        return self.value.dtype

    @property
    def shape(self) -> tuple[int | str | None, ...]:
        """Its sizes; raises TrainingError if the rank is unknown."""
        found = build.dims(self.value)
        if found is None:
            raise TrainingError(f"the rank of {self.value.name!r} is unknown: declare its shape, or give input_shapes")
        return found

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.shape)

    def size(self, axis: int) -> int:
        """The number of elements along an axis, which must be known."""
        found = self.shape[axis]
        if not isinstance(found, int):
            raise TrainingError(
                f"axis {axis} of {self.value.name!r} is {found or 'of unknown size'}, and its gradient needs the "
                "number: give input_shapes"
            )
        return found

    def array(self) -> np.ndarray | None:
        """Its contents, of a constant."""
        return build.array(self.value)

    # arithmetic

    def number(self, other: Number) -> Term:
        """`other` as a Term of this one's type."""
        return other if isinstance(other, Term) else self.tape.const(np.asarray(other, self.dtype.numpy()))

    def op(self, op: str, *others: Operand, **attrs: Any) -> Term:
        """An operator with this as its first operand."""
        return self.tape.op(op, self, *others, **attrs)

    def __add__(self, other: Number) -> Term:
        return self.op("Add", self.number(other))

    def __radd__(self, other: float) -> Term:
        return self.number(other) + self

    def __sub__(self, other: Number) -> Term:
        return self.op("Sub", self.number(other))

    def __rsub__(self, other: float) -> Term:
        return self.number(other) - self

    def __mul__(self, other: Number) -> Term:
        return self.op("Mul", self.number(other))

    def __rmul__(self, other: float) -> Term:
        return self * other

    def __truediv__(self, other: Number) -> Term:
        return self.op("Div", self.number(other))

    def __rtruediv__(self, other: float) -> Term:
        return self.op("Reciprocal") if other == 1 else self.number(other) / self

    def __neg__(self) -> Term:
        return self.op("Neg")

    def __gt__(self, other: Number) -> Term:
        return self.op("Greater", self.number(other))

    def __lt__(self, other: Number) -> Term:
        return self.op("Less", self.number(other))

    def equals(self, other: Number) -> Term:
        """Elementwise equality, bool."""
        return self.op("Equal", self.number(other))

    def cast(self, dtype: ir.DataType) -> Term:
        """In another element type; itself if it already has that type."""
        return self if self.dtype == dtype else self.op("Cast", to=dtype.value)

    def matmul(self, other: Term) -> Term:
        """The matrix product."""
        return self.op("MatMul", other)

    # shapes

    def sizes(self) -> Term:
        """Its sizes as an int64 vector: a constant where all are known."""
        known = build.static_dims(self.value)
        return self.op("Shape") if known is None else self.tape.ints(known)

    def reshape(self, shape: Sequence[int]) -> Term:
        """With sizes as Reshape takes them (0: unchanged, -1: the rest)."""
        return self if tuple(shape) == self.shape else self.op("Reshape", self.tape.ints(shape))

    def reshape_like(self, other: Term) -> Term:
        """With the shape of `other`, which has as many elements."""
        if build.same_dims(self.value, other.value):
            return self
        target = build.constant_dims(other.shape)
        sizes = other.sizes() if target is None else self.tape.ints(target)
        return self.op("Reshape", sizes, shape=other.shape)

    def expand_like(self, other: Term) -> Term:
        """Broadcast to the shape of `other`."""
        if build.same_dims(self.value, other.value):
            return self
        return self.op("Expand", other.sizes(), shape=other.shape)

    def transpose(self, perm: Sequence[int]) -> Term:
        """With its axes in the order `perm`."""
        return self if list(perm) == list(range(len(perm))) else self.op("Transpose", perm=list(perm))

    def swap(self) -> Term:
        """With its last two axes exchanged."""
        return self.transpose([*range(self.rank - 2), self.rank - 1, self.rank - 2])

    def unsqueeze(self, *axes: int) -> Term:
        """With new axes of size 1, as they are counted in the result."""
        return self.op("Unsqueeze", self.tape.ints(axes)) if axes else self

    def sum(self, axes: Sequence[int], keepdims: bool = False) -> Term:
        """The sum over these axes; itself for none."""
        return self.op("ReduceSum", self.tape.ints(axes), keepdims=keepdims) if axes else self

    def mean(self, axes: Sequence[int]) -> Term:
        """The mean over these axes, which stay with size 1."""
        return self.op("ReduceMean", self.tape.ints(axes), keepdims=True) if axes else self

    def count(self, axes: Sequence[int], dtype: ir.DataType | None = None) -> Number:
        """How many elements these axes span: a number, or a scalar of `dtype` (its own) computed at run time."""
        known = [self.shape[a] for a in axes]
        if all(isinstance(n, int) for n in known):
            return float(prod(n for n in known if isinstance(n, int)))
        some = self.op("Shape").op("Gather", self.tape.ints(list(axes)), axis=0)
        return some.op("ReduceProd", keepdims=False).cast(dtype or self.dtype)

    def reduce_to(self, other: Term) -> Term:
        """Summed over the axes along which `other` was broadcast to this shape."""
        lead = self.rank - other.rank
        ours, theirs = self.shape[lead:], other.shape
        wide = [lead + i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if b == 1 and a != 1]
        unsure = any(not isinstance(b, int) and (b is None or a != b) for a, b in zip(ours, theirs, strict=True))
        total = self.sum(range(lead)) if unsure else self.sum([*range(lead), *wide])
        return total._summed_at_run_time(other) if unsure else total.reshape_like(other)

    def _summed_at_run_time(self, other: Term) -> Term:
        """`reduce_to` between equal ranks if it is known only at run time which sizes of `other` are 1."""
        ones = other.op("Shape").op("Equal", self.tape.ints(1)).op("NonZero")
        axes = ones.op("Squeeze", self.tape.ints([0]))
        total = self.op("ReduceSum", axes, keepdims=True, noop_with_empty_axes=1, shape=other.shape)
        return total.op("Reshape", other.op("Shape"), shape=other.shape)


def _inferred(node: ir.Node) -> Sequence[own_shapes.Known]:
    """Types and shapes of an operator's results, None where unknown."""
    if node.domain == build.DOMAIN:
        return own_shapes.RULES[node.op_type](node)
    schema = spec.schema(node.domain, node.op_type, OPSET)
    assert schema is not None, node.op_type
    kinds, contents = {}, {}
    for value in node.inputs:
        if value is None or value.dtype is None:
            continue
        kinds[value.name or ""] = onnx.helper.make_tensor_type_proto(value.dtype.value, build.dims(value))
        found = build.array(value)
        if found is not None and found.size <= _CONTENTS_UP_TO:
            contents[value.name or ""] = onnx.numpy_helper.from_array(found, value.name)
    proto = ir.serde.serialize_node(node)
    found_kinds = onnx.shape_inference.infer_node_outputs(schema, proto, kinds, contents)
    results = [_known(found_kinds.get(value.name or "")) for value in node.outputs]
    if node.op_type in having("broadcasts"):  # ONNX's inference does not know a named size met by 1; we do
        results = [(dtype, _broadcast([build.dims(v) for v in node.inputs if v is not None])) for dtype, _ in results]
    return results


def _known(proto: onnx.TypeProto | None) -> own_shapes.Known:
    if proto is None:
        return None, None
    kind = proto.tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
    return ir.DataType(kind.elem_type), shape if kind.HasField("shape") else None


def _broadcast(shapes: Sequence[build.Shape | None]) -> build.Shape | None:
    """The shape that all of these broadcast to, None along axes where that is not certain."""
    if any(s is None for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    rank = max(map(len, known))
    ones: tuple[int | str | None, ...] = (1,)
    columns = zip(*(ones * (rank - len(s)) + tuple(s) for s in known), strict=True)
    return [_wider({size for size in column if size != 1}) for column in columns]


def _wider(sizes: set[int | str | None]) -> int | str | None:
    """The result of broadcasting sizes other than 1: a number takes precedence over names."""
    numbers = [s for s in sizes if isinstance(s, int)]
    if not sizes or numbers:
        return numbers[0] if numbers else 1
    return sizes.pop() if len(sizes) == 1 else None
