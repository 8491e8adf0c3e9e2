"""Non-maximum suppression of float32 boxes.

The candidates of a class are a heap of indices, the best score on top, so that only as many are sorted as are needed.
Every product and sum is rounded separately, as in NumPy, because overlaps are compared with a limit. Coordinates that
are NaN stay so, and such boxes overlap with none.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.native.simd import device, exact, f32p, first, i32p, i64p, kernel, num, ptr
from lite_runtime.steps.boxes import GatherBoxes, Suppress
from lite_runtime.steps.declaration import named

SUPPRESS = named(Suppress)
GATHER = named(GatherBoxes)

_ZERO, _HALF, _INF = np.float32(0), np.float32(0.5), np.float32(np.inf)


@device
def _better(scores, a, b):
    """Whether candidate a comes before candidate b."""
    return scores[a] > scores[b] or (scores[a] == scores[b] and a < b)


@device
def _sift(heap, scores, at, size):
    """Move element `at` down to its position."""
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _better(scores, heap[child + 1], heap[child]):
            child += 1
        if not _better(scores, heap[child], heap[at]):
            return
        heap[at], heap[child] = heap[child], heap[at]
        at = child


@device
def _lower(a, b):
    return a if a < b or a != a else b


@device
def _higher(a, b):
    return a if a > b or a != a else b


@exact
def _set_corners(box, centred, corners):
    """The box as (low, low, high, high)."""
    for i in range(2):
        if centred != 0:
            middle, reach = box[1 - i], box[3 - i] * _HALF
            corners[i], corners[2 + i] = middle - reach, middle + reach
        else:
            corners[i], corners[2 + i] = _lower(box[i], box[2 + i]), _higher(box[i], box[2 + i])


@exact
def _overlap(a, b):
    """Intersection over union; 0 if both have no area."""
    height, width = _lower(a[2], b[2]) - _higher(a[0], b[0]), _lower(a[3], b[3]) - _higher(a[1], b[1])
    shared = _higher(height, _ZERO) * _higher(width, _ZERO)
    area = (b[2] - b[0]) * (b[3] - b[1]) + (a[2] - a[0]) * (a[3] - a[1]) - shared
    return shared / area if area > _ZERO else _ZERO


@kernel(Suppress, fastmath=set())
def f32_suppress(step, bases, worker, workers):
    """One class after the other; workers share the classes."""
    boxes, scores = ptr(step, bases, SUPPRESS.boxes), ptr(step, bases, SUPPRESS.scores)
    at_overlap, at_least = ptr(step, bases, SUPPRESS.overlap), ptr(step, bases, SUPPRESS.least)
    heaps, slots = ptr(step, bases, SUPPRESS.heap), ptr(step, bases, SUPPRESS.corners)
    chosen, counts = ptr(step, bases, SUPPRESS.chosen), ptr(step, bases, SUPPRESS.kept)
    batches, classes = num(step, SUPPRESS.batches), num(step, SUPPRESS.classes)
    n, most, centred = num(step, SUPPRESS.n), num(step, SUPPRESS.most), num(step, SUPPRESS.centred)
    limit, least = _ZERO, -_INF
    if at_overlap != 0:
        limit = f32p(at_overlap)[0]
    if at_least != 0:
        least = f32p(at_least)[0]
    items = batches * classes
    for item in range(first(items, worker, workers, 1), first(items, worker + 1, workers, 1)):
        row, heap = f32p(scores + 4 * n * item), i32p(heaps + 4 * n * item)
        size = 0
        for i in range(n):
            if row[i] > least:
                heap[size] = i
                size += 1
        for i in range(size // 2 - 1, -1, -1):
            _sift(heap, row, i, size)
        kept = 0
        while size > 0 and kept < most:
            box = heap[0]
            size -= 1
            heap[0] = heap[size]
            _sift(heap, row, 0, size)
            corners = slots + 16 * (item * most + kept)
            _set_corners(f32p(boxes + 16 * (item // classes * n + box)), centred, f32p(corners))
            apart = True
            for other in range(kept):
                if not _overlap(f32p(slots + 16 * (item * most + other)), f32p(corners)) <= limit:
                    apart = False
                    break
            if apart:
                i64p(chosen + 8 * (item * most + kept))[0] = box
                kept += 1
        i64p(counts + 8 * item)[0] = kept


@kernel(GatherBoxes)
def gather_boxes(step, bases, worker, workers):
    """Rows in the order of batches and classes."""
    chosen, counts = i64p(ptr(step, bases, GATHER.chosen)), i64p(ptr(step, bases, GATHER.kept))
    rows, classes = i64p(ptr(step, bases, GATHER.rows)), num(step, GATHER.classes)
    items, most = num(step, GATHER.batches) * classes, num(step, GATHER.most)
    count = 0
    for item in range(items):
        for i in range(counts[item]):
            rows[3 * count] = item // classes
            rows[3 * count + 1] = item % classes
            rows[3 * count + 2] = chosen[item * most + i]
            count += 1
    for i in range(3 * count, 3 * items * most):
        rows[i] = 0
    i64p(ptr(step, bases, GATHER.count))[0] = count
