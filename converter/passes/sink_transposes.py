"""Transposes move down the graph, through operators that can compute on the untransposed tensor, until they meet their
inverse.

op(T(a), T(b)) = T(op'(a, b)), where op' has its axes and constants permuted. `RULES` has a rule for each operator:

1. Elementwise operators: constants permuted; other operands must come through the same Transpose (or be scalars).
2. Concat, Split, Slice, Pad, Resize, Tile, Expand, Gather, reductions, arg-reductions, Softmax, CumSum, quantisers:
   axes mapped.
3. Squeeze, Unsqueeze and reductions that drop axes: the permutation shrinks or grows.
4. Transpose of Transpose: one, or none.
5. A Transpose that swaps the last two axes into a MatMul: `transA`/`transB`.

A Transpose whose result has several readers is pushed through each that allows it. An operand that is not transposed
gets an inverse Transpose only if every reader of the result undoes the Transpose anyway, or if that moves no element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims, set_attrs
from converter.passes import quantized
from converter.passes.channels_last import transposed, wrong_rank
from lite_runtime.operators import Trait, having, require

__all__ = ["RULES", "run", "run_standard"]

Perm = tuple[int, ...]
_SWEEPS = 8


def run(model: ir.Model) -> int:
    """Sweep until nothing moves; the number of moves."""
    return _sweep(model, _visit)


def run_standard(model: ir.Model) -> int:
    """The same without case 5, whose MatMul is an extension of ONNX's."""
    return _sweep(model, lambda node: 0 if node.op_type == "MatMul" else _visit(node))


def _sweep(model: ir.Model, visit: Callable[[ir.Node], int]) -> int:
    total = 0
    for _ in range(_SWEEPS):
        moved = sum(visit(node) for node in build.nodes(model) if node.graph is not None)
        total += moved
        if not moved:
            break
    return total


def perm_of(value: ir.Value | None) -> Perm | None:
    """The permutation of the Transpose that makes `value`, if one does."""
    node = value.producer() if value is not None else None
    if not build.is_op(node, "Transpose"):
        return None
    assert node is not None
    given = attr(node, "perm", None)
    rank = build.rank(node.inputs[0])
    if given is None and rank is None:
        return None
    return tuple(given) if given is not None else tuple(reversed(range(rank or 0)))


def inverse(perm: Sequence[int]) -> Perm:
    """The permutation that undoes `perm`."""
    return tuple(int(i) for i in np.argsort(perm))


def before(value: ir.Value) -> ir.Value:
    """The untransposed tensor behind a Transpose's result."""
    node = value.producer()
    assert node is not None and node.inputs[0] is not None
    return node.inputs[0]


@dataclass(frozen=True)
class Move:
    """The argument of a rule: the node, and the permutation of its image operands."""

    node: ir.Node
    perm: Perm
    edit: Edit

    @property
    def rank(self) -> int:
        """Dimensions of the operands."""
        return len(self.perm)

    def axis(self, axis: int) -> int:
        """An axis of the transposed tensor, as an axis of the untransposed one."""
        return self.perm[axis % self.rank]


Rule = Callable[[Move], "Sequence[Perm] | None"]
"""Rewrites the node to work on untransposed operands; the permutation each result now needs, or None if it cannot
(and then it has changed nothing)."""


def _visit(node: ir.Node) -> int:
    if build.is_op(node, "Transpose"):
        return _merge(node)
    perm = next((p for p in map(perm_of, node.inputs) if p is not None), None)
    if perm is None:
        return 0
    if node.op_type == "MatMul":
        return _into_matmul(node)
    rule = RULES.get((node.domain, node.op_type))
    if rule is None:
        return 0
    shapes = [dims(v) for v in node.outputs]
    perms = rule(Move(node, perm, Edit(node)))
    if perms is None:
        return 0
    _drop_dead_transposes(node)
    for value, shape, out in zip(list(node.outputs), shapes, perms, strict=False):
        if shape is not None and len(shape) != len(out):
            raise wrong_rank(value, len(out))
        _transpose_result(value, shape, out)
    return 1


