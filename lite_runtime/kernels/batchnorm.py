"""BatchNormalization in training form and its gradient, float32, channels last: rows of channels.

Sums over rows are computed in chunks of rows whose size depends only on the tensor's sizes and fits the L1 cache; one
worker combines the chunks in order. So results are bit-identical for any number of workers. Moments of a chunk are
around its own mean and combined by the method of Chan, Golub and LeVeque (1979): a large mean costs no accuracy.
"""

from __future__ import annotations

import numpy as np

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
    vfma,
    vload_n,
    vsqrt,
    vstore_n,
)
from lite_runtime.steps.batchnorm import Apply, GradApply, GradSettle, GradSums, Moments, Settle
from lite_runtime.steps.declaration import named

MOMENTS = named(Moments)
SETTLE = named(Settle)
APPLY = named(Apply)
SUMS = named(GradSums)
GRAD_SETTLE = named(GradSettle)
GRAD_APPLY = named(GradApply)

_ZERO, _ONE = np.float32(0), np.float32(1)


@device
def _at(where, i, live):
    """`live` lanes, starting at float i."""
    return vload_n(f32p(where + 4 * i), live)


@device
def _sum(x, rows, step, live):
    """The sum of `rows` vectors, `step` bytes apart."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    r = 0
    while r + 4 <= rows:
        a = a + vload_n(f32p(x), live)
        b = b + vload_n(f32p(x + step), live)
        c = c + vload_n(f32p(x + 2 * step), live)
        d = d + vload_n(f32p(x + 3 * step), live)
        x += 4 * step
        r += 4
    while r < rows:
        a = a + vload_n(f32p(x), live)
        x += step
        r += 1
    return (a + b) + (c + d)


@device
def _squares(x, rows, step, live, mean):
    """The sum of squares around `mean`."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    r = 0
    while r + 4 <= rows:
        p, q = vload_n(f32p(x), live) - mean, vload_n(f32p(x + step), live) - mean
        s, t = vload_n(f32p(x + 2 * step), live) - mean, vload_n(f32p(x + 3 * step), live) - mean
        a, b, c, d = vfma(p, p, a), vfma(q, q, b), vfma(s, s, c), vfma(t, t, d)
        x += 4 * step
        r += 4
    while r < rows:
        p = vload_n(f32p(x), live) - mean
        a = vfma(p, p, a)
        x += step
        r += 1
    return (a + b) + (c + d)


@device
def _sum_and_products(x, y, rows, step, live, mean):
    """The sums of y and of (x - mean) * y."""
    a, b, c, d = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    p, q, s, t = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
    r = 0
    while r + 4 <= rows:
        e, f = vload_n(f32p(y), live), vload_n(f32p(y + step), live)
        g, h = vload_n(f32p(y + 2 * step), live), vload_n(f32p(y + 3 * step), live)
        a, b, c, d = a + e, b + f, c + g, d + h
        p, q = vfma(vload_n(f32p(x), live) - mean, e, p), vfma(vload_n(f32p(x + step), live) - mean, f, q)
        s = vfma(vload_n(f32p(x + 2 * step), live) - mean, g, s)
        t = vfma(vload_n(f32p(x + 3 * step), live) - mean, h, t)
        x += 4 * step
        y += 4 * step
        r += 4
    while r < rows:
        e = vload_n(f32p(y), live)
        a, p = a + e, vfma(vload_n(f32p(x), live) - mean, e, p)
        x += step
        y += step
        r += 1
    return (a + b) + (c + d), (p + q) + (s + t)


