"""Training steps keep images channels-last from the first convolution to the last gradient."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from cloud.zoo import ds_cnn, resnet8
from cloud.zoo.build import BATCH, Builder
from converter import convert
from converter.lowering import lower
from converter.pass_lists import PASSES, optimize
from converter.training import Training, prepare, sign
from lite_runtime import bundle, reference
from lite_runtime.graph import Graph
from tests.converter.support import Builder as Nodes
from tests.converter.support import assert_close, check, ops


def _steps(model: ir.Model, batch_norm: str) -> tuple[Graph, Graph]:
    """The lite graph of `gradients`, with all passes and without any."""
    training = Training("*", batch_norm=batch_norm, signatures=("gradients",))  # type: ignore[arg-type]
    found = sign(prepare(model, training)).models["gradients"]
    plain = found.clone()
    optimize(found, PASSES)
    return lower(found), lower(plain)


def _pooled() -> ir.Model:
    """Both kinds of pool, a grouped and a depthwise convolution, whose gradients overlap."""
    b = Builder("pooled")
    x = b.input("x", (BATCH, 3, 12, 12))
    y = b.relu(b.conv(x, 8, 3, name="first", bias=True))
    y = b.op("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], shape=(BATCH, 8, 6, 6))
    y = b.relu(b.conv(y, 8, 3, name="grouped", group=2, stride=2))
    y = b.depthwise(y, 3, name="depthwise")
    y = b.op("AveragePool", y, kernel_shape=[2, 2], strides=[1, 1], shape=(BATCH, 8, 2, 2))
    return b.model(logits=b.dense(b.global_average_pool(b.relu(y)), 5, name="head"))


MODELS = {
    "resnet8": (lambda: resnet8((3, 16, 16), filters=(8, 16)), (3, 16, 16)),
    "ds_cnn": (ds_cnn, (1, 49, 10)),
    "pooled": (_pooled, (3, 12, 12)),
}


@pytest.mark.parametrize("batch_norm", ["train", "frozen"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_stay_channels_last(name: str, batch_norm: str) -> None:
    build, shape = MODELS[name]
    graph, plain = _steps(build(), batch_norm)
    moved = [node for node in graph.nodes if node.op == "Transpose"]
    assert all(node.inputs[0] in {v.name for v in graph.inputs} for node in moved), moved
    rng = np.random.default_rng(3)
    fed = {}
    for value in graph.inputs:
        sizes = [d if isinstance(d, int) else 4 for d in value.shape or ()]
        fed[value.name] = np.abs(rng.standard_normal(sizes)).astype(np.float32) * 0.3
    fed |= {"x": rng.standard_normal((4, *shape)).astype(np.float32), "labels": rng.integers(0, 5, 4)}
    wanted = reference.run(plain, fed)
    assert_close(reference.run(graph, fed), wanted)
    model = lite_runtime.load(bundle.write(None, {"predict": graph}), backend="guard")
    assert_close(model.run(fed), wanted, limit=2e-4)
    assert model.cost(fed).reference == ()


def test_an_expand_before_an_operator_that_broadcasts() -> None:
    b = Nodes()
    x, y = b.input("x", ["n", 4, 3, 3]), b.input("y", ["n", 4, 1, 1])
    wide = b("Expand", y, b("Shape", x))
    graph = check(b.model(b("Where", b("Greater", x, b.const(0.0, np.float32)), wide, b.const(0.0, np.float32))))
    assert "Expand" not in ops(graph)


def test_an_expand_that_others_need_stays() -> None:
    b = Nodes()
    x, y = b.input("x", ["n", 4, 3, 3]), b.input("y", ["n", 4, 1, 1])
    wide = b("Expand", y, b("Shape", x))
    graph = check(b.model(b("Add", x, wide), b("ReduceSum", wide, b.const([1], np.int64))))
    assert "Expand" in ops(graph)


def test_a_whole_bundle_trains_alike_with_any_number_of_workers() -> None:
    data = convert(resnet8((3, 16, 16), filters=(8, 16)), trainable=Training("*", learning_rate=0.05)).bundle
    alone, team = lite_runtime.load(data), lite_runtime.load(data, threads=3)
    rng = np.random.default_rng(0)
    fed = {"x": rng.standard_normal((8, 3, 16, 16)).astype(np.float32), "labels": rng.integers(0, 10, 8)}
    losses = [float(alone.run(fed, "train_step")["loss"]) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]
    assert losses == [float(team.run(fed, "train_step")["loss"]) for _ in range(12)]
    for name, value in alone.state_dict().items():
        assert value.tobytes() == team.state_dict()[name].tobytes(), name
