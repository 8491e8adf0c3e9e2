"""Attention between quantisers takes its heads joined; recurrent weights stay bytes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lite_runtime
from converter.lowering import lower
from lite_runtime import bundle
from lite_runtime.graph import Graph
from tests.converter.passes.qdq import Q, check, inputs_for, to_integers
from tests.converter.support import with_onnxruntime

N, LENGTH, HEADS, WIDTH = 2, 5, 3, 4
OPS = ("LSTM", "GRU")


def attention(b: Q, between: tuple[float, ...]) -> onnx.ModelProto:
    """Attention as exporters write it; quantisers of the given steps follow the product and the Transpose."""

    def head(name: str) -> str:
        split = b("Reshape", b.input(name, [N, LENGTH, HEADS * WIDTH]), b.const([N, LENGTH, HEADS, WIDTH], np.int64))
        return str(b("Transpose", split, perm=[0, 2, 1, 3]))

    scores = b("MatMul", head("q"), b("Transpose", head("k"), perm=[0, 1, 3, 2]))
    y = b("MatMul", b("Softmax", scores, axis=-1), head("v"))
    for i, scale in enumerate(between):
        if scale:
            y = b.dq(b.q(y, scale))
        y = b("Transpose", y, perm=[0, 2, 1, 3]) if i == 0 else y
    y = b("Reshape", y, b.const([N, LENGTH, HEADS * WIDTH], np.int64))
    return b.model(b.dq(b.q(y, max(between) or 0.02)))


@pytest.mark.parametrize("between", [(0.0, 0.0), (0.02, 0.0), (0.0, 0.02), (0.02, 0.02)])
def test_heads_are_joined_across_quantisers(between: tuple[float, ...]) -> None:
    graph = check(attention(Q(), between), step=0.02)
    assert [n.op for n in graph.nodes] == ["Attention", "QuantizeLinear", "DequantizeLinear"]


def test_quantisers_with_different_scales_stay() -> None:
    graph = check(attention(Q(), (0.02, 0.05)), step=0.05)
    assert "Transpose" in [n.op for n in graph.nodes]


def cell(b: Q, op: str, along: str, directions: int = 1, hidden: int = 12) -> onnx.ModelProto:
    """An LSTM or GRU whose R is int8 with one scale, a scale a gate's row, a block, or along its direction."""
    rows = (4 if op == "LSTM" else 3) * hidden
    q = b.const(b.rng.integers(-127, 128, (directions, rows, hidden)), np.int8)
    shape: tuple[int, ...]
    shape, attrs = {
        "one": ((), {}),
        "gates": ((rows,), {"axis": 1}),
        "blocks": ((directions, rows, 3), {"axis": 2, "block_size": 4}),
        "directions": ((directions,), {"axis": 0}),
    }[along]
    scale = b.const(b.rng.uniform(0.001, 0.006, shape).astype(np.float32))
    r = b("DequantizeLinear", q, scale, **attrs)
    w = b.weight(directions, rows, 6)
    direction = "bidirectional" if directions == 2 else "forward"
    count = 3 if op == "LSTM" else 2
    return b.model(*b(op, b.input("x", [7, 2, 6]), w, r, outputs=count, hidden_size=hidden, direction=direction))


def narrow(graph: Graph) -> bool:
    held = graph.constants.get(next(n for n in graph.nodes if n.op in OPS).inputs[2])
    return held is not None and held.dtype == np.int8


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("along", ["one", "gates", "blocks", "directions"])
def test_recurrent_weights_stay_bytes(op: str, along: str, directions: int) -> None:
    """h is rounded to 16 bits: far finer than the weights."""
    graph = check(cell(Q(), op, along, directions), step=1e-3, steps=0.3, rarely=1)
    assert narrow(graph)


def test_weights_with_zero_points_become_float() -> None:
    b = Q()
    model = cell(b, "LSTM", "gates")
    zero = onnx.numpy_helper.from_array(np.full(48, 3, np.int8), "zero")
    model.graph.initializer.append(zero)
    next(n for n in model.graph.node if n.op_type == "DequantizeLinear").input.append("zero")
    graph = check(model, step=1e-3, steps=0.3, rarely=1)
    assert not narrow(graph)


@pytest.mark.parametrize("op", OPS)
def test_byte_weights_run_natively_as_onnxruntime_has_it(op: str) -> None:
    model = cell(Q(), op, "blocks", 2)
    graph = lower(to_integers(model))
    given = inputs_for(graph)
    ours = lite_runtime.load(bundle.write(None, {"predict": graph})).run(given)
    for name, wanted in with_onnxruntime(model, given).items():
        np.testing.assert_allclose(ours[name], wanted, atol=3e-4)
