"""`lower` and `export`: parameters and state, BatchNorm, randomness, gradients, folding, errors."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import onnx_ir as ir
import pytest

from cloud import engine, zoo
from cloud.errors import EngineError
from converter.ir import statistics
from lite_runtime.errors import MsedgeError
from tests.cloud.models import parsed, run_onnx, tiny_net
from tests.cloud.op_table import ROWS, Row
from tests.cloud.test_ops import model_of

RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.normal(size=(4, 1, 8, 8)).astype(np.float32)

NORM = """net (float[n, 2, k] x) => (float[n, 2, k] y)
<float[2] scale = {1.5, 0.5}, float[2] bias = {0.1, -0.2}, float[2] mean = {0.3, 0.4}, float[2] var = {2.0, 3.0}>
{ y = BatchNormalization<momentum = 0.8, epsilon = 0.01 MODE>(x, scale, bias, mean, var) }"""


def test_importing_the_package_imports_neither_jax_nor_onnx() -> None:
    code = "import sys, cloud, cloud.errors; sys.exit(any(m in sys.modules for m in ('jax', 'onnx', 'onnx_ir')))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parameters_and_state_are_the_initialisers_by_name() -> None:
    function = engine.lower(tiny_net(), training=True)
    assert sorted(function.params) == [
        "head.bias", "head.weight", "stem.bn.bias", "stem.bn.weight", "stem.conv.weight",
    ]  # fmt: skip
    assert sorted(function.state) == ["stem.bn.running_mean", "stem.bn.running_var"]
    assert function.inputs[0].shape == ("batch", 1, 8, 8)


def test_trainable_globs_choose_parameters() -> None:
    function = engine.lower(tiny_net(), training=True, trainable=["head.*"])
    assert sorted(function.params) == ["head.bias", "head.weight"]
    with pytest.raises(EngineError, match=r"no float initialiser matches.*head\.bias"):
        engine.lower(tiny_net(), training=True, trainable=["nothing"])


@pytest.mark.parametrize("mode", ["", ", training_mode = 0"])
def test_batch_norm_trains_on_batch_statistics_and_moves_running_ones(mode: str) -> None:
    function = engine.lower(parsed(NORM.replace("MODE", mode)), training=True)
    x = RANDOM.normal(2, 3, (5, 2, 3)).astype(np.float32)
    outputs, state = function.apply(function.params, function.state, {"x": x}, train=True)
    mean, var = x.mean((0, 2)), x.var((0, 2))
    scale, bias = np.array([1.5, 0.5])[:, None], np.array([0.1, -0.2])[:, None]
    wanted = (x - mean[:, None]) / np.sqrt(var[:, None] + 0.01) * scale + bias
    np.testing.assert_allclose(outputs["y"], wanted, atol=1e-5)
    np.testing.assert_allclose(state["mean"], 0.8 * np.array([0.3, 0.4]) + 0.2 * mean, rtol=1e-5)
    np.testing.assert_allclose(state["var"], 0.8 * np.array([2.0, 3.0]) + 0.2 * var, rtol=1e-5)


def test_statistics_move_as_the_node_says() -> None:
    """PyTorch's unbiased variance, and layers that stay in inference form; kept in files."""
    x = RANDOM.normal(2, 3, (5, 2, 3)).astype(np.float32)
    found = {}
    for moves in (statistics.UNBIASED, statistics.STILL):
        model = parsed(NORM.replace("MODE", ""))
        model.graph[0].metadata_props[statistics.KEY] = moves
        model = ir.from_proto(ir.to_proto(model))
        function = engine.lower(model, training=True)
        found[moves] = function.apply(function.params, function.state, {"x": x}, train=True)
    (y, state), (still, kept) = ((out["y"], after) for out, after in found.values())
    np.testing.assert_allclose(state["mean"], 0.8 * np.array([0.3, 0.4]) + 0.2 * x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(state["var"], 0.8 * np.array([2.0, 3.0]) + 0.2 * x.var((0, 2), ddof=1), rtol=1e-5)
    plain = engine.lower(parsed(NORM.replace("MODE", "")), training=True)
    np.testing.assert_allclose(y, plain.apply(plain.params, plain.state, {"x": x}, train=True)[0]["y"], atol=1e-6)
    np.testing.assert_allclose(still, plain.apply(plain.params, plain.state, {"x": x})[0]["y"], atol=1e-6)
    np.testing.assert_array_equal(kept["var"], [2.0, 3.0])
    model.graph[0].metadata_props[statistics.KEY] = statistics.UNBIASED
    alone = engine.lower(model, training=True)
    with pytest.raises(EngineError, match="more than one value per channel"):
        alone.apply(alone.params, alone.state, {"x": x[:1, :, :1]}, train=True)


def test_batch_norm_infers_with_the_state_it_is_given() -> None:
    model = parsed(NORM.replace("MODE", ""))
    function = engine.lower(model, training=True)
    x = RANDOM.normal(2, 3, (5, 2, 3)).astype(np.float32)
    outputs, state = function.apply(function.params, function.state, {"x": x})
    np.testing.assert_allclose(outputs["y"], run_onnx(model, x=x)[0], atol=1e-5)
    assert all(state[name] is function.state[name] for name in state)
    moved = {name: value + 1 for name, value in function.state.items()}
    other, _ = function.apply(function.params, moved, {"x": x})
    again = run_onnx(engine.export(model, function.params, moved), x=x)[0]
    np.testing.assert_allclose(other["y"], again, atol=1e-5)


def test_training_mode_nodes_export_in_inference_form() -> None:
    body = NORM.replace("MODE", ", training_mode = 1").replace("y = Batch", "y, m, v = Batch")
    model = parsed(body)
    function = engine.lower(model, training=True)
    x = RANDOM.normal(size=(5, 2, 3)).astype(np.float32)
    exported = engine.export(model, function.params, function.state)
    ours, _ = function.apply(function.params, function.state, {"x": x})
    np.testing.assert_allclose(run_onnx(exported, x=x)[0], ours["y"], atol=1e-5)
    trained, state = function.apply(function.params, function.state, {"x": x}, train=True)
    wanted = run_onnx(model, x=x)[0]  # onnxruntime trains such a node too
    np.testing.assert_allclose(trained["y"], wanted, atol=1e-5)
    assert not np.allclose(state["mean"], function.state["mean"])


def test_statistics_that_nodes_share_are_distinguished() -> None:
    model = parsed("""net (float[n, 2] x) => (float[n, 2] y)
        <float[2] one = {1.0, 1.0}, float[2] zero = {0.0, 0.0}>
        {
            a = BatchNormalization(x, one, zero, zero, one)
            r = Relu(a)
            y = BatchNormalization(r, one, zero, zero, one)
        }
    """)
    function = engine.lower(model, training=True)
    assert sorted(function.params) == ["one", "zero"]
    assert len(function.state) == 4
    x = RANDOM.normal(3, 1, (8, 2)).astype(np.float32)
    _, state = function.apply(function.params, function.state, {"x": x}, train=True)
    assert len({np.asarray(value).tobytes() for value in state.values()}) == 4
    exported = engine.export(model, function.params, state)
    ours, _ = function.apply(function.params, state, {"x": x})
    np.testing.assert_allclose(run_onnx(exported, x=x)[0], ours["y"], atol=1e-5)


def test_dropout_drops_in_training_only_and_needs_a_key() -> None:
    model = parsed("net (float[n] x) => (float[n] y) <float r = {0.25}> { y = Dropout(x, r) }")
    function = engine.lower(model, training=True)
    x = np.ones(4000, np.float32)
    kept, _ = function.apply({}, {}, {"x": x})
    assert np.array_equal(kept["y"], x)
    dropped, _ = function.apply({}, {}, {"x": x}, train=True, rng=jax.random.key(1))
    again, _ = function.apply({}, {}, {"x": x}, train=True, rng=jax.random.key(1))
    assert np.array_equal(dropped["y"], again["y"])
    assert set(np.unique(dropped["y"])) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(float(dropped["y"].mean()) - 1) < 0.05
    with pytest.raises(EngineError, match=r"Dropout .*rng=jax\.random\.key"):
        function.apply({}, {}, {"x": x}, train=True)


def test_random_draws_of_two_nodes_differ() -> None:
    function = engine.lower(
        parsed("net () => (float[9] a, float[9] b) { a = RandomNormal<shape = [9]>() b = RandomNormal<shape = [9]>() }")
    )
    drawn, _ = function.apply({}, {}, {}, rng=jax.random.key(0))
    assert not np.array_equal(drawn["a"], drawn["b"])


def test_shape_arithmetic_folds_while_tracing() -> None:
    model = parsed("""net (float[n, a, b] x) => (float[n, c] y)
        <int64[1] first = {0}, int64[1] last = {9223372036854775807}, int64[1] one = {1}, int64 two = {2}>
        {
            s = Shape(x)  n = Slice(s, first, one)  rest = Slice(s, one, last)
            size = ReduceProd<keepdims = 1>(rest)  half = Div(size, two)  twice = Mul(half, two)
            whole = Concat<axis = 0>(n, twice)  y = Reshape(x, whole)
        }""")
    function = engine.lower(model)
    x = RANDOM.normal(size=(3, 4, 5)).astype(np.float32)
    outputs, _ = jax.jit(function.apply)({}, {}, {"x": x})
    assert np.array_equal(outputs["y"], x.reshape(3, 20))


def test_shapes_computed_from_data_are_refused_with_the_node() -> None:
    function = engine.lower(parsed("net (float[n] x, int64[2] s) => (float[a, b] y) { y = Reshape(x, s) }"))
    inputs = {"x": np.zeros(6, np.float32), "s": np.array([2, 3])}
    with pytest.raises(EngineError, match=r"Reshape .*: the shape must be known when the model is traced"):
        jax.jit(function.apply)({}, {}, inputs)
    assert function.apply({}, {}, inputs)[0]["y"].shape == (2, 3)


def test_sequences() -> None:
    function = engine.lower(
        parsed("""net (float[4, 2] x) => (float[a, b] y, int64 length, float[2, 2] piece)
        <int64 zero = {0}, int64 one = {1}, int64 two = {2}>
        {
            parts = SplitToSequence<axis = 0>(x, two)  e = SequenceEmpty()  f = SequenceInsert(e, x)
            more = SequenceInsert(parts, x, one)  less = SequenceErase(more, zero)  length = SequenceLength(more)
            y = ConcatFromSequence<axis = 0>(less)  c = SequenceConstruct(x, x)  z = SequenceAt(f, zero)
            piece = SequenceAt(parts, one)
        }""")
    )
    x = RANDOM.normal(size=(4, 2)).astype(np.float32)
    outputs, _ = function.apply({}, {}, {"x": x})
    assert np.array_equal(outputs["y"], np.concatenate([x, x[2:]]))
    assert int(outputs["length"]) == 3
    assert np.array_equal(outputs["piece"], x[2:])


DIFFERENTIATED = (
    "Conv", "ConvTranspose", "AveragePool", "MaxPool", "LayerNormalization", "LSTM", "Attention", "Resize",
)  # fmt: skip


@pytest.mark.parametrize("op", DIFFERENTIATED)
def test_gradients_equal_differences(op: str) -> None:
    row: Row = next(row for row in ROWS if row.op == op)
    model, fed = model_of(row)
    function = engine.lower(ir.from_proto(model))

    @jax.jit
    def total(inputs: dict[str, jax.Array]) -> jax.Array:
        outputs, _ = function.apply(function.params, function.state, inputs)
        return jnp.sum(jnp.sin(next(iter(outputs.values()))))

    jax.test_util.check_grads(total, (fed,), order=1, modes=["rev"], eps=1e-2, rtol=2e-2, atol=2e-2)


def test_gradient_of_a_training_step_with_batch_norm() -> None:
    function = engine.lower(tiny_net(), training=True)

    @jax.jit
    def total(params: dict[str, jax.Array]) -> jax.Array:
        outputs, _ = function.apply(params, function.state, {"x": IMAGES}, train=True)
        return jnp.mean(jax.nn.log_softmax(outputs["logits"])[:, 0])

    jax.test_util.check_grads(total, (function.params,), order=1, modes=["rev"], eps=1e-2, rtol=3e-2, atol=3e-2)


def test_round_trip_is_bit_equal() -> None:
    for model in (tiny_net(dropout=0.3), zoo.ds_cnn()):
        function = engine.lower(model, training=True)
        exported = engine.export(model, function.params, function.state)
        assert ir.to_proto(exported).SerializeToString() == ir.to_proto(model).SerializeToString()


def test_export_leaves_the_model_alone_and_keeps_wide_types() -> None:
    model = parsed("net (double[2] x) => (double[2] y) <double[2] w = {0.1, 0.2}> { y = Mul(x, w) }")
    before = ir.to_proto(model).SerializeToString()
    function = engine.lower(model, training=True)
    same = engine.export(model, function.params, {})
    assert ir.to_proto(same).SerializeToString() == before
    moved = engine.export(model, {"w": function.params["w"] + 1}, {})
    assert moved.graph.initializers["w"].const_value.numpy().dtype == np.float64
    np.testing.assert_allclose(moved.graph.initializers["w"].const_value.numpy(), [1.1, 1.2], rtol=1e-6)
    assert ir.to_proto(model).SerializeToString() == before


def test_all_unsupported_operators_are_named_at_once() -> None:
    model = parsed("""net (float[2] x) => (float[2] y)
        { a = Abs(x)  b = NoSuchOp(a)  c = com.example.Other(b)  y = NoSuchOp(c) }""")
    model.graph.node(1).name = "first"
    listed = r"2 operator\(s\): NoSuchOp \('first', giving 'y'\); com.example::Other \(giving 'c'\)"
    with pytest.raises(EngineError, match=listed):
        engine.lower(model)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"expected inputs \['x'\], got \[\]"),
        ({"z": IMAGES}, r"expected inputs \['x'\], got \['z'\]"),
        ({"x": IMAGES.astype(np.int32)}, r"'x': expected float32, got int32; convert it with \.astype\('float32'\)"),
        ({"x": IMAGES.astype(np.float64)}, r"expected float32, got float64"),
        ({"x": IMAGES[0]}, r"input 'x': expected shape \['batch', 1, 8, 8\].*, got \[1, 8, 8\]"),
        ({"x": IMAGES[..., :7]}, r"got \[4, 1, 8, 7\]"),
    ],
)  # fmt: skip
def test_wrong_inputs(inputs: dict[str, np.ndarray], message: str) -> None:
    function = engine.lower(tiny_net())
    with pytest.raises(EngineError, match=message):
        function.apply(function.params, function.state, inputs)


