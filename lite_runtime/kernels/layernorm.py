"""The gradient of LayerNormalization, float32.

Workers share chunks of rows, which depend only on the sizes. Each chunk has separate sums for the gradients of scale
and bias; another step adds them in order.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import vdown, vlane0
from lite_runtime.native.simd import LANES, device, f32p, first, kernel, num, ptr, splat, vfma, vload_n, vstore_n
from lite_runtime.steps.declaration import named
from lite_runtime.steps.layernorm import LayerNormGrad

GRAD = named(LayerNormGrad)

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


@kernel(LayerNormGrad)
def f32_grad(step, bases, worker, workers):
    """dX, and the sums of each chunk."""
    dy, x, scale, mean = (
        ptr(step, bases, GRAD.dy),
        ptr(step, bases, GRAD.x),
        ptr(step, bases, GRAD.scale),
        ptr(step, bases, GRAD.mean),
    )
    inverse, dx, parts = ptr(step, bases, GRAD.inverse), ptr(step, bases, GRAD.dx), ptr(step, bases, GRAD.parts)
    rows, n, chunk = num(step, GRAD.rows), num(step, GRAD.n), num(step, GRAD.chunk)
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
