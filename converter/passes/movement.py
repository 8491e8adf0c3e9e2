"""Chains of operators that only move elements, rewritten with the fewest operators that have the same effect.

A chain of Reshape, Transpose, Squeeze, Unsqueeze, Flatten, Gather and Slice with known shapes is run on the indices
of its source; the result is recognised as, in this order:

1. the source itself, or a Reshape of it;
2. a range (with a step) or a selection along one axis: Slice or Gather, then a Reshape if sizes of 1 differ;
3. one Transpose (between Reshapes where the axes it moves had to be split or merged).

A symbolic first dimension that no step changes may have any size: it is traced as 2.

Channel shuffles (Reshape, Transpose, Reshape, Gather) become strided Slices this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims

__all__ = ["run"]

_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Slice")
_LONGEST = 8
_LARGEST = 1 << 21
"""The most elements of a source whose indices are traced."""
_BUDGET = 1 << 25
"""Elements traced per model, so that a pathological graph cannot stall the conversion."""


class Step(NamedTuple):
    """An operator to emit: name, constant operands after the data, attributes, resulting shape."""

    op: str
    operands: tuple[tuple[int, ...] | int, ...]
    attrs: dict[str, object]
    shape: tuple[int, ...]


_BATCH = 2
"""The size used for a symbolic first dimension while indices are traced."""


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape, with a symbolic first dimension as `_BATCH`; None if other sizes are unknown."""
    shape = dims(value)
    if shape is None or not all(isinstance(d, int) for d in shape[1:]):
        return None
    if not shape or isinstance(shape[0], int):
        return tuple(int(d) for d in shape if d is not None)
    return None if shape[0] is None else (_BATCH, *(int(d) for d in shape[1:] if d is not None))


def _symbol(value: ir.Value | None) -> str | None:
    shape = dims(value)
    return shape[0] if shape and isinstance(shape[0], str) else None


def run(model: ir.Model) -> int:
    """The number of chains rewritten."""
    budget, count = _BUDGET, 0
    for node in reversed(list(build.nodes(model))):
        if node.graph is None or not _ends_chain(node):
            continue
        for chain in _chains(node):
            source = chain[-1].inputs[0]
            shape = _sizes(source)
            budget -= prod(shape or (0,)) * len(chain)
            if source is None or shape is None or budget < 0:
                continue
            traced = _trace(chain, shape)
            steps = None if traced is None else _recognise(shape, traced)
            if steps is not None and _symbol(source) is not None and not all(map(_keeps_batch, steps)):
                steps = None
            if steps is not None and len(steps) < len(chain):
                _emit(node, source, steps)
                count += 1
                break
    return count


def _ends_chain(node: ir.Node) -> bool:
    if not _is_move(node):
        return False
    readers = [use.node for use in node.outputs[0].uses()]
    return node.outputs[0].is_graph_output() or len(readers) != 1 or not _is_move(readers[0])


def _keeps_batch(step: Step) -> bool:
    """Whether a step is the same for every size of the first dimension."""
    if step.op == "Slice":
        return step.operands[2] != (0,)
    if step.op == "Gather":
        return step.attrs["axis"] != 0
    if step.op == "Transpose":
        perm = step.attrs["perm"]
        return isinstance(perm, tuple) and perm[0] == 0
    return step.shape[:1] == (_BATCH,)


def _leaves_batch(node: ir.Node) -> bool:
    if node.op_type == "Transpose":
        return bool((attr(node, "perm", None) or (1,))[0] == 0)
    if node.op_type == "Gather":
        return bool(attr(node, "axis", 0) % (build.rank(node.inputs[0]) or 1) != 0)
    if node.op_type == "Slice":
        axes = build.array(node.inputs[3]) if len(node.inputs) > 3 else None
        return axes is not None and not (axes % (build.rank(node.inputs[0]) or 1) == 0).any()
    return True


def _is_move(node: ir.Node) -> bool:
    if not build.is_op(node, *_MOVES) or _sizes(node.outputs[0]) is None or _sizes(node.inputs[0]) is None:
        return False
    symbols = _symbol(node.inputs[0]), _symbol(node.outputs[0])
    if symbols[0] != symbols[1] or (symbols[0] is not None and not _leaves_batch(node)):
        return False
    if (
        any(v is not None and build.array(v) is None for v in node.inputs[1:])
        or build.array(node.inputs[0]) is not None
    ):
        return False
    return prod(_sizes(node.inputs[0]) or ()) <= _LARGEST


def _chains(node: ir.Node) -> Iterator[list[ir.Node]]:
    """Chains that end in `node`, the longest first."""
    chain = [node]
    while len(chain) < _LONGEST:
        value = chain[-1].inputs[0]
        producer = value.producer() if value is not None else None
        if producer is None or not _is_move(producer):
            break
        chain.append(producer)
    for length in range(len(chain), 1, -1):
        yield chain[:length]


def _trace(chain: list[ir.Node], shape: tuple[int, ...]) -> np.ndarray | None:
    """The flat source index of every element of the chain's result; None where a shape is declared that is not the
    operator's: behind an operator that ONNX does not know, the file's word is all there is."""
    indices = np.arange(prod(shape), dtype=np.int32).reshape(shape)
    for node in reversed(chain):
        sizes = _sizes(node.outputs[0]) or ()
        if node.op_type not in ("Transpose", "Gather", "Slice") and indices.size != prod(sizes):
            return None
        indices = _move(node, indices)
        if indices.shape != sizes:
            return None
    return indices


