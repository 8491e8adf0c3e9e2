"""Attention natively equals the reference: joined and separate heads, masks, causality."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.lite_runtime.ops.one_node import check

RNG = np.random.default_rng(13)


def _f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("b", "h", "s", "t", "d", "v"), [(1, 3, 17, 17, 16, 16), (2, 4, 5, 33, 7, 9), (1, 1, 1, 1, 1, 1)]
)
@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"scale": 0.3}])
def test_separate_heads(b: int, h: int, s: int, t: int, d: int, v: int, attrs: dict[str, Any]) -> None:
    check("Attention", [_f(b, h, s, d), _f(b, h, t, d), _f(b, h, t, v)], attrs, rtol=1e-4, atol=1e-5)


def test_joined_heads() -> None:
    attrs = {"q_num_heads": 4, "kv_num_heads": 4}
    check("Attention", [_f(2, 9, 4 * 6), _f(2, 11, 4 * 6), _f(2, 11, 4 * 5)], attrs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(9, 11), (3, 9, 11), (2, 1, 9, 11), (2, 3, 1, 11)])
@pytest.mark.parametrize("kind", ["float32", "bool"])
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    mask = _f(*shape) if kind == "float32" else RNG.random(shape) < 0.7
    check("Attention", [_f(2, 3, 9, 8), _f(2, 3, 11, 8), _f(2, 3, 11, 8), mask], rtol=1e-4, atol=1e-5)


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    mask = np.ones((4, 5), bool)
    mask[2] = False
    y = check("Attention", [_f(1, 1, 4, 3), _f(1, 1, 5, 3), _f(1, 1, 5, 3), mask], rtol=1e-4, atol=1e-5)[0]
    assert (y[0, 0, 2] == 0).all()


def test_grouped_queries_go_to_the_reference() -> None:
    check("Attention", [_f(1, 4, 5, 6), _f(1, 2, 7, 6), _f(1, 2, 7, 6)], native=False, rtol=1e-4, atol=1e-5)
