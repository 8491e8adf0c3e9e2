"""Files that onnxruntime itself writes: its optimiser at every level, and its quantisers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import lite_runtime
from converter import convert
from converter.errors import UnsupportedOpError
from tests.oracles import session

RNG = np.random.default_rng(2)
LEVELS = ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
MODELS = Path(__file__).parents[4] / "shared" / "models"


def f(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RNG.standard_normal(shape) * scale).astype(np.float32)


def network(channels: int = 24) -> onnx.ModelProto:
    """Convolutions with residual sums, activations, pools, a resize and a classifier: what the optimiser looks for."""
    c, weights = channels, {}

    def w(name: str, *shape: int) -> str:
        weights[name] = f(*shape, scale=1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 0.1)
        return name

    node = helper.make_node
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", ["x", w("w0", c, 3, 3, 3), w("b0", c)], ["a0"], **same, strides=[2, 2]),
        node("Relu", ["a0"], ["a1"]),
        node("Conv", ["a1", w("w1", c, 1, 3, 3), w("b1", c)], ["a2"], **same, group=c),
        node("Clip", ["a2", "low", "high"], ["a3"]),
        node("Conv", ["a3", w("w2", c, c, 1, 1), w("b2", c)], ["a4"], kernel_shape=[1, 1]),
        node("Add", ["a4", "a1"], ["a5"]),
        node("Relu", ["a5"], ["a6"]),
        node("MaxPool", ["a6"], ["a7"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["a7", w("w3", 2 * c, c, 3, 3), w("b3", 2 * c)], ["a8"], **same),
        node("Sigmoid", ["a8"], ["a9"]),
        node("Conv", ["a9", w("w4", c, 2 * c, 1, 1), w("b4", c)], ["a10"], kernel_shape=[1, 1]),
        node("LeakyRelu", ["a10"], ["a11"], alpha=0.2),
        node("Resize", ["a11", "", "scales"], ["a12"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Concat", ["a12", "a6"], ["a13"], axis=1),
        node("AveragePool", ["a13"], ["a14"], kernel_shape=[2, 2], strides=[1, 1]),
        node("GlobalAveragePool", ["a14"], ["a15"]),
        node("Flatten", ["a15"], ["a16"]),
        node("Gemm", ["a16", w("w5", 2 * c, 10), w("b5", 10)], ["a17"]),
        node("Softmax", ["a17"], ["y"], axis=-1),
    ]  # fmt: skip
    weights |= {"low": np.float32(0), "high": np.float32(6), "scales": np.array([1, 1, 2, 2], np.float32)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 3, 32, 32])],
        [helper.make_tensor_value_info("y", 1, [2, 10]), helper.make_tensor_value_info("a13", 1, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def optimised(model: onnx.ModelProto | Path, folder: Path, level: str) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath, options.log_severity_level = str(folder / "optimised.onnx"), 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimised.onnx")


def operators(model: onnx.ModelProto) -> set[str]:
    return {f"{n.domain}.{n.op_type}" for n in model.graph.node if n.domain}


def same(model: onnx.ModelProto, wanted: list[np.ndarray], feeds: dict[str, np.ndarray], tolerance: float) -> None:
    got = lite_runtime.load(convert(model).bundle).run(feeds)
    for output, want in zip(model.graph.output, wanted, strict=True):
        np.testing.assert_allclose(got[output.name], want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [8, 24, 72])
def test_optimiser(channels: int, level: str, tmp_path: Path) -> None:
    source, feeds = network(channels), {"x": f(2, 3, 32, 32)}
    model = optimised(source, tmp_path, level)
    assert bool(operators(model)) == (level != "ORT_ENABLE_BASIC")
    same(model, session(source).run(None, feeds), feeds, 1e-4)


def test_blocks_of_unknown_size(tmp_path: Path) -> None:
    """With 32 channels everywhere, blocks of 8 and of 16 look alike: one error names the operators and the way out."""
    model = optimised(network(32), tmp_path, "ORT_ENABLE_ALL")
    if not any("nchwc" in op for op in operators(model)):
        pytest.skip("this processor's onnxruntime has no blocked convolutions")
    with pytest.raises(UnsupportedOpError, match="blocks of 8 or 16 channels") as caught:
        convert(model)
    assert len(caught.value.nodes) > 5 and "ORT_ENABLE_EXTENDED" in str(caught.value)


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda p: p.stem)
@pytest.mark.parametrize("level", LEVELS[1:])
def test_real_models(path: Path, level: str, tmp_path: Path) -> None:
    model = optimised(path, tmp_path, level)
    if not operators(model):
        pytest.skip("the optimiser writes none of its own operators")
    if path.stem == "vnncomp23_vit_pgd_2_3_16" and any("nchwc" in op for op in operators(model)):
        with pytest.raises(UnsupportedOpError, match="blocks of 8 or 16 channels"):  # its one convolution has 48
            convert(model)
        return
    source = session(onnx.load(path))
    feeds = {}
    for value in source.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        feeds[value.name] = f(*shape) if value.type == "tensor(float)" else np.zeros(shape, np.int64)
    same(model, source.run(None, feeds), feeds, 2e-3)


class Samples(CalibrationDataReader):
    """A few random inputs."""

    def __init__(self) -> None:
        self._left = [{"x": f(2, 3, 32, 32)} for _ in range(4)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


@pytest.mark.parametrize("level", ["", *LEVELS[1:]])
@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_quantised_operators(weights: QuantType, level: str, tmp_path: Path) -> None:
    """quantize_static with QLinear operators, as written and after the optimiser, which moves channels last."""
    onnx.save(network(), tmp_path / "float.onnx")
    made = tmp_path / "q.onnx"
    form = {"quant_format": QuantFormat.QOperator, "weight_type": weights, "activation_type": QuantType.QUInt8}
    per_channel = weights == QuantType.QInt8
    quantize_static(tmp_path / "float.onnx", made, Samples(), per_channel=per_channel, reduce_range=True, **form)
    model = onnx.load(made)
    feeds = {"x": f(2, 3, 32, 32)}
    wanted = session(model).run(None, feeds)
    if level:
        model = optimised(made, tmp_path, level)
    assert operators(model)
    y, inner = wanted
    got = lite_runtime.load(convert(model).bundle).run(feeds)
    step = float(np.diff(np.unique(inner)).min())
    assert np.abs(got["a13"] - inner).max() <= 3 * step  # integers at most three steps apart after eight layers
    np.testing.assert_allclose(got["y"], y, atol=0.02)


def test_dynamic_quantiser(tmp_path: Path) -> None:
    """quantize_dynamic: products and an LSTM; after the optimiser DynamicQuantizeMatMul and MatMulIntegerToFloat."""
    weights = {"w": f(1, 32, 6, scale=0.4), "r": f(1, 32, 8, scale=0.4), "b": f(1, 64, scale=0.1), "m": f(8, 5)}
    weights["c"] = f(5)
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["s", "h"], hidden_size=8),
        helper.make_node("Squeeze", ["h", "axes"], ["last"]),
        helper.make_node("MatMul", ["last", "m"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 2, 6])], [helper.make_tensor_value_info("y", 1, [2, 5])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()] + [numpy_helper.from_array(np.array([0]), "axes")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "float.onnx")
    made = tmp_path / "q.onnx"
    quantize_dynamic(tmp_path / "float.onnx", made, reduce_range=True)
    feeds = {"x": f(4, 2, 6)}
    wanted = session(onnx.load(made)).run(None, feeds)
    found: set[str] = set()
    for level in LEVELS:
        model = optimised(made, tmp_path, level)
        found |= operators(model)
        same(model, wanted, feeds, 0.05)
    assert {"com.microsoft.DynamicQuantizeLSTM", "com.microsoft.DynamicQuantizeMatMul"} <= found
