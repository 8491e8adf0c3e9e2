"""Resize: nearest by tables of byte offsets, all other modes as weighted sums of taps along one axis after another."""

from __future__ import annotations

from lite_runtime.kernels._elements import copy_element
from lite_runtime.native.simd import (
    LANES,
    address,
    device,
    f32p,
    first,
    fma,
    i64p,
    kernel,
    num,
    ptr,
    splat,
    vfma,
    vload,
    vload_n,
    vstore,
    vstore_n,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.resize import Nearest, Taps

NEAREST = named(Nearest)
TAPS = named(Taps)

# -- nearest ----------------------------------------------------------------------------------------------------------


@device
def line(target, source, table, count, run):
    """Copy runs of `run` bytes from the offsets in a table."""
    for i in range(count):
        copy_element(target + i * run, source + table[i], run)


@kernel(Nearest)
def nearest(step, bases, worker, workers):
    """target[i, j, k, :] = source at bytes a[i] + b[j] + c[k]."""
    source, tables, target = (
        ptr(step, bases, NEAREST.source),
        ptr(step, bases, NEAREST.tables),
        ptr(step, bases, NEAREST.target),
    )
    a, b, c, run = num(step, NEAREST.a), num(step, NEAREST.b), num(step, NEAREST.c), num(step, NEAREST.run)
    table_a, table_b, table_c = i64p(tables), i64p(tables + 8 * a), i64p(tables + 8 * (a + b))
    rows = a * b
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        i = row // b
        s, t = source + table_a[i] + table_b[row - i * b], target + row * c * run
        if run == 4:  # by far the most common case has its own loop
            line(t, s, table_c, c, 4)
        else:
            line(t, s, table_c, c, run)


# -- weighted taps ----------------------------------------------------------------------------------------------------


@kernel(Taps)
def taps_inside(step, bases, worker, workers):
    """target[o, i, :] = sum over t of weight[i, t] * source[o, index[i, t], :], float32."""
    source, target = ptr(step, bases, TAPS.source), ptr(step, bases, TAPS.target)
    indices, weights = i64p(ptr(step, bases, TAPS.indices)), f32p(ptr(step, bases, TAPS.weights))
    outer, count, extent, inner, taps = (
        num(step, TAPS.outer),
        num(step, TAPS.count),
        num(step, TAPS.extent),
        num(step, TAPS.inner),
        num(step, TAPS.taps),
    )
    rows = outer * count
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        o = row // count
        i = row - o * count
        base = source + o * extent * inner * 4
        t = f32p(target + row * inner * 4)
        if taps == 2:
            _blend(
                t,
                f32p(base + indices[2 * i] * 4),
                f32p(base + indices[2 * i + 1] * 4),
                splat(weights[2 * i]),
                splat(weights[2 * i + 1]),
                inner,
            )
        else:
            j = 0
            while j < inner:
                n = inner - j
                total = splat(weights[taps * i]) * vload_n(f32p(base + (indices[taps * i] + j) * 4), n)
                for k in range(1, taps):
                    some = vload_n(f32p(base + (indices[taps * i + k] + j) * 4), n)
                    total = vfma(splat(weights[taps * i + k]), some, total)
                vstore_n(f32p(address(t) + j * 4), total, n)
                j += LANES


@device
def _blend(target, a, b, weight_a, weight_b, n):
    """target = a * weight_a + b * weight_b."""
    whole = n - n % LANES
    i = 0
    while i < whole:
        value = vfma(weight_b, vload(f32p(address(b) + i * 4)), weight_a * vload(f32p(address(a) + i * 4)))
        vstore(f32p(address(target) + i * 4), value)
        i += LANES
    if i < n:
        value = vfma(
            weight_b, vload_n(f32p(address(b) + i * 4), n - i), weight_a * vload_n(f32p(address(a) + i * 4), n - i)
        )
        vstore_n(f32p(address(target) + i * 4), value, n - i)


@kernel(Taps, unread=("inner",))
def taps_along(step, bases, worker, workers):
    """Like `taps_inside` for inner = 1: each result is a separate sum."""
    source, target = ptr(step, bases, TAPS.source), ptr(step, bases, TAPS.target)
    indices, weights = i64p(ptr(step, bases, TAPS.indices)), f32p(ptr(step, bases, TAPS.weights))
    outer, count, extent, taps = (
        num(step, TAPS.outer),
        num(step, TAPS.count),
        num(step, TAPS.extent),
        num(step, TAPS.taps),
    )
    for o in range(first(outer, worker, workers, 1), first(outer, worker + 1, workers, 1)):
        s = f32p(source + o * extent * 4)
        t = f32p(target + o * count * 4)
        if taps == 2:
            for i in range(count):
                t[i] = fma(weights[2 * i + 1], s[indices[2 * i + 1]], weights[2 * i] * s[indices[2 * i]])
        else:
            for i in range(count):
                total = weights[taps * i] * s[indices[taps * i]]
                for k in range(1, taps):
                    total = fma(weights[taps * i + k], s[indices[taps * i + k]], total)
                t[i] = total