def _merge(node: ir.Node) -> int:
    """T(T(x))"""
    x = node.inputs[0]
    inner, outer = perm_of(x), perm_of(node.outputs[0])
    if inner is None or outer is None or x is None:
        return 0
    perm = tuple(inner[i] for i in outer)
    source, edit = before(x), Edit(node)
    first = x.producer()
    if perm == tuple(range(len(perm))):
        if node.outputs[0].is_graph_output() and (source.producer() is None or source.is_graph_output()):
            return 0
        edit.replace(source)
    else:
        edit.replace(transposed(edit, source, perm))
    _remove_if_dead(first)
    return 1


def _remove_if_dead(node: ir.Node | None) -> None:
    if node is not None and node.graph is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        node.graph.remove(node, safe=True)


_READ = "msedge.was"


def _drop_dead_transposes(node: ir.Node) -> None:
    for transpose in node.meta.pop(_READ, ()):
        _remove_if_dead(transpose)


def _transpose_result(value: ir.Value, shape: Sequence[int | str | None] | None, perm: Perm) -> None:
    """`value` is now untransposed: its readers read Transpose(value, perm) instead."""
    if not value.uses() and not value.is_graph_output():
        if shape is not None:
            value.shape = ir.Shape([shape[i] for i in inverse(perm)])
        return
    node = value.producer()
    assert node is not None and node.graph is not None
    if shape is not None:
        value.shape = ir.Shape([shape[i] for i in inverse(perm)])
    if perm == tuple(range(len(perm))):
        return
    result = ir.Value(name=build.fresh(node.graph, value.name or "t"), type=value.type)
    if shape is not None:
        result.shape = ir.Shape(shape)
    readers = [(use.node, use.idx) for use in value.uses()]
    transpose = ir.Node("", "Transpose", [value], [ir.AttrInt64s("perm", perm)], outputs=[result])
    transpose.name = build.fresh(node.graph, node.name or "Transpose")
    node.graph.insert_after(node, transpose)
    for reader, index in readers:
        reader.replace_input_with(index, result)
    if value.is_graph_output():
        outputs = node.graph.outputs
        for i, output in enumerate(outputs):
            if output is value:
                outputs[i] = result
        title = value.name
        value.name = build.fresh(node.graph, title or "t")
        result.name = title


def _read(move: Move, index: int, value: ir.Value) -> None:
    """Let operand `index` read `value`; remember the Transpose it read before."""
    old = move.node.inputs[index]
    maker = old.producer() if old is not None else None
    if build.is_op(maker, "Transpose"):
        move.node.meta.setdefault(_READ, []).append(maker)
    move.node.replace_input_with(index, value)


def _untranspose_operands(move: Move, *, free: bool = True) -> bool:
    """Make every operand untransposed, or change nothing and return False. `free`: an operand whose Transpose moves no
    element costs nothing; not for parts of a Concat, whose parts would then be joined along another axis."""
    plan: list[tuple[int, Callable[[], ir.Value]]] = []
    foreign = 0
    for index, value in enumerate(move.node.inputs):
        if value is None:
            continue
        made = _untransposed(move, value)
        if made is None:
            foreign += not (free and _keeps_order(move, value))
            made = _transposed_back(move, value)
        if made is None:
            return False
        plan.append((index, made))
    if foreign and not _undone_by_readers(move, foreign):
        return False
    for index, make in plan:
        _read(move, index, make())
    return True


def _untransposed(move: Move, value: ir.Value) -> Callable[[], ir.Value] | None:
    if perm_of(value) == move.perm:
        return lambda: before(value)
    shape = dims(value)
    if shape is None:
        return None
    if all(d == 1 for d in shape) and len(shape) <= move.rank:
        return lambda: value
    if len(shape) == move.rank and all(d == 1 or move.perm[i] == i for i, d in enumerate(shape)):
        return lambda: value
    weight = quantized.stored(value)
    if weight is not None and weight.q.ndim <= move.rank:
        flat = weight.reshaped((1,) * (move.rank - weight.q.ndim) + weight.q.shape)
        return None if flat is None else lambda: flat.transposed(inverse(move.perm)).emit(move.edit)
    constant = build.array(value)
    if constant is None or constant.ndim > move.rank:
        return None
    wide = constant.reshape((1,) * (move.rank - constant.ndim) + constant.shape)
    return lambda: move.edit.const(wide.transpose(inverse(move.perm)), hint=value.name or "")


