"""ONNX's node cases run through the whole path: converter, bundle, runtime. Two lists record the results.

`node.txt` names the cases that pass, on native kernels and by reference alone; `node_native.txt` those of them that
need no reference step. `python -m tests.conformance` runs all cases and says what changed; `--update` writes both.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, numpy_helper

import converter
import lite_runtime

LIST = Path(__file__).parent / "node.txt"
NATIVE = Path(__file__).parent / "node_native.txt"
BACKENDS = ("native", "reference")


class Mismatch(AssertionError):
    """A case ran and gave something else than ONNX says."""


class Lists(NamedTuple):
    """What is committed, or what ought to be: rows of `node.txt` and of `node_native.txt`."""

    passing: frozenset[str]
    native: frozenset[str]


@cache
def modules() -> tuple[str, ...]:
    """The modules of the installed onnx that hold node cases, about one per operator, sorted."""
    from onnx.backend.test.case import node

    start = f"{node.__name__}."
    found = pkgutil.walk_packages(node.__path__, start)
    return tuple(sorted(module.name.removeprefix(start) for module in found if not module.ispkg))


@cache
def cases(module: str) -> Mapping[str, Any]:
    """A module's cases by name. Importing it makes them: some modules take seconds."""
    from onnx.backend.test.case import node

    before = len(node._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(f"{node.__name__}.{module}")
    return {case.name: case for case in node._NodeTestCases[before:]}


def committed() -> Lists:
    """The committed lists. A row is "module/case"."""
    return Lists(*(frozenset(file.read_text(encoding="utf-8").split()) for file in (LIST, NATIVE)))


def check(case: Any) -> bool:
    """Run a case on every backend; True where native code ran all of it, with no reference step.

    Raises MsedgeError where we refuse the case, Mismatch where a result differs.
    """
    bundle = converter.convert(case.model).bundle
    names = [v.name for v in case.model.graph.input]
    outputs = [v.name for v in case.model.graph.output]
    reference: tuple[str, ...] = ()
    for backend in BACKENDS:
        model = lite_runtime.load(bundle, backend=backend)
        for inputs, wanted in case.data_sets:
            given = dict(zip(names, map(_plain, inputs), strict=False))
            got = model.run(given)
            for name, want in zip(outputs, wanted, strict=True):
                compare(f"{backend}: {name}", got[name], _plain(want), case.rtol, case.atol)
            if backend == "native":
                reference += model.cost(given).reference
    return not reference


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
