"""PyTorch modules as ONNX models: their numbers, their names, and errors. Slow: importing takes seconds."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

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
