"""Every rule against `jax.grad`: one table of cases per family, each family in one model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from converter.ir.grad import RULES
from tests.converter.ir.grad.support import Make, check

Shape = tuple[Any, ...]
N = "batch"


def unary(op: str, shape: Shape = (3, 5), low: float = -2.0, high: float = 2.0, **attrs: Any) -> Make:
    return lambda b: b(op, b.input("x", shape, low, high), **attrs)


def binary(op: str, left: Shape, right: Shape, low: float = -2.0, high: float = 2.0, **attrs: Any) -> Make:
    return lambda b: b(op, b.input("a", left, low, high), b.input("b", right, low, high), **attrs)


def several(op: str, *shapes: Shape, **attrs: Any) -> Make:
    return lambda b: b(op, *(b.input(f"x{i}", shape) for i, shape in enumerate(shapes)), **attrs)


def with_ints(op: str, shape: Shape, *ints: Any, **attrs: Any) -> Make:
    """x, then int64 constants (None: left out)."""
    return lambda b: b(op, b.input("x", shape), *("" if i is None else b.ints(i) for i in ints), **attrs)


def clip(*limits: float | None) -> Make:
    return lambda b: b("Clip", b.input("x", (4, 5)), *("" if v is None else b.const(np.float32(v)) for v in limits))


def split(shape: Shape, axis: int, *sizes: int, used: int = 0) -> Make:
    """Of the parts only some are used."""

    def make(b: Any) -> list[str]:
        parts: list[str] = b("Split", b.input("x", shape), b.ints(sizes), axis=axis, outputs=len(sizes))
        return parts[used:]

    return make


def norm(op: str, shape: Shape, scale: Shape, *, bias: bool = True, **attrs: Any) -> Make:
    return lambda b: b(
        op, b.input("x", shape), b.input("scale", scale), *[b.input("b", scale)] * bias, **attrs
    )


def batch_norm(shape: Shape) -> Make:
    return lambda b: b(
        "BatchNormalization", b.input("x", shape), *(b.input(k, shape[1:2]) for k in ("scale", "b", "mean")),
        b.input("var", shape[1:2], 0.5, 2.0), epsilon=1e-3,
    )  # fmt: skip


def layers(shape: Shape, size: int) -> Make:
    """A shape computed when it runs: [N, ...] -> [N, rest] by Shape, Gather and Concat."""

    def make(b: Any) -> str:
        x = b.input("x", shape)
        first = b("Gather", b("Shape", x), b.ints([0]), axis=0)
        return str(b("Reshape", x, b("Concat", first, b.ints([size]), axis=0)))

    return make


def cross_entropy(op: str, shape: Shape, *, weights: bool = False, **attrs: Any) -> Make:
    def make(b: Any) -> str:
        labels = b.const(b.rng.integers(0, shape[1], (shape[0], *shape[2:])))
        more = [b.const(b.rng.uniform(0.5, 2, shape[1]).astype(np.float32))] if weights else []
        return str(b(op, b.input("x", shape), labels, *more, **attrs))

    return make


def both_results(b: Any) -> list[str]:
    labels = b.const(b.rng.integers(0, 4, (5,)))
    found: list[str] = b("SoftmaxCrossEntropyLoss", b.input("x", (5, 4)), labels, outputs=2)
    return found


def cell(op: str, direction: str = "forward", *, use: slice = slice(None), batch: int | str = 3, **attrs: Any) -> Make:
    gates, states, hidden, inputs = (4, 2, 5, 3) if op == "LSTM" else (3, 1, 5, 3)
    count = 2 if direction == "bidirectional" else 1

    def make(b: Any) -> list[str]:
        time = 4
        x = b.input("x", (batch, time, inputs) if attrs.get("layout") else (time, batch, inputs))
        w, r = b.input("w", (count, gates * hidden, inputs)), b.input("r", (count, gates * hidden, hidden))
        bias = b.input("b", (count, 2 * gates * hidden))
        found = b(op, x, w, r, bias, hidden_size=hidden, direction=direction, outputs=1 + states, **attrs)
        return list(found[use])

    return make


def starting(op: str) -> Make:
    """From given states."""
    gates, states = (4, 2) if op == "LSTM" else (3, 1)

    def make(b: Any) -> str:
        weights = [b.input("w", (1, gates * 2, 3)), b.input("r", (1, gates * 2, 2)), "", ""]
        starts = [b.input(f"s{i}", (1, 2, 2)) for i in range(states)]
        return str(b(op, b.input("x", (3, 2, 3)), *weights, *starts, hidden_size=2))

    return make


def attention(q: Shape, k: Shape, v: Shape, *, mask: Shape | None = None, flags: bool = False, **attrs: Any) -> Make:
    def make(b: Any) -> str:
        more = [b.const(b.rng.random(mask) < 0.7) if flags else b.input("mask", mask)] if mask else []
        return str(b("Attention", b.input("q", q), b.input("k", k), b.input("v", v), *more, **attrs))

    return make


def rotary(shape: Shape, angles: Shape, **attrs: Any) -> Make:
    return lambda b: b("RotaryEmbedding", b.input("x", shape), b.weight(*angles), b.weight(*angles), **attrs)


def quantized(b: Any) -> str:
    scale, zero = b.const(np.float32(0.02)), b.const(np.int8(3))
    q = b("QuantizeLinear", b.input("x", (4, 5), -3.5, 3.5), scale, zero)
    return str(b("DequantizeLinear", q, scale, zero))


def resized(mode: str, shape: Shape, *factors: float, **attrs: Any) -> Make:
    return lambda b: b("Resize", b.input("x", shape), "", b.const(np.float32(factors)), mode=mode, **attrs)


FAMILIES: Mapping[str, Mapping[str, Make]] = {
    "functions": {
        **{op: unary(op) for op in (
            "Neg Abs Exp Erf Sin Cos Sinh Cosh Atan Asinh Tanh Sigmoid Relu Softplus Softsign Identity Softmax "
            "LogSoftmax"
        ).split()},
        **{op: unary(op, low=0.3) for op in "Log Sqrt Reciprocal".split()},
        **{op: unary(op, low=-0.9, high=0.9) for op in "Asin Acos Atanh Tan".split()},
        "Acosh": unary("Acosh", low=1.2, high=3.0),
        "Softmax inner": unary("Softmax", (2, 3, 4), axis=1),
        "LogSoftmax inner": unary("LogSoftmax", (2, 3, 4), axis=0),
        "Clip": clip(-0.7, 1.1), "Clip above": clip(0.2), "Clip below": clip(None, 0.3),
        "Cast": lambda b: b("Cast", b("Cast", b.input("x", (3, 2)), to=11), to=1),
        "Dropout": unary("Dropout"),
    },
    "activations": {
        **{op: unary(op) for op in (
            "LeakyRelu Elu Celu Selu HardSigmoid HardSwish Swish Gelu Mish ThresholdedRelu Shrink"
        ).split()},
        "Gelu tanh": unary("Gelu", approximate="tanh"),
        "Swish 1.7": unary("Swish", alpha=1.7),
        "QuickGelu": unary("QuickGelu", domain="com.microsoft"),
        "QuickGelu 1.3": unary("QuickGelu", domain="com.microsoft", alpha=1.3),
        "LeakyRelu up": unary("LeakyRelu", alpha=-0.3),
        "Elu up": unary("Elu", alpha=-0.8),
        "Celu 2": unary("Celu", alpha=2.0),
        "HardSigmoid steep": unary("HardSigmoid", alpha=0.6, beta=0.4),
        "PRelu": binary("PRelu", (2, 3, 4), (3, 1)),
    },
    "gated units": {
        "SwiGLU": binary("SwiGLU", (2, 3, 4), (2, 3, 4)),
        "SwiGLU 1.7": binary("SwiGLU", (N, 4), (N, 4), alpha=1.7),
        "SwiGLU itself": lambda b: b("SwiGLU", x := b.input("x", (3, 2)), x),
    },
    "arithmetic": {
        **{op: binary(op, (2, 3, 4), (2, 3, 4), 0.4) for op in ("Add", "Sub", "Mul", "Div", "Pow")},
        **{f"{op} broadcast": binary(op, (3, 1), (2, 1, 4), 0.4) for op in ("Add", "Sub", "Mul", "Div", "Pow")},
        **{f"{op} batch": binary(op, (N, 3, 4), (4,), 0.4) for op in ("Add", "Sub", "Mul", "Div", "Pow")},
        **{f"{op} batch, one row": binary(op, (1, 4), (N, 4), 0.4) for op in ("Add", "Mul")},
        "Mul unknown": binary("Mul", ("one", 4), (N, 4)),
        "Add to scalar": binary("Add", (), (3, 2)),
        "Mul itself": lambda b: b("Mul", x := b.input("x", (3, 2)), x),
        "Pow 2": lambda b: b("Pow", b.input("x", (3, 2)), b.const(np.float32(2))),
        "Pow integers": lambda b: b("Pow", b.input("x", (3, 2)), b.const(np.int64(3))),
        "Mod": binary("Mod", (2, 5), (5,), 0.5, 3.0, fmod=1),
        "Max": several("Max", (2, 3), (3,), (2, 1)),
        "Min": several("Min", (2, 3), (2, 3)),
        "Max of one": several("Max", (2, 3)),
        "Sum": several("Sum", (2, 3), (3,), (2, 1)),
        "Mean": several("Mean", (2, 3), (3,), (2, 1)),
        "Where": lambda b: b(
            "Where", b.const(np.array([True, False, True])), b.input("x", (2, 3)), b.input("y", (2, 1))),
        "Where compared": lambda b: b("Where", b("Greater", x := b.input("x", (4, 5)), b.const(np.float32(0))), x,
                                      b("Exp", x)),
    },
    "products": {
        **{f"Gemm {ta}{tb}": (lambda b, ta=ta, tb=tb: b(
            "Gemm", b.input("a", (5, 4) if ta else (4, 5)), b.input("b", (3, 5) if tb else (5, 3)),
            b.input("c", (3,)), transA=ta, transB=tb, alpha=0.5, beta=1.5)) for ta in (0, 1) for tb in (0, 1)},
        "Gemm batch": lambda b: b("Gemm", b.input("a", (N, 5)), b.input("b", (7, 5)), b.input("c", (7,)), transB=1),
        "Gemm alone": lambda b: b("Gemm", b.input("a", (1, 5)), b.input("b", (5, 2))),
        "MatMul": binary("MatMul", (4, 5), (5, 3)),
        "MatMul batch": binary("MatMul", (N, 7, 5), (5, 3)),
        "MatMul stacks": binary("MatMul", (2, 3, 4, 5), (2, 3, 5, 2)),
        "MatMul broadcast": binary("MatMul", (2, 1, 4, 5), (3, 5, 2)),
        "MatMul vectors": binary("MatMul", (5,), (5,)),
        "MatMul row": binary("MatMul", (5,), (2, 5, 3)),
        "MatMul column": binary("MatMul", (2, 4, 5), (5,)),
        "Einsum": binary("Einsum", (2, 3, 4), (4, 5), equation="bij,jk->bki"),
        "Einsum lone": binary("Einsum", (2, 3), (3, 4), equation="ij,jk->k"),
        "Einsum short": binary("Einsum", (2, 3), (3, 4), equation="ij,jk"),
        "Einsum one": several("Einsum", (2, 3, 4), equation="abc->ca"),
        "Einsum three": several("Einsum", (2, 3), (3, 4), (4, 2), equation="ij,jk,ki->ik"),
    },
    "convolutions": {
        "Conv": several("Conv", (2, 3, 7, 6), (4, 3, 3, 3), (4,), pads=[1, 1, 1, 1]),
        "Conv strided": several("Conv", (2, 3, 8, 7), (4, 3, 3, 2), strides=[2, 3], pads=[1, 0, 0, 1]),
        "Conv dilated": several("Conv", (1, 2, 9, 9), (3, 2, 3, 3), dilations=[2, 3]),
        "Conv grouped": several("Conv", (2, 4, 5, 5), (6, 2, 3, 3), group=2),
        "Conv depthwise": several("Conv", (2, 5, 6, 7), (5, 1, 3, 3), (5,), group=5, strides=[2, 2], pads=[1, 1, 1, 1]),
        "Conv pointwise": several("Conv", (N, 5, 4, 3), (7, 5, 1, 1), (7,)),
        "Conv pointwise strided": several("Conv", (2, 5, 5, 4), (3, 5, 1, 1), strides=[2, 2]),
        "Conv same": several("Conv", (2, 3, 7, 6), (4, 3, 4, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
        "Conv open": several("Conv", (2, 3, "h", 4), (4, 3, 3, 1), pads=[1, 0, 1, 0]),
        "ConvTranspose open": several("ConvTranspose", (2, 3, "h"), (3, 2, 3), strides=[3], pads=[1, 0],
                                      output_padding=[1]),
        "Conv 1-D": several("Conv", (2, 3, 11), (4, 3, 5), (4,), strides=[2], pads=[2, 1]),
        "ConvTranspose": several("ConvTranspose", (2, 3, 4, 5), (3, 4, 3, 3), (4,), strides=[2, 2], pads=[1, 1, 0, 1]),
        "ConvTranspose extra": several(
            "ConvTranspose", (2, 4, 4, 3), (4, 3, 3, 2), strides=[2, 3], output_padding=[1, 2], group=2),
        "ConvTranspose same": several(
            "ConvTranspose", (1, 2, 4, 5), (2, 3, 3, 4), strides=[2, 3], auto_pad="SAME_LOWER"),
        "ConvTranspose shape": several("ConvTranspose", (1, 2, 4), (2, 3, 5), strides=[3], output_shape=[13]),
    },
    "pools": {
        "MaxPool": unary("MaxPool", (2, 3, 7, 6), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
        "MaxPool batch": unary("MaxPool", (N, 3, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
        "MaxPool open": unary("MaxPool", (2, 2, "h", 4), kernel_shape=[2, 2], strides=[1, 2]),
        "MaxPool 1-D": unary("MaxPool", (2, 3, 9), kernel_shape=[3], strides=[2], ceil_mode=1),
        "AveragePool": unary("AveragePool", (2, 3, 7, 6), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
        "AveragePool pads": unary("AveragePool", (N, 2, 5, 5), kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
        "AveragePool same": unary(
            "AveragePool", (1, 2, 7, 5), kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
        "GlobalAveragePool": unary("GlobalAveragePool", (N, 3, 5, 4)),
        "GlobalAveragePool open": unary("GlobalAveragePool", (2, 3, "h", 4)),
        "GlobalMaxPool": unary("GlobalMaxPool", (2, 3, 5, 4)),
    },
    "normalisations": {
        "BatchNormalization": batch_norm((4, 3, 5, 2)),
        "BatchNormalization plain": batch_norm((N, 3)),
        "LayerNormalization": norm("LayerNormalization", (2, 5, 6), (6,)),
        "LayerNormalization batch": norm("LayerNormalization", (N, 5, 6), (5, 6), axis=1),
        "LayerNormalization no bias": norm("LayerNormalization", (3, 7), (7,), bias=False),
        "LayerNormalization broadcast": norm("LayerNormalization", (2, 5, 6), (1,)),
        "InstanceNormalization": norm("InstanceNormalization", (N, 3, 5, 4), (3,)),
        "GroupNormalization": norm("GroupNormalization", (N, 6, 5, 4), (6,), num_groups=2),
        "RMSNormalization": norm("RMSNormalization", (N, 5, 6), (6,), bias=False),
        "MeanVarianceNormalization": unary("MeanVarianceNormalization", (3, 2, 4, 5)),
        "LpNormalization": unary("LpNormalization", (3, 5), 0.3),
        "LpNormalization 1": unary("LpNormalization", (3, 4, 2), p=1, axis=1),
        "LRN": unary("LRN", (2, 6, 3, 4), size=4, alpha=0.3, bias=1.2),
    },
    "reductions": {
        **{f"{op} {axes}{'' if keep else ' dropped'}": with_ints(op, (2, 3, 4), axes, keepdims=keep)
           for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                      "ReduceLogSumExp", "ReduceProd")
           for axes, keep in (([-1], 0), ([0, 2], 1))},
        "ReduceSum everything": with_ints("ReduceSum", (2, 3), None, keepdims=0),
        "ReduceSum nothing": with_ints("ReduceSum", (2, 3), None, noop_with_empty_axes=1),
        "ReduceMean batch": with_ints("ReduceMean", (N, 3, 4), [0, 1], keepdims=0),
        "ReduceLogSum": lambda b: b("ReduceLogSum", b.input("x", (3, 4), 0.3), b.ints([1])),
        "CumSum": with_ints("CumSum", (3, 4, 2), 1, exclusive=1),
        "CumSum back": with_ints("CumSum", (3, 4), 0, reverse=1),
    },
    "movement": {
        "Reshape": with_ints("Reshape", (2, 3, 4), [4, -1]),
        "Reshape batch": with_ints("Reshape", (N, 3, 4), [-1, 12]),
        "Reshape computed": layers((N, 3, 4), 12),
        "Flatten": unary("Flatten", (N, 3, 4), axis=1),
        "Squeeze": with_ints("Squeeze", (N, 1, 4, 1), [1, 3]),
        "Unsqueeze": with_ints("Unsqueeze", (N, 4), [0, 2]),
        "Transpose": unary("Transpose", (2, 3, 4), perm=[2, 0, 1]),
        "Transpose back": unary("Transpose", (2, 3, 4)),
        "Expand": with_ints("Expand", (3, 1), [2, 3, 4]),
        "Concat": several("Concat", (2, 3), (2, 4), (2, 1), axis=1),
        "Concat batch": several("Concat", (N, 3), (2, 3), axis=0),
        "Split": split((5, 6), 1, 1, 2, 3),
        "Split unused": split((N, 6), 1, 1, 2, 3, used=1),
        "Slice": with_ints("Slice", (5, 6), [1, -3], [4, 6], [0, 1]),
        "Slice steps": with_ints("Slice", (5, 8), [4, 1], [-6, 7], [0, 1], [-2, 3]),
        "Slice batch": with_ints("Slice", (N, 6), [0, 2], [2, 100], [0, 1]),
        "Slice columns": with_ints("Slice", (N, 8), [7], [-9], [1], [-2]),
        "Pad": with_ints("Pad", (3, 4), [1, 0, 2, 3]),
        "Pad some": with_ints("Pad", (N, 4, 5), [1, 2], None, [2]),
        "Pad and crop": with_ints("Pad", (5, 4), [1, -1, -2, 2]),
        "Pad reflect": with_ints("Pad", (4, 5), [2, 1, 1, 3], mode="reflect"),
        "Pad edge": with_ints("Pad", (2, 3, 3), [0, 1, 2, 0, 2, 1], mode="edge"),
        "Tile": with_ints("Tile", (2, 3), [3, 2]),
        "Tile batch": with_ints("Tile", (N, 3), [2, 2]),
        "Trilu": with_ints("Trilu", (4, 5), 1, upper=0),
        "CenterCropPad": with_ints("CenterCropPad", (5, 4), [2, 7]),
        "CenterCropPad axes": with_ints("CenterCropPad", (N, 6, 3), [3, 4], axes=[1, 2]),
        "ReverseSequence": with_ints("ReverseSequence", (4, 3, 2), [1, 4, 2]),
        "DepthToSpace": unary("DepthToSpace", (N, 8, 3, 2), blocksize=2),
        "DepthToSpace CRD": unary("DepthToSpace", (2, 8, 3, 2), blocksize=2, mode="CRD"),
        "SpaceToDepth": unary("SpaceToDepth", (2, 2, 4, 6), blocksize=2),
    },
    "look-ups": {
        "Gather": with_ints("Gather", (6, 3), [[1, 5, 1], [0, 0, -1]]),
        "Gather inner": with_ints("Gather", (N, 5, 2), [3, 0, 3], axis=1),
        "Gather one": with_ints("Gather", (2, 5, 3), 4, axis=-2),
        "GatherElements": with_ints("GatherElements", (4, 3), [[0, 2, 2], [3, -1, 0]], axis=0),
        "GatherND": with_ints("GatherND", (4, 3, 2), [[0, 2], [3, 1], [0, 2]]),
        "TopK": lambda b: b("TopK", b.input("x", (4, 6)), b.ints([3]), axis=1, outputs=2)[0],
        "ScatterElements": lambda b: b(
            "ScatterElements", b.input("x", (4, 3)), b.ints([[0, 2, 1]]), b.input("u", (1, 3))),
        "ScatterElements add": lambda b: b("ScatterElements", b.input("x", (4, 3)), b.ints([[0, 2], [0, 1]]),
                                           b.input("u", (2, 2)), axis=1, reduction="add"),
        "ScatterND": lambda b: b("ScatterND", b.input("x", (4, 3)), b.ints([[1], [3]]), b.input("u", (2, 3))),
        "ScatterND add": lambda b: b("ScatterND", b.input("x", (4, 3)), b.ints([[1], [1]]), b.input("u", (2, 3)),
                                     reduction="add"),
    },
    "losses": {
        **{f"{op} {name}": cross_entropy(op, shape, weights=weights, **attrs)
           for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
           for name, shape, weights, attrs in (
               ("mean", (5, 4), False, {}),
               ("weights", (5, 4), True, {}),
               ("sum", (3, 4, 2), True, {"reduction": "sum"}),
               ("none", (3, 4, 2), False, {"reduction": "none"}),
               ("ignoring", (6, 3), False, {"ignore_index": 1}),
               ("ignoring, weights", (6, 3), True, {"ignore_index": 1}))},
        "SoftmaxCrossEntropyLoss both": both_results,
    },
    "LSTM": {
        "both ways": cell("LSTM", "bidirectional"),
        "back": cell("LSTM", "reverse", use=slice(1), batch=N),
        "last": cell("LSTM", use=slice(1, 3)),
        "starting": starting("LSTM"),
    },
    "GRU": {
        "both ways": cell("GRU", "bidirectional"),
        "back": cell("GRU", "reverse", use=slice(1), linear_before_reset=1),
        "last": cell("GRU", use=slice(1, 2), batch=N),
        "starting": starting("GRU"),
    },
    "attention": {
        "heads": attention((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2)),
        "flat": attention((N, 5, 12), (N, 6, 12), (N, 6, 12), q_num_heads=3, kv_num_heads=3),
        "grouped": attention((2, 4, 5, 4), (2, 2, 5, 4), (2, 2, 5, 3), is_causal=1),
        "mask": attention((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 2), mask=(5, 6), softcap=1.5, scale=0.7),
        "RotaryEmbedding": rotary((2, 3, 5, 4), (2, 5, 2), interleaved=1),
        "RotaryEmbedding flat": rotary((2, 5, 12), (2, 5, 1), num_heads=3, rotary_embedding_dim=2),
        "flags": attention((1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 2), mask=(1, 2, 5, 6), flags=True),
    },
    "resizing": {
        "nearest": resized("nearest", (N, 2, 3, 4), 1, 1, 2, 3),
        "linear": resized("linear", (2, 2, 5, 4), 1, 1, 2, 2),
        "linear down": resized("linear", (1, 2, 6, 8), 1, 1, 0.5, 0.5, coordinate_transformation_mode="asymmetric"),
        "cubic": resized("cubic", (1, 1, 4, 5), 1, 1, 2, 1),
    },
    "quantisers": {"pair": quantized},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    check(FAMILIES[family], opset=28 if family == "gated units" else 26)


def test_every_rule_has_its_case() -> None:
    """An operator stands at the beginning of a case's name, or gives its family's."""
    named = {case.split()[0] for family in FAMILIES.values() for case in family} | set(FAMILIES)
    elsewhere = {"Attention", "CastLike", "DequantizeLinear", "QuantizeLinear", "Resize", "Silu"}
    elsewhere |= {"MatMulNBits"}  # frontends/decoders/test_learning
    elsewhere |= {op for op in RULES if op.endswith("Grad")}  # test_second_order
    assert set(RULES) - named == elsewhere
