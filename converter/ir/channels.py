"""Which axes of a graph's values are the same channels, and the removal of channels that are zero everywhere.

Axes are joined where an operator pairs their elements (Fang et al., "DepGraph: Towards Any Structural Pruning", CVPR
2023): the filters of a convolution, its bias, the normalisation after it, the other side of a residual sum, the
inputs of what reads it. An axis that an operator uses in any other way, and axes of the graph's inputs and outputs,
keep their channels. Values are zero in a channel if every array that makes them is: operators that keep zero are the
only ones that channels pass through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build, shapes
from lite_runtime.graph import Array

__all__ = ["Group", "Member", "cut", "groups"]

_Axis = tuple[str, int]
"""(value's name, axis)."""


@dataclass(frozen=True)
class Member:
    """An axis of an initialiser: `block` neighbouring elements belong to a channel (after Flatten). Where `makes`, a
    channel is zero only if the array's slice is; `weighs`: it is a matrix or a filter, not a bias or a scale."""

    name: str
    axis: int
    block: int
    makes: bool
    weighs: bool

    def apart(self, array: Array) -> Array:
        """[channels, all other numbers]."""
        moved = np.moveaxis(array, self.axis, 0)
        return moved.reshape(moved.shape[0] // self.block, -1)


@dataclass(frozen=True)
class Group:
    """Channels that can only be removed together: `size` of them, in these initialisers and values."""

    size: int
    members: tuple[Member, ...]
    values: tuple[tuple[str, int, int], ...]
    """(name, axis, block) of what is computed."""


def groups(model: ir.Model) -> list[Group]:
    """The groups of which channels may be removed, in the order of the graph. Shapes must be known but for the batch;
    what is not known is left as it is."""
    copy = model.clone()
    shapes.infer(copy)
    joined = _Joined(copy)
    for node in copy.graph:
        _RULES.get(node.op_type if node.domain in ("", "ai.onnx") else "", _unknown)(joined, node)
    return joined.found()


def cut(model: ir.Model) -> int:
    """Remove, in place, the channels that are zero everywhere; returns how many. At least one of a group is kept.

    The results are those that the model had before. Raises ConvertError if the model is not what `groups` was made
    from."""
    removed = 0
    for group in groups(model):
        arrays = {member.name: _array(model, member.name) for member in group.members}
        makers = [member for member in group.members if member.makes]
        alive = np.zeros(group.size, bool)
        for member in makers:
            alive |= np.any(member.apart(arrays[member.name]) != 0, axis=1)
        if not alive.any():
            alive[0] = True
        if alive.all():
            continue
        removed += int(group.size - alive.sum())
        for member in group.members:
            _slice(model, member, alive)
        _resize(model, group, int(alive.sum()))
    return removed


def _array(model: ir.Model, name: str) -> Array:
    array = build.array(model.graph.initializers.get(name))
    if array is None:
        raise ConvertError(f"channels: expected an initialiser {name!r} with data, found none")
    return array


def _slice(model: ir.Model, member: Member, alive: Array) -> None:
    value = model.graph.initializers[member.name]
    array = _array(model, member.name)
    kept = np.ascontiguousarray(np.compress(np.repeat(alive, member.block), array, axis=member.axis))
    value.const_value, value.shape = ir.Tensor(kept, name=member.name), ir.Shape(kept.shape)


def _resize(model: ir.Model, group: Group, size: int) -> None:
    """Shapes of values, groups of depthwise convolutions, shapes that a Reshape reads."""
    axes = {(name, axis): block for name, axis, block in group.values}
    filters = {member.name for member in group.members if member.makes and member.weighs}
    for node in model.graph:
        if node.op_type == "Conv" and build.attr(node, "group", 1) > 1 and _name(node, 1) in filters:
            build.set_attrs(node, group=size)
        for value in node.outputs:
            for axis, dim in enumerate(build.dims(value) or ()):
                if (value.name, axis) in axes and isinstance(dim, int) and value.shape is not None:
                    dims = list(value.shape)
                    dims[axis] = size * axes[str(value.name), axis]
                    value.shape = ir.Shape(dims)
        if node.op_type == "Reshape" and (str(node.outputs[0].name), 1) in axes:
            shape = ir.Value(name=build.fresh(model.graph, f"{_name(node, 1)}.cut"))
            shape.const_value = ir.Tensor(np.array([0, -1], np.int64), name=shape.name)
            shape.shape, shape.dtype = ir.Shape([2]), ir.DataType.INT64
            model.graph.register_initializer(shape)
            node.replace_input_with(1, shape)


def _name(node: ir.Node, index: int) -> str:
    value = build.operand(node, index)
    return "" if value is None else str(value.name)


class _Joined:
    """Axes joined so far: a forest whose roots are groups."""

    def __init__(self, model: ir.Model) -> None:
        self._parents: dict[_Axis, _Axis] = {}
        self._blocks: dict[_Axis, int] = {}
        self._fixed: set[_Axis] = set()
        self._members: dict[_Axis, Member] = {}
        self.initializers = dict(model.graph.initializers)
        for value in (*model.graph.inputs, *model.graph.outputs):
            self.fix(value)

    def _root(self, axis: _Axis) -> _Axis:
        while (parent := self._parents.setdefault(axis, axis)) != axis:
            axis = parent
        return axis

    def block(self, value: ir.Value, axis: int) -> int:
        return self._blocks.get((str(value.name), axis), 1)

    def join(self, a: ir.Value, i: int, b: ir.Value, j: int, times: int = 1) -> None:
        """Element k of axis i of `a` belongs with the elements k * times to (k + 1) * times - 1 of axis j of `b`."""
        one, other = (str(a.name), i), (str(b.name), j)
        size, wide = (build.dims(v) or () for v in (a, b))
        block = self.block(a, i) * times
        known = i < len(size) and j < len(wide) and isinstance(size[i], int) and isinstance(wide[j], int)
        if not known or int(size[i] or 0) * times != wide[j] or self._blocks.setdefault(other, block) != block:
            self.fix(a, i)
            self.fix(b, j)
            return
        roots = self._root(one), self._root(other)
        if roots[0] == roots[1]:
            return
        self._parents[roots[1]] = roots[0]
        if roots[1] in self._fixed:
            self._fixed.add(roots[0])

    def fix(self, value: ir.Value | None, axis: int | None = None) -> None:
        """Nothing may be removed along an axis, or along any."""
        if value is None:
            return
        axes = range(len(build.dims(value) or ())) if axis is None else (axis,)
        self._fixed |= {self._root((str(value.name), n)) for n in axes}

    def member(self, value: ir.Value, axis: int, *, makes: bool, weighs: bool = False) -> None:
        """An axis of an initialiser; of one that is used twice, what either use says."""
        key = (str(value.name), axis)
        if str(value.name) not in self.initializers:
            self.fix(value)
            return
        before = self._members.get(key)
        makes, weighs = makes or (before is not None and before.makes), weighs or (before is not None and before.weighs)
        self._members[key] = Member(*key, self.block(value, axis), makes, weighs)

    def found(self) -> list[Group]:
        fixed = {self._root(axis) for axis in self._fixed}
        members: dict[_Axis, list[Member]] = {}
        values: dict[_Axis, list[tuple[str, int, int]]] = {}
        for axis in self._parents:
            root = self._root(axis)
            if root in fixed:
                continue
            if axis in self._members:
                members.setdefault(root, []).append(self._members[axis])
            elif axis[0] in self.initializers:
                fixed.add(root)  # an operand that no rule knows
            else:
                values.setdefault(root, []).append((*axis, self._blocks.get(axis, 1)))
        made = []
        for root, of in members.items():
            if root in fixed or not any(m.weighs and m.makes for m in of):
                continue
            first = next(m for m in of if m.weighs and m.makes)
            size = (build.static_dims(self.initializers[first.name]) or (0,) * 9)[first.axis] // first.block
            made.append(Group(size, tuple(of), tuple(values.get(root, ()))))
        return made


_Rule = Callable[[_Joined, ir.Node], None]


def _unknown(joined: _Joined, node: ir.Node) -> None:
    for value in (*node.inputs, *node.outputs):
        joined.fix(value)


def _elementwise(joined: _Joined, node: ir.Node) -> None:
    """f(0) = 0"""
    x, y = node.inputs[0], node.outputs[0]
    for other in (*node.inputs[1:], *node.outputs[1:]):
        joined.fix(other)
    if x is not None:
        _alike(joined, x, y, range(len(build.dims(y) or ())))


def _alike(joined: _Joined, x: ir.Value, y: ir.Value, axes: Sequence[int]) -> None:
    for axis in axes:
        joined.join(x, axis, y, axis)


def _pooled(joined: _Joined, node: ir.Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    rank = len(build.dims(y) or ())
    assert x is not None
    for axis in range(2, rank):
        joined.fix(x, axis)
        joined.fix(y, axis)
    joined.join(x, 1, y, 1)
    joined.fix(node.outputs[1] if len(node.outputs) > 1 else None)


def _broadcast(joined: _Joined, node: ir.Node) -> None:
    """Add, Sub, Mul: each operand's axes are the result's, from the right. One of length 1 belongs to all channels,
    which a product allows and a sum does not."""
    y = node.outputs[0]
    rank = len(build.dims(y) or ())
    for value in node.inputs:
        if value is None:
            continue
        sizes = build.dims(value) or ()
        for axis in range(rank):
            own = axis - rank + len(sizes)
            if own >= 0 and sizes[own] != 1:
                joined.join(value, own, y, axis)
                if str(value.name) in joined.initializers:
                    joined.member(value, own, makes=node.op_type != "Mul")
            elif node.op_type != "Mul":
                joined.fix(y, axis)


def _conv(joined: _Joined, node: ir.Node) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    sizes, count = build.static_dims(w), build.attr(node, "group", 1)
    depthwise = sizes is not None and count == sizes[0] and sizes[1] == 1 and count > 1
    if x is None or w is None or sizes is None or not (count == 1 or depthwise):
        _unknown(joined, node)
        return
    for axis in range(2, len(sizes)):
        for value in (x, w, y):
            joined.fix(value, axis)
    joined.join(x, 1, w, 0 if depthwise else 1)
    joined.join(w, 0, y, 1)
    joined.member(w, 0, makes=True, weighs=True)
    if depthwise:
        joined.fix(w, 1)
    else:
        joined.member(w, 1, makes=False)
    _bias(joined, build.operand(node, 2), y, 1)


def _bias(joined: _Joined, bias: ir.Value | None, y: ir.Value, axis: int) -> None:
    if bias is not None:
        last = len(build.dims(bias) or ()) - 1
        joined.join(bias, last, y, axis)
        joined.member(bias, last, makes=True)


def _gemm(joined: _Joined, node: ir.Node) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if x is None or w is None or build.attr(node, "transA", 0) or len(build.dims(w) or ()) != 2:
        _unknown(joined, node)
        return
    into = 1 if build.attr(node, "transB", 0) else 0
    _product(joined, x, w, y, into)
    _bias(joined, build.operand(node, 2), y, 1)


def _matmul(joined: _Joined, node: ir.Node) -> None:
    x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
    if x is None or w is None or str(w.name) not in joined.initializers or len(build.dims(w) or ()) != 2:
        _unknown(joined, node)
        return
    _alike(joined, x, y, range(len(build.dims(y) or ()) - 1))
    _product(joined, x, w, y, 0)


def _product(joined: _Joined, x: ir.Value, w: ir.Value, y: ir.Value, into: int) -> None:
    last = len(build.dims(y) or ()) - 1
    joined.join(x, last, w, into)
    joined.member(w, into, makes=False)
    joined.join(w, 1 - into, y, last)
    joined.member(w, 1 - into, makes=True, weighs=True)


def _norm(joined: _Joined, node: ir.Node) -> None:
    """With scale and shift of 0 the result is 0, whatever the statistics are."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None:
        return
    _alike(joined, x, y, range(len(build.dims(y) or ())))
    for index, value in enumerate(node.inputs[1:5]):
        if value is not None:
            joined.join(value, 0, y, 1)
            joined.member(value, 0, makes=index < 2)
    for value in node.outputs[1:]:
        joined.fix(value)


def _flatten(joined: _Joined, node: ir.Node) -> None:
    """[batch, channels, …] to [batch, channels * …]: also a Reshape that does that."""
    x, y = node.inputs[0], node.outputs[0]
    sizes, wide = build.dims(x) or (), build.dims(y) or ()
    rest = sizes[2:]
    flat = node.op_type == "Flatten" and build.attr(node, "axis", 1) == 1
    if x is None or len(wide) != 2 or len(sizes) < 2 or not all(isinstance(d, int) for d in (*sizes[1:], wide[1])):
        _unknown(joined, node)
        return
    if not flat and (sizes[0] != wide[0] or math.prod(int(d or 0) for d in sizes[1:]) != wide[1]):
        _unknown(joined, node)
        return
    for axis in range(2, len(sizes)):
        joined.fix(x, axis)
    joined.join(x, 1, y, 1, math.prod(int(d or 0) for d in rest))


def _transpose(joined: _Joined, node: ir.Node) -> None:
    x, y = node.inputs[0], node.outputs[0]
    order = build.attr(node, "perm", None)
    if x is None or order is None:
        _unknown(joined, node)
        return
    for to, axis in enumerate(order):
        joined.join(x, axis, y, to)


_ZERO = "Abs Ceil Dropout Elu Erf Floor Gelu HardSwish Identity LeakyRelu Mish Neg Relu Round Selu Sign Swish Tanh"
_POOLS = "AveragePool GlobalAveragePool GlobalMaxPool MaxPool"
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        **dict.fromkeys(_ZERO.split(), _elementwise),
        **dict.fromkeys(_POOLS.split(), _pooled),
        **dict.fromkeys(("Add", "Sub", "Mul"), _broadcast),
        "Conv": _conv, "Gemm": _gemm, "MatMul": _matmul, "BatchNormalization": _norm,
        "Flatten": _flatten, "Reshape": _flatten, "Transpose": _transpose,
    }
)  # fmt: skip
"""What an operator does with channels; any other keeps them."""
