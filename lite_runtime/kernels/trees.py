"""Decision forests on rows of float32 features.

Nodes are 4 int32 each: feature | mode << 24 | (NaN takes the yes branch) << 28; the threshold's bits (mode MEMBER:
number of its set); the next node for yes; for no. A negative node number is the leaf ~number. The bind rule has checked
every index and that there are no cycles. Sums are float64, tree after tree; workers share rows, never a sum.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.kernels._vmath import exp1, log1
from lite_runtime.native.simd import (
    device,
    f32_from_bits,
    f32p,
    f64p,
    first,
    i32p,
    i64p,
    kernel,
    num,
    ptr,
    sqrt,
)
from lite_runtime.steps.declaration import named
from lite_runtime.steps.trees import Classes, Scores, TwoClasses, Walk

SCORES = named(Scores)
CLASSES = named(Classes)
TWO = named(TwoClasses)
WALK = named(Walk)

LEQ, LT, GTE, GT, EQ, NEQ, MEMBER = range(7)
AVERAGE, SUM, MIN, MAX = range(4)
NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO, PROBIT = range(5)
_ZERO, _HALF, _ONE, _TWO = np.float32(0), np.float32(0.5), np.float32(1), np.float32(2)
_INF = np.float32(np.inf)


@device
def _member(sets, members, which, v):
    found = False
    for i in range(sets[which], sets[which + 1]):
        found = found or members[i] == v
    return found


@device
def _holds(mode, v, threshold, sets, members, bits):
    if mode == LEQ:
        return v <= threshold
    if mode == LT:
        return v < threshold
    if mode == GTE:
        return v >= threshold
    if mode == GT:
        return v > threshold
    if mode == EQ:
        return v == threshold
    if mode == NEQ:
        return v != threshold
    return _member(sets, members, bits, v)


@device
def _vote(out, leaf, leaves, targets, weights, how):
    """Add a leaf's votes to a row's sums."""
    for vote in range(leaves[leaf], leaves[leaf + 1]):
        target, weight = targets[vote], weights[vote]
        held = out[target]
        if how <= SUM:
            out[target] = held + weight
        elif held != held or (weight < held if how == MIN else weight > held):
            out[target] = weight


def _walk(leq_only):
    @device
    def advance(nodes, values, place, sets, members):
        """The node after `place`; a leaf stays itself. There is no branch, since its outcome would not be
        predictable."""
        at = 4 * max(place, 0)
        head, bits = nodes[at], nodes[at + 1]
        v = values[head & 0xFFFFFF]
        if leq_only:
            yes = v <= f32_from_bits(bits)
        else:
            yes = _holds((head >> 24) & 7, v, f32_from_bits(bits), sets, members, bits)
            yes = yes or (v != v and (head >> 28) & 1 != 0)
        following = np.int64(nodes[at + 3 - np.int64(yes)])
        return following if place >= 0 else place

    @kernel(Walk)
    def walk(step, bases, worker, workers):
        """Four rows go through a tree together, so that the latencies of their loads overlap."""
        x, nodes, roots = (
            ptr(step, bases, WALK.x),
            i32p(ptr(step, bases, WALK.nodes)),
            i32p(ptr(step, bases, WALK.roots)),
        )
        leaves, targets, weights = (
            i32p(ptr(step, bases, WALK.leaves)),
            i32p(ptr(step, bases, WALK.targets)),
            f64p(ptr(step, bases, WALK.weights)),
        )
        sets, members, base = (
            i32p(ptr(step, bases, WALK.sets)),
            f32p(ptr(step, bases, WALK.members)),
            f64p(ptr(step, bases, WALK.base)),
        )
        rows, features, trees = num(step, WALK.rows), num(step, WALK.features), num(step, WALK.trees)
        count, how = num(step, WALK.target_count), num(step, WALK.how)
        start = 0.0 if how <= SUM else np.nan
        row, end = first(rows, worker, workers, 4), first(rows, worker + 1, workers, 4)
        while row < end:
            together = 4 if end - row >= 4 else 1
            wide, long = 4 * features, 8 * count
            at, to = x + wide * row, ptr(step, bases, WALK.sums) + long * row
            for i in range(together * count):
                f64p(to)[i] = start
            for tree in range(trees):
                a = np.int64(roots[tree])
                if together == 4:
                    b, c, d = a, a, a
                    while a & b & c & d >= 0:
                        a = advance(nodes, f32p(at), a, sets, members)
                        b = advance(nodes, f32p(at + wide), b, sets, members)
                        c = advance(nodes, f32p(at + 2 * wide), c, sets, members)
                        d = advance(nodes, f32p(at + 3 * wide), d, sets, members)
                    _vote(f64p(to + long), -1 - b, leaves, targets, weights, how)
                    _vote(f64p(to + 2 * long), -1 - c, leaves, targets, weights, how)
                    _vote(f64p(to + 3 * long), -1 - d, leaves, targets, weights, how)
                else:
                    while a >= 0:
                        a = advance(nodes, f32p(at), a, sets, members)
                _vote(f64p(to), -1 - a, leaves, targets, weights, how)
            for i in range(together):
                for t in range(count):
                    total = f64p(to + long * i)[t]
                    if how == AVERAGE:
                        total = total / np.float64(trees)
                    elif total != total and how != SUM:
                        total = 0.0
                    f64p(to + long * i)[t] = total + base[t]
            row += together

    return walk


f32_walk = _walk(False)
f32_walk__leq = _walk(True)


@device
def _logistic(v):
    return _ONE / (_ONE + exp1(-v))


@device
def _probit(p):
    """sqrt(2) * the inverse of erf at 2p - 1, by Winitzki's closed form with a = 0.147 (as onnxruntime): 2e-3."""
    z = _TWO * p - _ONE
    log = log1((_ONE - z) * (_ONE + z))
    term = np.float32(2 / (np.pi * 0.147)) + _HALF * log
    root = sqrt(sqrt(term * term - log * np.float32(1 / 0.147)) - term)
    return np.float32(np.sqrt(2.0)) * (-root if z < _ZERO else root)


