"""Hostile .tflite files: small models of many operators, damaged, through the whole converter."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import numpy as np

from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor

__all__ = ["model_seeds", "spoil_model", "try_model"]

_WORDS = (0, 1, 2, 3, 4, 9, 127, 128, 255, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE)
_SCALES = tuple(
    struct.unpack("<I", struct.pack("<f", x))[0] for x in (0.0, -1.0, 1e-45, 3e38, float("inf"), float("nan"))
)
_OWN = ("tflm_hello_world_sine_int8.tflite",)


def _values(shape: tuple[int, ...], dtype: str = "int8") -> np.ndarray:
    ends = np.iinfo(dtype)
    low, high = (-99, 99) if dtype == "int32" else (ends.min, ends.max)
    return np.random.default_rng(3).integers(low, high, shape).astype(dtype)


def _convolutions() -> Builder:
    b, q, many = Builder(), Quant(0.05, 3), Quant(np.full(4, 0.02, np.float32), 0, 0)
    x = b.input("x", (1, 6, 6, 2), "int8", quant=q)
    w, bias = b.const(_values((4, 3, 3, 2)), quant=many), b.const(_values((4,), "int32"))
    x = b.op("CONV_2D", [x, w, bias], (1, 3, 3, 4), "int8", quant=q, padding="SAME", stride_w=2, stride_h=2,
             fused_activation_function="RELU6")  # fmt: skip
    w = b.const(_values((1, 3, 3, 4)), quant=Quant(np.full(4, 0.02, np.float32), 0, 3))
    x = b.op("DEPTHWISE_CONV_2D", [x, w, bias], (1, 3, 3, 4), "int8", quant=q, padding="SAME", stride_w=1, stride_h=1,
             depth_multiplier=1)  # fmt: skip
    x = b.op("AVERAGE_POOL_2D", [x], (1, 1, 1, 4), "int8", quant=q, padding="VALID", stride_w=1, stride_h=1,
             filter_width=3, filter_height=3)  # fmt: skip
    x = b.op("RESHAPE", [x, b.const(np.array([1, 4], np.int32))], (1, 4), "int8", quant=q)
    w = b.const(_values((5, 4)), quant=Quant(0.03, 0))
    x = b.op("FULLY_CONNECTED", [x, w, None], (1, 5), "int8", quant=q)
    b.output(b.op("SOFTMAX", [x], (1, 5), "int8", quant=Quant(1 / 256, -128), beta=1.0))
    return b


def _elements() -> Builder:
    b, q, other = Builder(), Quant(0.05, 130), Quant(0.03, 120)
    x = b.input("x", (1, 4, 4, 3), "uint8", quant=q)
    shape = (1, 4, 4, 3)
    y: Tensor = b.op("ADD", [x, b.const(_values((3,), "uint8"), quant=other)], shape, "uint8", quant=other)
    y = b.op("MUL", [y, x], shape, "uint8", quant=q)
    y = b.op("LOGISTIC", [y], shape, "uint8", quant=Quant(1 / 256, 0))
    y = b.op("CONCATENATION", [y, y], (1, 4, 4, 6), "uint8", quant=Quant(1 / 256, 0), axis=3)
    y = b.op(
        "RESIZE_BILINEAR", [y, b.const(np.array([8, 6], np.int32))], (1, 8, 6, 6), "uint8", quant=Quant(1 / 256, 0)
    )
    y = b.op("MAX_POOL_2D", [y], (1, 4, 3, 6), "uint8", quant=Quant(1 / 256, 0), padding="SAME", stride_w=2,
             stride_h=2, filter_width=2, filter_height=2)  # fmt: skip
    y = b.op("MEAN", [y, b.const(np.array([1, 2], np.int32))], (1, 6), "uint8", quant=q, keep_dims=False)
    b.output(b.op("DEQUANTIZE", [y], (1, 6)))
    return b


def _dynamic() -> Builder:
    b = Builder()
    x = b.input("x", (1, 8))
    w = b.const(_values((6, 8)), quant=Quant(0.02, 0))
    x = b.op("FULLY_CONNECTED", [x, w, b.const(np.ones(6, np.float32))], (1, 6), fused_activation_function="RELU")
    x = b.op("PAD", [x, b.const(np.array([[0, 0], [1, 1]], np.int32))], (1, 8))
    x = b.op("QUANTIZE", [x], (1, 8), "int8", quant=Quant(0.1, 0))
    x = b.op("TRANSPOSE", [x, b.const(np.array([1, 0], np.int32))], (8, 1), "int8", quant=Quant(0.1, 0))
    b.output(b.op("ARG_MAX", [x, b.const(np.array(0, np.int32))], (1,), "int64", output_type="INT64"))
    return b


def model_seeds() -> list[bytes]:
    """Models of integer operators in a few forms, and the smallest of the shared ones where there are any."""
    made = [build().build() for build in (_convolutions, _elements, _dynamic)]
    folder = Path(__file__).parents[3] / "shared" / "models"
    shared = [folder / name for name in _OWN]
    return made + [path.read_bytes() for path in shared if path.exists()]


def spoil_model(rng: Random, seeds: list[bytes]) -> bytes:
    """Bits, bytes and 32-bit words changed, or the end cut off."""
    data = bytearray(rng.choice(seeds))
    if rng.random() < 0.03:
        return bytes(data[: rng.randrange(len(data))])
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, kind = rng.randrange(len(data) - 4), rng.random()
        if kind < 0.3:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.5:
            data[at] = rng.choice((0, 1, 2, 255, rng.randrange(256)))
        else:
            struct.pack_into("<I", data, at & ~3, rng.choice(_WORDS if kind < 0.85 else _SCALES))
    return bytes(data)


def try_model(data: bytes) -> list[str]:
    """Convert a file: "read" and "ran", or "refused". Whatever is not a ConvertError passes through."""
    from converter import ConvertError, convert

    try:
        convert(data)
    except ConvertError:
        return ["refused"]
    return ["read", "ran"]