def _keeps_order(move: Move, value: ir.Value) -> bool:
    """Whether transposing `value` back moves only axes of size 1, and so no element."""
    shape = dims(value)
    if shape is None or len(shape) != move.rank:
        return False
    left = [i for i in inverse(move.perm) if shape[i] != 1]
    return left == sorted(left)


def _transposed_back(move: Move, value: ir.Value) -> Callable[[], ir.Value] | None:
    shape = dims(value)
    if shape is None or len(shape) != move.rank:
        return None
    return lambda: transposed(move.edit, value, inverse(move.perm))


def _undone_by_readers(move: Move, foreign: int) -> bool:
    """Whether more Transposes vanish than `foreign` new ones appear."""
    value = move.node.outputs[0]
    if value.is_graph_output() or len(move.node.outputs) > 1:
        return False
    undo = [perm_of(use.node.outputs[0]) == inverse(move.perm) for use in value.uses()]
    lost = sum(
        build.sole_use(v) is move.node
        for v in {id(v): v for v in move.node.inputs if perm_of(v) is not None}.values()
        if v
    )
    return bool(undo) and all(undo) and lost + len(undo) > foreign


def _elementwise(move: Move) -> Sequence[Perm] | None:
    if any((build.rank(v) or 0) > move.rank for v in move.node.inputs):
        return None
    if not _untranspose_operands(move):
        return None
    return [move.perm] * len(move.node.outputs)


def _first_only(move: Move) -> Sequence[Perm] | None:
    """One image operand; the others are scalars or vectors that no permutation touches."""
    if perm_of(move.node.inputs[0]) != move.perm or any(perm_of(v) for v in move.node.inputs[1:]):
        return None
    _read(move, 0, before(move.node.inputs[0]))  # type: ignore[arg-type]
    return [move.perm] * len(move.node.outputs)


def _with_axis(default: int, every: bool = False) -> Rule:
    """An `axis` attribute; `every`: all operands are images (Concat), else the first."""

    def rule(move: Move) -> Sequence[Perm] | None:
        axis = move.axis(attr(move.node, "axis", default))
        if every:
            if not _untranspose_operands(move, free=False):
                return None
        elif _first_only(move) is None:
            return None
        set_attrs(move.node, axis=axis)
        return [move.perm] * len(move.node.outputs)

    return rule


def _quantizer(move: Move) -> Sequence[Perm] | None:
    scale = dims(move.node.inputs[1])
    if scale is None or len(scale) > 1 or attr(move.node, "block_size", 0):
        return None
    return _first_only(move) if scale in ((), (1,)) else _with_axis(1)(move)


def _dynamic_quantizer(move: Move) -> Sequence[Perm] | None:
    """One range for all, or one for each index of the first `kept` axes, which the permutation must leave alone."""
    kept = attr(move.node, "kept", 0)
    if move.perm[:kept] != tuple(range(kept)) or _first_only(move) is None:
        return None
    return [move.perm] + [tuple(range(move.rank if kept else 0))] * (len(move.node.outputs) - 1)


def _constant_axes(move: Move, index: int) -> list[int] | None:
    """The axes in operand `index`; all of them when it is left out; None when computed."""
    given = move.node.inputs[index] if len(move.node.inputs) > index else None
    if given is None:
        return list(range(move.rank))
    found = build.array(given)
    return None if found is None else [int(a) % move.rank for a in found.reshape(-1)]


def _slice(move: Move) -> Sequence[Perm] | None:
    axes = _constant_axes(move, 3)
    starts = dims(move.node.inputs[1])
    if axes is None or starts is None or not isinstance(starts[0], int) or _first_only(move) is None:
        return None
    mapped = [move.perm[a] for a in axes[: starts[0]]]
    if len(move.node.inputs) < 4:
        move.node.resize_inputs(4)
    move.node.replace_input_with(3, move.edit.ints(mapped))
    return [move.perm]


