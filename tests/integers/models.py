"""Integer models whose results must have the same bits on every target: one or more for each quantised operator.

Scales, zero points and weights are drawn here and written into the model, so that no calibration, which computes in
float32, has a part in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from converter import convert
from lite_runtime.graph import Array
from tests.converter.support import Builder

__all__ = ["MODELS", "bundle"]

Shape = tuple[int, ...]


class Value(NamedTuple):
    """A quantised tensor."""

    name: str
    shape: Shape
    scale: float
    zero: int
    dtype: str


class Quantised(Builder):
    """Builds models of quantised tensors, in which operators stand between DequantizeLinear and QuantizeLinear."""

    def given(self, *shape: int, dtype: str = "int8", scale: float = 0.03125, zero: int = 0) -> Value:
        """An input of the model."""
        return Value(self.input(f"x{len(self.inputs)}", shape, dtype), shape, scale, zero, dtype)

    def parameters(self, scale: Any, zero: Any, dtype: str) -> tuple[str, str]:
        """A scale and a zero point, or one for each row."""
        return self.const(np.asarray(scale, np.float32)), self.const(np.asarray(zero, dtype))

    def real(self, value: Value) -> str:
        """In float32."""
        return str(self("DequantizeLinear", value.name, *self.parameters(value.scale, value.zero, value.dtype)))

    def whole(self, name: str, like: Value, shape: Shape, scale: float = 0.0625, zero: int = 3) -> Value:
        """A float32 tensor, quantised."""
        made = self("QuantizeLinear", name, *self.parameters(scale, zero, like.dtype))
        return Value(made, shape, scale, zero, like.dtype)

    def weights(self, *shape: int, axis: int = 0, each: bool = True) -> tuple[str, Array]:
        """int8 weights, and their scales: one for each row of an axis, or one."""
        values = self.const(self.rng.integers(-127, 128, shape).astype(np.int8))
        scales = (0.008 * self.rng.uniform(0.5, 1, shape[axis] if each else ())).astype(np.float32)
        zeros = np.zeros_like(scales, np.int8)
        return self("DequantizeLinear", values, *self.parameters(scales, zeros, "int8"), axis=axis), scales

    def bias(self, count: int, scales: Array) -> str:
        """int32, at the scales of the products."""
        values = self.const(self.rng.integers(-3000, 3000, count).astype(np.int32))
        zeros = np.zeros_like(scales, np.int32)
        return str(self("DequantizeLinear", values, *self.parameters(scales, zeros, "int32"), axis=0))


def convolution(b: Quantised, x: Value, filters: int, k: int, each: bool = True, **attributes: Any) -> Value:
    """Conv with bias."""
    group = attributes.get("group", 1)
    w, scales = b.weights(filters, x.shape[1] // group, k, k, each=each)
    y = b("Conv", b.real(x), w, b.bias(filters, scales * np.float32(x.scale)), kernel_shape=[k, k], **attributes)
    return b.whole(y, x, ())


def conv(filters: int, k: int, *shape: int, dtype: str = "int8", zero: int = 0, **attributes: Any) -> Any:
    return lambda b: [convolution(b, b.given(*shape, dtype=dtype, zero=zero), filters, k, **attributes)]


def conv_transpose(b: Quantised) -> list[Value]:
    x = b.given(1, 6, 5, 7)
    w, scales = b.weights(6, 4, 3, 3, each=False)
    y = b("ConvTranspose", b.real(x), w, b.bias(4, scales * np.float32(x.scale)), strides=[2, 2], pads=[1] * 4)
    return [b.whole(y, x, ())]


def residual(b: Quantised) -> list[Value]:
    """A block of MobileNet's kind: pointwise, depthwise, pointwise, sum, mean, dense."""
    x = b.given(1, 8, 9, 11)
    wide = convolution(b, x, 24, 1)._replace(shape=(1, 24, 9, 11))
    deep = convolution(b, wide, 24, 3, group=24, pads=[1] * 4)._replace(shape=(1, 24, 9, 11))
    back = convolution(b, deep, 8, 1)._replace(shape=(1, 8, 9, 11))
    total = b.whole(b("Relu", b("Add", b.real(x), b.real(back))), x, (1, 8, 9, 11), 0.05, -128)
    flat = b.whole(b("Flatten", b("GlobalAveragePool", b.real(total))), x, (1, 8), 0.05, -128)
    w, scales = b.weights(8, 5, axis=1, each=False)
    return [b.whole(b("Gemm", b.real(flat), w, b.bias(5, scales * np.float32(flat.scale))), x, (1, 5))]


