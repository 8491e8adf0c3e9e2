"""PyTorch modules as ONNX models: their numbers, their names, and errors. Slow: importing takes seconds."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import lite_runtime
from converter import convert
from converter.errors import ConvertError
from converter.frontends.torch import from_torch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow


def test_a_module_keeps_numbers_names_and_its_mode() -> None:
    layers = torch.nn
    net = layers.Sequential(layers.Conv2d(1, 4, 3), layers.BatchNorm2d(4), layers.ReLU(), layers.Flatten(),
                            layers.Dropout(0.5), layers.Linear(144, 3))  # fmt: skip
    model = from_torch(net, {"x": torch.randn(2, 1, 8, 8)}, outputs=("logits",))
    assert net.training
    assert {"0.weight", "5.weight", "5.bias"} <= set(model.graph.initializers)
    assert [value.name for value in model.graph.outputs] == ["logits"]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    net.eval()
    for rows in (1, 5):
        x = torch.randn(rows, 1, 8, 8)
        (found,) = session.run(None, {"x": x.numpy()})
        np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5)


def test_other_objects_and_modules_that_cannot_be_traced_are_refused() -> None:
    class Odd(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: object) -> object:
            return np.linalg.eigvals(x) if float(x.sum()) > 0 else x  # type: ignore[attr-defined, call-overload]

    with pytest.raises(ConvertError, match=r"a torch\.nn\.Module, got int"):
        from_torch(3, {})
    with pytest.raises(ConvertError, match="PyTorch cannot export Odd"):
        from_torch(Odd(), {"x": torch.randn(2, 2)})


def network() -> Any:
    layers = torch.nn
    return layers.Sequential(layers.Conv2d(1, 4, 3), layers.ReLU(), layers.Flatten(), layers.Linear(144, 3)).eval()


def same(source: Any, net: Any, name: str = "input", **options: Any) -> None:
    conversion = convert(source, **options)
    assert conversion.report.source_format == "PyTorch"
    x = torch.randn(5, 1, 8, 8)
    (found,) = lite_runtime.load(conversion.bundle).run({name: x.numpy()}).values()
    np.testing.assert_allclose(found, net(x).detach().numpy(), atol=1e-5)


def exported(net: Any) -> Any:
    return torch.export.export(net, (torch.randn(2, 1, 8, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))


def test_convert_takes_modules_and_programs(tmp_path: Path) -> None:
    net = network()
    same(net, net, examples=torch.randn(1, 1, 8, 8))
    same(net, net, "image", examples={"image": torch.randn(2, 1, 8, 8)})
    same(exported(net), net)
    torch.export.save(exported(net), tmp_path / "m.pt2")
    same(tmp_path / "m.pt2", net)


def test_examples_that_do_not_fit_are_refused() -> None:
    net = network()
    for examples, message in (
        (None, "give examples"),
        ((torch.zeros(1), torch.zeros(1)), "at most 1 examples .input., got 2"),
        ({"x": 3}, "example of input 'x', got int"),
    ):
        with pytest.raises(ConvertError, match=message):
            convert(net, examples=examples)
    with pytest.raises(ConvertError, match="omit examples"):
        convert(exported(net), examples=torch.zeros(1))


class Trap:
    """Unpickled, it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_nothing_of_a_pt2_file_is_run(tmp_path: Path) -> None:
    net, made = network(), tmp_path / "made"
    torch.export.save(exported(net), tmp_path / "m.pt2")

    def changed(part: str, change: Callable[[bytes], bytes]) -> bytes:
        target, done = io.BytesIO(), False
        with zipfile.ZipFile(tmp_path / "m.pt2") as source, zipfile.ZipFile(target, "w") as copy:
            for info in source.infolist():
                data = source.read(info)
                if part in info.filename:
                    done, data = True, change(data)
                copy.writestr(info.filename, data)
        assert done
        return target.getvalue()

    trap = pickle.dumps(Trap(made))
    same(changed("sample_inputs", lambda data: trap[: len(data)]), net)
    graph, weights, constants = "models/model.json", "model_weights_config.json", "model_constants_config.json"
    row = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": None}
    relu, system = b"torch.ops.aten.relu.default", b"torch.serialization.os.system"
    for data, message in (
        (changed(graph, lambda d: d.replace(relu, system)), "os.system"),
        (changed(graph, lambda d: d.replace(b"Symbol('", b"Symbol.__class__('", 1)), "has a size"),
        (changed(graph, lambda d: d.replace(b'"builtins.tuple', b'"__enum__', 1)), "names a class"),
        (changed(graph, lambda d: d[:999]), "damaged"),
        (changed(weights, lambda d: d.replace(b'"use_pickle": false', b'"use_pickle": true', 1)), "as a pickle"),
        (changed(constants, lambda d: json.dumps({"config": {"c": row}}).encode()), "'c' as a pickle"),
    ):
        with pytest.raises(ConvertError, match=message):
            convert(data)
    assert not made.exists()
