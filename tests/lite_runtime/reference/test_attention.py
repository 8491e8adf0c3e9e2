"""Attention against plain formulas and onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Graph, Node, Value
from tests.lite_runtime.reference.oracle import agree, floats, i64, ours

B, HEADS, T, D = 2, 4, 5, 8


def plain(q: Array, k: Array, v: Array, seen: Array | None = None) -> Array:
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    e = np.exp(scores if seen is None else np.where(seen, scores, -np.inf))
    return e / e.sum(-1, keepdims=True) @ v


def qkv(kv_heads: int = HEADS, keys: int = T) -> list[Array]:
    return [floats(B, HEADS, T, D), floats(B, kv_heads, keys, D), floats(B, kv_heads, keys, D)]


def test_is_the_formula() -> None:
    x = qkv()
    np.testing.assert_allclose(ours("Attention", x)[0], plain(*x), rtol=1e-4, atol=1e-6)


def test_causal_is_a_triangular_mask() -> None:
    x, seen = qkv(), np.tril(np.ones((T, T), bool))
    wanted = plain(*x, seen)
    np.testing.assert_allclose(ours("Attention", x, {"is_causal": 1})[0], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours("Attention", [*x, seen])[0], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours("Attention", x, {"right_window_size": 0})[0], wanted, rtol=1e-4, atol=1e-6)


def test_heads_are_shared_in_order() -> None:
    q, k, v = qkv(kv_heads=2)
    wanted = plain(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))
    np.testing.assert_allclose(ours("Attention", [q, k, v])[0], wanted, rtol=1e-4, atol=1e-6)


def test_packed_heads() -> None:
    x = qkv()
    packed = [a.swapaxes(1, 2).reshape(B, T, -1) for a in x]
    got = ours("Attention", packed, {"q_num_heads": HEADS, "kv_num_heads": HEADS})[0]
    np.testing.assert_allclose(got, plain(*x).swapaxes(1, 2).reshape(B, T, -1), rtol=1e-4, atol=1e-6)


def test_step_by_step_with_a_cache_equals_all_at_once() -> None:
    q, k, v = qkv()
    whole = ours("Attention", [q, k, v], {"is_causal": 1})[0]
    past_k, past_v = k[:, :, :2], v[:, :, :2]
    for t in range(2, T):
        now = [x[:, :, t : t + 1] for x in (q, k, v)]
        y, past_k, past_v = ours("Attention", [*now, None, past_k, past_v], {"is_causal": 1}, 3)
        np.testing.assert_allclose(y, whole[:, :, t : t + 1], rtol=1e-4, atol=1e-6)


def test_padding_and_empty_rows() -> None:
    q, k, v = qkv(keys=7)
    y = ours("Attention", [q, k, v, None, None, None, i64(0, 4)])[0]
    assert np.all(y[0] == 0)
    np.testing.assert_allclose(y[1:], plain(q[1:], k[1:, :, :4], v[1:, :, :4]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"scale": 0.3}, {"softcap": 2.0}])
def test_agrees(attrs: dict[str, float]) -> None:
    agree("Attention", qkv(), attrs, rtol=1e-4, atol=1e-5, opset=23)
    agree("Attention", [*qkv(), floats(T, T)], attrs, rtol=1e-4, atol=1e-5, opset=23)


def _graph(op: str) -> Graph:
    value = Value("x", "float32", None)
    return Graph((value,), (Value("y", "float32", None),), (Node(op, ("x",), ("y",)),), {})


def test_flexible_attention() -> None:
    q, k, v = qkv(kv_heads=2)
    np.testing.assert_allclose(
        ours("FlexAttention", [q, k, v])[0], ours("Attention", [q, k, v])[0], rtol=1e-4, atol=1e-6
    )
    capped = ours("FlexAttention", [q, k, v], {"score_mod": _graph("Tanh")})[0]
    np.testing.assert_allclose(capped, ours("Attention", [q, k, v], {"softcap": 1.0})[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary(interleaved: int) -> None:
    angles = floats(9, D // 2)
    inputs = [floats(B, HEADS, T, D), np.cos(angles), np.sin(angles), np.tile(np.arange(T), (B, 1))]
    agree("RotaryEmbedding", inputs, {"interleaved": interleaved}, opset=23)
    y = ours("RotaryEmbedding", inputs, {"interleaved": interleaved})[0]
    np.testing.assert_allclose((y**2).sum(-1), (inputs[0] ** 2).sum(-1), rtol=1e-5)  # turning keeps lengths


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_in_steps_equals_the_whole(rule: str) -> None:
    q, k, v = (floats(B, T, HEADS * D) for _ in range(3))
    decay, beta = floats(B, T, HEADS, high=0), floats(B, T, HEADS, low=0, high=1)
    attrs = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "update_rule": rule}
    whole, state = ours("LinearAttention", [q, k, v, None, decay, beta], attrs, 2)
    parts, carried = [], None
    for cut in (slice(0, 2), slice(2, T)):
        now = [x[:, cut] for x in (q, k, v)]
        y, carried = ours("LinearAttention", [*now, carried, decay[:, cut], beta[:, cut]], attrs, 2)
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(carried, state, rtol=1e-4, atol=1e-5)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="number of heads for Q"):
        ours("Attention", [floats(B, T, D)] * 3)
    with pytest.raises(ShapeError, match="together"):
        ours("Attention", [*qkv(), None, floats(B, HEADS, 2, D)])
    with pytest.raises(ShapeError, match="multiple of 3"):
        ours("Attention", qkv(kv_heads=3))
