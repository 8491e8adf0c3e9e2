"""One operator run by the reference, by onnxruntime, and the two compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from lite_runtime.graph import Array, Node
from lite_runtime.reference import evaluate
from tests import oracles

RNG = np.random.default_rng(20)
ML_OPS = frozenset(s.name for s in onnx.defs.get_all_schemas() if s.domain == "ai.onnx.ml")


def floats(*shape: int, dtype: Any = np.float32, low: float = -2.0, high: float = 2.0) -> Array:
    """Uniform random numbers."""
    return RNG.uniform(low, high, shape).astype(dtype)


def ints(*shape: int, dtype: Any = np.int64, low: int = -5, high: int = 6) -> Array:
    """Uniform random integers in [low, high)."""
    return RNG.integers(low, high, shape).astype(dtype)


def i64(*values: int) -> Array:
    """A vector of int64."""
    return np.array(values, np.int64)


def texts(*values: str) -> Array:
    """A vector of strings."""
    return np.array(values, object)


def ours(op: str, inputs: Sequence[Any], attrs: Mapping[str, Any] | None = None, outputs: int = 1) -> list[Any]:
    """The reference's outputs."""
    names = tuple("" if x is None else f"i{i}" for i, x in enumerate(inputs))
    return evaluate(Node(op, names, tuple(f"o{i}" for i in range(outputs)), dict(attrs or {}), "it"), inputs)


def theirs(
    op: str, inputs: Sequence[Any], attrs: Mapping[str, Any] | None = None, outputs: int = 1, opset: int = 22
) -> list[Any]:
    """onnxruntime's outputs."""
    domain = "ai.onnx.ml" if op in ML_OPS else ""
    names = ["" if x is None else f"i{i}" for i, x in enumerate(inputs)]
    results = [f"o{i}" for i in range(outputs)]
    typed = {
        k: onnx.numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in (attrs or {}).items()
    }
    node = helper.make_node(op, names, results, domain=domain, **typed)
    fed = {name: x for name, x in zip(names, inputs, strict=True) if name}
    values = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in fed.items()
    ]
    graph = helper.make_graph([node], "one", values, [onnx.ValueInfoProto(name=r) for r in results])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 4)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return list(oracles.session(model).run(None, fed))


def same(got: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal types and shapes, and values within tolerance."""
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            same(g, w, rtol, atol)
        return
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        np.testing.assert_allclose(list(got.values()), list(wanted.values()), rtol, atol)
        return
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if wanted.dtype == object:
        assert got.tolist() == wanted.tolist()
        return
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol, atol)


def agree(
    op: str,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    outputs: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    opset: int = 22,
) -> None:
    """The reference and onnxruntime give the same."""
    for got, wanted in zip(ours(op, inputs, attrs, outputs), theirs(op, inputs, attrs, outputs, opset), strict=True):
        same(got, wanted, rtol, atol)