def dense(b: Quantised, dtype: str = "int8") -> list[Value]:
    x = b.given(3, 37, dtype=dtype, zero=11)
    w, scales = b.weights(37, 19, axis=1)
    y = b("Add", b("MatMul", b.real(x), w), b.bias(19, scales * np.float32(x.scale)))
    return [b.whole(y, x, ())]


def products(b: Quantised) -> list[Value]:
    """MatMul of two tensors."""
    x, y = b.given(2, 7, 13, zero=-4), b.given(2, 13, 5, zero=9)
    return [b.whole(b("MatMul", b.real(x), b.real(y)), x, (), 0.25)]


def unary(op: str, dtype: str = "int8", scale: float = 0.0625, **attributes: Any) -> Any:
    def made(b: Quantised) -> list[Value]:
        x = b.given(2, 3, 17, dtype=dtype, zero=5)
        return [b.whole(b(op, b.real(x), **attributes), x, (), scale)]

    return made


def clip(b: Quantised) -> list[Value]:
    x = b.given(2, 3, 17)
    return [b.whole(b("Clip", b.real(x), b.const(np.float32(-1)), b.const(np.float32(2.5))), x, ())]


def binary(op: str, dtype: str = "int8", shape: Shape = (2, 3, 17), scale: float = 0.0625) -> Any:
    def made(b: Quantised) -> list[Value]:
        x, y = b.given(2, 3, 17, dtype=dtype, zero=2), b.given(*shape, dtype=dtype, scale=0.02, zero=7)
        return [b.whole(b(op, b.real(x), b.real(y)), x, (), scale)]

    return made


def constant(op: str) -> Any:
    def made(b: Quantised) -> list[Value]:
        x, row = b.given(1, 6, 5, 7), (b.rng.random((6, 1, 1)) + 0.5).astype(np.float32)
        return [b.whole(b(op, b.real(x), b.const(row)), x, ())]

    return made


def pool(op: str, **attributes: Any) -> Any:
    def made(b: Quantised) -> list[Value]:
        x = b.given(1, 5, 9, 8, zero=-7)
        return [b.whole(b(op, b.real(x), **attributes), x, ())]

    return made


def reduced(op: str, axes: list[int]) -> Any:
    def made(b: Quantised) -> list[Value]:
        x = b.given(1, 5, 9, 8, zero=-7)
        return [b.whole(b(op, b.real(x), b.const(axes, np.int64), keepdims=0), x, (), 0.125)]

    return made


def moved(op: str, *operands: Any, **attributes: Any) -> Any:
    """An operator that moves values: the parameters stay."""

    def made(b: Quantised) -> list[Value]:
        x = b.given(1, 4, 6, 8, zero=3)
        y = b(op, b.real(x), *[b.const(operand) if operand is not None else "" for operand in operands], **attributes)
        return [b.whole(y, x, (), x.scale, x.zero)]

    return made


def concatenation(b: Quantised) -> list[Value]:
    x, y, z = b.given(1, 3, 5), b.given(1, 4, 5, scale=0.02, zero=9), b.given(1, 2, 5, scale=0.07, zero=-9)
    return [b.whole(b("Concat", b.real(x), b.real(y), b.real(z), axis=1), x, ())]


def slope(b: Quantised) -> list[Value]:
    """PRelu."""
    x, row = b.given(1, 6, 5, 7, zero=2), (b.rng.random((6, 1, 1)) * 0.25).astype(np.float32)
    return [b.whole(b("PRelu", b.real(x), b.const(row)), x, ())]


