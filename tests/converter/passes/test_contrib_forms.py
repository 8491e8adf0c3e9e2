"""Forms of onnxruntime's operators beyond `test_contrib`: caches, packed operands, weights of few bits, odd shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lite_runtime
from converter import convert
from converter.pass_lists import to_ir
from tests.oracles import session

RNG = np.random.default_rng(1)
B, S, N, D = 2, 3, 4, 16
H = N * D


def f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def i(values: Any, dtype: Any = np.int32) -> np.ndarray:
    return np.asarray(values, dtype)


def u8(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


def narrow(*shape: int) -> np.ndarray:
    """Weights whose products onnxruntime does not saturate on any processor."""
    return RNG.integers(-63, 64, shape).astype(np.int8)


def scales(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.03, shape).astype(np.float32)


ANGLES = np.outer(np.arange(16), 1 / 5.0 ** np.arange(D // 2))
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)
MASK = i([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
FULL = i(RNG.integers(0, 2, (B, S, S)) | np.eye(S, dtype=np.int64))
GQA: dict[str, Any] = {"num_heads": N, "kv_num_heads": 2}
KV = 2 * D
Case = tuple[str, list[np.ndarray | None], dict[str, Any], str]
"""Operator, operands, attributes, and a letter for each result: "y", or "-" if only its type is defined."""

CASES: dict[str, Case] = {
    "Attention, past": (
        "Attention", [f(B, S, H), f(H, 3 * H), f(3 * H), None, f(2, B, N, 2, D)], {"num_heads": N}, "yy",
    ),
    "Attention, past, causal, flags": (
        "Attention", [f(B, S, H), f(H, 3 * H), f(3 * H), MASK, f(2, B, N, 2, D)], {"num_heads": N, "unidirectional": 1},
        "yy",
    ),
    "Attention, flags of each query": (
        "Attention", [f(B, S, H), f(H, 3 * H), f(3 * H), FULL], {"num_heads": N}, "y",
    ),
    "Attention, bias of scores": (
        "Attention", [f(B, S, H), f(H, 3 * H), f(3 * H), None, None, f(1, N, S, S)], {"num_heads": N}, "y",
    ),
    "MultiHeadAttention, past": (
        "MultiHeadAttention",
        [f(B, S, H), f(B, S, H), f(B, S, H), None, None, None, f(B, N, 2, D), f(B, N, 2, D)], {"num_heads": N}, "yyy",
    ),
    "MultiHeadAttention, present": (
        "MultiHeadAttention", [f(B, S, H), f(B, S, H), f(B, S, H), f(3 * H)], {"num_heads": N}, "yyy",
    ),
    "MultiHeadAttention, heads apart": (
        "MultiHeadAttention", [f(B, S, H), f(B, N, 5, D), f(B, N, 5, D), None, MASK], {"num_heads": N}, "y",
    ),
    "MultiHeadAttention, flags and bias": (
        "MultiHeadAttention", [f(B, S, H), f(B, 5, H), f(B, 5, H), None, MASK, f(B, N, S, 5)], {"num_heads": N}, "y",
    ),
    "GroupQueryAttention, prompt": (
        "GroupQueryAttention", [f(B, S, H), f(B, S, KV), f(B, S, KV), None, None, i([S - 1] * B), i(S)], GQA, "yyy",
    ),
    "GroupQueryAttention, packed, rotary": (
        "GroupQueryAttention",
        [f(B, S, H + 2 * KV), None, None, f(B, 2, 0, D), f(B, 2, 0, D), i([S - 1] * B), i(S), COS, SIN],
        {**GQA, "do_rotary": 1}, "yyy",
    ),
    "GroupQueryAttention, next": (
        "GroupQueryAttention",
        [f(B, 1, H), f(B, 1, KV), f(B, 1, KV), f(B, 2, 6, D), f(B, 2, 6, D), i([6, 6]), i(7), COS, SIN],
        {**GQA, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.2}, "yyy",
    ),
    "GroupQueryAttention, lengths differ": (
        "GroupQueryAttention",
        [f(B, 1, H), f(B, 1, KV), f(B, 1, KV), f(B, 2, 9, D), f(B, 2, 9, D), i([4, 8]), i(9), COS, SIN],
        {**GQA, "do_rotary": 1}, "y--",
    ),
    "GroupQueryAttention, window, softcap": (
        "GroupQueryAttention",
        [f(B, 7, H), f(B, 7, KV), f(B, 7, KV), f(B, 2, 0, D), f(B, 2, 0, D), i([6] * B), i(7)],
        {**GQA, "local_window_size": 3, "softcap": 2.0}, "yyy",
    ),
    "GroupQueryAttention, several behind a cache": (
        "GroupQueryAttention",
        [f(1, 4, H), f(1, 4, KV), f(1, 4, KV), f(1, 2, 5, D), f(1, 2, 5, D), i([8]), i(9), COS, SIN],
        {**GQA, "do_rotary": 1}, "yyy",
    ),
    "GroupQueryAttention, bias": (
        "GroupQueryAttention",
        [f(B, S, H), f(B, S, KV), f(B, S, KV), None, None, i([S - 1] * B), i(S), None, None, None, f(1, N, S, S)],
        GQA, "y",
    ),
    "QAttention": (
        "QAttention",
        [u8(B, S, H), narrow(H, 3 * H), f(3 * H), i(0.02, np.float32),
         scales(3 * H), None, i(120, np.uint8), np.zeros(3 * H, np.int8)],
        {"num_heads": N}, "y",
    ),
    "QAttention, causal, past": (
        "QAttention",
        [u8(B, S, H), narrow(H, 3 * H), f(3 * H), i(0.02, np.float32), i(0.01, np.float32), MASK, i(120, np.uint8),
         i(3, np.int8), f(2, B, N, 2, D)],
        {"num_heads": N, "unidirectional": 1}, "yy",
    ),
    "RotaryEmbedding, first position": ("RotaryEmbedding", [f(B, N, S, D), i([4], np.int64), COS, SIN], {}, "y"),
    "RotaryEmbedding, rank 3": (
        "RotaryEmbedding", [f(B, S, H), i([4], np.int64), COS, SIN], {"num_heads": N, "interleaved": 1}, "y",
    ),
    "FusedMatMul, batch": ("FusedMatMul", [f(3, 4, 5), f(4, 5, 6)], {"transBatchA": 1}, "y"),
    "FusedMatMul, batch and matrix": ("FusedMatMul", [f(3, 4, 5), f(4, 3, 6)], {"transBatchA": 1, "transA": 1}, "y"),
    "MatMulNBits, 2": (
        "MatMulNBits", [f(5, 40), u8(3, 3, 4), scales(9)], {"K": 40, "N": 3, "bits": 2, "block_size": 16}, "y",
    ),
    "MatMulNBits, 2, zeros": (
        "MatMulNBits", [f(5, 40), u8(3, 3, 4), scales(9), u8(3)], {"K": 40, "N": 3, "bits": 2, "block_size": 16}, "y",
    ),
    "MatMulNBits, 4, real zeros": (
        "MatMulNBits", [f(2, 5, 40), u8(3, 3, 8), scales(9), 8 + f(9)],
        {"K": 40, "N": 3, "bits": 4, "block_size": 16}, "y",
    ),
    "MatMulNBits, 4, real zeros, whole blocks": (
        "MatMulNBits", [f(2, 5, 32), u8(3, 2, 8), scales(6), 8 + f(6)], {"K": 32, "N": 3, "bits": 4, "block_size": 16},
        "y",
    ),
    "MatMulNBits, 4, groups": (
        "MatMulNBits",
        [f(5, 48), u8(3, 3, 8), scales(9), None, i(RNG.permutation(np.repeat(np.arange(3), 16)))],
        {"K": 48, "N": 3, "bits": 4, "block_size": 16}, "y",
    ),
    "MatMulNBits, 8, bias, accuracy": (
        "MatMulNBits", [f(5, 64), u8(3, 2, 32), scales(6), None, None, f(3)],
        {"K": 64, "N": 3, "bits": 8, "block_size": 32}, "y",
    ),
    "GatherBlockQuantized, 4": (
        "GatherBlockQuantized", [i([[1, 0], [6, 3]], np.int64), u8(7, 16), scales(7, 2)],
        {"bits": 4, "block_size": 16}, "y",
    ),
    "GatherBlockQuantized, 4, zeros": (
        "GatherBlockQuantized", [i([1, 0, 6]), u8(7, 20), scales(7, 3), u8(7, 2)], {"bits": 4, "block_size": 16}, "y",
    ),
    "GatherBlockQuantized, 8": (
        "GatherBlockQuantized", [i([1, 0, 6]), u8(7, 32), scales(7, 2), u8(7, 2)], {"bits": 8, "block_size": 16}, "y",
    ),
    "MatMulBnb4, NF4": (
        "MatMulBnb4", [f(5, 64), u8(96), scales(12)], {"K": 64, "N": 3, "block_size": 16, "quant_type": 1}, "y",
    ),
    "MatMulBnb4, FP4": (
        "MatMulBnb4", [f(5, 64), u8(96), scales(12)], {"K": 64, "N": 3, "block_size": 16, "quant_type": 0}, "y",
    ),
    "NhwcMaxPool": (
        "NhwcMaxPool", [u8(1, 7, 9, 3)], {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, "y",
    ),
    "QEmbedLayerNormalization": (
        "QEmbedLayerNormalization",
        [i([[1, 2, 3]]), i([[0, 1, 1]]), u8(7, H), u8(5, H), u8(2, H), u8(H), u8(H), i([[1, 1, 0]]),
         *(i(s, np.float32) for s in (0.01, 0.02, 0.03, 0.04, 0.05)), *(i(z, np.uint8) for z in (128, 3, 99, 0, 200))],
        {"epsilon": 1e-6}, "yy",
    ),
    "CDist": ("CDist", [f(5, 4), f(3, 4)], {"metric": "euclidean"}, "y"),
    "ExpandDims": ("ExpandDims", [f(5, 4), i(-1)], {}, "y"),
    "Trilu": ("Trilu", [f(5, 4), i(1, np.int64)], {"upper": 0}, "y"),
    "GatherND": ("GatherND", [f(5, 4), i([[1, 2], [0, 3]], np.int64)], {}, "y"),
    "GridSample": (
        "GridSample", [f(1, 2, 5, 6), np.tanh(f(1, 3, 4, 2))], {"mode": "bilinear", "padding_mode": "border"}, "y",
    ),
    "Pad": ("Pad", [f(2, 3), i([0, 1, 2, 0], np.int64), i(0.5, np.float32)], {"mode": "constant"}, "y"),
    "Range": ("Range", [i(1.0, np.float32), i(4.0, np.float32), i(0.5, np.float32)], {}, "y"),
    "UnfoldTensor": ("UnfoldTensor", [f(2, 9, 3)], {"dim": 1, "size": 4, "step": 2}, "y"),
    "Unique": ("Unique", [i([3, 1, 3, 2, 1, 1], np.float32)], {}, "yyy"),
    "ConvTransposeWithDynamicPads": (
        "ConvTransposeWithDynamicPads", [f(1, 3, 5, 5), f(3, 2, 3, 3), i([1, 0, 1, 0], np.int64), f(2)],
        {"strides": [2, 2], "kernel_shape": [3, 3]}, "y",
    ),
    "MatMulInteger16": (
        "MatMulInteger16", [i(RNG.integers(-900, 900, (3, 4)), np.int16), i(RNG.integers(-900, 900, (4, 2)), np.int16)],
        {}, "y",
    ),
    "ScaledSiLU": ("ScaledSiLU", [f(3, 4)], {"alpha": 1.5}, "y"),
}  # fmt: skip
WEIGHTS: dict[str, tuple[int, ...]] = {
    "MatMulNBits": (1, 2, 3, 4, 5),
    "MatMulBnb4": (1, 2),
    "GatherBlockQuantized": (1, 2, 3),
    "QAttention": (1, 2, 4, 7),
    "QEmbedLayerNormalization": tuple(range(2, 7)) + tuple(range(8, 18)),
    "GroupQueryAttention": (7, 8),
    "ExpandDims": (1,),
    "ConvTransposeWithDynamicPads": (1, 2, 3),
    "Attention": (1, 2),
}
"""Operands that are constants."""


def model(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    op, given, attrs, outputs = case
    operands = [*given]
    if op == "GatherBlockQuantized":  # the cases have indices first
        operands[:2] = operands[1::-1]
        constant: tuple[int, ...] = (0, 2, 3)
    else:
        constant = WEIGHTS.get(op, ())
    names = ["" if x is None else f"x{k}" for k, x in enumerate(operands)]
    feeds, inputs, weights = {}, [], []
    for k, (name, x) in enumerate(zip(names, operands, strict=True)):
        if x is None:
            continue
        if k in constant:
            weights.append(numpy_helper.from_array(x, name))
        else:
            inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape))
            feeds[name] = x
    results = [f"y{k}" for k in range(len(outputs))]
    node = helper.make_node(op, names, results, name="the_node", domain="com.microsoft", **attrs)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=n) for n in results], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str) -> None:
    proto, feeds = model(CASES[name])
    oracle = session(proto)
    for output, found in zip(proto.graph.output, oracle.get_outputs(), strict=True):  # types of results, for lowering
        kind = {"tensor(float)": 1, "tensor(int32)": 6, "tensor(int64)": 7, "tensor(uint8)": 2}[found.type]
        output.CopyFrom(helper.make_tensor_value_info(output.name, kind, None))
    wanted = oracle.run(None, feeds)
    got = lite_runtime.load(convert(proto).bundle).run(feeds)
    for output, want, letter in zip(proto.graph.output, wanted, CASES[name][3], strict=True):
        assert got[output.name].shape == want.shape and got[output.name].dtype == want.dtype
        if letter == "y":
            np.testing.assert_allclose(got[output.name], want, rtol=1e-4, atol=3e-5)


def test_weights_of_few_bits_stay_few() -> None:
    """4-bit weights are 4 bits in the bundle too, also behind a permutation of rows and with real zero points."""
    rows, depth = 64, 512
    given = [f(1, depth), u8(rows, depth // 32, 16), scales(rows * depth // 32), 8 + f(rows * depth // 32)]
    attrs = {"K": depth, "N": rows, "bits": 4, "block_size": 32}
    assert len(convert(model(("MatMulNBits", given, attrs, "y"))[0]).bundle) < 2 * rows * depth // 2
    given = [i([1, 2]), u8(rows, depth // 2), scales(rows, depth // 32)]
    proto = model(("GatherBlockQuantized", given, {"bits": 4, "block_size": 32}, "y"))[0]
    assert len(convert(proto).bundle) < 2 * rows * depth // 2


OPEN = {(1, "x0"), (1, "x1"), (1, "x2"), (2, "x3"), (2, "x4")}


def test_open_sizes() -> None:
    """Batch, new and earlier keys may be open, as in exported language models."""
    given = [f(B, 1, H), f(B, 1, KV), f(B, 1, KV), f(B, 2, 6, D), f(B, 2, 6, D), i([6, 6]), i(7), COS, SIN]
    proto, feeds = model(("GroupQueryAttention", given, {**GQA, "do_rotary": 1}, "yyy"))
    for value in proto.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 or (axis, value.name) in OPEN:
                dim.dim_param = {0: "batch", 1: "new", 2: "past"}[axis]
    for output in proto.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, None))
    found = lite_runtime.load(convert(proto).bundle)
    for past, new, total in ((6, 1, 7), (0, 4, 4), (3, 1, 4)):
        feeds = {"x0": f(1, new, H), "x1": f(1, new, KV), "x2": f(1, new, KV), "x3": f(1, 2, past, D),
                 "x4": f(1, 2, past, D), "x5": i([total - 1]), "x6": i(total)}  # fmt: skip
        wanted = session(proto).run(None, feeds)
        got = found.run(feeds)
        for name, want in zip(("y0", "y1", "y2"), wanted, strict=True):
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=3e-5)


def lstm(
    directions: int, per_column: bool, dtype: Any, **more: Any
) -> tuple[onnx.ModelProto, onnx.ModelProto, dict[str, np.ndarray]]:
    """DynamicQuantizeLSTM, and ONNX's LSTM with the same weights as floats."""
    depth, hidden = 6, 5
    middle = 0 if dtype == np.int8 else 128
    q = [(narrow(directions, k, 4 * hidden).astype(np.int32) + middle).astype(dtype) for k in (depth, hidden)]
    steps = [scales(directions, 4 * hidden) / 4 if per_column else scales(directions) / 4 for _ in q]
    zeros = [np.full(s.shape, middle, dtype) for s in steps]
    real = []
    for values, step, zero in zip(q, steps, zeros, strict=True):
        spread = [v.reshape(directions, 1, -1).astype(np.float32) for v in (step, zero)]
        real.append(((values - spread[1]) * spread[0]).transpose(0, 2, 1).astype(np.float32))
    bias = f(directions, 8 * hidden)
    x = f(4, 2, depth)
    attrs = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward", **more}
    outputs = [helper.make_tensor_value_info(n, 1, None) for n in ("y", "h", "c")]
    inputs = [helper.make_tensor_value_info("x", 1, x.shape)]
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]

    def made(op: str, names: list[str], weights: dict[str, np.ndarray], domain: str) -> onnx.ModelProto:
        node = helper.make_node(op, names, ["y", "h", "c"], domain=domain, **attrs)
        constants = [numpy_helper.from_array(v, n) for n, v in weights.items()]
        graph = helper.make_graph([node], "g", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    parts = [q[0], q[1], bias, steps[0], zeros[0], steps[1], zeros[1]]
    weights = dict(zip([n for n in names[1:] if n], parts, strict=True))
    quantised = made("DynamicQuantizeLSTM", names, weights, "com.microsoft")
    plain = made("LSTM", ["x", "w", "r", "b"], {"w": real[0], "r": real[1], "b": bias}, "")
    return quantised, plain, {"x": x}


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_dynamic_lstm(directions: int, per_column: bool, dtype: Any) -> None:
    """Inputs and states are rounded to 8 bits as onnxruntime rounds them, natively."""
    quantised, _, feeds = lstm(directions, per_column, dtype)
    made = convert(quantised)
    got = lite_runtime.load(made.bundle).run(feeds)
    for name, want in zip(("y", "h", "c"), session(quantised).run(None, feeds), strict=True):
        np.testing.assert_allclose(got[name], want, atol=3e-6)
    assert "LSTM" not in made.report.ops_after and not made.report.reference_ops


@pytest.mark.parametrize("batch", ["n", 2])
def test_dynamic_lstm_with_states(batch: Any) -> None:
    """From right to left, with initial states, over any number of sequences, with a result that nobody reads."""
    quantised, _, feeds = lstm(1, False, np.int8, direction="reverse")
    node = quantised.graph.node[0]
    node.input[5], node.input[6] = "h0", "c0"
    for name in ("h0", "c0"):
        quantised.graph.input.append(helper.make_tensor_value_info(name, 1, [1, batch, 5]))
        feeds[name] = f(1, 2, 5) / 2
    if batch == "n":
        quantised.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    node.output[1] = ""
    del quantised.graph.output[1]
    found = lite_runtime.load(convert(quantised).bundle)
    for name, want in zip(("y", "c"), session(quantised).run(None, feeds), strict=True):
        np.testing.assert_allclose(found.run(feeds)[name], want, atol=3e-6)
    assert not found.cost(feeds).reference


@pytest.mark.parametrize("form", [{"clip": 0.4}, {"activations": ["Sigmoid", "Relu", "Tanh"]}])
def test_dynamic_lstm_of_other_forms(form: dict[str, Any]) -> None:
    """As the LSTM with these weights, without the rounding of states, which makes a small difference."""
    quantised, plain, feeds = lstm(1, False, np.int8, **form)
    got = lite_runtime.load(convert(quantised).bundle).run(feeds)
    results = zip(("y", "h", "c"), *(session(m).run(None, feeds) for m in (plain, quantised)), strict=True)
    for name, want, near in results:
        np.testing.assert_allclose(got[name], want, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(got[name], near, atol=0.1)


def test_forms_without_an_equivalent_stay() -> None:
    """A sink of attention, a quantised cache, a metric without a rule."""
    last: list[np.ndarray | None] = [i([S - 1] * B), i(S)]
    given = [f(B, S, H), f(B, S, KV), f(B, S, KV), None, None, *last]
    cases = [
        ("GroupQueryAttention", [*given, None, None, None, None, f(N)], GQA, "y"),
        ("GroupQueryAttention", given, {**GQA, "smooth_softmax": 1}, "y"),
        ("CDist", [f(5, 4), f(3, 4)], {"metric": "cosine"}, "y"),
    ]
    for case in cases:
        assert [n.op_type for n in to_ir(model(case)[0]).graph if n.domain == "com.microsoft"] == [case[0]]
