"""The oracle computes integer products exactly on this processor too, whatever kernels it has for them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge.peers.exact import exact
from tests import oracles

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (8, 64)).astype(np.uint8)
W = RNG.choice(np.array([-127, 127], np.int8), (64, 16))
"""With the largest sums of two products, which 16 bits do not hold."""
ZERO, X_STEP, W_STEP, Y_STEP = np.uint8(100), np.float32(0.02), np.float32(0.01), np.float32(0.4)
SUMS = (X.astype(np.int64) - int(ZERO)) @ W.astype(np.int64)
BYTES = np.clip(np.rint(SUMS * (0.02 * 0.01 / 0.4)) + 100, 0, 255)
Q = {"s": X_STEP, "z": ZERO, "ws": W_STEP, "wz": np.int8(0), "ys": Y_STEP, "yz": ZERO}
CASES = {
    "MatMulInteger": (["x", "w", "z"], "", SUMS),
    "QLinearMatMul": (["x", "s", "z", "w", "ws", "wz", "ys", "yz"], "", BYTES),
    "QGemm": (["x", "s", "z", "w", "ws", "wz"], "com.microsoft", SUMS * (0.02 * 0.01)),
    "MatMulIntegerToFloat": (["x", "w", "s", "ws", "z", "wz"], "com.microsoft", SUMS * (0.02 * 0.01)),
    "ConvInteger": (["x", "w", "z"], "", SUMS),
    "QLinearConv": (["x", "s", "z", "w", "ws", "wz", "ys", "yz"], "", BYTES),
}


@pytest.mark.parametrize("weights", ["constant", "given"])
@pytest.mark.parametrize("op", CASES)
def test_products_of_bytes_are_exact(op: str, weights: str) -> None:
    names, domain, wanted = CASES[op]
    conv = op in ("ConvInteger", "QLinearConv")
    x, w = (X[..., None], np.ascontiguousarray(W.T)[..., None]) if conv else (X, W)
    kind = {"": TensorProto.INT32, "com.microsoft": TensorProto.FLOAT}[domain]
    kind = TensorProto.UINT8 if op.startswith("QLinear") else kind
    constants = {name: Q[name] for name in names if name in Q} | ({"w": w} if weights == "constant" else {})
    inputs = {"x": x} | ({} if weights == "constant" else {"w": w})
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain)],
        "one",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in inputs.items()
        ],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    for optimised in (False, True):
        (got,) = oracles.session(model, optimised=optimised).run(None, inputs)
        np.testing.assert_allclose(got.reshape(wanted.shape), wanted, rtol=1e-5)


def test_weights_of_few_bits_are_multiplied_in_float() -> None:
    """Level 1 is float32; where a test asks for another level, it stays."""
    for given, wanted in (({}, 1), ({"accuracy_level": 4}, 4)):
        node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=1, **given)
        imports = [helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(helper.make_graph([node], "one", [], []), opset_imports=imports)
        (changed,) = exact(model).graph.node
        assert {a.name: a.i for a in changed.attribute}["accuracy_level"] == wanted
    assert exact(onnx.ModelProto()) == onnx.ModelProto()