def linear_conv(b: Quantised) -> list[Value]:
    """QLinearConv, of uint8 by uint8 with zero points."""
    x = b.given(1, 5, 8, 7, dtype="uint8", zero=130)
    w = b.const(b.rng.integers(0, 256, (9, 5, 3, 3)).astype(np.uint8))
    bias = b.const(b.rng.integers(-3000, 3000, 9).astype(np.int32))
    first, filters = b.parameters(x.scale, x.zero, "uint8"), b.parameters(0.004, 120, "uint8")
    y = b("QLinearConv", x.name, *first, w, *filters, *b.parameters(0.1, 128, "uint8"), bias, pads=[1] * 4)
    return [Value(y, (), 0.1, 128, "uint8")]


def conv_integer(b: Quantised) -> list[Value]:
    x = b.given(1, 5, 8, 7, dtype="uint8")
    w = b.const(b.rng.integers(-128, 128, (9, 5, 3, 3)).astype(np.int8))
    y = b("ConvInteger", x.name, w, b.const(np.uint8(128)), b.const(np.int8(0)), strides=[2, 2])
    return [Value(y, (), 1, 0, "int32")]


def matmul_integer(b: Quantised) -> list[Value]:
    x, y = b.given(4, 29, dtype="uint8"), b.const(b.rng.integers(-128, 128, (29, 21)).astype(np.int8))
    return [Value(b("MatMulInteger", x.name, y, b.const(np.uint8(100)), b.const(np.int8(3))), (), 1, 0, "int32")]


def linear_matmul(b: Quantised) -> list[Value]:
    x, y = b.given(4, 29, zero=3), b.given(29, 10, zero=-5)
    scales = (b.parameters(each.scale, each.zero, "int8") for each in (x, y))
    first, second = scales
    made = b("QLinearMatMul", x.name, *first, y.name, *second, *b.parameters(0.25, 1, "int8"))
    return [Value(made, (), 0.25, 1, "int8")]


def arithmetic(op: str, dtype: str) -> Any:
    """Operators of plain integers."""

    def made(b: Quantised) -> list[Value]:
        x, y = b.given(5, 33, dtype=dtype), b.given(5, 33, dtype=dtype)
        return [Value(b(op, x.name, y.name), (), 1, 0, dtype)]

    return made


def positions(op: str, **attributes: Any) -> Any:
    def made(b: Quantised) -> list[Value]:
        return [Value(b(op, b.given(4, 33).name, **attributes), (), 1, 0, "int64")]

    return made


