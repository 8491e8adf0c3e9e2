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


def test_grouped_queries_share_keys() -> None:
    check("Attention", [_f(2, 4, 5, 6), _f(2, 2, 7, 6), _f(2, 2, 7, 6)], rtol=1e-4, atol=1e-5)


LONG = [(1, 2, 50, 300, 16, 24), (1, 1, 25, 257, 33, 70), (2, 1, 1, 129, 64, 64), (1, 1, 24, 128, 3, 5)]


@pytest.mark.parametrize(("b", "h", "s", "t", "d", "v"), LONG)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("kind", ["", "float32", "bool"])
def test_blocks_of_keys_make_one_softmax(
    b: int, h: int, s: int, t: int, d: int, v: int, causal: int, kind: str
) -> None:
    """Scores grow along the keys, so that every block's largest is larger than those before."""
    q, k = _f(b, h, s, d), _f(b, h, t, d)
    k += np.linspace(0, 3, t, dtype=np.float32)[:, None] * np.sign(q.mean(2, keepdims=True))
    mask = [] if not kind else [_f(b, h, s, t) if kind == "float32" else RNG.random((b, h, s, t)) < 0.5]
    check("Attention", [q, k, _f(b, h, t, v), *mask], {"is_causal": causal}, rtol=1e-4, atol=1e-5)


def test_blocks_without_a_key_to_see() -> None:
    """Whole blocks are hidden from a query, the first one among them."""
    mask = np.ones((3, 400), bool)
    mask[0, :200] = mask[1, 100:] = mask[2] = False
    y = check("Attention", [_f(1, 2, 3, 8), _f(1, 2, 400, 8), _f(1, 2, 400, 8), mask], rtol=1e-4, atol=1e-5)[0]
    assert (y[:, :, 2] == 0).all()


def test_scores_far_apart() -> None:
    check("Attention", [_f(1, 1, 7, 4) * 300, _f(1, 1, 200, 4), _f(1, 1, 200, 4)], rtol=1e-4, atol=1e-5)


def test_grouped_and_joined_heads() -> None:
    attrs = {"q_num_heads": 6, "kv_num_heads": 2}
    check("Attention", [_f(2, 30, 6 * 16), _f(2, 140, 2 * 16), _f(2, 140, 2 * 32)], attrs, rtol=1e-4, atol=1e-5)


def test_the_lowest_number_as_a_mask() -> None:
    """Exporters add float32's lowest number: a block of nothing else counts until a larger score turns up."""
    mask = np.full((2, 300), np.finfo(np.float32).min, np.float32)
    mask[0, 200:] = 0
    check("Attention", [_f(1, 1, 2, 8), _f(1, 1, 300, 8), _f(1, 1, 300, 8), mask], rtol=1e-4, atol=1e-5)
