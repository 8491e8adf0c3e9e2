"""Small sound bundles a fuzzer starts from: the common kinds of model, and every kind of thing a bundle can hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lite_runtime import bundle
from lite_runtime.graph import Array, Graph, Node, Value

__all__ = ["SEEDS", "seed_bundles"]


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def _weights(**shapes: tuple[int, ...]) -> dict[str, Array]:
    rng = _rng()
    return {name: rng.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in shapes.items()}


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def conv_net() -> Graph:
    """Convolutions plain, grouped and channels-last, with pooling and a residual."""
    constants = _weights(w1=(4, 2, 3, 3), b1=(4,), w2=(4, 1, 3, 3), w3=(4, 4, 1, 1), w4=(3, 4), scale=(4,), bias=(4,))
    constants |= {"mean": np.zeros(4, np.float32), "var": np.ones(4, np.float32)}
    nodes = (
        Node(
            "Conv",
            ("x", "w1", "b1"),
            ("c1",),
            {"pads": (1, 1, 1, 1), "strides": (2, 2), "kernel_shape": (3, 3), "activation": "Relu"},
            "first",
        ),
        Node("Conv", ("c1", "w2"), ("c2",), {"pads": (1, 1, 1, 1), "group": 4, "dilations": (1, 1)}),
        Node(
            "Conv",
            ("c2", "w3", "", "c1"),
            ("c3",),
            {"activation": "Clip", "activation_min": 0.0, "activation_max": 6.0, "auto_pad": "NOTSET"},
        ),
        Node("BatchNormalization", ("c3", "scale", "bias", "mean", "var"), ("n",), {"epsilon": 1e-5}),
        Node("MaxPool", ("n",), ("p",), {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}),
        Node("AveragePool", ("p",), ("a",), {"kernel_shape": (2, 2), "pads": (0, 0, 1, 1), "count_include_pad": 1}),
        Node("GlobalAveragePool", ("a",), ("g",)),
        Node("Flatten", ("g",), ("f",), {"axis": 1}),
        Node("Gemm", ("f", "w4"), ("y",), {"transB": 1, "alpha": 0.5}),
    )
    return Graph(
        (Value("x", "float32", ("N", 2, 8, 8)),), (Value("y", "float32", ("N", 3)),), nodes, constants, "conv_net"
    )


def mlp() -> Graph:
    constants = _weights(w1=(6, 8), b1=(8,), w2=(8, 3), slope=(1,))
    nodes = (
        Node("MatMul", ("x", "w1", "b1"), ("h",), {"activation": "Gelu"}, "hidden"),
        Node("PRelu", ("h", "slope"), ("p",)),
        Node("MatMul", ("p", "w2"), ("o",)),
        Node("Softmax", ("o",), ("y",), {"axis": -1}),
        Node("ArgMax", ("y",), ("label",), {"axis": 1, "keepdims": 0}),
    )
    outputs = (Value("y", "float32", (2, 3)), Value("label", "int64", (2,)))
    return Graph((Value("x", "float32", (2, 6)),), outputs, nodes, constants, "mlp")


def lstm() -> Graph:
    constants = _weights(w=(2, 12, 4), r=(2, 12, 3), b=(2, 24), start=(2, 2, 3))
    attrs = {"hidden_size": 3, "direction": "bidirectional", "activations": ("Sigmoid", "Tanh", "Tanh") * 2}
    nodes = (
        Node("LSTM", ("x", "w", "r", "b", "", "start"), ("s", "", "last"), attrs),
        Node("Transpose", ("s",), ("y",), {"perm": (0, 2, 1, 3)}),
    )
    outputs = (Value("y", "float32", None), Value("last", "float32", (2, 2, 3)))
    return Graph((Value("x", "float32", ("T", 2, 4)),), outputs, nodes, constants, "lstm")


def transformer() -> Graph:
    """One block of self-attention written out, with its normalisations and feed-forward part."""
    constants = _weights(gain=(8,), shift=(8,), wq=(8, 8), wk=(8, 8), wv=(8, 8), wo=(8, 8), up=(8, 16), down=(16, 8))
    constants |= {"heads": _ints(0, 0, 2, 4), "flat": _ints(0, 0, 8), "root": np.array(0.5, np.float32)}
    nodes = [Node("LayerNormalization", ("x", "gain", "shift"), ("n",), {"axis": -1, "epsilon": 1e-5})]
    for c in "qkv":
        nodes += [
            Node("MatMul", ("n", f"w{c}"), (f"{c}0",)),
            Node("Reshape", (f"{c}0", "heads"), (f"{c}1",)),
            Node("Transpose", (f"{c}1",), (c,), {"perm": (0, 2, 3, 1) if c == "k" else (0, 2, 1, 3)}),
        ]
    nodes += [
        Node("MatMul", ("q", "k"), ("qk",)),
        Node("Mul", ("qk", "root"), ("scaled",)),
        Node("Softmax", ("scaled",), ("weights",), {"axis": -1}),
        Node("MatMul", ("weights", "v"), ("mixed",)),
        Node("Transpose", ("mixed",), ("together",), {"perm": (0, 2, 1, 3)}),
        Node("Reshape", ("together", "flat"), ("joined",), {"allowzero": 0}),
        Node("MatMul", ("joined", "wo", "", "x"), ("a",)),
        Node("MatMul", ("a", "up"), ("u",), {"activation": "Silu"}),
        Node("MatMul", ("u", "down"), ("d",)),
        Node("Add", ("a", "d"), ("y",)),
    ]
    value = ("N", 5, 8)
    return Graph(
        (Value("x", "float32", value),), (Value("y", "float32", value),), tuple(nodes), constants, "transformer"
    )


def control_flow() -> Graph:
    """A Loop that counts and stacks, and an If whose branches read names from around them."""
    flag, number = Value("go", "bool", ()), Value("i", "int64", ())
    body = Graph(
        (number, flag, Value("state", "float32", (3,))),
        (Value("keep", "bool", ()), Value("next", "float32", (3,)), Value("seen", "float32", (3,))),
        (
            Node("Add", ("state", "step"), ("next",)),
            Node("Identity", ("next",), ("seen",)),
            Node("Identity", ("go",), ("keep",)),
        ),
        {},
        "body",
    )
    then = Graph((), (Value("t", "float32", (3,)),), (Node("Neg", ("final",), ("t",)),), {}, "then")
    other = Graph((), (Value("o", "float32", (3,)),), (Node("Mul", ("final", "two"), ("o",)),), _two(), "else")
    nodes = (
        Node("Loop", ("count", "true", "x"), ("final", "all"), {"body": body}),
        Node("ReduceSum", ("final",), ("sum",), {"keepdims": 0}),
        Node("Greater", ("sum", "zero"), ("positive",)),
        Node("If", ("positive",), ("y",), {"then_branch": then, "else_branch": other}),
    )
    constants = {
        "count": np.array(3, np.int64),
        "true": np.array(True),
        "zero": np.array(0, np.float32),
        "step": np.ones(3, np.float32),
    }
    outputs = (Value("y", "float32", (3,)), Value("all", "float32", (3, 3)))
    return Graph((Value("x", "float32", (3,)),), outputs, nodes, constants, "control_flow")


def _two() -> dict[str, Array]:
    return {"two": np.full(3, 2, np.float32)}


def indexing() -> Graph:
    """Operators that follow indices found in tensors."""
    constants = _weights(table=(7, 4), updates=(2, 4))
    constants |= {
        "rows": _ints(1, 5),
        "starts": _ints(0, 1),
        "ends": _ints(3, 4),
        "axes": _ints(0, 1),
        "pads": _ints(1, 0, 0, 1),
        "k": _ints(2),
        "where": np.array([[0, 1], [2, 3]], np.int64),
        "scales": np.array([1, 2], np.float32),
        "split": _ints(1, 1),
        "depth": np.array(5, np.int64),
        "values": np.array([0, 1], np.float32),
        "repeats": _ints(2, 1),
    }
    nodes = (
        Node("Gather", ("table", "ids"), ("g",), {"axis": 0}),
        Node("ScatterElements", ("g", "cells", "cell_values"), ("s",), {"axis": 0, "reduction": "add"}),
        Node("ScatterND", ("table", "rows_2d", "updates"), ("nd",)),
        Node("GatherND", ("nd", "where"), ("gnd",), {"batch_dims": 0}),
        Node("Slice", ("nd", "starts", "ends", "axes"), ("sl",)),
        Node("Pad", ("sl", "pads"), ("padded",), {"mode": "constant"}),
        Node("TopK", ("padded", "k"), ("top", "place"), {"axis": -1}),
        Node("Resize", ("padded", "", "scales"), ("resized",), {"mode": "linear"}),
        Node("Tile", ("top", "repeats"), ("tiled",)),
        Node("OneHot", ("ids", "depth", "values"), ("hot",), {"axis": -1}),
        Node("NonZero", ("padded",), ("nz",)),
        Node("Concat", ("top", "top"), ("joined",), {"axis": 0}),
        Node("Split", ("hot", "split"), ("a", "b"), {"axis": 0}),
        Node("CumSum", ("joined", "axis"), ("y",)),
        Node("Cast", ("y",), ("half",), {"to": 10}),
    )
    constants |= {
        "rows_2d": np.array([[0], [6]], np.int64),
        "cells": np.array([[0, 1], [1, 0]], np.int64),
        "cell_values": np.ones((2, 2), np.float32),
        "axis": np.array(0, np.int64),
    }
    names = ("s", "gnd", "resized", "tiled", "nz", "a", "half")
    types = ("float32", "float32", "float32", "float32", "int64", "float32", "float16")
    outputs = tuple(Value(name, dtype, None) for name, dtype in zip(names, types, strict=True))
    return Graph((Value("ids", "int64", (2,)),), outputs, nodes, constants, "indexing")


def quantised() -> Graph:
    constants = {
        "s": np.array(0.05, np.float32),
        "z": np.array(128, np.uint8),
        "w": _rng().integers(-9, 9, (4, 3)).astype(np.int8),
        "ws": np.full(3, 0.1, np.float32),
        "wz": np.zeros(3, np.int8),
    }
    nodes = (
        Node("QuantizeLinear", ("x", "s", "z"), ("q",)),
        Node("MatMulInteger", ("q", "w", "z"), ("i",)),
        Node("DequantizeLinear", ("w", "ws", "wz"), ("dw",), {"axis": 1}),
        Node("DequantizeLinear", ("q", "s", "z"), ("dx",)),
        Node("MatMul", ("dx", "dw"), ("y",)),
    )
    outputs = (Value("y", "float32", (2, 3)), Value("i", "int32", (2, 3)))
    return Graph((Value("x", "float32", (2, 4)),), outputs, nodes, constants, "quantised")


def strings() -> Graph:
    """Text, attribute arrays, and numbers JSON does not have."""
    constants = {"bread": np.array([["", "ß"], ["brot", "パン"]], object), "none": np.zeros((0, 4), np.float32)}
    nodes = (
        Node("StringConcat", ("x", "bread"), ("y",)),
        Node("ConstantOfShape", ("size",), ("filled",), {"value": np.array([2.5], np.float32)}),
        Node("Equal", ("y", "bread"), ("same",)),
        Node("Concat", ("none", "none"), ("empty",), {"axis": 0}),
        Node("LeakyRelu", ("filled",), ("inf",), {"alpha": float("inf")}),
    )
    outputs = (
        Value("same", "bool", (2, 2)),
        Value("y", "string", (2, 2)),
        Value("inf", "float32", None),
        Value("empty", "float32", (0, 4)),
    )
    constants["size"] = _ints(2, 3)
    return Graph((Value("x", "string", (2, 2)),), outputs, nodes, constants, "strings")


SEEDS: tuple[Callable[[], Graph], ...] = (
    conv_net,
    mlp,
    lstm,
    transformer,
    control_flow,
    indexing,
    quantised,
    strings,
)


def seed_bundles() -> list[bytes]:
    """A bundle for each of `SEEDS`, and one with two signatures, golden arrays, metadata and a section unknown here."""
    made = [bundle.write(None, {"predict": graph()}) for graph in SEEDS]
    golden = {"predict": ({"x": np.ones((2, 6), np.float32)}, {"label": np.zeros(2, np.int64)})}
    signatures = {"predict": mlp(), "evaluate": mlp()}
    metadata = {"labels": ["a", "b"], "mean": [0.5, 1e-3], "nested": {"deep": [None, True]}}
    extra = {"packed/none": b"not for us"}
    return [*made, bundle.write(None, signatures, metadata=metadata, golden=golden, extra=extra)]