def _pad(move: Move) -> Sequence[Perm] | None:
    axes = _constant_axes(move, 3)
    if axes is None:
        return None
    pads = build.array(move.node.inputs[1])
    if len(move.node.inputs) > 3 and move.node.inputs[3] is not None:
        if _first_only(move) is None:
            return None
        move.node.replace_input_with(3, move.edit.ints([move.perm[a] for a in axes]))
        return [move.perm]
    if pads is None or _first_only(move) is None:
        return None
    order = inverse(move.perm)
    moved = [int(pads[i]) for i in order] + [int(pads[move.rank + i]) for i in order]
    move.node.replace_input_with(1, move.edit.ints(moved))
    return [move.perm]


def _resize(move: Move) -> Sequence[Perm] | None:
    axes = attr(move.node, "axes", None)
    given = [(i, v) for i, v in enumerate(move.node.inputs[1:], 1) if v is not None]
    numbers = [build.array(v) for _, v in given]
    if axes is None and any(found is None or found.size % move.rank for found in numbers):
        return None
    if _first_only(move) is None:
        return None
    if axes is not None:
        set_attrs(move.node, axes=[move.axis(a) for a in axes])
        return [move.perm]
    order = inverse(move.perm)
    for index, value in given:
        found = build.array(value)
        assert found is not None
        if found.size:
            halves = found.reshape(-1, move.rank)[:, list(order)]
            move.node.replace_input_with(index, move.edit.const(halves.reshape(-1), hint=value.name or ""))
    return [move.perm]


def _per_axis_list(move: Move) -> Sequence[Perm] | None:
    """Tile's repeats, Expand's sizes: one number per axis."""
    found = build.array(move.node.inputs[1])
    if found is None or found.size > move.rank or _first_only(move) is None:
        return None
    wide = [1] * (move.rank - found.size) + [int(n) for n in found]
    move.node.replace_input_with(1, move.edit.ints([wide[i] for i in inverse(move.perm)]))
    return [move.perm]


def _cumsum(move: Move) -> Sequence[Perm] | None:
    axis = build.scalar(move.node.inputs[1])
    if axis is None or _first_only(move) is None:
        return None
    move.node.replace_input_with(1, move.edit.ints(move.axis(int(axis))))
    return [move.perm]


def _center_crop_pad(move: Move) -> Sequence[Perm] | None:
    axes = attr(move.node, "axes", None) or range(move.rank)
    if _first_only(move) is None:
        return None
    set_attrs(move.node, axes=[move.axis(int(axis)) for axis in axes])
    return [move.perm]


def _without(perm: Perm, axes: Sequence[int]) -> Perm:
    """The permutation of the remaining axes when `axes` of the transposed tensor are removed."""
    left = [p for i, p in enumerate(perm) if i not in axes]
    return tuple(sorted(left).index(p) for p in left)


def _reduce(move: Move) -> Sequence[Perm] | None:
    axes = _constant_axes(move, 1)
    empty = axes is not None and not axes
    if axes is None or empty or (len(move.node.inputs) < 2 and attr(move.node, "noop_with_empty_axes", 0)):
        return None
    if _first_only(move) is None:
        return None
    if len(move.node.inputs) < 2:
        move.node.resize_inputs(2)
    move.node.replace_input_with(1, move.edit.ints([move.perm[a] for a in axes]))
    return [move.perm if attr(move.node, "keepdims", 1) else _without(move.perm, axes)]


def _arg_reduce(move: Move) -> Sequence[Perm] | None:
    axis = attr(move.node, "axis", 0) % move.rank
    if _first_only(move) is None:
        return None
    set_attrs(move.node, axis=move.perm[axis])
    return [move.perm if attr(move.node, "keepdims", 1) else _without(move.perm, [axis])]


def _squeeze(move: Move) -> Sequence[Perm] | None:
    shape = dims(move.node.inputs[0])
    axes = _constant_axes(move, 1)
    if len(move.node.inputs) < 2 or move.node.inputs[1] is None:
        axes = [i for i, d in enumerate(shape) if d == 1] if shape and all(isinstance(d, int) for d in shape) else None
    if axes is None or _first_only(move) is None:
        return None
    if len(move.node.inputs) < 2:
        move.node.resize_inputs(2)
    move.node.replace_input_with(1, move.edit.ints(sorted(move.perm[a] for a in axes)))
    return [_without(move.perm, axes)]


