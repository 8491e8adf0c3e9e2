"""Kernels of operators that a program registers: compiled by Numba, called inside the native program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lite_runtime
from converter import convert
from lite_runtime import CustomOperator, MsedgeError, Spec, custom, register
from lite_runtime.running.kept import _Place

RNG = np.random.default_rng(8)


class Mixed(CustomOperator):
    """x + scale * w, or without w x; how many of it are positive; in each row the sum."""

    domain, name = "test", "Mixed"
    inputs, outputs = (1, 2), (1, 3)
    attributes = "scale:f!"
    compiled: ClassVar[list[tuple[Spec | None, ...]]] = []
    """Types that `kernel` was asked for."""

    def infer(self, x: Spec, w: Spec | None = None, *, scale: float) -> list[Spec]:
        return [x, Spec("int64", ()), Spec(x.dtype, x.shape[:1])]

    def compute(self, x: np.ndarray, w: np.ndarray | None = None, *, scale: float) -> tuple[np.ndarray, ...]:
        y = x if w is None else x + w * x.dtype.type(scale)
        return y, np.int64((y > 0).sum()), y.sum(1, dtype=x.dtype)

    def kernel(self, x: Spec, w: Spec | None = None, *, scale: float) -> Callable[..., None]:
        self.compiled.append((x, w))
        factor = np.dtype(x.dtype).type(scale)

        def plain(x, y, count, sums):  # type: ignore[no-untyped-def]
            count[()] = 0
            for i in range(x.shape[0]):
                sums[i] = 0
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j]
                    sums[i] += y[i, j]
                    count[()] += y[i, j] > 0

        def weighted(x, w, y, count, sums):  # type: ignore[no-untyped-def]
            count[()] = 0
            for i in range(x.shape[0]):
                sums[i] = 0
                for j in range(x.shape[1]):
                    y[i, j] = x[i, j] + w[j] * factor
                    sums[i] += y[i, j]
                    count[()] += y[i, j] > 0

        return plain if w is None else weighted


class Parts(CustomOperator):
    """x, and in every element which share of the work it belongs to; workers compute a part each."""

    domain, name, shared = "test", "Parts", True
    outputs = (2, 2)

    def infer(self, x: Spec) -> list[Spec]:
        return [x, Spec("int32", x.shape)]

    def compute(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        return x * 2, np.zeros(x.shape, np.int32)

    def kernel(self, x: Spec) -> Callable[..., None]:
        size = x.size

        def run(x, y, owner, part, parts):  # type: ignore[no-untyped-def]
            for i in range(size * part // parts, size * (part + 1) // parts):
                for _ in range(50):  # enough work to be shared
                    y.ravel()[i] = x.ravel()[i] * 2
                owner.ravel()[i] = part

        return run


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No test's operators are left."""
    Mixed.compiled.clear()
    yield
    for operator in (Mixed, Parts):
        custom.unregister(operator)
    assert not custom.registered()


def model(
    op: str = "Mixed",
    inputs: tuple[str, ...] = ("a", "w"),
    results: Mapping[str, int] | None = None,
    dtype: int = TensorProto.FLOAT,
    **attrs: Any,
) -> onnx.ModelProto:
    """op(-x, w) between native operators. results: names and element types, "" where one is left out."""
    results = {"y": dtype, "count": TensorProto.INT64, "sums": dtype} if results is None else results
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node(op, inputs, list(results), domain="test", **attrs)]
    ends = [helper.make_tensor_value_info(name, kind, None) for name, kind in results.items() if name]
    weights = numpy_helper.from_array(np.arange(5).astype(helper.tensor_dtype_to_np_dtype(dtype)), "w")
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, ["n", 5])], ends, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("test", 1)])


def same(bundle: bytes, feeds: dict[str, np.ndarray], threads: int = 1) -> lite_runtime.Model:
    """Native and by reference: equal."""
    ours = lite_runtime.load(bundle, threads=threads)
    theirs = lite_runtime.load(bundle, backend="reference")
    expected = theirs.run(feeds)
    for name, got in ours.run(feeds).items():
        assert got.dtype == expected[name].dtype and got.shape == expected[name].shape
        np.testing.assert_allclose(got, expected[name], rtol=1e-5, atol=1e-5)
    return ours


