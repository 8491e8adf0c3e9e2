"""The gradient of LayerNormalization, float32.

Rows are shared out in chunks that the sizes alone fix; each chunk has sums of its own for the gradients of scale and
bias, joined in order by another step.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vdown, vlane0
from lite_runtime.native.simd import LANES, device, f32p, first, kernel, num, ptr, splat, vfma, vload_n, vstore_n

_ZERO = np.float32(0)


@device
def _across(v):
    """The sum of all lanes."""
    if LANES >= 16:
        v = v + vdown(v, 8)
    if LANES >= 8:
        v = v + vdown(v, 4)
    v = v + vdown(v, 2)
    return vlane0(v + vdown(v, 1))


@kernel()
def f32_grad(step, bases, worker, workers):
    """Operands dY, X (rows, n), scale (n), mean, inv_std (rows), dX, parts (2, chunks, n): sums of dY * normal, of dY.

    numbers: 0 rows, 1 n, 2 rows a chunk.
    """
    ops = 7
    dy, x, scale, mean = ptr(step, bases, 0), ptr(step, bases, 1), ptr(step, bases, 2), ptr(step, bases, 3)
    inverse, dx, parts = ptr(step, bases, 4), ptr(step, bases, 5), ptr(step, bases, 6)
    rows, n, chunk = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2)
    chunks = (rows + chunk - 1) // chunk
    share = np.float32(-1) / np.float32(n)
    for i in range(first(chunks, worker, workers, 1), first(chunks, worker + 1, workers, 1)):
        along, total = parts + 4 * i * n, parts + 4 * (chunks + i) * n
        for c in range(0, n, LANES):
            vstore_n(f32p(along + 4 * c), splat(_ZERO), n - c)
            vstore_n(f32p(total + 4 * c), splat(_ZERO), n - c)
        for row in range(i * chunk, min(rows, (i + 1) * chunk)):
            at = 4 * row * n
            m, r = splat(f32p(mean + 4 * row)[0]), splat(f32p(inverse + 4 * row)[0])
            plain, turned = splat(_ZERO), splat(_ZERO)
            for c in range(0, n, LANES):
                live, here = n - c, at + 4 * c
                given = vload_n(f32p(dy + here), live)
                normal = (vload_n(f32p(x + here), live) - m) * r
                arriving = given * vload_n(f32p(scale + 4 * c), live)
                plain, turned = plain + arriving, vfma(arriving, normal, turned)
                so_far = vload_n(f32p(along + 4 * c), live)
                vstore_n(f32p(along + 4 * c), vfma(given, normal, so_far), live)
                vstore_n(f32p(total + 4 * c), vload_n(f32p(total + 4 * c), live) + given, live)
            less, tilt = splat(_across(plain) * share), splat(_across(turned) * share)
            for c in range(0, n, LANES):
                live, here = n - c, at + 4 * c
                normal = (vload_n(f32p(x + here), live) - m) * r
                arriving = vload_n(f32p(dy + here), live) * vload_n(f32p(scale + 4 * c), live)
                vstore_n(f32p(dx + here), (vfma(normal, tilt, arriving) + less) * r, live)
