"""Random quantised graphs, through every pass, against onnxruntime: the passes keep the meaning of any graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.converter.passes.qdq import Q, check

State = tuple[str, list[int]]
"""A float value of rank 4 and its shape."""


def i64(b: Q, *values: int) -> str:
    return b.const(list(values), np.int64)


def conv(b: Q, x: str, s: list[int]) -> State:
    m, k = int(b.rng.integers(1, 6)), 1 if min(s[2:]) < 3 else int(b.rng.choice([1, 3]))
    w = b.stored(m, s[1], k, k, axis=0)
    bias = [b.weight(m)] if b.rng.random() < 0.5 else []
    y = b("Conv", x, w, *bias, pads=[k // 2] * 4)
    return y, [s[0], m, *s[2:]]


def matmul(b: Q, x: str, s: list[int]) -> State:
    n = int(b.rng.integers(1, 7))
    return b("MatMul", x, b.stored(s[3], n, axis=1)), [*s[:3], n]


def same(op: str, **attrs: float) -> Callable[[Q, str, list[int]], State]:
    return lambda b, x, s: (b(op, x, **attrs), s)


def transpose(b: Q, x: str, s: list[int]) -> State:
    perm = [int(p) for p in b.rng.permutation(4)]
    return b("Transpose", x, perm=perm), [s[p] for p in perm]


def reshape(b: Q, x: str, s: list[int]) -> State:
    shape = [s[0], s[1] * s[2], 1, s[3]]
    return b("Reshape", x, i64(b, *shape)), shape


def pad(b: Q, x: str, s: list[int]) -> State:
    before, after = b.rng.integers(0, 2, 2), b.rng.integers(0, 2, 2)
    y = b("Pad", x, i64(b, 0, 0, *before, 0, 0, *after), b.const(np.float32(b.rng.choice([0.0, 0.1]))))
    return y, [*s[:2], int(s[2] + before[0] + after[0]), int(s[3] + before[1] + after[1])]


def cut(b: Q, x: str, s: list[int]) -> State:
    axis = int(b.rng.integers(1, 4))
    keep = max(1, s[axis] - 1)
    return b("Slice", x, i64(b, 0), i64(b, keep), i64(b, axis)), [keep if i == axis else n for i, n in enumerate(s)]


def pool(b: Q, x: str, s: list[int]) -> State:
    if min(s[2:]) < 2:
        return x, s
    op = str(b.rng.choice(["MaxPool", "AveragePool"]))
    return b(op, x, kernel_shape=[2, 2]), [*s[:2], s[2] - 1, s[3] - 1]


def twice(b: Q, x: str, s: list[int]) -> State:
    other = b("Abs", x)
    axis = int(b.rng.integers(1, 4))
    return b("Concat", x, b.dq(b.q(other, 0.04, 5)), axis=axis), [n * (1 + (i == axis)) for i, n in enumerate(s)]


def residual(b: Q, x: str, s: list[int]) -> State:
    return b("Add", x, b.dq(b.q(b("Neg", x), 0.02, -4))), s


def scaled(b: Q, x: str, s: list[int]) -> State:
    return b("Mul", x, b.weight(s[1], 1, 1)), s


STEPS: tuple[Callable[[Q, str, list[int]], State], ...] = (
    conv, conv, conv, matmul, transpose, transpose, reshape, pad, cut, pool, pool, twice, residual, scaled,
    same("Relu"), same("Sigmoid"), same("LeakyRelu", alpha=0.2), same("Softmax", axis=1),
)  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_random_graph(seed):
    b = Q(seed=seed)
    shape = [int(n) for n in b.rng.integers(1, 6, 4)]
    x = b.dq(b.integers("x", shape, zero=int(b.rng.integers(-20, 20))))
    for _ in range(int(b.rng.integers(3, 9))):
        step = STEPS[int(b.rng.integers(len(STEPS)))]
        x, shape = step(b, x, shape)
        if b.rng.random() < 0.7:
            x = b.dq(b.q(x, 0.02, int(b.rng.integers(-9, 9))))
    check(b.model(b.q(x, 0.02, 2)), steps=6, rarely=0.25)
