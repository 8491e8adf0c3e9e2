"""Gathering, scattering, one-hot vectors and running sums.

Indices may be negative. An index outside its axis sets the fault flag and is replaced by 0, so that memory stays safe.
"""

from __future__ import annotations

from numba import float32, int32, int64

from lite_runtime.kernels._elements import copy_element, copy_run
from lite_runtime.native.simd import device, f32p, fault, first, i32p, i64p, kernel, num, ptr, tail
from lite_runtime.steps.declaration import named
from lite_runtime.steps.indexing import Accumulate, Gather, GatherElements, GatherND, OneHot, ScatterElements, ScatterND

GATHER = named(Gather)
ELEMENTS = named(GatherElements)
SCATTER = named(ScatterElements)
GATHER_ND = named(GatherND)
SCATTER_ND = named(ScatterND)
ONE_HOT = named(OneHot)
ACCUMULATE = named(Accumulate)

_NONE, _ADD, _MUL, _MIN, _MAX = 0, 1, 2, 3, 4


@device
def index_at(indices, i, width):
    """Index `i` of a tensor of int32 or int64; `width`: bytes per index."""
    if width == 4:
        return int64(i32p(indices)[i])
    return i64p(indices)[i]


@device
def inside(index, extent, step, bases):
    """The index counted from the front."""
    at = index
    if at < 0:
        at += extent
    if at < 0 or at >= extent:
        fault(step, bases)
        at = 0
    return at


# -- Gather -----------------------------------------------------------------------------------------------------------


@device
def pick(target, data, indices, width, count, extent, run, step, bases):
    """Gather runs of `run` bytes by `count` indices."""
    for i in range(count):
        source = data + inside(index_at(indices, i, width), extent, step, bases) * run
        copy_element(target + i * run, source, run)


@kernel(Gather)
def gather(step, bases, worker, workers):
    """target[o, i, :] = data[o, indices[i], :]."""
    data, indices, target = (
        ptr(step, bases, GATHER.data),
        ptr(step, bases, GATHER.indices),
        ptr(step, bases, GATHER.target),
    )
    width, outer, count, extent, run = (
        num(step, GATHER.width),
        num(step, GATHER.outer),
        num(step, GATHER.count),
        num(step, GATHER.extent),
        num(step, GATHER.run),
    )
    units = outer * count
    at = first(units, worker, workers, 1)
    end = first(units, worker + 1, workers, 1)
    row = at // count
    column = at - row * count
    while at < end:
        n = min(count - column, end - at)
        t, s, some = target + at * run, data + row * extent * run, indices + column * width
        if run == 4:  # by far the most common case has its own loop
            pick(t, s, some, width, n, extent, 4, step, bases)
        else:
            pick(t, s, some, width, n, extent, run, step, bases)
        at += n
        row += 1
        column = 0


# -- along an axis ----------------------------------------------------------------------------------------------------


@kernel(GatherElements)
def gather_elements(step, bases, worker, workers):
    """target[o, i, j] = data[o, indices[o, i, j], j]."""
    data, indices, target = (
        ptr(step, bases, ELEMENTS.data),
        ptr(step, bases, ELEMENTS.indices),
        ptr(step, bases, ELEMENTS.target),
    )
    size, width, outer, count = (
        num(step, ELEMENTS.size),
        num(step, ELEMENTS.width),
        num(step, ELEMENTS.outer),
        num(step, ELEMENTS.count),
    )
    inner, extent = num(step, ELEMENTS.inner), num(step, ELEMENTS.extent)
    rows = outer * count
    at = first(rows, worker, workers, 1)
    end = first(rows, worker + 1, workers, 1)
    o = at // count
    i = at - o * count
    while at < end:
        base = data + o * extent * inner * size
        for j in range(inner):
            k = inside(index_at(indices, at * inner + j, width), extent, step, bases)
            copy_element(target + (at * inner + j) * size, base + (k * inner + j) * size, size)
        at += 1
        i += 1
        if i == count:
            i = 0
            o += 1


@device
def combine(target, source, n, how):
    """target = target (how) source for `n` float32 elements."""
    t, s = f32p(target), f32p(source)
    if how == _ADD:
        for i in range(n):
            t[i] = t[i] + s[i]
    elif how == _MUL:
        for i in range(n):
            t[i] = t[i] * s[i]
    elif how == _MIN:
        for i in range(n):
            if s[i] < t[i] or s[i] != s[i]:
                t[i] = s[i]
    else:
        for i in range(n):
            if s[i] > t[i] or s[i] != s[i]:
                t[i] = s[i]


@kernel(ScatterElements)
def scatter_elements(step, bases, worker, workers):
    """target[o, indices[o, i, j], j] = or += … updates[o, i, j]."""
    indices, updates, target = (
        ptr(step, bases, SCATTER.indices),
        ptr(step, bases, SCATTER.updates),
        ptr(step, bases, SCATTER.target),
    )
    size, width, outer, count = (
        num(step, SCATTER.size),
        num(step, SCATTER.width),
        num(step, SCATTER.outer),
        num(step, SCATTER.count),
    )
    inner, extent, how = num(step, SCATTER.inner), num(step, SCATTER.extent), num(step, SCATTER.how)
    # Workers share outer slices, so that several updates of one element stay in order.
    for o in range(first(outer, worker, workers, 1), first(outer, worker + 1, workers, 1)):
        base = target + o * extent * inner * size
        for i in range(count):
            for j in range(inner):
                at = (o * count + i) * inner + j
                k = inside(index_at(indices, at, width), extent, step, bases)
                t, s = base + (k * inner + j) * size, updates + at * size
                if how == _NONE:
                    copy_element(t, s, size)
                else:
                    combine(t, s, 1, how)


