"""Softmax and the normalisations, float32, over the middle axis of [outer, n, inner].

`__rows`: inner is 1, elements are contiguous. `__columns`: LANES neighbouring rows at a time, their elements `inner`
apart. Workers share rows, so results are bit-identical for any number of workers. Moments take two passes (the mean,
then the squares of the differences from it), each in partial sums over blocks: for a million elements the relative
error is within 1e-6.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._softmax import vexp_down
from lite_runtime.kernels._vmath import (
    across_max,
    across_sum,
    vexp,
    vfirst,
    vlane0,
    vload_or,
    vlog,
    vpick_eq,
    vswap,
)
from lite_runtime.native.simd import (
    LANES,
    device,
    f32p,
    first,
    kernel,
    num,
    ptr,
    real,
    splat,
    sqrt,
    vabs,
    vfma,
    vload,
    vload_n,
    vmax,
    vsqrt,
    vstore,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.normalize import LocalResponse, LpNormalize, Softmax, Standardize

SOFTMAX = named(Softmax)
STANDARDIZE = named(Standardize)
LP = named(LpNormalize)
LRN = named(LocalResponse)

BLOCK = 64
_ZERO, _ONE, _INF = np.float32(0), np.float32(1), np.float32(np.inf)


# -- Softmax, LogSoftmax ----------------------------------------------------------------------------------------------


@device
def _row_max(x, n):
    low = splat(-_INF)
    a, b = low, low
    i = 0
    while i + 2 * LANES <= n:
        a = vmax(a, vload(f32p(x + 4 * i)))
        b = vmax(b, vload(f32p(x + 4 * (i + LANES))))
        i += 2 * LANES
    while i < n:
        a = vmax(a, vload_or(f32p(x + 4 * i), n - i, low))
        i += LANES
    return across_max(vmax(a, b))


@device
def _row_softmax(x, y, n):
    """A row of more than LANES elements."""
    highest = _row_max(x, n)
    total = splat(_ZERO)
    i = 0
    while i < n:
        end = min(n, i + BLOCK * LANES)
        part = splat(_ZERO)
        while i + LANES <= end:
            e = vexp_down(vload(f32p(x + 4 * i)) - highest)
            vstore(f32p(y + 4 * i), e)
            part = part + e
            i += LANES
        if i < end:
            e = vexp_down(vload_n(f32p(x + 4 * i), end - i) - highest)
            vstore_n(f32p(y + 4 * i), e, end - i)
            part = part + vfirst(e, end - i, splat(_ZERO))
            i = end
        total = total + part
    scale = splat(_ONE) / across_sum(total)
    i = 0
    while i + LANES <= n:
        vstore(f32p(y + 4 * i), vload(f32p(y + 4 * i)) * scale)
        i += LANES
    if i < n:
        vstore_n(f32p(y + 4 * i), vload_n(f32p(y + 4 * i), n - i) * scale, n - i)


@device
def _short_max(v, n):
    """Maxima of groups of n (2, 4, ... LANES) lanes, in each lane of the group."""
    v = vmax(v, vswap(v, 1))
    if n > 2:
        v = vmax(v, vswap(v, 2))
    if n > 4:
        v = vmax(v, vswap(v, 4))
    if n > 8:
        v = vmax(v, vswap(v, 8))
    return v


@device
def _short_sum(v, n):
    v = v + vswap(v, 1)
    if n > 2:
        v = v + vswap(v, 2)
    if n > 4:
        v = v + vswap(v, 4)
    if n > 8:
        v = v + vswap(v, 8)
    return v


@kernel(Softmax, unread=("inner", "log"))
def f32_softmax__rows(step, bases, worker, workers):
    """Rows of any length; of rows with 2, 4, ... LANES elements, as many as fill a vector are processed together."""
    x, y = ptr(step, bases, SOFTMAX.x), ptr(step, bases, SOFTMAX.y)
    outer, n = num(step, SOFTMAX.outer), num(step, SOFTMAX.n)
    lo, hi = first(outer, worker, workers, LANES), first(outer, worker + 1, workers, LANES)
    low = splat(-_INF)
    if n > LANES:
        for o in range(lo, hi):
            _row_softmax(x + 4 * n * o, y + 4 * n * o, n)
    elif n >= 2 and n & (n - 1) == 0:
        at, left = 4 * n * lo, n * (hi - lo)
        while left > 0:
            v = vload_n(f32p(x + at), left)
            e = vexp_down(v - _short_max(v, n))
            vstore_n(f32p(y + at), e / _short_sum(e, n), left)
            at += 4 * LANES
            left -= LANES
    else:
        for o in range(lo, hi):
            v = vload_or(f32p(x + 4 * n * o), n, low)
            e = vfirst(vexp_down(v - across_max(v)), n, splat(_ZERO))
            vstore_n(f32p(y + 4 * n * o), e / across_sum(e), n)


@device
def _row_exp_sum(x, n, highest):
    """Sum of exp(x - highest) over a row."""
    total = splat(_ZERO)
    i = 0
    while i < n:
        end = min(n, i + 2 * BLOCK * LANES)
        a, b = splat(_ZERO), splat(_ZERO)
        while i + 2 * LANES <= end:
            a = a + vexp_down(vload(f32p(x + 4 * i)) - highest)
            b = b + vexp_down(vload(f32p(x + 4 * (i + LANES))) - highest)
            i += 2 * LANES
        while i < end:
            v = vexp_down(vload_or(f32p(x + 4 * i), end - i, splat(-_INF)) - highest)
            a = a + vfirst(v, end - i, splat(_ZERO))
            i += LANES
        i = end
        total = total + (a + b)
    return across_sum(total)


@device
def _row_less(x, y, n, a, b):
    """y = x - a - b."""
    i = 0
    while i + LANES <= n:
        vstore(f32p(y + 4 * i), vload(f32p(x + 4 * i)) - a - b)
        i += LANES
    if i < n:
        vstore_n(f32p(y + 4 * i), vload_n(f32p(x + 4 * i), n - i) - a - b, n - i)


@kernel(Softmax, unread=("inner", "log"))
def f32_log_softmax__rows(step, bases, worker, workers):
    """x - max - log of the sum of exp(x - max)."""
    x0, y0 = ptr(step, bases, SOFTMAX.x), ptr(step, bases, SOFTMAX.y)
    outer, n = num(step, SOFTMAX.outer), num(step, SOFTMAX.n)
    for o in range(first(outer, worker, workers, LANES), first(outer, worker + 1, workers, LANES)):
        x, y = x0 + 4 * n * o, y0 + 4 * n * o
        if n > LANES:
            highest = _row_max(x, n)
            _row_less(x, y, n, highest, vlog(_row_exp_sum(x, n, highest)))
        else:
            v = vload_or(f32p(x), n, splat(-_INF))
            v = v - across_max(v)
            e = vfirst(vexp_down(v), n, splat(_ZERO))
            vstore_n(f32p(y), v - vlog(across_sum(e)), n)


@kernel(Softmax)
def f32_softmax__columns(step, bases, worker, workers):
    """Softmax (log 0) or LogSoftmax (log 1) along columns."""
    x0, y0 = ptr(step, bases, SOFTMAX.x), ptr(step, bases, SOFTMAX.y)
    outer, n, inner, log = (
        num(step, SOFTMAX.outer),
        num(step, SOFTMAX.n),
        num(step, SOFTMAX.inner),
        num(step, SOFTMAX.log),
    )
    strips = (inner + LANES - 1) // LANES
    stride = 4 * inner
    for item in range(first(outer * strips, worker, workers, 1), first(outer * strips, worker + 1, workers, 1)):
        o, strip = item // strips, item % strips
        width = min(inner - strip * LANES, LANES)
        at = 4 * (o * n * inner + strip * LANES)
        x, y = x0 + at, y0 + at
        highest = splat(-_INF)
        for r in range(n):
            highest = vmax(highest, vload_n(f32p(x + r * stride), width))
        total = splat(_ZERO)
        r = 0
        while r < n:
            end = min(n, r + BLOCK)
            part = splat(_ZERO)
            while r < end:
                e = vexp_down(vload_n(f32p(x + r * stride), width) - highest)
                if log == 0:
                    vstore_n(f32p(y + r * stride), e, width)
                part = part + e
                r += 1
            total = total + part
        if log == 0:
            scale = splat(_ONE) / total
            for r in range(n):
                vstore_n(f32p(y + r * stride), vload_n(f32p(y + r * stride), width) * scale, width)
        else:
            shift = vlog(total)
            for r in range(n):
                vstore_n(f32p(y + r * stride), vload_n(f32p(x + r * stride), width) - highest - shift, width)


# -- standardisation: (x - mean) / (sqrt(variance + epsilon) + floor), scaled and shifted -----------------------------
# Rows: if depth is 0, element i is scaled by scale[i]; otherwise a channel is `depth` elements long, row o starts at
# channel (o * n / depth) mod channels, and each channel has its scale. Columns: each position within inner has its
# scale.


@device
def _row_sum(x, n):
    total = splat(_ZERO)
    i = 0
    while i < n:
        end = min(n, i + 4 * LANES * BLOCK)
        a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
        while i + 4 * LANES <= end:
            a = a + vload(f32p(x + 4 * i))
            b = b + vload(f32p(x + 4 * (i + LANES)))
            c = c + vload(f32p(x + 4 * (i + 2 * LANES)))
            d = d + vload(f32p(x + 4 * (i + 3 * LANES)))
            i += 4 * LANES
        while i < end:
            a = a + vload_n(f32p(x + 4 * i), end - i)
            i += LANES
        i = end
        total = total + ((a + b) + (c + d))
    return across_sum(total)


@device
def _row_squares(x, n, mean):
    """Sum of squares of the differences from `mean`."""
    total = splat(_ZERO)
    i = 0
    while i < n:
        end = min(n, i + 2 * LANES * BLOCK)
        a, b = splat(_ZERO), splat(_ZERO)
        while i + 2 * LANES <= end:
            u, v = vload(f32p(x + 4 * i)) - mean, vload(f32p(x + 4 * (i + LANES))) - mean
            a, b = vfma(u, u, a), vfma(v, v, b)
            i += 2 * LANES
        while i < end:
            u = vload_or(f32p(x + 4 * i), end - i, mean) - mean
            a = vfma(u, u, a)
            i += LANES
        i = end
        total = total + (a + b)
    return across_sum(total)


@device
def _apply(x, y, n, mean, scale, shift):
    """y = (x - mean) * scale + shift, with one scale and shift for all elements."""
    i = 0
    while i + LANES <= n:
        vstore(f32p(y + 4 * i), vfma(vload(f32p(x + 4 * i)) - mean, scale, shift))
        i += LANES
    if i < n:
        v = vload_n(f32p(x + 4 * i), n - i) - mean
        vstore_n(f32p(y + 4 * i), vfma(v, scale, shift), n - i)


@device
def _apply_each(x, y, n, mean, inverse, scales, biases):
    """y = (x - mean) * inverse * scales + biases, with one scale and bias per element; biases may be absent."""
    i = 0
    while i + LANES <= n:
        v = (vload(f32p(x + 4 * i)) - mean) * inverse
        shift = splat(_ZERO)
        if biases != 0:
            shift = vload(f32p(biases + 4 * i))
        vstore(f32p(y + 4 * i), vfma(v, vload(f32p(scales + 4 * i)), shift))
        i += LANES
    if i < n:
        v = (vload_n(f32p(x + 4 * i), n - i) - mean) * inverse
        shift = splat(_ZERO)
        if biases != 0:
            shift = vload_n(f32p(biases + 4 * i), n - i)
        vstore_n(f32p(y + 4 * i), vfma(v, vload_n(f32p(scales + 4 * i), n - i), shift), n - i)


@kernel(Standardize, unread=("inner",))
def f32_standardize__rows(step, bases, worker, workers):
    """LayerNormalization, RMSNormalization, InstanceNormalization and GroupNormalization of NCHW."""
    x0, y0 = ptr(step, bases, STANDARDIZE.x), ptr(step, bases, STANDARDIZE.y)
    scales, biases, means, inverses = (
        ptr(step, bases, STANDARDIZE.scales),
        ptr(step, bases, STANDARDIZE.biases),
        ptr(step, bases, STANDARDIZE.means),
        ptr(step, bases, STANDARDIZE.inverses),
    )
    outer, n, centre = num(step, STANDARDIZE.outer), num(step, STANDARDIZE.n), num(step, STANDARDIZE.centre)
    channels, depth = num(step, STANDARDIZE.channels), num(step, STANDARDIZE.depth)
    epsilon, floor = real(step, STANDARDIZE.epsilon), real(step, STANDARDIZE.floor)
    count = np.float32(n)
    for o in range(first(outer, worker, workers, 1), first(outer, worker + 1, workers, 1)):
        x, y = x0 + 4 * n * o, y0 + 4 * n * o
        mean = splat(_ZERO)
        if centre != 0:
            mean = _row_sum(x, n) / splat(count)
        variance = vlane0(_row_squares(x, n, mean)) / count
        inverse = _ONE / (sqrt(variance + epsilon) + floor)
        if means != 0:
            f32p(means + 4 * o)[0] = vlane0(mean)
        if inverses != 0:
            f32p(inverses + 4 * o)[0] = inverse
        if scales == 0:
            _apply(x, y, n, mean, splat(inverse), splat(_ZERO))
        elif depth != 0:
            each = n // depth
            c = (o * each) % channels
            for k in range(each):
                scale = f32p(scales + 4 * (c + k))[0] * inverse
                shift = f32p(biases + 4 * (c + k))[0] if biases != 0 else _ZERO
                _apply(x + 4 * k * depth, y + 4 * k * depth, depth, mean, splat(scale), splat(shift))
        else:
            _apply_each(x, y, n, mean, splat(inverse), scales, biases)


@kernel(Standardize, unread=("means", "inverses", "channels", "depth"))
def f32_standardize__columns(step, bases, worker, workers):
    """InstanceNormalization of NHWC, MeanVarianceNormalization."""
    x0, y0, scales, biases = (
        ptr(step, bases, STANDARDIZE.x),
        ptr(step, bases, STANDARDIZE.y),
        ptr(step, bases, STANDARDIZE.scales),
        ptr(step, bases, STANDARDIZE.biases),
    )
    outer, n, inner, centre = (
        num(step, STANDARDIZE.outer),
        num(step, STANDARDIZE.n),
        num(step, STANDARDIZE.inner),
        num(step, STANDARDIZE.centre),
    )
    epsilon, floor = real(step, STANDARDIZE.epsilon), real(step, STANDARDIZE.floor)
    strips = (inner + LANES - 1) // LANES
    stride, count = 4 * inner, splat(np.float32(n))
    for item in range(first(outer * strips, worker, workers, 1), first(outer * strips, worker + 1, workers, 1)):
        o, strip = item // strips, item % strips
        width = min(inner - strip * LANES, LANES)
        at = 4 * (o * n * inner + strip * LANES)
        x, y = x0 + at, y0 + at
        mean = splat(_ZERO)
        if centre != 0:
            r = 0
            while r < n:
                end = min(n, r + BLOCK)
                part = splat(_ZERO)
                while r < end:
                    part = part + vload_n(f32p(x + r * stride), width)
                    r += 1
                mean = mean + part
            mean = mean / count
        total = splat(_ZERO)
        r = 0
        while r < n:
            end = min(n, r + BLOCK)
            part = splat(_ZERO)
            while r < end:
                v = vload_n(f32p(x + r * stride), width) - mean
                part = vfma(v, v, part)
                r += 1
            total = total + part
        scale = splat(_ONE) / (vsqrt(total / count + splat(epsilon)) + splat(floor))
        shift = splat(_ZERO)
        if scales != 0:
            scale = scale * vload_n(f32p(scales + 4 * strip * LANES), width)
        if biases != 0:
            shift = vload_n(f32p(biases + 4 * strip * LANES), width)
        for r in range(n):
            v = vload_n(f32p(x + r * stride), width) - mean
            vstore_n(f32p(y + r * stride), vfma(v, scale, shift), width)


# -- LpNormalization --------------------------------------------------------------------------------------------------


@kernel(LpNormalize)
def f32_lp_normalize__columns(step, bases, worker, workers):
    """x over its 1- or 2-norm; 0 where that is 0."""
    x0, y0 = ptr(step, bases, LP.x), ptr(step, bases, LP.y)
    outer, n, inner, p = num(step, LP.outer), num(step, LP.n), num(step, LP.inner), num(step, LP.p)
    strips = (inner + LANES - 1) // LANES
    stride = 4 * inner
    for item in range(first(outer * strips, worker, workers, 1), first(outer * strips, worker + 1, workers, 1)):
        o, strip = item // strips, item % strips
        width = min(inner - strip * LANES, LANES)
        at = 4 * (o * n * inner + strip * LANES)
        x, y = x0 + at, y0 + at
        total = splat(_ZERO)
        r = 0
        while r < n:
            end = min(n, r + BLOCK)
            part = splat(_ZERO)
            while r < end:
                v = vload_n(f32p(x + r * stride), width)
                part = part + vabs(v) if p == 1 else vfma(v, v, part)
                r += 1
            total = total + part
        if p == 2:
            total = vsqrt(total)
        safe = vpick_eq(total, splat(_ZERO), splat(_ONE), total)
        for r in range(n):
            vstore_n(f32p(y + r * stride), vload_n(f32p(x + r * stride), width) / safe, width)


@kernel(LpNormalize, unread=("inner",))
def f32_lp_normalize__rows(step, bases, worker, workers):
    """x over its 1- or 2-norm; 0 where that is 0."""
    x0, y0 = ptr(step, bases, LP.x), ptr(step, bases, LP.y)
    outer, n, p = num(step, LP.outer), num(step, LP.n), num(step, LP.p)
    for o in range(first(outer, worker, workers, LANES), first(outer, worker + 1, workers, LANES)):
        x, y = x0 + 4 * n * o, y0 + 4 * n * o
        if p == 1:
            total = splat(_ZERO)
            i = 0
            while i < n:
                end = min(n, i + BLOCK * LANES)
                part = splat(_ZERO)
                while i < end:
                    part = part + vabs(vload_n(f32p(x + 4 * i), n - i))
                    i += LANES
                total = total + part
            total = across_sum(total)
        else:
            total = vsqrt(_row_squares(x, n, splat(_ZERO)))
        safe = vpick_eq(total, splat(_ZERO), splat(_ONE), total)
        for i in range(0, n, LANES):
            vstore_n(f32p(y + 4 * i), vload_n(f32p(x + 4 * i), n - i) / safe, n - i)


# -- LRN --------------------------------------------------------------------------------------------------------------


@kernel(LocalResponse)
def f32_local_response__columns(step, bases, worker, workers):
    """x / (bias + alpha / size * sum of squares from `before` channels before to `after` channels after)^beta."""
    x0, y0 = ptr(step, bases, LRN.x), ptr(step, bases, LRN.y)
    outer, channels, inner = num(step, LRN.outer), num(step, LRN.n), num(step, LRN.inner)
    before, after = num(step, LRN.before), num(step, LRN.after)
    alpha, beta, bias = splat(real(step, LRN.alpha)), splat(-real(step, LRN.beta)), splat(real(step, LRN.bias))
    strips = (inner + LANES - 1) // LANES
    items = outer * channels * strips
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        rest, strip = item // strips, item % strips
        o, c = rest // channels, rest % channels
        width = min(inner - strip * LANES, LANES)
        at = 4 * (o * channels * inner + strip * LANES)
        total = splat(_ZERO)
        for k in range(max(0, c - before), min(channels, c + after + 1)):
            v = vload_n(f32p(x0 + at + 4 * k * inner), width)
            total = vfma(v, v, total)
        at += 4 * c * inner
        power = vexp(beta * vlog(vfma(alpha, total, bias)))
        vstore_n(f32p(y0 + at), vload_n(f32p(x0 + at), width) * power, width)
