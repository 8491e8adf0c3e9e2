"""Sound model files to damage: built ones, those that tests and ONNX's node cases build, small files of a folder."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor
from tests.converter.frontends.tflite.test_ops_refusals import IMAGES, REFUSED
from tests.converter.test_random_graphs import network
from tests.fuzz.converting import gguf_seeds
from tests.fuzz.converting.ort_files import canonical, saved

__all__ = ["FORMATS", "few", "many"]

FORMATS = ("gguf", "onnx", "ort", "tflite")
LARGEST = 100_000
"""Bytes of a file of a folder that is used: larger ones take too long."""


_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED")
"""Optimisations of ONNX Runtime that are the same on every processor."""


def few(form: str) -> list[bytes]:
    """Some seeds, built in a moment."""
    if form == "gguf":
        return list(gguf_seeds.files())
    if form == "tflite":
        return [builder.build() for builder in _tflite_models()]
    models = [model.SerializeToString() for model in _onnx_models()]
    return models if form == "onnx" else [canonical(saved(m, level)) for level in _LEVELS for m in models]


def many(form: str, folders: Sequence[Path] = ()) -> list[bytes]:
    """All seeds, in an order that depends on nothing but the installed packages and the folders' files."""
    recorded = {"gguf": list, "onnx": _node_cases, "ort": _saved_cases, "tflite": _built_by_tests}[form]()
    suffix = f".{form}"
    files = sorted(p for folder in folders for p in folder.rglob(f"*{suffix}") if p.stat().st_size <= LARGEST)
    return list(dict.fromkeys([*few(form), *recorded, *(p.read_bytes() for p in files)]))


# ---------------------------------------------------------------------------------------------------------------- ONNX


def _onnx_models() -> Iterator[onnx.ModelProto]:
    yield from (network(seed) for seed in range(8))
    yield _quantised()
    yield _nested()
    yield _recurrent()
    yield _with_function()
    yield _shapes()


