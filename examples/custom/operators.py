"""An operator of our own in a model: registered here, named in the bundle.

python examples/custom/operators.py                                          converts a model with it and runs it
msedge run model.mslite --random 0 --custom examples/custom/operators.py     runs a bundle that names it
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

import msedge


@msedge.register
class SoftThreshold(msedge.CustomOperator):
    """sign(x) * max(|x| - limit, 0)"""

    domain, name = "example", "SoftThreshold"
    attributes = "limit:f!"

    def infer(self, x: msedge.Spec, *, limit: float) -> msedge.Spec:
        """The result has the type and shape of x."""
        return x

    def compute(self, x: np.ndarray, *, limit: float) -> np.ndarray:
        """In the type of x."""
        return np.sign(x) * np.maximum(np.abs(x) - x.dtype.type(limit), 0)

    shared = True

    def kernel(self, x: msedge.Spec, *, limit: float) -> Callable[..., None]:
        """For Numba: each worker computes its part."""
        size, least = x.size, np.dtype(x.dtype).type(limit)

        def run(x, y, part, parts):  # type: ignore[no-untyped-def]
            source, target = x.ravel(), y.ravel()
            for i in range(size * part // parts, size * (part + 1) // parts):
                value = source[i]
                rest = max(abs(value) - least, value * 0)
                target[i] = rest if value > 0 else -rest

        return run


def model() -> onnx.ModelProto:
    """Relu(SoftThreshold(x @ w))"""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("SoftThreshold", ["a"], ["b"], domain="example", limit=0.5),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "example",
        [helper.make_tensor_value_info("x", 1, ["batch", 3])],
        [helper.make_tensor_value_info("y", 1, ["batch", 2])],
        [onnx.numpy_helper.from_array(np.array([[1, -1], [2, 0], [0, 3]], np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("example", 1)])


if __name__ == "__main__":
    bundle = msedge.convert(model()).bundle
    print(msedge.load(bundle).run({"x": np.array([[0.2, 0.1, 0.4]], np.float32)})["y"])