@pytest.mark.parametrize(
    ("inputs", "dtype"),
    [(("a", "w"), TensorProto.FLOAT), (("a",), TensorProto.INT32), (("a", ""), TensorProto.FLOAT)],
)
def test_inside_the_native_program(inputs: tuple[str, ...], dtype: int) -> None:
    """With any number of rows, each of which is compiled once; a result that nobody reads is written as well."""
    register(Mixed)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    for results in (None, {"y": dtype, "": 0, "sums": dtype}, {"y": dtype}):
        bundle = convert(model(inputs=inputs, results=results, dtype=dtype, scale=3.0)).bundle
        for rows in (1, 7):
            feeds = {"x": (RNG.standard_normal((rows, 5)) * 4).astype(kind)}
            assert not same(bundle, feeds).cost(feeds).reference
    seen = Mixed.compiled
    assert len(set(seen)) == len(seen) <= 3


def test_workers_share_it() -> None:
    register(Parts)
    results = {"y": TensorProto.FLOAT, "owner": TensorProto.INT32}
    bundle = convert(model("Parts", ("a",), results)).bundle
    x = RNG.standard_normal((40_000, 5)).astype(np.float32)
    for threads in (1, 2):
        found = lite_runtime.load(bundle, threads=threads)
        got = found.run({"x": x})
        np.testing.assert_array_equal(got["y"], -x * 2)
        assert set(np.unique(got["owner"])) <= set(range(threads))  # a busy machine may leave one worker
        (record,) = [r for r in found._executor("predict").bound({"x": x}).plan.records if r.name == "user.call"]
        assert record.shared


def test_no_elements_and_other_types_are_computed_by_reference() -> None:
    register(Mixed)
    bundle = convert(model(scale=3.0)).bundle
    asked = len(Mixed.compiled)
    same(bundle, {"x": np.zeros((0, 5), np.float32)})
    half = convert(model(dtype=TensorProto.FLOAT16, scale=3.0)).bundle
    feeds = {"x": RNG.standard_normal((2, 5)).astype(np.float16)}
    assert lite_runtime.load(half).cost(feeds).reference and len(Mixed.compiled) == asked


def test_a_kernel_may_be_missing() -> None:
    class Some(Mixed):
        def kernel(self, x: Spec, w: Spec | None = None, *, scale: float) -> Any:
            return None if x.shape[0] > 1 else super().kernel(x, w, scale=scale)

    register(Some)
    bundle = convert(model(scale=3.0)).bundle
    for rows, native in ((1, True), (2, False)):
        feeds = {"x": np.ones((rows, 5), np.float32)}
        assert same(bundle, feeds).cost(feeds).reference == (() if native else ("test::Mixed",))


def test_without_numba_the_definition_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    register(Mixed)
    monkeypatch.setattr(custom, "find_spec", lambda name: None)
    feeds = {"x": np.ones((2, 5), np.float32)}
    assert same(convert(model(scale=3.0)).bundle, feeds).cost(feeds).reference and not Mixed.compiled


WRONG: dict[str, tuple[Any, str]] = {
    "of types": (lambda *_, **__: lambda x, w, y, count, sums: x.no(), "Numba cannot compile the kernel of test::"),
    "of operands": (lambda *_, **__: lambda x: None, "Numba cannot compile the kernel of test::Mixed"),
    "that raises": (lambda *_, **__: 1 / 0, "kernel of test::Mixed failed: ZeroDivisionError"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_kernels_are_refused_by_name(case: str) -> None:
    function, words = WRONG[case]
    register(Mixed)
    bundle = convert(model(scale=3.0)).bundle
    custom.unregister(Mixed)
    register(type("Wrong", (Mixed,), {"kernel": function}))
    with pytest.raises(MsedgeError, match=words):
        lite_runtime.load(bundle).run({"x": np.ones((2, 5), np.float32)})


def test_its_program_is_never_kept() -> None:
    """An address is valid in one process only."""
    register(Mixed)
    found = lite_runtime.load(convert(model(scale=3.0)).bundle)
    feeds = {"x": np.ones((2, 5), np.float32)}
    found.run(feeds)
    plan = found._executor("predict").bound(feeds).plan
    assert "user.call" in plan.kernels
    assert not _Place("", memoryview(b""), tuple(plan.outputs))._may_keep(plan)
