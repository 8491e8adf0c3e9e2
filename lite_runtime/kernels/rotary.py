"""Rotary positions (Su et al., 2021): pair j of a head's features is turned by the j-th angle of its position."""

from __future__ import annotations

from numba import int64

from lite_runtime.native.simd import device, f32p, fault, first, i64p, kernel, num, ptr
from lite_runtime.steps.declaration import named
from lite_runtime.steps.rotary import Rotate

ROTATE = named(Rotate)


@device
def _turn(x, y, cos, sin, half, size, interleaved):
    """The features of one head."""
    if interleaved != 0:
        for j in range(half):
            a, b = x[2 * j], x[2 * j + 1]
            y[2 * j] = cos[j] * a - sin[j] * b
            y[2 * j + 1] = sin[j] * a + cos[j] * b
    else:
        for j in range(half):
            a, b = x[j], x[half + j]
            y[j] = cos[j] * a - sin[j] * b
            y[half + j] = sin[j] * a + cos[j] * b
    for j in range(2 * half, size):
        y[j] = x[j]


@kernel(Rotate)
def f32_rotate(step, bases, worker, workers):
    """Pairs of features of each head, turned by the angles of their position."""
    x, y = ptr(step, bases, ROTATE.x), ptr(step, bases, ROTATE.y)
    cos, sin = ptr(step, bases, ROTATE.cos), ptr(step, bases, ROTATE.sin)
    positions = ptr(step, bases, ROTATE.positions)
    heads, length = num(step, ROTATE.heads), num(step, ROTATE.length)
    size, half, interleaved = num(step, ROTATE.size), num(step, ROTATE.half), num(step, ROTATE.interleaved)
    batch, head, row, rows = (
        num(step, ROTATE.batch),
        num(step, ROTATE.head),
        num(step, ROTATE.row),
        num(step, ROTATE.rows),
    )
    count = num(step, ROTATE.batches) * length
    for i in range(first(count, worker, workers, 1), first(count, worker + 1, workers, 1)):
        b = i // length
        at = int64(i)
        if positions != 0:
            at = i64p(positions)[i]
            if at < 0:
                at += rows
            if at < 0 or at >= rows:
                fault(step, bases)
                at = int64(0)
        start = b * batch + (i - b * length) * row
        for h in range(heads):
            here = 4 * (start + h * head)
            _turn(f32p(x + here), f32p(y + here), f32p(cos + 4 * at * half), f32p(sin + 4 * at * half), half, size,
                  interleaved)  # fmt: skip