@kernel(Moments)
def f32_moments(step, bases, worker, workers):
    """Means and sums of squares around them, for each chunk."""
    x, parts = ptr(step, bases, MOMENTS.x), ptr(step, bases, MOMENTS.parts)
    rows, channels, chunk = num(step, MOMENTS.rows), num(step, MOMENTS.channels), num(step, MOMENTS.chunk)
    chunks, row = (rows + chunk - 1) // chunk, 4 * channels
    for i in range(first(chunks, worker, workers, 1), first(chunks, worker + 1, workers, 1)):
        count = min(chunk, rows - i * chunk)
        for c in range(0, channels, LANES):
            at, to = x + i * chunk * row + 4 * c, parts + 2 * i * row + 4 * c
            live = channels - c
            mean = _sum(at, count, row, live) / splat(np.float32(count))
            vstore_n(f32p(to), mean, live)
            vstore_n(f32p(to + row), _squares(at, count, row, live, mean), live)


@kernel(Settle)
def f32_settle(step, bases, worker, workers):
    """Combine the moments of all chunks."""
    parts, scale, old_mean, old_var = (
        ptr(step, bases, SETTLE.parts),
        ptr(step, bases, SETTLE.scale),
        ptr(step, bases, SETTLE.old_mean),
        ptr(step, bases, SETTLE.old_variance),
    )
    new_mean, new_var, saved_mean = (
        ptr(step, bases, SETTLE.new_mean),
        ptr(step, bases, SETTLE.new_variance),
        ptr(step, bases, SETTLE.mean),
    )
    saved_rstd, factor = ptr(step, bases, SETTLE.rstd), ptr(step, bases, SETTLE.factor)
    rows, channels, chunk = num(step, SETTLE.rows), num(step, SETTLE.channels), num(step, SETTLE.chunk)
    epsilon, momentum = splat(real(step, SETTLE.epsilon)), real(step, SETTLE.momentum)
    old, new, total = splat(momentum), splat(_ONE - momentum), splat(np.float32(rows))
    chunks, row = (rows + chunk - 1) // chunk, 4 * channels
    for c in range(first(channels, worker, workers, LANES), first(channels, worker + 1, workers, LANES), LANES):
        live, at = channels - c, parts + 4 * c
        mean, squares = splat(_ZERO), splat(_ZERO)
        for i in range(chunks):
            count = splat(np.float32(min(chunk, rows - i * chunk)))
            mean = vfma(count, _at(at + 2 * i * row, 0, live), mean)
        mean = mean / total
        for i in range(chunks):
            count = splat(np.float32(min(chunk, rows - i * chunk)))
            off = _at(at + 2 * i * row, 0, live) - mean
            squares = vfma(count * off, off, squares + _at(at + 2 * i * row + row, 0, live))
        variance = squares / total
        rstd = splat(_ONE) / vsqrt(variance + epsilon)
        if new_mean != 0:
            vstore_n(f32p(new_mean + 4 * c), vfma(_at(old_mean, c, live), old, mean * new), live)
        if new_var != 0:
            vstore_n(f32p(new_var + 4 * c), vfma(_at(old_var, c, live), old, variance * new), live)
        vstore_n(f32p(saved_mean + 4 * c), mean, live)
        vstore_n(f32p(saved_rstd + 4 * c), rstd, live)
        vstore_n(f32p(factor + 4 * c), rstd * _at(scale, c, live), live)