@device
def _transform(scores, count, how):
    """In place."""
    if how == LOGISTIC:
        for t in range(count):
            scores[t] = _logistic(scores[t])
    elif how == PROBIT:
        for t in range(count):
            scores[t] = _probit(scores[t])
    elif how in (SOFTMAX, SOFTMAX_ZERO):
        highest = -_INF
        for t in range(count):
            highest = max(highest, scores[t])
        total = _ZERO
        for t in range(count):
            e = exp1(scores[t] - highest)
            if how == SOFTMAX_ZERO and scores[t] == _ZERO:
                e = _ZERO
            scores[t] = e
            total += e
        if total != _ZERO:
            for t in range(count):
                scores[t] = scores[t] / total


@kernel(Scores)
def f32_scores(step, bases, worker, workers):
    """For every row separately."""
    sums, out = ptr(step, bases, SCORES.sums), ptr(step, bases, SCORES.out)
    rows, count, how = num(step, SCORES.rows), num(step, SCORES.targets), num(step, SCORES.transform)
    for row in range(first(rows, worker, workers, 16), first(rows, worker + 1, workers, 16)):
        source, scores = f64p(sums + 8 * count * row), f32p(out + 4 * count * row)
        for t in range(count):
            scores[t] = np.float32(source[t])
        _transform(scores, count, how)


@kernel(Classes)
def f32_classes(step, bases, worker, workers):
    """Label of the highest score (the first among equals), and scores."""
    sums, labels, label, out = (
        ptr(step, bases, CLASSES.sums),
        i64p(ptr(step, bases, CLASSES.labels)),
        ptr(step, bases, CLASSES.label),
        ptr(step, bases, CLASSES.out),
    )
    rows, count, how = num(step, CLASSES.rows), num(step, CLASSES.classes), num(step, CLASSES.transform)
    for row in range(first(rows, worker, workers, 16), first(rows, worker + 1, workers, 16)):
        source, scores = f64p(sums + 8 * count * row), f32p(out + 4 * count * row)
        best = 0
        for t in range(count):
            scores[t] = np.float32(source[t])
            if scores[t] > scores[best]:
                best = t
        i64p(label + 8 * row)[0] = labels[best]
        _transform(scores, count, how)


@kernel(TwoClasses)
def f32_two_classes(step, bases, worker, workers):
    """Two classes of which only the second has a score."""
    sums, labels = f64p(ptr(step, bases, TWO.sums)), i64p(ptr(step, bases, TWO.labels))
    label, out = ptr(step, bases, TWO.label), ptr(step, bases, TWO.out)
    rows, how, margin, negative = (
        num(step, TWO.rows),
        num(step, TWO.transform),
        num(step, TWO.margin),
        num(step, TWO.negative),
    )
    turn = _ZERO if margin != 0 else _HALF
    for row in range(first(rows, worker, workers, 16), first(rows, worker + 1, workers, 16)):
        score, scores = np.float32(sums[row]), f32p(out + 8 * row)
        i64p(label + 8 * row)[0] = labels[1] if score > turn else labels[0]
        if how == LOGISTIC:
            p = _logistic(score)
            scores[0] = _ONE - p
            scores[1] = p
        else:
            scores[0] = -score if negative != 0 else _ONE - score
            scores[1] = score
            _transform(scores, 2, how)