def test_symbolic_sizes_must_agree() -> None:
    function = engine.lower(parsed("net (float[n] a, float[n] b) => (float[n] y) { y = Add(a, b) }"))
    with pytest.raises(EngineError, match=r"'b': expected shape \['n'\] with n=3, got \[2\]"):
        function.apply({}, {}, {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)})


def test_operands_that_do_not_fit_name_the_node() -> None:
    function = engine.lower(parsed("net (float[a, b] x, float[c, d] y) => (float[a, d] z) { z = MatMul(x, y) }"))
    with pytest.raises(EngineError, match=r"MatMul giving 'z': operands do not fit.*float32\[2, 3\], float32\[2, 3\]"):
        function.apply({}, {}, {"x": np.zeros((2, 3), np.float32), "y": np.zeros((2, 3), np.float32)})


def test_wrong_parameters_and_modes() -> None:
    function = engine.lower(tiny_net())
    with pytest.raises(EngineError, match=r"params lacks 'head\.bias'"):
        function.apply({k: v for k, v in function.params.items() if k != "head.bias"}, function.state, {"x": IMAGES})
    with pytest.raises(EngineError, match="which this model does not have"):
        function.apply({**function.params, "extra": 1}, function.state, {"x": IMAGES})
    with pytest.raises(EngineError, match="training=True"):
        function.apply(function.params, function.state, {"x": IMAGES}, train=True)
    with pytest.raises(EngineError, match=r"'head.bias': expected shape \(10,\), got \(3,\)"):
        engine.export(tiny_net(), {"head.bias": np.zeros(3, np.float32)}, {})
    with pytest.raises(EngineError, match="no initialiser 'nothing'"):
        engine.export(tiny_net(), {"nothing": np.zeros(3, np.float32)}, {})


def test_for_old_opsets_the_error_points_to_the_converter() -> None:
    with pytest.raises(EngineError, match=r"opset 18 or later, got 11; converter\.to_ir"):
        engine.lower(parsed("net (float[2] x) => (float[2] y) { y = Abs(x) }", opset=11))


def test_errors_are_msedge_errors() -> None:
    assert issubclass(EngineError, MsedgeError)
