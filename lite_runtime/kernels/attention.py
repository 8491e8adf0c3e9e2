"""The middle of attention, float32: scores to weights, in place."""

from __future__ import annotations

from numba import float32

from lite_runtime.kernels._math import exp
from lite_runtime.simd import f32p, first, kernel, num, ptr, u8p

_LOW = float32(-3.4028235e38)


@kernel(fastmath={"contract", "reassoc", "nsz"})
def f32_weights(step, bases, worker, workers):
    """softmax over each row of scores + mask. Operands scores (changed in place), mask?.

    numbers: 0 batches, 1 heads, 2 queries, 3 keys, 4, 5, 6 mask step a batch, a head, a query (elements, 0: the same
    for all), 7 whether the mask is of bool (true: attend), 8 keys query 0 sees under causality, -1: no causality.
    Rows that see nothing become zeros.
    """
    ops = 2
    scores, mask = ptr(step, bases, 0), ptr(step, bases, 1)
    batches, heads, queries, keys = num(step, ops, 0), num(step, ops, 1), num(step, ops, 2), num(step, ops, 3)
    mask_batch, mask_head, mask_query = num(step, ops, 4), num(step, ops, 5), num(step, ops, 6)
    is_bool, causal = num(step, ops, 7), num(step, ops, 8)
    rows = batches * heads * queries
    for row in range(first(rows, worker, workers, 1), first(rows, worker + 1, workers, 1)):
        query = row % queries
        head = row // queries % heads
        batch = row // (queries * heads)
        x = f32p(scores + 4 * row * keys)
        if mask != 0:
            at = batch * mask_batch + head * mask_head + query * mask_query
            if is_bool:
                allowed = u8p(mask + at)
                for i in range(keys):
                    x[i] = x[i] if allowed[i] != 0 else float32(-float("inf"))
            else:
                added = f32p(mask + 4 * at)
                for i in range(keys):
                    x[i] += added[i]
        seen = keys
        if causal >= 0:
            seen = min(keys, causal + query)
            for i in range(seen, keys):
                x[i] = float32(0)
        top = _LOW
        for i in range(seen):
            top = max(top, x[i])
        total = float32(0)
        for i in range(seen):
            value = exp(x[i] - top)
            x[i] = value
            total += value
        factor = float32(1) / total if total > float32(0) else float32(0)
        for i in range(seen):
            x[i] *= factor
