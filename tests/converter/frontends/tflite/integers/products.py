"""Convolutions and matrix products: integer ones, and ones of real numbers by 8-bit or 4-bit weights ("hybrid")."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tests.converter.frontends.tflite.builder import Quant, Tensor
from tests.converter.frontends.tflite.integers.drafts import Draft, case, near

__all__ = ["HYBRID"]

_WIDE = ("int16 x int8, 64-bit bias", "int16 x int8, 32-bit bias", "int16 x int8 per channel")
_INTEGER = ("int8", "int8 per channel", "int8 x int4", "uint8", *_WIDE)
HYBRID = ("float x int8", "float x int8, asymmetric", "float x int8 per channel")
"""`asymmetric`: the option asymmetric_quantize_inputs."""
_FOUR_BITS = ("float x int4", "float x int4, asymmetric", "float x int4 per channel")


class _Terms(NamedTuple):
    """The types of x and of the result, how they are quantised, weights, bias, and options."""

    dtype: str
    x: Quant
    weights: Tensor
    bias: Tensor | None
    y: Quant
    options: dict[str, Any]


def _weights(d: Draft, types: str, columns: int, axis: int, shape: tuple[int, ...]) -> tuple[Tensor, Quant]:
    dtype = "uint8" if types.startswith("uint8") else next((t for t in ("int4", "x int16") if t in types), "int8")
    dtype = dtype.removeprefix("x ")
    if "per channel" in types:
        q = Quant(d.rng.uniform(0.001, 0.02, columns).astype(np.float32), np.zeros(columns, int), axis)
    else:
        zero = d.some(1, 255) if dtype == "uint8" else d.some(-128, 128) if "shifted" in types else 0
        q = Quant(float(np.float32(d.rng.uniform(0.001, 0.02))), zero)
    return d.const(d.weights(shape, dtype), dtype, q), q


_SPREAD = {"int4": 1 / 12, "x int16": 200}


def _terms(d: Draft, types: str, columns: int, axis: int, shape: tuple[int, ...], needs_bias: bool = False) -> _Terms:
    dtype = types.split()[0].rstrip(",")
    x, narrow = d.quant(dtype), "32-bit" in types
    weights, by = _weights(d, types, columns, axis, shape)
    wide = dtype == "int16" and not narrow
    bias = None
    if needs_bias or d.chance(0.75):
        data = d.rng.integers(-(1 << 13), 1 << 13, columns) * (16 if dtype == "int16" else 1)
        step = np.asarray(by.scale, np.float32) * np.float32(x.scale)
        zeros = np.zeros(columns, int) if step.ndim else 0
        bias = d.const(
            data.astype(np.int64 if wide else np.int32), quant=Quant(step if step.ndim else float(step), zeros)
        )
    depth = np.prod(shape) / columns
    scale = x.scale * float(np.mean(by.scale)) * np.sqrt(depth) * (1200 if dtype == "int16" else 2400)
    scale *= next((factor for word, factor in _SPREAD.items() if word in types), 1)
    kind = (
        {"quantized_bias_type": "INT32"} if narrow else {"quantized_bias_type": "INT64"} if "x int16" in types else {}
    )
    return _Terms(dtype, x, weights, bias, d.quant(dtype, near(d, scale)), kind)


def _window(d: Draft, op: str) -> dict[str, Any]:
    padding, strides = str(d.rng.choice(["SAME", "VALID"])), [d.some(1, 3), d.some(1, 3)]
    if op == "DEPTHWISE_CONV_2D":
        strides[1] = strides[0]
    return {"stride_h": strides[0], "stride_w": strides[1], "padding": padding}


# integer


@case("FULLY_CONNECTED", *_INTEGER, "int8, shifted weights", "int16 x int16", "uint8 to int16")
def fully_connected(d: Draft, op: str, types: str) -> None:
    columns, depth = d.some(1, 40), d.some(1, 90)
    t = _terms(d, types, columns, 0, (columns, depth))
    x = d.entry((d.some(1, 9), depth), t.dtype, t.x)
    out, y = ("int16", Quant(float(t.y.scale) / 200, 0)) if " to " in types else (t.dtype, t.y)
    d.result(op, [x, t.weights, t.bias], out, y, **t.options, **d.activation())


@case("CONV_2D", *_INTEGER)
def convolution(d: Draft, op: str, types: str) -> None:
    channels, filters, kernel = d.some(1, 20), d.some(1, 20), (d.some(1, 4), d.some(1, 4))
    t = _terms(d, types, filters, 0, (filters, *kernel, channels), needs_bias=True)
    image = d.entry((d.some(1, 3), d.some(3, 10), d.some(3, 10), channels), t.dtype, t.x)
    options = _window(d, op)
    if options["stride_h"] == options["stride_w"] == 1 and d.chance(0.3):
        options |= {"dilation_h_factor": 2, "dilation_w_factor": 2, "padding": "SAME"}
    d.result(op, [image, t.weights, t.bias], t.dtype, t.y, **options, **t.options, **d.activation())


@case("DEPTHWISE_CONV_2D", *(types for types in _INTEGER if "32-bit" not in types))
def depthwise(d: Draft, op: str, types: str) -> None:
    channels, each, kernel = d.some(1, 30), int(d.rng.choice([1, 1, 1, 2, 3])), (d.some(1, 4), d.some(1, 4))
    t = _terms(d, types, channels * each, 3, (1, *kernel, channels * each), needs_bias=True)
    image = d.entry((d.some(1, 3), d.some(3, 10), d.some(3, 10), channels), t.dtype, t.x)
    options = {**_window(d, op), "depth_multiplier": each}
    d.result(op, [image, t.weights, t.bias], t.dtype, t.y, **options, **t.options, **d.activation())


@case("TRANSPOSE_CONV", *(types for types in _INTEGER if "int4" not in types))
def transposed(d: Draft, op: str, types: str) -> None:
    channels, filters = d.some(1, 20), d.some(1, 20)
    kernel, options, images = (d.some(1, 4), d.some(1, 4)), _window(d, op), (d.some(1, 3), d.some(2, 8), d.some(2, 8))
    t = _terms(d, types, filters, 0, (filters, *kernel, channels))
    shape = _spread(images, filters, kernel, options)
    operands = [d.ints(*shape), t.weights, d.entry((*images, channels), t.dtype, t.x), *([t.bias] if t.bias else [])]
    d.result(op, operands, t.dtype, t.y, shape, **options, **t.options, **d.activation())


def _spread(images: tuple[int, ...], filters: int, kernel: tuple[int, int], options: dict[str, Any]) -> tuple[int, ...]:
    strides = options["stride_h"], options["stride_w"]
    if options["padding"] == "SAME":
        sizes = [n * s for n, s in zip(images[1:], strides, strict=True)]
    else:
        sizes = [(n - 1) * s + k for n, s, k in zip(images[1:], strides, kernel, strict=True)]
    return (images[0], *sizes, filters)


_LEADING = ((1,), (2,), (3, 2))


@case("BATCH_MATMUL", "int8", "int16", "int16 x int8", "int8 to int32")
def batch_matmul(d: Draft, op: str, types: str) -> None:
    left, _, right = types.partition(" x ")
    left = left.split()[0]
    m, k, n = (d.some(1, 24) for _ in range(3))
    lead = _LEADING[d.some(0, 3)]
    other = lead if d.chance(0.6) else (1,) * len(lead)
    turned = d.chance(), d.chance()
    a, b = (*lead, *((k, m) if turned[0] else (m, k))), (*other, *((n, k) if turned[1] else (k, n)))
    first, second = d.quant(left), d.quant(right or left, zero=0 if right else None)
    scale = first.scale * second.scale * np.sqrt(k) * (3000 if left == "int16" else 28)
    x = d.entry(a, left, first)
    known = d.chance(0.3) and " to " not in types
    w = d.const(d.numbers(b, right or left), right or left, second) if known else d.entry(b, right or left, second)
    out, y = ("int32", Quant(first.scale * second.scale)) if " to " in types else (left, d.quant(left, near(d, scale)))
    d.result(op, [x, w], out, y, adj_x=turned[0], adj_y=turned[1])


# hybrid


def _hybrid(d: Draft, types: str, columns: int, axis: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    weights, _ = _weights(d, types, columns, axis, shape)
    bias = d.rng.normal(size=columns) if d.chance(0.7) else np.zeros(columns)
    return weights, d.const(bias.astype(np.float32))


@case("FULLY_CONNECTED", *HYBRID, *_FOUR_BITS)
def hybrid_fully_connected(d: Draft, op: str, types: str) -> None:
    columns, depth = d.some(1, 40), d.some(1, 90)
    weights, bias = _hybrid(d, types, columns, 0, (columns, depth))
    options = {"asymmetric_quantize_inputs": "asymmetric" in types, **d.activation()}
    d.result(op, [d.entry((d.some(1, 9), depth)), weights, bias if d.chance(0.7) else None], **options)


@case("CONV_2D", "float x int8", "float x int8 per channel", "float x int4", "float x int4 per channel")
def hybrid_convolution(d: Draft, op: str, types: str) -> None:
    channels, filters = d.some(1, 20), d.some(1, 20)
    weights, bias = _hybrid(d, types, filters, 0, (filters, d.some(1, 4), d.some(1, 4), channels))
    image = d.entry((d.some(1, 3), d.some(3, 10), d.some(3, 10), channels))
    d.result(op, [image, weights, bias], **_window(d, op), **d.activation())


@case("DEPTHWISE_CONV_2D", "float x int8 per channel")
def hybrid_depthwise(d: Draft, op: str, types: str) -> None:
    """By one scale in total LiteRT reads memory that nothing wrote."""
    channels = d.some(2, 30)
    weights, bias = _hybrid(d, types, channels, 3, (1, d.some(1, 4), d.some(1, 4), channels))
    image = d.entry((d.some(1, 3), d.some(3, 10), d.some(3, 10), channels))
    d.result(op, [image, weights, bias], depth_multiplier=1, **_window(d, op), **d.activation())


@case("TRANSPOSE_CONV", "float x int8", "float x int8 per channel")
def hybrid_transposed(d: Draft, op: str, types: str) -> None:
    channels, filters, kernel, options = d.some(1, 20), d.some(1, 20), (d.some(1, 4), d.some(1, 4)), _window(d, op)
    images = d.some(1, 3), d.some(2, 8), d.some(2, 8)
    weights, bias = _hybrid(d, types, filters, 0, (filters, *kernel, channels))
    shape = _spread(images, filters, kernel, options)
    operands = [d.ints(*shape), weights, d.entry((*images, channels)), bias]
    d.result(op, operands, shape=shape, **options, **d.activation())


@case("BATCH_MATMUL", *HYBRID)
def hybrid_batch_matmul(d: Draft, op: str, types: str) -> None:
    m, k, n = (d.some(1, 24) for _ in range(3))
    turned = d.chance()
    weights, _ = _weights(d, types, n, 0 if turned else 1, (n, k) if turned else (k, n))
    options = {"adj_y": turned, "asymmetric_quantize_inputs": "asymmetric" in types}
    d.result(op, [d.entry((*_LEADING[d.some(0, 3)], m, k)), weights], **options)


@case("EMBEDDING_LOOKUP", "int8", "int8 per channel", "int4 per channel")
def embedding(d: Draft, op: str, types: str) -> None:
    """Rows of an even number of bytes: LiteRT reads odd ones of 4 bits from the wrong half of a byte."""
    rows, width = d.some(2, 40), 2 * d.some(1, 15)
    table, _ = _weights(d, types, rows, 0, (rows, width))
    d.result(op, [d.entry((5,), "int32", data=d.rng.integers(0, rows, 5)), table])
