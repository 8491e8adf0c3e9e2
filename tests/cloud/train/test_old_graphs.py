"""ONNX files of every age by a run file: opsets upgraded, fixed batches opened, or the way out said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from cloud.errors import TrainError
from cloud.train.jobs.config import Config, parse
from cloud.train.jobs.graphs import graph_of
from cloud.train.jobs.job import Job, exported, job_of
from tests.cloud.models import run_onnx

OLD = (6, 7, 8, 9, 11, 13, 15, 17)


def network(opset: int, batch: int | str, *, flatten: str = "reshape", rows: Any = None) -> onnx.ModelProto:
    """A CNN as exporters of that age wrote it: dropout and batch normalisation by their old attributes, weights among
    the inputs, a Reshape to the fixed batch."""
    rng = np.random.default_rng(0)
    weights = {
        "c.w": rng.normal(size=(4, 1, 3, 3)) * 0.4, "b.scale": np.ones(4), "b.bias": np.zeros(4), "b.mean": np.zeros(4),
        "b.var": np.ones(4), "f.w": rng.normal(size=(64, 3)) * 0.2, "f.b": np.zeros(3),
    }  # fmt: skip
    old = {"is_test": 1} if opset < 7 else {}
    nodes = [
        helper.make_node("Conv", ["x", "c.w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["c", "b.scale", "b.bias", "b.mean", "b.var"], ["b"], momentum=0.9, **old
        ),
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Dropout", ["p"], ["d"], **({"ratio": 0.25, **old} if opset < 12 else {})),
    ]
    shapes = {"shape": np.array([batch if isinstance(batch, int) else -1, 64], np.int64)}
    if flatten == "reshape":
        nodes.append(helper.make_node("Reshape", ["d", "shape"], ["s"]))
    else:
        nodes.append(helper.make_node("Flatten", ["d"], ["s"]))
        shapes = {}
    nodes.append(helper.make_node("Gemm", ["s", "f.w", "f.b"], ["y"], **({"broadcast": 1} if opset < 7 else {})))
    if rows is not None:
        nodes += [helper.make_node("Add", ["y", "rows"], ["z"])]
        weights["rows"] = rows
    tensors = [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    tensors += [onnx.numpy_helper.from_array(a, n) for n, a in shapes.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 1, 8, 8])]
    if opset < 9:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors]
    outputs = [helper.make_tensor_value_info("y" if rows is None else "z", TensorProto.FLOAT, [batch, 3])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3 if opset < 9 else 7)


def job(folder: Path, model: onnx.ModelProto, batch: int = 16) -> tuple[Job, Config]:
    onnx.save(model, folder / "m.onnx")
    rng = np.random.default_rng(1)
    np.savez(folder / "d.npz", x=rng.normal(size=(48, 1, 8, 8)).astype(np.float32), labels=np.arange(48) % 3)
    config = parse({
        "model": {"onnx": str(folder / "m.onnx")}, "data": {"npz": str(folder / "d.npz")},
        "train": {"epochs": 2, "batch": batch, "rate": 0.01}, "export": {"onnx": str(folder / "out.onnx")},
    })  # fmt: skip
    return job_of(config), config


@pytest.mark.parametrize("opset", OLD)
def test_every_opset_trains_with_its_batch_opened(tmp_path: Path, opset: int) -> None:
    made, config = job(tmp_path, network(opset, 1))
    before = {name: np.array(a) for name, a in {**made.trainer.params, **made.trainer.state}.items()}
    assert "Dropout" in [node.op_type for node in made.trainer.task.model.graph]  # type: ignore[attr-defined]
    assert {"c.w", "f.w", "b.scale"} <= set(made.trainer.params) and {"b.mean", "b.var"} == set(made.trainer.state)
    reports = made.trainer.fit(made.examples.train, 2, 16)
    assert np.isfinite(reports[-1].training.loss)
    exported(made, config)
    model = ir.load(tmp_path / "out.onnx")
    x = np.load(tmp_path / "d.npz")["x"]
    np.testing.assert_allclose(run_onnx(model, x=x)[0], made.trainer.predict(x), atol=1e-4)
    after = {**made.trainer.params, **made.trainer.state}
    assert all(np.abs(np.asarray(after[n]) - before[n]).max() > 0 for n in ("c.w", "b.mean", "b.var"))


def test_the_graph_before_and_after_opening_is_one(tmp_path: Path) -> None:
    onnx.save(network(8, 1), tmp_path / "m.onnx")
    model, x = graph_of(tmp_path / "m.onnx", 5), np.random.default_rng(2).normal(size=(5, 1, 8, 8)).astype(np.float32)
    together = run_onnx(model, x=x)[0]
    old = onnx.load(tmp_path / "m.onnx")
    apart = [run_onnx(ir.from_proto(old), x=row[None])[0][0] for row in x]
    np.testing.assert_allclose(together, apart, atol=1e-5)


def test_new_graphs_with_an_open_batch_stay_as_they_are(tmp_path: Path) -> None:
    onnx.save(network(18, "n", flatten="flatten"), tmp_path / "m.onnx")
    assert graph_of(tmp_path / "m.onnx", 16).opset_imports[""] == 18


def test_what_cannot_be_opened_says_the_way_out(tmp_path: Path) -> None:
    fixed = network(11, 4, rows=np.zeros((4, 3)))
    with pytest.raises(TrainError, match=r"'m\.onnx' is for batches of 4, and it cannot be opened for batches of 16: .*"
                       r"Export it with an open batch .* or train with train\.batch = 4"):  # fmt: skip
        job(tmp_path, fixed)
    made, _ = job(tmp_path, fixed, batch=4)
    made.trainer.fit(made.examples.train, 1, 4)
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(TrainError, match=r"model\.onnx: "):
        graph_of(tmp_path / "m.onnx", 4)
    with pytest.raises(TrainError, match=r"model\.onnx: "):
        graph_of(tmp_path / "none.onnx", 4)