# -- index tuples -----------------------------------------------------------------------------------------------------


@device
def locate(step, bases, pairs, indices, depth):
    """Byte offset that an index tuple selects; pairs: (extent, stride in bytes) for each of its indices."""
    offset = 0
    for d in range(depth):
        offset += inside(indices[d], pairs[2 * d], step, bases) * pairs[2 * d + 1]
    return offset


@kernel(GatherND)
def gather_nd(step, bases, worker, workers):
    """Gather runs of bytes by int64 index tuples."""
    data, indices, target = (
        ptr(step, bases, GATHER_ND.data),
        ptr(step, bases, GATHER_ND.indices),
        ptr(step, bases, GATHER_ND.target),
    )
    rows, batch_rows, batch_bytes, run, depth = (
        num(step, GATHER_ND.rows),
        num(step, GATHER_ND.batch_rows),
        num(step, GATHER_ND.batch_bytes),
        num(step, GATHER_ND.run),
        num(step, GATHER_ND.depth),
    )
    pairs = tail(step, GATHER_ND.pairs)
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        offset = locate(step, bases, pairs, i64p(indices + row * depth * 8), depth)
        copy_run(target + row * run, data + row // batch_rows * batch_bytes + offset, run)


@kernel(ScatterND)
def scatter_nd(step, bases, worker, workers):
    """Scatter runs of bytes by int64 index tuples, in order."""
    indices, updates, target = (
        ptr(step, bases, SCATTER_ND.indices),
        ptr(step, bases, SCATTER_ND.updates),
        ptr(step, bases, SCATTER_ND.target),
    )
    rows, run, how, depth = (
        num(step, SCATTER_ND.rows),
        num(step, SCATTER_ND.run),
        num(step, SCATTER_ND.how),
        num(step, SCATTER_ND.depth),
    )
    pairs = tail(step, SCATTER_ND.pairs)
    for row in range(rows):
        t = target + locate(step, bases, pairs, i64p(indices + row * depth * 8), depth)
        if how == _NONE:
            copy_run(t, updates + row * run, run)
        else:
            combine(t, updates + row * run, run // 4, how)


# -- one-hot vectors --------------------------------------------------------------------------------------------------


@kernel(OneHot)
def one_hot(step, bases, worker, workers):
    """target[o, d, i] = values[indices[o, i] == d]; an index outside the axis selects nothing."""
    indices, values, target = (
        ptr(step, bases, ONE_HOT.indices),
        ptr(step, bases, ONE_HOT.values),
        ptr(step, bases, ONE_HOT.target),
    )
    size, width, outer, depth, inner = (
        num(step, ONE_HOT.size),
        num(step, ONE_HOT.width),
        num(step, ONE_HOT.outer),
        num(step, ONE_HOT.depth),
        num(step, ONE_HOT.inner),
    )
    for o in range(first(outer, worker, workers, 1), first(outer, worker + 1, workers, 1)):
        base = target + o * depth * inner * size
        for d in range(depth * inner):
            copy_element(base + d * size, values, size)
        for i in range(inner):
            index = index_at(indices, o * inner + i, width)
            if index < 0:
                index += depth
            if 0 <= index < depth:
                copy_element(base + (index * inner + i) * size, values + size, size)


# -- running sums and products ----------------------------------------------------------------------------------------

COLUMNS = 128
"""Columns that one worker accumulates at a time."""


def _accumulate(pointer, number, multiply):
    width = 8 if pointer is i64p else 4

    @kernel(Accumulate)
    def accumulate(step, bases, worker, workers):
        source, target = ptr(step, bases, ACCUMULATE.source), ptr(step, bases, ACCUMULATE.target)
        outer, count, inner, exclusive, backwards = (
            num(step, ACCUMULATE.outer),
            num(step, ACCUMULATE.count),
            num(step, ACCUMULATE.inner),
            num(step, ACCUMULATE.exclusive),
            num(step, ACCUMULATE.backwards),
        )
        blocks = (inner + COLUMNS - 1) // COLUMNS
        units = outer * blocks
        for unit in range(first(units, worker, workers, 1), first(units, worker + 1, workers, 1)):
            o = unit // blocks
            begin = (unit - o * blocks) * COLUMNS
            n = min(COLUMNS, inner - begin)
            stride = inner
            start = o * count * inner + begin
            if backwards:
                start += (count - 1) * inner
                stride = -inner
            if inner == 1:
                s, t = pointer(source + start * width), pointer(target + start * width)
                total = number(1 if multiply else 0)
                for i in range(count):
                    value = s[i * stride]
                    if exclusive:
                        t[i * stride] = total
                    total = number(total * value if multiply else total + value)
                    if not exclusive:
                        t[i * stride] = total
                continue
            for i in range(count):
                here = start + i * stride
                t = pointer(target + here * width)
                if i == 0:
                    s = pointer(source + here * width)
                    for j in range(n):
                        t[j] = number(1 if multiply else 0) if exclusive else s[j]
                else:
                    s = pointer(source + (here - stride if exclusive else here) * width)
                    before = pointer(target + (here - stride) * width)
                    for j in range(n):
                        t[j] = before[j] * s[j] if multiply else before[j] + s[j]

    return accumulate


cumsum_float32, cumprod_float32 = (_accumulate(f32p, float32, product) for product in (False, True))
cumsum_int32, cumprod_int32 = (_accumulate(i32p, int32, product) for product in (False, True))
cumsum_int64, cumprod_int64 = (_accumulate(i64p, int64, product) for product in (False, True))
"""Cumulative sum along the middle axis of (outer, count, inner), in order."""
