"""Blocks of pixels moved into channels or into the batch, and back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.dilation import dilated, remember
from converter.frontends.tflite.ops.operands import contents, indices, payload, rank, zero_point

__all__: list[str] = []


@translate("SPACE_TO_DEPTH")
def space_to_depth(op: Op) -> ir.Value:
    """Blocks of pixels become channels, block position first, as in ONNX."""
    (x,) = payload(op, 0)
    return op.nhwc(op.emit("SpaceToDepth", [op.nchw(x)], {"blocksize": int(op.option("block_size", 1))}))


@translate("DEPTH_TO_SPACE")
def depth_to_space(op: Op) -> ir.Value:
    """Channels become blocks of pixels, block position first (ONNX's DCR)."""
    (x,) = payload(op, 0)
    attrs = {"blocksize": int(op.option("block_size", 1)), "mode": "DCR"}
    return op.nhwc(op.emit("DepthToSpace", [op.nchw(x)], attrs))


@translate("SPACE_TO_BATCH_ND")
def space_to_batch(op: Op) -> ir.Value:
    """Padded, then every b-th pixel in each direction becomes an image; block positions come first in the batch."""
    (x,) = payload(op, 0)
    images, block, pads = x, contents(op, 1, "block shape"), op.ints(2)
    n, tail = len(block), _tail(op, block)
    if pads is None:
        none = [op.constant([0])]
        sides = [op.constant([0] * tail, np.int64)] if tail else []
        before_and_after = [*none, _column(op, 2, 0), *sides, *none, _column(op, 2, 1), *sides]
        x = op.emit("Pad", [x, op.emit("Concat", before_and_after, {"axis": 0}), zero_point(op, x)])
    elif any(pads):
        before, after = [0, *pads[::2], *[0] * tail], [0, *pads[1::2], *[0] * tail]
        x = op.emit("Pad", [x, op.constant([*before, *after], np.int64), zero_point(op, x)])
    shape = _Sizes(op, x)
    split = [shape.keep(0)]
    for i, b in enumerate(block):
        split += [shape.divided(1 + i, b), [b]]
    x = shape.reshape(x, [*split, *(shape.keep(1 + n + i) for i in range(tail))])
    inner, cells = [2 + 2 * i for i in range(n)], [1 + 2 * i for i in range(n)]
    x = op.emit("Transpose", [x], {"perm": [*inner, 0, *cells, *range(1 + 2 * n, 1 + 2 * n + tail)]})
    whole = [shape.times(0, int(np.prod(block))), *(shape.divided(1 + i, b) for i, b in enumerate(block))]
    x = shape.reshape(x, [*whole, *(shape.keep(1 + n + i) for i in range(tail))])
    return x if pads is None else remember(x, images, block, pads)


def _tail(op: Op, block: tuple[int, ...]) -> int:
    """The number of axes after the batch and those that blocks divide."""
    axes = rank(op, 0) - 1
    if len(block) > axes:
        op.fail(f"expected a block of at most {axes} sizes, got {len(block)}")
    return axes - len(block)


def _column(op: Op, i: int, k: int) -> ir.Value:
    """Column `k` of the computed pairs of integers in operand `i`, as int64."""
    pairs = op.emit("Reshape", [indices(op, i), op.constant([-1, 2])])
    return op.emit("Gather", [pairs, op.constant(k)], {"axis": 1})


@translate("BATCH_TO_SPACE_ND")
def batch_to_space(op: Op) -> ir.Value:
    """The reverse of SPACE_TO_BATCH_ND, then borders are cropped. A convolution between both is a dilated one."""
    (x,) = payload(op, 0)
    block, crops = contents(op, 1, "block shape"), op.ints(2)
    whole = None if crops is None else dilated(op, x, block, crops)
    if whole is not None:
        return whole
    n, tail = len(block), _tail(op, block)
    shape = _Sizes(op, x)
    images = shape.divided(0, int(np.prod(block)))
    rest = [shape.keep(1 + n + i) for i in range(tail)]
    x = shape.reshape(x, [*([b] for b in block), images, *(shape.keep(1 + i) for i in range(n)), *rest])
    weave = [axis for i in range(n) for axis in (n + 1 + i, i)]
    x = op.emit("Transpose", [x], {"perm": [n, *weave, *range(1 + 2 * n, 1 + 2 * n + tail)]})
    x = shape.reshape(x, [images, *(shape.times(1 + i, b) for i, b in enumerate(block)), *rest])
    axes = list(range(1, 1 + n))
    if crops is None:
        sizes = op.emit("Shape", [x], {"start": 1, "end": 1 + n})
        ends = op.emit("Sub", [sizes, _column(op, 2, 1)])
        return op.emit("Slice", [x, _column(op, 2, 0), ends, op.constant(axes)])
    if not any(crops):
        return x
    last = [-c if c else int(np.iinfo(np.int64).max) for c in crops[1::2]]
    return op.emit("Slice", [x, *(op.constant(v, np.int64) for v in (list(crops[::2]), last, axes))])


class _Sizes:
    """Sizes of a tensor for Reshape targets: numbers where known, else read from it at run time."""

    def __init__(self, op: Op, x: ir.Value) -> None:
        self.op, self.x = op, x
        dims = list(x.shape) if x.shape is not None else [None] * rank(op, 0)
        self.known = [d if isinstance(d, int) else None for d in dims]

    def _size(self, axis: int) -> ir.Value:
        return self.op.emit("Shape", [self.x], {"start": axis, "end": axis + 1})

    def keep(self, axis: int) -> list[int] | ir.Value:
        """The size of `axis`."""
        size = self.known[axis]
        return self._size(axis) if size is None else [size]

    def divided(self, axis: int, by: int) -> list[int] | ir.Value:
        """The size of `axis` over `by`."""
        if by < 1:
            self.op.fail(f"expected a block of at least 1, got {by}")
        size = self.known[axis]
        if size is not None and size % by:
            self.op.fail(f"expected axis {axis} to be a multiple of the block, {by}, got {size}")
        return self.op.emit("Div", [self._size(axis), self.op.constant([by])]) if size is None else [size // by]

    def times(self, axis: int, by: int) -> list[int] | ir.Value:
        """The size of `axis` times `by`."""
        size = self.known[axis]
        return self.op.emit("Mul", [self._size(axis), self.op.constant([by])]) if size is None else [size * by]

    def reshape(self, x: ir.Value, target: list[list[int] | ir.Value]) -> ir.Value:
        """`x` in the sizes of `target`; one unknown size is left to Reshape."""
        unknown = [i for i, t in enumerate(target) if isinstance(t, ir.Value)]
        if len(unknown) <= 1 and 0 not in self.known:
            plain = [-1 if isinstance(t, ir.Value) else t[0] for t in target]
            return self.op.emit("Reshape", [x, self.op.constant(plain, np.int64)], {"allowzero": 1})
        parts = [t if isinstance(t, ir.Value) else self.op.constant(t, np.int64) for t in target]
        return self.op.emit("Reshape", [x, self.op.emit("Concat", parts, {"axis": 0})], {"allowzero": 1})