def _move(node: ir.Node, x: np.ndarray) -> np.ndarray:
    if node.op_type == "Transpose":
        return x.transpose(attr(node, "perm", None))
    if node.op_type == "Gather":
        chosen = build.array(node.inputs[1])
        assert chosen is not None
        return x.take(chosen, attr(node, "axis", 0))
    if node.op_type == "Slice":
        return _slice(node, x)
    return x.reshape(_sizes(node.outputs[0]) or ())


def _slice(node: ir.Node, x: np.ndarray) -> np.ndarray:
    starts, ends, axes, steps = ([int(n) for n in found.reshape(-1)] if found is not None else None for found in (
        build.array(v) for v in (*node.inputs[1:], None, None, None, None)[:4]
    ))  # fmt: skip
    assert starts is not None and ends is not None
    window = [slice(None)] * x.ndim
    for i, start in enumerate(starts):
        axis = axes[i] if axes is not None else i
        step = steps[i] if steps is not None else 1
        end: int | None = ends[i]
        if step < 0 and ends[i] < -x.shape[axis]:
            end = None
        window[axis] = slice(start, end, step)
    return x[tuple(window)]


def _recognise(shape: tuple[int, ...], indices: np.ndarray) -> list[Step] | None:
    if indices.size == 0:
        return None
    if indices.size == prod(shape) and (indices.reshape(-1) == np.arange(indices.size)).all():
        return _reshaped(shape, indices.shape)
    chosen = _along_one_axis(shape, indices)
    if chosen is not None:
        return [*chosen, *_reshaped(chosen[-1].shape, indices.shape)]
    return _one_transpose(shape, indices) if indices.size == prod(shape) else None


def _reshaped(shape: tuple[int, ...], target: tuple[int, ...]) -> list[Step]:
    return [] if shape == target else [Step("Reshape", (target,), {}, target)]


def _along_one_axis(shape: tuple[int, ...], indices: np.ndarray) -> list[Step] | None:
    """source.take(chosen, axis), for one axis, ignoring dimensions of size 1."""
    size = prod(shape)
    for axis, length in enumerate(shape):
        if length == 1 or (size // length) == 0 or indices.size % (size // length):
            continue
        count = indices.size // (size // length)
        stride = prod(shape[axis + 1 :])
        result = (*shape[:axis], count, *shape[axis + 1 :])
        if [d for d in result if d != 1] != [d for d in indices.shape if d != 1]:
            continue
        candidate = indices.reshape(result)
        corner = candidate[tuple(slice(None) if i == axis else 0 for i in range(len(shape)))]
        chosen = corner // stride
        source = np.arange(size, dtype=np.int32).reshape(shape)
        if (chosen >= length).any() or not (source.take(chosen, axis) == candidate).all():
            continue
        return [_pick(axis, chosen, result)]
    return None


def _pick(axis: int, chosen: np.ndarray, shape: tuple[int, ...]) -> Step:
    steps = np.unique(np.diff(chosen))
    if chosen.size == 1 or (steps.size == 1 and steps[0] > 0):
        step = int(steps[0]) if chosen.size > 1 else 1
        return Step("Slice", ((int(chosen[0]),), (int(chosen[-1]) + 1,), (axis,), (step,)), {}, shape)
    return Step("Gather", (tuple(int(i) for i in chosen),), {"axis": axis}, shape)


def _one_transpose(shape: tuple[int, ...], indices: np.ndarray) -> list[Step] | None:
    """Transpose of the source's dimensions larger than 1, none split; Reshape adds and removes sizes of 1."""
    core = tuple(d for d in shape if d != 1)
    wanted = [d for d in indices.shape if d != 1]
    if not 2 <= len(core) <= 5 or sorted(core) != sorted(wanted):
        return None
    source = np.arange(prod(core), dtype=np.int32).reshape(core)
    flat = indices.reshape(wanted)
    for perm in permutations(range(len(core))):
        if [core[p] for p in perm] == wanted and (source.transpose(perm) == flat).all():
            full = _full_perm(shape, indices.shape, perm)
            if full is not None:
                return [Step("Transpose", (), {"perm": full}, indices.shape)]
            middle = tuple(core[p] for p in perm)
            turned = Step("Transpose", (), {"perm": perm}, middle)
            return [*_reshaped(shape, core), turned, *_reshaped(middle, indices.shape)]
    return None


def _full_perm(shape: tuple[int, ...], target: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...] | None:
    """`perm` of the larger dimensions, with the sizes of 1 in place; None when their number differs."""
    if len(shape) != len(target):
        return None
    large = [i for i, d in enumerate(shape) if d != 1]
    ones = iter([i for i, d in enumerate(shape) if d == 1])
    turned = iter(large[p] for p in perm)
    return tuple(next(ones) if d == 1 else next(turned) for d in target)


def _emit(node: ir.Node, source: ir.Value, steps: list[Step]) -> None:
    edit, value, symbol = Edit(node), source, _symbol(source)
    for step in steps:
        shape: tuple[int | str, ...] = step.shape if symbol is None else (symbol, *step.shape[1:])
        operands = step.operands
        if symbol is not None and step.op == "Reshape":
            operands = ((-1, *step.shape[1:]),)
        value = edit.op(step.op, [value, *map(edit.ints, operands)], step.attrs, like=source, shape=shape)
    edit.replace(value)