def _model(nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], **more: Any) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(np.asarray(v), name) for name, v in more.pop("constants", {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", more.pop("opset", 21)), *more.pop("opsets", ())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)


def _info(name: str, *shape: Any, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _some(*shape: int, dtype: str = "float32") -> np.ndarray:
    made = np.random.default_rng(5).standard_normal(shape)
    return (made * (40 if dtype != "float32" else 0.5)).astype(dtype)


def _quantised() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        n("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        n("DequantizeLinear", ["w", "ws", "wz"], ["wd"], "weights", axis=0),
        n("Conv", ["d", "wd", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        n("Relu", ["c"], ["r"], "relu"),
        n("QuantizeLinear", ["r", "s", "z"], ["rq"], "quantize 2"),
        n("DequantizeLinear", ["rq", "s", "z"], ["rd"], "dequantize 2"),
        n("GlobalAveragePool", ["rd"], ["p"], "pool"),
        n("Flatten", ["p"], ["f"], "flatten"),
        n("QLinearMatMul", ["fq", "s", "z", "m", "s", "z", "s", "z"], ["y"], "product"),
        n("QuantizeLinear", ["f", "s", "z"], ["fq"], "quantize 3"),
    ]
    nodes[-1], nodes[-2] = nodes[-2], nodes[-1]
    constants = {
        "s": np.float32(0.05), "z": np.int8(3), "w": _some(4, 2, 3, 3, dtype="int8"),
        "ws": np.full(4, 0.02, np.float32), "wz": np.zeros(4, np.int8), "b": _some(4), "m": _some(4, 3, dtype="int8"),
    }  # fmt: skip
    return _model(nodes, [_info("x", "N", 2, 6, 5)], [_info("y", "N", 3, dtype=TensorProto.INT8)], constants=constants)


def _nested() -> onnx.ModelProto:
    n = helper.make_node
    less = helper.make_graph([n("Mul", ["x", "two"], ["a"], "double")], "then", [], [_info("a", 2, 3)])
    more = helper.make_graph([n("Neg", ["x"], ["b"], "negate")], "else", [], [_info("b", 2, 3)])
    body = helper.make_graph(
        [n("Add", ["carried", "x"], ["next"], "add"), n("Identity", ["go"], ["go on"], "id")],
        "body",
        [_info("i", dtype=TensorProto.INT64), _info("go", dtype=TensorProto.BOOL), _info("carried", 2, 3)],
        [_info("go on", dtype=TensorProto.BOOL), _info("next", 2, 3)],
    )
    step = helper.make_graph(
        [n("Add", ["sum in", "row"], ["sum out"], "sum"), n("Identity", ["sum out"], ["each"], "copy")],
        "step", [_info("sum in", 3), _info("row", 3)], [_info("sum out", 3), _info("each", 3)],
    )  # fmt: skip
    nodes = [
        n("ReduceSum", ["x"], ["total"], "total", keepdims=0),
        n("Greater", ["total", "two"], ["large"], "compare"),
        n("If", ["large"], ["y"], "choose", then_branch=less, else_branch=more),
        n("Loop", ["count", "", "y"], ["z"], "repeat", body=body),
        n("Scan", ["first", "z"], ["last", "all"], "scan", body=step, num_scan_inputs=1),
    ]
    constants = {"two": np.float32(2), "count": np.int64(3), "first": np.zeros(3, np.float32)}
    return _model(nodes, [_info("x", 2, 3)], [_info("last", 3), _info("all", 2, 3)], constants=constants)


def _recurrent() -> onnx.ModelProto:
    n = helper.make_node
    nodes = [
        n("Gather", ["table", "ids"], ["e"], "embed"),
        n("LSTM", ["e", "w", "r", "b"], ["h"], "lstm", hidden_size=3, direction="bidirectional"),
        n("Squeeze", ["last", "axis"], ["s"], "squeeze"),
        n("Slice", ["h", "start", "end"], ["last"], "slice"),
        n("ReduceMean", ["s", "axis"], ["m"], "mean", keepdims=0),
        n("Softmax", ["m"], ["y"], "softmax", axis=-1),
    ]
    nodes[2], nodes[3] = nodes[3], nodes[2]
    constants = {
        "table": _some(7, 4), "w": _some(2, 12, 4), "r": _some(2, 12, 3), "b": _some(2, 24), "start": np.int64([0]),
        "end": np.int64([1]), "axis": np.int64([0]),
    }  # fmt: skip
    inputs = [_info("ids", "T", "N", dtype=TensorProto.INT64)]
    return _model(nodes, inputs, [_info("y", None, None)], constants=constants)


def _with_function() -> onnx.ModelProto:
    n = helper.make_node
    scaled = n("Mul", ["half", "factor"], ["out"], "scale")
    half = n("Elu", ["in"], ["half"], "elu")
    half.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT))
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("local", "Scaled", ["in", "factor"], ["out"], [half, scaled], opsets, ["alpha"])
    nodes = [
        n("Scaled", ["x", "f"], ["a"], "first", domain="local", alpha=0.5),
        n("Scaled", ["a", "f"], ["y"], "second", domain="local", alpha=1.5),
        n("LabelEncoder", ["y"], ["t"], "labels", domain="ai.onnx.ml", keys_floats=[0.0], values_strings=["zero"]),
    ]
    return _model(
        nodes, [_info("x", "N", 3)], [_info("y", "N", 3), _info("t", "N", 3, dtype=TensorProto.STRING)],
        constants={"f": np.float32(2)}, functions=[function],
        opsets=[helper.make_opsetid("local", 1), helper.make_opsetid("ai.onnx.ml", 3)],
    )  # fmt: skip


def _shapes() -> onnx.ModelProto:
    """Old forms, and sizes computed at run time."""
    n = helper.make_node
    nodes = [
        n("Shape", ["x"], ["shape"], "shape"),
        n("Gather", ["shape", "zero"], ["n"], "batch"),
        n("Concat", ["n", "rest"], ["to"], "to", axis=0),
        n("Reshape", ["x", "to"], ["r"], "reshape"),
        n("Pad", ["r"], ["p"], "pad", pads=[0, 0, 1, 0, 0, 1], mode="constant", value=0.5),
        n("Transpose", ["p"], ["t"], "transpose", perm=[0, 2, 1]),
        n("ConstantOfShape", ["n"], ["ones"], "fill"),
        n("Unsqueeze", ["t"], ["u"], "unsqueeze", axes=[1]),
        n("Upsample", ["u", "scales"], ["v"], "upsample", mode="nearest"),
        n("TopK", ["v"], ["best", "at"], "top", axis=-1, k=2),
        n("Dropout", ["best"], ["y"], "dropout", ratio=0.5),
    ]
    constants = {
        "zero": np.int64([0]), "rest": np.int64([4, -1]), "scales": np.float32([1, 1, 2, 2]),
    }  # fmt: skip
    outputs = [_info("y", None, None, None, None), _info("ones", None)]
    return _model(nodes, [_info("x", "N", 2, 6)], outputs, constants=constants, opset=9)


def _node_cases() -> list[bytes]:
    from tests.conformance import cases

    found = [case.model for module in cases.modules() for case in cases.cases(module).values()]
    return [model.SerializeToString() for model in found if model.ByteSize() < LARGEST // 4]


def _saved_cases() -> Iterator[bytes]:
    """ONNX's node cases that ONNX Runtime can save."""
    for model in _node_cases():
        with contextlib.suppress(Exception):  # whatever ONNX Runtime has against a model
            yield canonical(saved(model))


# -------------------------------------------------------------------------------------------------------------- TFLite


def _tflite_models() -> Iterator[Builder]:
    yield from (make() for make in (_convolutions, _elements, _dynamic, _signatures, _custom))
    for shape, makes in (((2, 3, 4), [make for make, _ in REFUSED.values()]), ((None, 4, 4, 3), IMAGES.values())):
        for make in makes:
            builder = Builder()
            builder.output(make(builder, builder.input("x", shape)))
            yield builder


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


def _signatures() -> Builder:
    """Two entry points, one of which keeps a variable, and metadata."""
    b = Builder()
    x = b.input("x", (None, 4))
    y = b.op("RELU", [x], (None, 4))
    b.output(y)
    other = b.subgraph("other")
    z = other.input("z", (2, 4))
    w = other.op("TANH", [z], (2, 4))
    other.output(w)
    b.signature("serve", {"x": x}, {"y": y})
    b.signature("other", {"z": z}, {"w": w}, other)
    b.metadata("min_runtime_version", b"1.14.0\0")
    return b


def _custom() -> Builder:
    """Operators without a rule: one custom, one of TensorFlow."""
    b = Builder()
    x = b.input("x", (1, 4))
    y = b.op("Mine", [x], (1, 4), custom=b"\x01\x02\x03")
    b.output(b.op("FlexErf", [y], (1, 4), custom=b""))
    return b


def _built_by_tests() -> list[bytes]:
    """Every small model that the tests of the frontend build, about one for each operator and form.

    They run in a process of their own. Raises RuntimeError if that fails.
    """
    folder = Path(__file__).parents[2] / "converter" / "frontends" / "tflite"
    flags = ["-q", "-x", "--noconftest", "-n", "0", "-p", "no:cacheprovider", "-p", "tests.fuzz.converting.recording"]
    flags += ["-k", "not shared_models"]
    with tempfile.TemporaryDirectory() as kept:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *flags, str(folder)],
            env={**os.environ, "FUZZ_RECORDED": kept}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        files = sorted(Path(kept).iterdir())
        if run.returncode or not files:
            raise RuntimeError(f"the tests whose models are damaged fail:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
        return [p.read_bytes() for p in files if p.stat().st_size < LARGEST // 4]
