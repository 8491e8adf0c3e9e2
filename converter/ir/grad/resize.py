"""Resize by constant factors: linear along each axis, so its gradient is a product with the transposed matrix, or a
sum where every element was only repeated."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term
from lite_runtime.graph import Node
from lite_runtime.reference import evaluate

__all__: list[str] = []


@refuse("Resize")
def _open(node: ir.Node) -> str:
    if build.attr(node, "coordinate_transformation_mode", "") == "tf_crop_and_resize":
        return "coordinate_transformation_mode tf_crop_and_resize"
    return "" if _factors(node) is not None else "it changes sizes known only at run time"


def _factors(node: ir.Node) -> dict[int, tuple[int, int, float]] | None:
    """Axis to (size before, size after, factor) of the axes that change; None if something is unknown."""
    before, behind = build.dims(node.inputs[0]), build.dims(node.outputs[0])
    if before is None or behind is None:
        return None
    axes = [a % len(before) for a in build.attr(node, "axes", None) or range(len(before))]
    scales = build.array(node.inputs[2]) if len(node.inputs) > 2 else None
    given = dict(zip(axes, scales.ravel().tolist(), strict=True)) if scales is not None and scales.size else {}
    found = {}
    for axis, (a, b) in enumerate(zip(before, behind, strict=True)):
        if given.get(axis) == 1 or a == b:
            continue
        if not (isinstance(a, int) and isinstance(b, int)):
            return None
        found[axis] = (a, b, given.get(axis, b / max(a, 1)))
    return found


@rule("Resize")
def _resize(n: At) -> Gradients:
    g, factors = n.g, _factors(n.node)
    assert factors is not None, "refused"
    for axis, (size, _, factor) in factors.items():
        g = _along(g, _matrix(n, size, factor), axis)
    return [g]


def _along(g: Term, matrix: np.ndarray, axis: int) -> Term:
    """The product with `matrix` (wide, size) along an axis."""
    wide, size = matrix.shape
    if wide % size == 0 and np.array_equal(matrix, np.repeat(np.eye(size), wide // size, 0)):
        blocks = build.constant_dims([*g.shape[:axis], size, wide // size, *g.shape[axis + 1 :]])
        if blocks is not None:
            return g.reshape(blocks).sum([axis + 1])
    term = g.tape.const(matrix)
    if axis == g.rank - 1:
        return g.matmul(term)
    perm = list(range(g.rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    return g.transpose(perm).matmul(term).transpose(perm)


def _matrix(n: At, size: int, factor: float) -> np.ndarray:
    """(size after, size before): the weight of each operand element in each result element, found by resizing the
    identity."""
    dtype = n.x.dtype.numpy()
    kept = {name: a.value for name, a in n.node.attributes.items() if name not in ("axes", "keep_aspect_ratio_policy")}
    node = Node("Resize", ("x", "", "scales"), ("y",), kept)
    (found,) = evaluate(node, [np.eye(size, dtype=dtype), None, np.array([1, factor], np.float32)])
    return np.ascontiguousarray(found.T)