def _unsqueeze(move: Move) -> Sequence[Perm] | None:
    found = build.array(move.node.inputs[1])
    if found is None or _first_only(move) is None:
        return None
    rank = move.rank + found.size
    new = {int(a) % rank for a in found.reshape(-1)}
    old = [i for i in range(rank) if i not in new]
    perm = list(range(rank))
    for position, p in zip(old, move.perm, strict=True):
        perm[position] = old[p]
    return [tuple(perm)]


def _gather(move: Move) -> Sequence[Perm] | None:
    rank = build.rank(move.node.inputs[1])
    axis = attr(move.node, "axis", 0) % move.rank
    if rank not in (0, 1) or _first_only(move) is None:
        return None
    set_attrs(move.node, axis=move.perm[axis])
    return [move.perm if rank == 1 else _without(move.perm, [axis])]


def _norm_over_tail(move: Move) -> Sequence[Perm] | None:
    """LayerNormalization over axes the permutation leaves at the end."""
    axis = attr(move.node, "axis", -1) % move.rank
    if move.perm[axis:] != tuple(range(axis, move.rank)) or len(move.node.outputs) > 1 or _first_only(move) is None:
        return None
    set_attrs(move.node, axis=axis)
    return [move.perm]


def _into_matmul(node: ir.Node) -> int:
    """MatMul(Tᵀ(a), b) where the Transpose swaps the last two axes."""
    flags = [attr(node, "transA", 0), attr(node, "transB", 0)]
    changed = 0
    operands = list(node.inputs[:2])
    for index, value in enumerate(operands):
        perm = perm_of(value)
        if perm is None or len(perm) < 2 or value is None or value.dtype != ir.DataType.FLOAT:
            continue
        last = len(perm) - 1
        if perm == (*range(last - 1), last, last - 1):
            operands[index] = before(value)
            flags[index] = 1 - flags[index]
            changed = 1
    if not changed:
        return 0
    old = [v.producer() for v in node.inputs[:2] if v is not None]
    edit = Edit(node)
    attrs = {**dict(node.attributes), "transA": flags[0] or None, "transB": flags[1] or None}
    edit.replace(edit.op("MatMul", [*operands, *node.inputs[2:]], attrs, domain=build.DOMAIN, like=node.outputs[0]))
    for maker in old:
        if build.is_op(maker, "Transpose"):
            _remove_if_dead(maker)
    return 1


_TABLE: tuple[tuple[str, Rule], ...] = (
    ("Clip", _first_only),
    ("Concat", _with_axis(0, every=True)),
    ("Split", _with_axis(0)),
    ("QuantizeLinear DequantizeLinear", _quantizer),
    ("DynamicQuantizeLinear", _dynamic_quantizer),
    ("Slice", _slice),
    ("Pad", _pad),
    ("Resize", _resize),
    ("Tile Expand", _per_axis_list),
    ("BitCast", _first_only),
    ("CenterCropPad", _center_crop_pad),
    ("CumSum CumProd", _cumsum),
    ("ArgMax ArgMin", _arg_reduce),
    ("TopK", _with_axis(-1)),
    ("Squeeze", _squeeze),
    ("Unsqueeze", _unsqueeze),
    ("Gather", _gather),
    ("LayerNormalization RMSNormalization", _norm_over_tail),
)
_TRAITS: tuple[tuple[Trait, Rule], ...] = (
    ("elementwise", _elementwise),
    ("reduction", _reduce),
    ("along_axis", _with_axis(-1)),
)
RULES: Mapping[tuple[str, str], Rule] = {
    **{(build.domain_of(op), op): rule for trait, rule in _TRAITS for op in having(trait)},
    **{("", op): rule for ops, rule in _TABLE for op in ops.split()},
    (build.DOMAIN, "DynamicQuantizeLinear"): _dynamic_quantizer,
    (build.DOMAIN, "InterpolatedTable"): _first_only,
    (build.DOMAIN, "LookupTable"): _first_only,
}
require((op for _, op in RULES), "rules for Transposes")