@kernel(Apply)
def f32_apply(step, bases, worker, workers):
    """y = (x - mean) * factor + bias."""
    x, mean, factor, bias = (
        ptr(step, bases, APPLY.x),
        ptr(step, bases, APPLY.mean),
        ptr(step, bases, APPLY.factor),
        ptr(step, bases, APPLY.bias),
    )
    y = ptr(step, bases, APPLY.y)
    rows, channels = num(step, APPLY.rows), num(step, APPLY.channels)
    lo, hi = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
    block = max(1, 2048 // channels)
    for start in range(lo, hi, block):
        stop = min(hi, start + block)
        for c in range(0, channels, LANES):
            live = channels - c
            m, f, b = _at(mean, c, live), _at(factor, c, live), _at(bias, c, live)
            at = 4 * (start * channels + c)
            for _ in range(stop - start):
                vstore_n(f32p(y + at), vfma(vload_n(f32p(x + at), live) - m, f, b), live)
                at += 4 * channels


@kernel(GradSums)
def f32_grad_sums(step, bases, worker, workers):
    """Sums of dY and of (X - mean) * dY, for each chunk."""
    dy, x, mean, parts = (
        ptr(step, bases, SUMS.dy),
        ptr(step, bases, SUMS.x),
        ptr(step, bases, SUMS.mean),
        ptr(step, bases, SUMS.parts),
    )
    rows, channels, chunk = num(step, SUMS.rows), num(step, SUMS.channels), num(step, SUMS.chunk)
    chunks, row = (rows + chunk - 1) // chunk, 4 * channels
    for i in range(first(chunks, worker, workers, 1), first(chunks, worker + 1, workers, 1)):
        count = min(chunk, rows - i * chunk)
        for c in range(0, channels, LANES):
            at, to, live = i * chunk * row + 4 * c, parts + 2 * i * row + 4 * c, channels - c
            total, along = _sum_and_products(x + at, dy + at, count, row, live, _at(mean, c, live))
            vstore_n(f32p(to), total, live)
            vstore_n(f32p(to + row), along, live)


@kernel(GradSettle)
def f32_grad_settle(step, bases, worker, workers):
    """Add up the sums of all chunks."""
    parts, scale, rstd = (
        ptr(step, bases, GRAD_SETTLE.parts),
        ptr(step, bases, GRAD_SETTLE.scale),
        ptr(step, bases, GRAD_SETTLE.rstd),
    )
    dscale, db, factors = (
        ptr(step, bases, GRAD_SETTLE.dscale),
        ptr(step, bases, GRAD_SETTLE.db),
        ptr(step, bases, GRAD_SETTLE.factors),
    )
    rows, channels, chunks = num(step, GRAD_SETTLE.rows), num(step, GRAD_SETTLE.channels), num(step, GRAD_SETTLE.chunks)
    row, share = 4 * channels, splat(np.float32(-1) / np.float32(rows))
    for c in range(first(channels, worker, workers, LANES), first(channels, worker + 1, workers, LANES), LANES):
        live, at = channels - c, parts + 4 * c
        total, along = splat(_ZERO), splat(_ZERO)
        for i in range(chunks):
            total = total + _at(at + 2 * i * row, 0, live)
            along = along + _at(at + 2 * i * row + row, 0, live)
        inverse = _at(rstd, c, live)
        along = along * inverse
        factor = _at(scale, c, live) * inverse
        vstore_n(f32p(dscale + 4 * c), along, live)
        vstore_n(f32p(db + 4 * c), total, live)
        vstore_n(f32p(factors + 4 * c), factor, live)
        vstore_n(f32p(factors + row + 4 * c), factor * inverse * along * share, live)
        vstore_n(f32p(factors + 2 * row + 4 * c), factor * total * share, live)


@kernel(GradApply)
def f32_grad_apply(step, bases, worker, workers):
    """dX = factors[0] * dY + factors[1] * (X - mean) + factors[2]."""
    dy, x, mean, factors = (
        ptr(step, bases, GRAD_APPLY.dy),
        ptr(step, bases, GRAD_APPLY.x),
        ptr(step, bases, GRAD_APPLY.mean),
        ptr(step, bases, GRAD_APPLY.factors),
    )
    dx = ptr(step, bases, GRAD_APPLY.dx)
    rows, channels = num(step, GRAD_APPLY.rows), num(step, GRAD_APPLY.channels)
    lo, hi = first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)
    block = max(1, 2048 // channels)
    for start in range(lo, hi, block):
        stop = min(hi, start + block)
        for c in range(0, channels, LANES):
            live = channels - c
            m, p, q, r = (
                _at(mean, c, live),
                _at(factors, c, live),
                _at(factors, channels + c, live),
                _at(factors, 2 * channels + c, live),
            )
            at = 4 * (start * channels + c)
            for _ in range(stop - start):
                off = vload_n(f32p(x + at), live) - m
                vstore_n(f32p(dx + at), vfma(vload_n(f32p(dy + at), live), p, vfma(off, q, r)), live)
                at += 4 * channels
