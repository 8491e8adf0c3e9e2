"""Small models of the kinds that are built ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from converter import Training, convert
from tests.converter.support import Builder


def _separable(b: Builder, x: str) -> str:
    """Convolution, depthwise and pointwise, residual, mean, dense: few families of kernels, which are compiled once."""
    first = b("Relu", b("Conv", x, b.weight(8, 3, 3, 3), b.weight(8), pads=[1] * 4))
    deep = b("Relu", b("Conv", first, b.weight(8, 1, 3, 3), b.weight(8), pads=[1] * 4, group=8))
    wide = b("Add", first, b("Conv", deep, b.weight(8, 8, 1, 1), b.weight(8)))
    flat = b("Flatten", b("GlobalAveragePool", b("Relu", wide)))
    return b("Gemm", flat, b.weight(8, 5), b.weight(5))


def int8_convnet() -> bytes:
    """A separable convolution block, quantised."""
    b = Builder()
    y = _separable(b, b.input("x", (1, 3, 13, 11)))
    rows = np.random.default_rng(1).standard_normal((16, 3, 13, 11)).astype(np.float32)
    made = convert(b.model(y), quantize="int8", calibration=[{"x": row[None]} for row in rows]).bundle
    assert isinstance(made, bytes)
    return made


def float_convnet() -> bytes:
    """The same in float32."""
    b = Builder()
    return _bundle(b.model(_separable(b, b.input("x", (1, 3, 13, 11)))))


def lstm() -> bytes:
    """An LSTM in both directions, and its last state."""
    b = Builder()
    x = b.input("x", (7, 2, 5))
    weights = b.weight(2, 48, 5), b.weight(2, 48, 12), b.weight(2, 96)
    y, last, _ = b("LSTM", x, *weights, outputs=3, hidden_size=12, direction="bidirectional")
    return _bundle(b.model(y, last))


def transformer() -> bytes:
    """Attention with softmax, a normalisation, and a GELU."""
    b = Builder()
    x = b.input("x", (1, 9, 16))
    q, k, v = (b("MatMul", x, b.weight(16, 16)) for _ in range(3))
    products = b("MatMul", q, b("Transpose", k, perm=[0, 2, 1]))
    scores = b("Softmax", b("Mul", products, b.const(np.float32(0.25))), axis=-1)
    mixed = b("Add", x, b("MatMul", b("MatMul", scores, v), b.weight(16, 16)))
    normal = b("LayerNormalization", mixed, b.weight(16), b.weight(16), axis=-1)
    wide = b("Gelu", b("Add", b("MatMul", normal, b.weight(16, 40)), b.weight(40)))
    return _bundle(b.model(b("Add", normal, b("MatMul", wide, b.weight(40, 16)))))


def several() -> bytes:
    """A constant, an input and a view of an input as outputs, beside one that is computed; inputs of three types."""
    b = Builder()
    x, i, c = b.input("x", (2, 6)), b.input("i", (3,), np.int64), b.input("c", (2, 6), np.bool_)
    chosen = b("Where", c, x, b("Neg", x))
    picked = b("Gather", chosen, i, axis=1)
    view, constant = b("Reshape", x, b.const([3, 4], np.int64)), b("Identity", b.const([1, 2, 3], np.int32))
    return _bundle(b.model(picked, view, constant))


def dense() -> bytes:
    """One product: the smallest flat file."""
    b = Builder()
    return _bundle(b.model(b("Relu", b("MatMul", b.input("x", (1, 4)), b.weight(4, 3)))))


def trainable() -> bytes:
    """A small classifier of which everything is trained, by Adam; an open batch."""
    b = Builder()
    hidden = b("Relu", b("Conv", b.input("x", ("n", 2, 5, 4)), b.weight(6, 2, 3, 3), b.weight(6)))
    y = b("Gemm", b("Flatten", hidden), b.weight(36, 3), b.weight(3))
    made = convert(b.model(y), trainable=Training(trainable="*", optimizer="adam", clip_norm=1.0)).bundle
    assert isinstance(made, bytes)
    return made


def int8_head() -> bytes:
    """A small integer model whose last layer can be trained; an open batch."""
    b = Builder()
    x = b.input("x", ("n", 2, 6, 5))
    hidden = b("Relu", b("Conv", x, b.weight(6, 2, 3, 3), b.weight(6), pads=[1] * 4))
    y = b("Gemm", b("Flatten", b("GlobalAveragePool", hidden)), b.weight(6, 4), b.weight(4))
    rows = np.random.default_rng(1).standard_normal((16, 1, 2, 6, 5)).astype(np.float32)
    calibration, training = [{"x": row} for row in rows], Training(trainable=["c_11", "c_12"])
    made = convert(b.model(y), quantize="int8", calibration=calibration, trainable=training).bundle
    assert isinstance(made, bytes)
    return made


def stream() -> bytes:
    """Two states that are handed on: y = a + x, old = a, then a = b and b = x. A state's new value and an output are
    views of states, and an index may be outside its tensor."""
    b = Builder()
    x, first, second = b.input("x", (3,)), b.input("a", (3,)), b.input("b", (3,))
    y = b("Add", b("Gather", first, b.input("i", (3,), np.int64)), x)
    old, after = b("Reshape", first, b.const([3, 1], np.int64)), b("Identity", second)
    last = b("Identity", x)
    made = convert(b.model(y, old, after, last), state={"a": after, "b": last}).bundle
    assert isinstance(made, bytes)
    return made


def _bundle(model: Any) -> bytes:
    made = convert(model).bundle
    assert isinstance(made, bytes)
    return made


MODELS: dict[str, Callable[[], bytes]] = {
    made.__name__: made for made in (int8_convnet, float_convnet, lstm, transformer, several)
}
