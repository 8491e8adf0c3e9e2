"""ONNX's node cases run through the whole path: converter, bundle, runtime. One list of names says which pass.

`python -m tests.conformance` runs them all and says what changed; `--update` writes the list.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

import converter
import lite_runtime

LIST = Path(__file__).parent / "node.txt"
BACKENDS = ("native", "reference")


class Mismatch(AssertionError):
    """A case ran and gave something else than ONNX says."""


@cache
def all_cases() -> dict[str, Any]:
    """Every node case of the installed onnx, by name. Making them evaluates random data: a few seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return {case.name: case for case in collect_testcases("")}


def passing() -> list[str]:
    """Names of the committed list."""
    return LIST.read_text(encoding="utf-8").split()


def check(case: Any, backend: str) -> None:
    """Run a case; raises MsedgeError where we refuse it, Mismatch where a result differs."""
    model = lite_runtime.load(converter.convert(case.model).bundle, backend=backend)
    names = [v.name for v in case.model.graph.input]
    outputs = [v.name for v in case.model.graph.output]
    for inputs, wanted in case.data_sets:
        got = model.run(dict(zip(names, map(_plain, inputs), strict=False)))
        for name, want in zip(outputs, wanted, strict=True):
            compare(name, got[name], _plain(want), case.rtol, case.atol)


def _plain(value: Any) -> Any:
    """A case's value as the runtime takes it: some come as protobufs."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def compare(name: str, got: Any, want: Any, rtol: float, atol: float) -> None:
    """Raise Mismatch unless `got` is `want` in kind, dtype, shape and, within tolerances, in value."""
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            raise Mismatch(f"{name}: expected a sequence of {len(want)}, got {type(got).__name__}")
        for g, w in zip(got, want, strict=True):
            compare(name, g, w, rtol, atol)
        return
    if want is None or got is None:
        if want is not got:
            raise Mismatch(f"{name}: expected {want}, got {got}")
        return
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise Mismatch(f"{name}: expected shape {want.shape}, got {got.shape}")
    if want.dtype.kind in "OUST":
        if got.astype(str).tolist() != want.astype(str).tolist():
            raise Mismatch(f"{name}: strings differ")
        return
    if got.dtype != want.dtype:
        raise Mismatch(f"{name}: expected dtype {want.dtype}, got {got.dtype}")
    if want.dtype.kind not in "biufc":
        got, want = got.astype(np.float32), want.astype(np.float32)
    if not np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True):
        raise Mismatch(f"{name}: differs by up to {np.nanmax(np.abs(got.astype(np.float64) - want))}")


def operators(model: ModelProto) -> Iterator[str]:
    """The operators of a model, nested graphs included."""

    def walk(nodes: Any) -> Iterator[str]:
        for node in nodes:
            yield node.op_type
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    yield from walk(attribute.g.node)

    return walk(model.graph.node)
