"""The quantised graph: valid ONNX that onnxruntime runs, close to the float model, with nothing done twice."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from converter.errors import QuantizeError
from converter.ir import build, spec
from converter.quantize import Options, calibration_data, quantize
from converter.quantize.rounding import gptq
from tests.converter.quantize.support import prepared, run, samples
from tests.converter.support import Builder

PLAIN = {"equalize": False, "bias_correction": False, "gptq": False}


def rows(shape, count=32, seed=0):
    return np.random.default_rng(seed).standard_normal((count, *shape[1:])).astype(np.float32)


def snr(wanted, got):
    wanted, got = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
    return 10 * np.log10(np.square(wanted).sum() / max(np.square(wanted - got).sum(), 1e-30))


def ops(model):
    return Counter(node.op_type for node in model.graph)


def quantized(proto, shape=(1, 4, 8, 8), name="x", **options):
    """(model, record, outputs of the quantised model, outputs of the float model) on a row of new data."""
    model = prepared(proto)
    fresh = {name: rows(shape, shape[0], seed=9)}
    wanted = run(model, fresh)
    record = quantize(model, Options(**{**PLAIN, **options}), {name: rows(shape)})
    spec.check(model, "after quantisation")
    copy = ir.to_proto(model)
    del copy.opset_import[1:]
    onnx.checker.check_model(copy, full_check=True)
    return model, record, run(model, fresh), wanted


def conv(b, x, c=4, m=4, **attrs):
    return b("Conv", x, b.weight(m, c // attrs.get("group", 1), 3, 3), b.weight(m), pads=[1, 1, 1, 1], **attrs)


def image(b):
    return b.input("x", [1, 4, 8, 8])


def residual(b):
    x = b("Relu", conv(b, image(b)))
    y = b("Relu", b("Add", conv(b, x), x))
    return b("Concat", b("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2]), conv(b, y, strides=[2, 2]), axis=1)


def mobile(b):
    y = b("HardSwish", conv(b, image(b), 4, 8))
    y = b("Clip", conv(b, y, 8, 8, group=8), b.const(0.0, "float32"), b.const(6.0, "float32"))
    s = b("GlobalAveragePool", y)
    s = b("HardSigmoid", b("Conv", s, b.weight(8, 8, 1, 1), b.weight(8)))
    y = b("Conv", b("Mul", y, s), b.weight(6, 8, 1, 1))
    return b("Gemm", b("Flatten", y), b.weight(5, 384), b.weight(5), transB=1)


def upwards(b):
    y = b("Relu", b("ConvTranspose", image(b), b.weight(4, 3, 2, 2), b.weight(6), strides=[2, 2], group=2))
    sizes = b.const([1, 6, 32, 32], "int64")
    return conv(b, b("Resize", y, "", "", sizes, mode="linear"), 6, 2)


def attention(b):
    x = b("Reshape", image(b), b.const([1, 16, 16], "int64"))
    q, k, v = (b("Add", b("MatMul", x, b.weight(16, 16)), b.weight(16)) for _ in range(3))
    s = b("Div", b("MatMul", q, b("Transpose", k, perm=[0, 2, 1])), b.const(4.0, "float32"))
    y = b("Add", x, b("MatMul", b("MatMul", b("Sigmoid", s), v), b.weight(16, 16)))
    return b("MatMul", b("LayerNormalization", y, b.weight(16), b.weight(16)), b.weight(16, 4))


def uneven(b):
    """A depthwise ConvTranspose with a folded batch norm: an unused channel has weights 300 times as large."""
    x = b("Mul", image(b), b.const(np.array([1, 1, 0, 1]).reshape(1, 4, 1, 1), "float32"))
    weights = b.rng.normal(0, 0.3, (4, 1, 3, 3)) * np.array([1, 1, 300, 1]).reshape(4, 1, 1, 1)
    y = b("Relu", b("ConvTranspose", x, b.const(weights, "float32"), b.weight(4), group=4, pads=[1, 1, 1, 1]))
    return conv(b, y, 4, 4)


NETWORKS = {f.__name__: f for f in (residual, mobile, upwards, uneven, attention)}
LEAST = {"int8": 22, "int16x8": 30, "dynamic": 22, "w8": 30, "w4": 8}


@pytest.mark.parametrize("mode", LEAST)
@pytest.mark.parametrize("network", NETWORKS)
def test_near_the_float_model(network, mode):
    b = Builder(seed=2)
    _, record, got, wanted = quantized(b.model(NETWORKS[network](b)), mode=mode)
    assert snr(wanted[0], got[0]) > LEAST[mode]
    statuses = Counter(node.status for node in record.nodes)
    expected = {"int8": "integer", "int16x8": "integer", "dynamic": "dynamic"}.get(mode)
    assert expected is None or statuses[expected]
    assert all(node.reason for node in record.nodes if node.status == "float")
    assert record.to_json()["mode"] == mode


@pytest.mark.parametrize("network", NETWORKS)
def test_the_default_steps(network):
    b = Builder(seed=2)
    full = {"equalize": True, "bias_correction": True, "gptq": True}
    _, record, got, wanted = quantized(b.model(NETWORKS[network](b)), **full)
    assert snr(wanted[0], got[0]) > LEAST["int8"]
    assert {"equalised layers", "corrected layers"} <= record.notes.keys()


def test_every_tensor_is_quantised_once_and_shared():
    b = Builder()
    model, _, _, _ = quantized(b.model(conv(b, b("MaxPool", residual(b), kernel_shape=[2, 2]), 8)))
    readers = Counter(id(n.inputs[0]) for n in model.graph if n.op_type == "QuantizeLinear")
    assert max(readers.values()) == 1
    for node in model.graph:
        if node.op_type == "QuantizeLinear":
            assert not build.is_op(node.inputs[0].producer(), "DequantizeLinear"), "a round trip"
            assert len(node.outputs[0].uses()) == 1
    scales = {n.inputs[1].name for n in model.graph if n.op_type == "QuantizeLinear"}
    assert len(scales) < ops(model)["QuantizeLinear"]  # what movement ties shares one constant


def test_biases_are_integers_in_the_sum_unit():
    b = Builder(seed=4)
    model, record, _, _ = quantized(b.model(conv(b, b("Relu", conv(b, image(b))))))
    first, last = (n for n in model.graph if n.op_type == "Conv")
    made = first.inputs[2].producer()
    assert made.inputs[0].dtype == ir.DataType.INT32 and build.array(last.inputs[2]).dtype == np.float32
    x, w = (
        np.float32(record.tensors[name].scale)
        for name in ("x", first.inputs[1].producer().inputs[0].name.split(".int8")[0])
    )
    np.testing.assert_array_equal(build.array(made.inputs[1]), w * x[0])


def test_a_bias_too_large_for_its_integers_widens_the_weight_scale():
    b = Builder()
    w = b.const(np.full((2, 4, 1, 1), 1e-9, np.float32))
    y = b("Conv", image(b), w, b.const([1e5, 0.0], np.float32))
    _, _, got, wanted = quantized(b.model(conv(b, b("Relu", y), 2)))
    assert snr(wanted[0], got[0]) > 20


def test_shared_weights_are_stored_once():
    b = Builder()
    w, bias = b.weight(4, 4, 3, 3), b.weight(4)
    x = image(b)
    for _ in range(3):
        x = b("Relu", b("Conv", x, w, bias, pads=[1, 1, 1, 1]))
    model, _, _, _ = quantized(b.model(b("Conv", x, w, pads=[1, 1, 1, 1])))
    weights = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8 and len(v.shape) == 4]
    assert len(weights) == 1
    b = Builder()
    w = b.weight(16, 16)
    y = b("MatMul", b("Sigmoid", b("MatMul", b.input("x", [4, 16]), w)), w)
    proto = b.model(y)
    last = prepared(proto).graph[-1].name
    model, _, _, _ = quantized(proto, (4, 16), keep_float=(last,))
    assert build.array(model.graph[-1].inputs[1]).dtype == np.float32


def test_outputs_in_the_middle_keep_name_and_type():
    b = Builder()
    y = b("Relu", conv(b, image(b)))
    proto = b.model(conv(b, y), y)
    model, _, got, wanted = quantized(proto)
    assert [v.name for v in model.graph.outputs] == [o.name for o in proto.graph.output]
    assert all(v.dtype == ir.DataType.FLOAT for v in model.graph.outputs)
    assert min(map(snr, wanted, got)) > 25


def test_integer_inputs_and_outputs():
    b = Builder()
    proto = b.model(b("Relu", conv(b, image(b))))
    model = prepared(proto)
    wanted = run(model, {"x": rows((1, 4, 8, 8), 1, 9)})[0]
    record = quantize(model, Options(io="int8", **PLAIN), rows((1, 4, 8, 8)))
    spec.check(model, "after quantisation")
    assert model.graph.inputs[0].dtype == model.graph.outputs[0].dtype == ir.DataType.INT8
    assert model.graph.outputs[0].name == proto.graph.output[0].name
    x, y = (record.tensors[v.name] for v in (model.graph.inputs[0], model.graph.outputs[0]))
    stored = np.clip(np.rint(rows((1, 4, 8, 8), 1, 9) / np.float32(x.scale[0])) + x.zero_point[0], -128, 127)
    (got,) = run(model, {"x": stored.astype(np.int8)})
    assert got.dtype == np.int8
    assert snr(wanted, (got.astype(np.float32) - y.zero_point[0]) * y.scale[0]) > 25


def test_sixteen_bit_activations_are_symmetric():
    b = Builder()
    model, record, _, _ = quantized(b.model(residual(b)), mode="int16x8")
    found = [t for t in record.tensors.values() if t.dtype == "int16"]
    assert found and all(t.zero_point == [0] for t in found)
    assert all(build.array(n.inputs[2]).dtype == np.float32 for n in model.graph if n.op_type == "Conv")


def test_dynamic_measures_each_activation_once():
    b = Builder()
    x = b.input("x", [3, 16])
    y = b("Add", b("Gemm", x, b.weight(8, 16), b.weight(8), transB=1), b("MatMul", x, b.weight(16, 8)))
    model, _, got, wanted = quantized(b.model(y), (3, 16), mode="dynamic")
    assert ops(model)["DynamicQuantizeLinear"] == 1 and ops(model)["MatMulInteger"] == 2
    assert snr(wanted[0], got[0]) > 30
    kept = prepared(b.model(y))
    record = quantize(kept, Options(mode="dynamic", keep_float=("Gemm",)))
    assert ops(kept)["MatMulInteger"] == 1 and record.samples == 0


def test_recurrent_layers_keep_float_sums_over_integer_weights():
    b = Builder()
    x = b.input("x", [5, 1, 8])
    y, _, _ = b("LSTM", x, b.weight(1, 64, 8), b.weight(1, 64, 16), b.weight(1, 128), outputs=3, hidden_size=16)
    for mode in ("int8", "dynamic", "w8"):
        model = prepared(b.model(y))
        data = np.random.default_rng(0).standard_normal((4, 5, 1, 8)).astype(np.float32)
        wanted = run(model, {"x": data[0]})
        record = quantize(model, Options(mode=mode, **PLAIN), data)
        assert next(n.status for n in record.nodes if n.op == "LSTM") == "weights"
        assert snr(wanted[0], run(model, {"x": data[0]})[0]) > 30
        assert not any(v.dtype == ir.DataType.FLOAT and len(v.shape) == 3 for v in model.graph.initializers.values())


def test_what_only_floats_read_stays_float():
    b = Builder()
    y = b("Exp", b("LayerNormalization", b.input("x", [2, 8]), b.weight(8), b.weight(8)))
    model, record, got, wanted = quantized(b.model(y), (2, 8))
    assert ops(model) == {"LayerNormalization": 1, "Exp": 1} and {n.status for n in record.nodes} == {"float"}
    np.testing.assert_array_equal(got[0], wanted[0])


def test_subgraphs_read_what_the_main_graph_quantises():
    b = Builder()
    x = image(b)
    y = b("Relu", conv(b, x))
    branch = [
        onnx.helper.make_graph(
            [onnx.helper.make_node(op, [y], [f"{op}_out"])],
            op,
            [],
            [onnx.helper.make_tensor_value_info(f"{op}_out", 1, [1, 4, 8, 8])],
        )
        for op in ("Neg", "Exp")
    ]
    flag = b("Greater", b("ReduceMax", x, keepdims=0), b.const(0.0, "float32"))
    z = b("If", flag, then_branch=branch[0], else_branch=branch[1])
    _, _, got, wanted = quantized(b.model(conv(b, y), z))
    assert min(map(snr, wanted, got)) > 25


@pytest.mark.parametrize("mode", ["int8", "int16x8", "w4", "dynamic"])
def test_the_order_of_samples_changes_no_byte(mode):
    data, made = rows((1, 4, 8, 8), 12), []
    for order in (slice(None), slice(None, None, -1)):
        b = Builder(seed=2)
        model = prepared(b.model(mobile(b)))
        record = quantize(model, Options(mode=mode), data[order])
        made.append((ir.to_proto(model).SerializeToString(deterministic=True), record.to_json()))
    assert made[0] == made[1]


def test_modes_that_change_nothing():
    for mode in ("none", "fp16"):
        b = Builder()
        model = prepared(b.model(residual(b)))
        before = ops(model)
        assert quantize(model, Options(mode=mode)).mode == mode and ops(model) == before


def test_static_modes_need_data():
    b = Builder()
    with pytest.raises(QuantizeError, match="needs calibration data"):
        quantize(prepared(b.model(residual(b))), Options())


def test_findings_name_what_looks_wrong():
    b = Builder()
    w = np.ones((4, 4, 1, 1), np.float32)
    w[1] = -1
    y = b("Relu", b("Conv", image(b), b.const(w)))
    model = prepared(b.model(conv(b, y)))
    record = quantize(model, Options(**PLAIN), np.abs(rows((1, 4, 8, 8))))
    assert [(f.kind, "1 of 4" in f.text) for f in record.findings] == [("dead channels", True)]
    histogram = record.histograms["x"]
    assert sum(histogram["counts"]) == 32 * 256 and histogram["low"] < histogram["high"]


def test_calibration_data_is_a_row_for_each_sample():
    b = Builder()
    model = prepared(b.model(residual(b)))
    assert len(calibration_data(rows((1, 4, 8, 8)), model)) == 32


def test_a_dead_channel_costs_no_other_channel_its_rounding():
    """Folded batch norms can give channels of 1e-16 with a bias too large for any integer at the channel's own
    scale."""
    b = Builder(seed=21)
    weight = b.rng.standard_normal((8, 3, 3, 3)).astype(np.float32)
    weight[2] = 1e-16
    kernel = b.const(weight)
    x = b("Relu", b("Conv", b.input("x", ["n", 3, 8, 8]), kernel, b.weight(8)))
    b("Conv", x, b.weight(5, 8, 1, 1))
    model = prepared(b.model(b.nodes[-1].output[0]))
    rows = np.random.default_rng(22).random((12, 3, 8, 8)).astype(np.float32)
    data = samples(model, rows)
    alone = gptq.round_weights(model, data, bits=8, block_size=0, smallest=1)[kernel]
    quantize(model, Options(equalize=False, bias_correction=False), data)
    arrays = [build.array(v) for v in model.graph.initializers.values()]
    (stored,) = (a for a in arrays if a is not None and a.dtype == np.int8 and a.shape == weight.shape)
    others = np.arange(8) != 2
    assert np.array_equal(stored[others], alone.values[others])


def test_recurrent_weights_get_finer_scales_unless_asked_otherwise():
    def scales(options):
        b = Builder(seed=23)
        x = b.input("x", ["t", 1, 40])
        b("LSTM", x, b.weight(1, 192, 40), b.weight(1, 192, 48), b.weight(1, 384), outputs=3, hidden_size=48)
        b("Gemm", b("Squeeze", b.nodes[-1].output[1], b.const([0])), b.weight(48, 20))
        model = prepared(b.model(b.nodes[-1].output[0]))
        data = [{"x": np.random.default_rng(i).standard_normal((6, 1, 40)).astype(np.float32)} for i in range(4)]
        quantize(model, options, calibration_data(data, model))
        node = next(n for n in model.graph if n.op_type == "LSTM")
        return [build.array(v.producer().inputs[1]).shape for v in node.inputs[1:3]]

    assert scales(Options(equalize=False)) == [(1, 192, 2), (1, 192, 2)]
    assert scales(Options(mode="w8", block_size=0)) == [(192,), (192,)]


def test_integer_inputs_with_default_settings():
    """Bias correction compares with float rows before inputs become integers; another reader takes the real values."""
    b = Builder()
    x = image(b)
    proto = b.model(conv(b, x), b("ReduceSum", x, keepdims=1))
    model = prepared(proto)
    wanted = run(model, {"x": rows((1, 4, 8, 8), 1, 9)})
    record = quantize(model, Options(io="int8"), rows((1, 4, 8, 8)))
    spec.check(model, "after quantisation")
    scale, zero = record.tensors["x"].scale[0], record.tensors["x"].zero_point[0]
    stored = np.clip(np.rint(rows((1, 4, 8, 8), 1, 9) / np.float32(scale)) + zero, -128, 127).astype(np.int8)
    got = run(model, {"x": stored})
    y = record.tensors[model.graph.outputs[0].name]
    assert got[0].dtype == np.int8 and got[1].dtype == np.float32
    assert snr(wanted[0], (got[0].astype(np.float32) - y.zero_point[0]) * y.scale[0]) > 25
    assert snr(wanted[1], got[1]) > 15  # a sum of 256 rounded numbers