def chain(seed: int) -> Any:
    """A random network of quantised operators."""

    def made(b: Quantised) -> list[Value]:
        b.rng = np.random.default_rng(seed)
        x = b.given(1, int(b.rng.integers(2, 20)), int(b.rng.integers(5, 20)), int(b.rng.integers(5, 20)))
        for _ in range(6):
            n, c, h, w = x.shape
            kind = int(b.rng.integers(6))
            if kind == 0:
                filters = int(b.rng.integers(1, 40))
                x = convolution(b, x, filters, 1)._replace(shape=(n, filters, h, w))
            elif kind == 1:
                x = convolution(b, x, c, 3, group=c, pads=[1] * 4)._replace(shape=(n, c, h, w))
            elif kind == 2:
                filters = int(b.rng.integers(1, 24))
                x = convolution(b, x, filters, 3, pads=[1] * 4)._replace(shape=(n, filters, h, w))
            elif kind == 3:
                x = b.whole(b("Relu", b.real(x)), x, x.shape, 0.05, -100)
            elif kind == 4 and min(h, w) > 3:
                y = b("MaxPool", b.real(x), kernel_shape=[2, 2], strides=[2, 2])
                x = b.whole(y, x, (n, c, h // 2, w // 2), x.scale, x.zero)
            else:
                x = b.whole(b("Add", b.real(x), b.real(x)), x, x.shape, 0.1, 1)
        return [x]

    return made


WHERE = dict(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
MODELS: Mapping[str, Callable[[Quantised], list[Value]]] = {
    "conv_3x3": conv(7, 3, 1, 5, 9, 11, pads=[1] * 4),
    "conv_3x3_uint8": conv(7, 3, 1, 5, 9, 11, dtype="uint8", zero=128, pads=[1, 0, 1, 0]),
    "conv_one_scale": conv(7, 3, 1, 5, 9, 11, each=False),
    "conv_1x1": conv(33, 1, 2, 19, 6, 7),
    "conv_strided": conv(16, 5, 1, 3, 21, 18, strides=[2, 3], pads=[2] * 4),
    "conv_dilated": conv(6, 3, 1, 4, 12, 13, dilations=[2, 2]),
    "conv_grouped": conv(12, 3, 1, 8, 9, 9, group=4),
    "conv_depthwise": conv(21, 3, 1, 21, 13, 10, group=21, pads=[1] * 4),
    "conv_depthwise_strided": conv(16, 5, 1, 16, 17, 15, group=16, strides=[2, 2], pads=[2] * 4),
    "conv_multiplier": conv(12, 3, 1, 6, 8, 9, group=6),
    "conv_transpose": conv_transpose,
    "residual": residual,
    "dense": dense,
    "dense_uint8": partial(dense, dtype="uint8"),
    "products": products,
    "qlinear_conv": linear_conv,
    "conv_integer": conv_integer,
    "matmul_integer": matmul_integer,
    "qlinear_matmul": linear_matmul,
    "add": binary("Add"),
    "add_uint8": binary("Add", "uint8"),
    "add_row": binary("Add", shape=(17,)),
    "sub": binary("Sub"),
    "mul": binary("Mul"),
    "mul_uint8": binary("Mul", "uint8"),
    "div_constant": constant("Div"),
    "mul_constant": constant("Mul"),
    "min": binary("Min"),
    "max": binary("Max"),
    "relu": unary("Relu"),
    "clip": clip,
    "prelu": slope,
    "abs": unary("Abs"),
    "neg": unary("Neg"),
    "leaky_relu": unary("LeakyRelu", alpha=0.1),
    "sigmoid": unary("Sigmoid", scale=0.00390625),
    "tanh": unary("Tanh", scale=0.0078125),
    "hard_swish": unary("HardSwish"),
    "hard_sigmoid": unary("HardSigmoid", scale=0.00390625),
    "elu": unary("Elu"),
    "gelu": unary("Gelu"),
    "softplus": unary("Softplus"),
    "exp": unary("Exp", scale=0.5),
    "sigmoid_uint8": unary("Sigmoid", "uint8", scale=0.00390625),
    "max_pool": pool("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "average_pool": pool("AveragePool", kernel_shape=[3, 2], strides=[2, 1]),
    "global_average_pool": pool("GlobalAveragePool"),
    "global_max_pool": pool("GlobalMaxPool"),
    "reduce_mean": reduced("ReduceMean", [2, 3]),
    "reduce_sum": reduced("ReduceSum", [1]),
    "reduce_max": reduced("ReduceMax", [3]),
    "concat": concatenation,
    "transpose": moved("Transpose", perm=[0, 2, 3, 1]),
    "pad": moved("Pad", np.array([0, 0, 1, 2, 0, 0, 3, 0], np.int64)),
    "slice": moved("Slice", np.array([1, 2]), np.array([6, 7]), np.array([2, 3]), np.array([2, 1])),
    "gather": moved("Gather", np.array([3, 0, 2]), axis=1),
    "depth_to_space": moved("DepthToSpace", blocksize=2),
    "space_to_depth": moved("SpaceToDepth", blocksize=2),
    "resize_nearest": moved("Resize", None, np.array([1, 1, 2, 2], np.float32), mode="nearest", **WHERE),
    "tile": moved("Tile", np.array([1, 1, 2, 3])),
    "arg_max": positions("ArgMax", axis=1),
    "arg_min": positions("ArgMin", axis=0, keepdims=0),
    "add_int32": arithmetic("Add", "int32"),
    "mul_int64": arithmetic("Mul", "int64"),
    "less_int8": arithmetic("Less", "int8"),
    **{f"network_{seed}": chain(seed) for seed in range(12)},
}


def bundle(name: str) -> bytes:
    """The model with this name, converted."""
    b = Quantised(opset=20, seed=sorted(MODELS).index(name))
    outputs = MODELS[name](b)
    made = convert(b.model(*[value.name for value in outputs])).bundle
    assert isinstance(made, bytes)
    return made
