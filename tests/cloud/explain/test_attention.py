"""Relevance through attention: a reference that loops over elements, what is conserved, the zoo's transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.audit.victim import from_bundle, from_onnx
from cloud.explain import graph_subject, lrp
from lite_runtime.errors import ExplainError
from lite_runtime.graph import Array
from tests.cloud.models import parsed

LENGTH, WIDTH, HEADS = 4, 6, 2


def weights() -> dict[str, Array]:
    random = np.random.default_rng(0)
    names = {
        "query": (6, 6),
        "key": (6, 6),
        "value": (6, 6),
        "out": (6, 6),
        "gate": (6, 5),
        "up": (6, 5),
        "head": (5, 3),
    }
    found = {name: random.standard_normal(shape) for name, shape in names.items()}
    found |= {"norm": random.uniform(0.5, 2, WIDTH), "rms": random.uniform(0.5, 2, WIDTH)}
    return {name: array.astype(np.float32) for name, array in found.items()}


def one_layer(held: Mapping[str, Array]) -> ir.Model:
    """Layer norm, causal attention, a residual sum, RMS norm, a gate of SiLU, a mean, a dense layer; no biases."""
    b = zoo.Builder("layer", 0)
    w = {name: b.weight(name, array) for name, array in held.items()}
    x = b.input("x", ("batch", LENGTH, WIDTH))
    y = b.op("LayerNormalization", x, w["norm"], axis=-1, epsilon=1e-5)
    q, k, v = (b.op("MatMul", y, w[name]) for name in ("query", "key", "value"))
    y = b.op("Attention", q, k, v, q_num_heads=HEADS, kv_num_heads=HEADS, is_causal=1)
    y = b.op("Add", x, b.op("MatMul", y, w["out"]))
    y = b.op("RMSNormalization", y, w["rms"], axis=-1, epsilon=1e-5)
    gate, up = (b.op("MatMul", y, w[name], shape=("batch", LENGTH, 5)) for name in ("gate", "up"))
    gate = b.op("Mul", gate, b.op("Sigmoid", gate))
    y = b.op("Mul", gate, up)
    y = b.op("ReduceMean", y, b.constant("axes", [1]), keepdims=0, shape=("batch", 5))
    return b.model(logits=b.op("MatMul", y, w["head"], shape=("batch", 3)))


class Told(NamedTuple):
    score: float
    relevance: Array
    absorbed: float
    """What the expansion of softmax leaves at 0."""


def dense(x: Array, w: Array, relevance: Array) -> Array:
    """The epsilon rule of a product, with epsilon 0, by loops."""
    found = np.zeros_like(x)
    for t in range(len(x)):
        for j in range(w.shape[1]):
            z = sum(x[t, i] * w[i, j] for i in range(len(w)))
            for i in range(len(w)):
                found[t, i] += x[t, i] * w[i, j] / z * relevance[t, j]
    return found


def reference(held: Mapping[str, Array], x: Array, target: int) -> Told:
    """The rules of the paper, written for this network alone, in float64."""
    w = {name: array.astype(np.float64) for name, array in held.items()}
    x, size = x.astype(np.float64), WIDTH // HEADS
    centred = x - x.mean(1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * w["norm"]
    q, k, v = normed @ w["query"], normed @ w["key"], normed @ w["value"]
    mixed, scores, shares = np.zeros((LENGTH, WIDTH)), {}, {}
    for h in range(HEADS):
        part = slice(h * size, (h + 1) * size)
        for t in range(LENGTH):
            scores[h, t] = np.array([q[t, part] @ k[s, part] / np.sqrt(size) for s in range(t + 1)])
            shares[h, t] = np.exp(scores[h, t]) / np.exp(scores[h, t]).sum()
            mixed[t, part] = shares[h, t] @ v[: t + 1, part]
    out = mixed @ w["out"]
    joined = x + out
    scaled = joined / np.sqrt((joined**2).mean(1, keepdims=True) + 1e-5) * w["rms"]
    gate, up = scaled @ w["gate"], scaled @ w["up"]
    product = gate / (1 + np.exp(-gate)) * up
    logits = product.mean(0) @ w["head"]

    pooled = product.mean(0) * w["head"][:, target]
    r_product = pooled * product / product.sum(0)
    r_scaled = dense(scaled, w["gate"], r_product / 2) + dense(scaled, w["up"], r_product / 2)
    r_x, r_out = x / joined * r_scaled, out / joined * r_scaled
    r_mixed = dense(mixed, w["out"], r_out)
    r_q, r_k, r_v, absorbed = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), 0.0
    for (h, t), s in shares.items():
        part, r_s = range(h * size, (h + 1) * size), np.zeros(t + 1)
        for d in part:
            for j in range(t + 1):
                half = s[j] * v[j, d] / mixed[t, d] * r_mixed[t, d] / 2
                r_s[j] += half
                r_v[j, d] += half
        r_scores = scores[h, t] * (r_s - s * r_s.sum())
        absorbed += r_s.sum() - r_scores.sum()
        for j in range(t + 1):
            for d in part:
                half = q[t, d] * k[j, d] / np.sqrt(size) / scores[h, t][j] * r_scores[j] / 2
                r_q[t, d] += half
                r_k[j, d] += half
    r_normed = sum(dense(normed, w[name], r) for name, r in (("query", r_q), ("key", r_k), ("value", r_v)))
    r_x = r_x + x / centred * r_normed - x * (r_normed / centred).mean(1, keepdims=True)
    return Told(float(logits[target]), r_x, absorbed)


def test_one_layer_is_as_a_slow_reference_says() -> None:
    held, x = weights(), np.random.default_rng(3).standard_normal((LENGTH, WIDTH)).astype(np.float32)
    subject = graph_subject(from_onnx(one_layer(held)))
    for target in (0, 2):
        told, found = reference(held, x, target), lrp(subject, x, target, rules="epsilon")
        assert found.score == pytest.approx(told.score, rel=1e-4)
        np.testing.assert_allclose(found.attributions, told.relevance, atol=2e-4 * np.abs(told.relevance).max())
        assert abs(told.absorbed) > 0.01, "so that the next line says something"
        assert found.attributions.sum() + told.absorbed == pytest.approx(told.score, rel=1e-3)


def test_attention_is_the_products_and_the_softmax_that_it_stands_for() -> None:
    """As exporters write it out: with groups of heads, a mask that hides a key, and a query that sees none."""
    head = (
        "a (float[1, 2, 2, 4] x) => (float[1, 4] y) <float[1, 1, 2, 4] other = {1, 2, 3, -1, 2, -2, 1, 1}, "
        "bool[2, 2] seen = {1, 0, 0, 0}, int64[2] axes = {1, 2}, float[2, 1] keep = {1, 0}> { "
    )
    tail = "y = ReduceSum<keepdims = 0>(z, axes) }"
    whole = parsed(head + "z = Attention(x, other, other, seen) " + tail)
    parts = parsed(
        head + "t = Transpose<perm = [0, 1, 3, 2]>(other) s = MatMul(x, t) h = Constant<value_float = 0.5>() "
        "m = Mul(s, h) never = Constant<value_float = -1e9>() v = Where(seen, m, never) p = Softmax(v) "
        "q = Mul(p, keep) z = MatMul(q, other) " + tail
    )
    x = np.random.default_rng(1).standard_normal((2, 2, 4)).astype(np.float32)
    one, other = (lrp(graph_subject(from_onnx(model)), x, 1, rules="epsilon").attributions for model in (whole, parts))
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.fixture(scope="module")
def vision() -> tuple[ir.Model, bytes]:
    model = zoo.vit((1, 8, 8), 3, patch=4, width=8, layers=1, heads=2)
    random = np.random.default_rng(0)
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        if value.const_value.dtype == ir.DataType.FLOAT:
            array = value.const_value.numpy()
            value.const_value = ir.tensor(array + 0.3 * random.standard_normal(array.shape).astype(np.float32))
    return model, converter.convert(model).bundle


def test_a_vision_transformers_bundle_is_explained_as_its_onnx_model(vision: tuple[ir.Model, bytes]) -> None:
    x = np.random.default_rng(2).random((1, 8, 8), np.float32)
    onnx, bundle = graph_subject(from_onnx(vision[0])), graph_subject(from_bundle(vision[1]))
    one, other = (lrp(subject, x, 1, rules="composite_flat").attributions for subject in (onnx, bundle))
    assert np.abs(one).max() > 1e-3
    np.testing.assert_allclose(one, other, atol=1e-3 * np.abs(one).max())
    assert np.ptp(one.reshape(2, 4, 2, 4), (1, 3)).max() < 1e-3 * np.abs(one).max(), "one value a patch"


def test_recurrent_networks_are_refused_by_name() -> None:
    model = parsed(
        "a (float[1, 3, 2] x) => (float[1, 2] y) <float[1, 6, 2] w = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}, "
        "float[1, 6, 2] r = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}> "
        "{ t = Transpose<perm = [1, 0, 2]>(x) s, last = GRU<hidden_size = 2>(t, w, r) "
        "axes = Constant<value_ints = [0]>() y = Squeeze(last, axes) }"
    )
    with pytest.raises(ExplainError, match="lrp has no rule for GRU as they are used here"):
        lrp(graph_subject(from_onnx(model)), np.ones((3, 2), np.float32), 0)
