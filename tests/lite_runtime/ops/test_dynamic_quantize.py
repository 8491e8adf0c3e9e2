"""DynamicQuantizeLinear: one range for all or one a row, every bit the reference's, and ONNX's own operator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results, run
from tests.lite_runtime.ops.targets import on_other_targets, run_on

SHAPES = [((1, 10), 0), ((1, 10), 1), ((5, 1), 1), ((3, 1000), 1), ((2, 7, 70), 2), ((40000,), 0), ((3, 9001), 0)]
SHAPES += [((3, 9001), 1), ((), 0), ((1,), 0), ((3, 4, 5), 1), ((300, 17), 1)]


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        return np.asarray((rng.normal(rng.normal(), 1, shape) * scale).astype(np.float32))


def exact(x: Array, **attrs: Any) -> list[Array]:
    return check("DynamicQuantizeLinear", [x], attrs, outputs=3, rtol=0, atol=0)


KINDS = ({"dtype": "uint8"}, {"dtype": "int8"}, *({"dtype": "int8", "scheme": s} for s in ("SYMMETRIC", "ASYMMETRIC")))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("shape", "kept"), SHAPES)
def test_ranges_of_rows(shape: tuple[int, ...], kept: int, kind: dict[str, str]) -> None:
    for scale in (1, 1e-42, 1e38, 0):
        exact(floats(*shape, scale=scale), kept=kept, **kind)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nan_and_infinity(kind: dict[str, str]) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1, nan, -3, 2], [inf, 1, 2, 3], [-inf, 1, 2, inf], [nan] * 4, [0] * 4, [-1] * 4], np.float32)
    y, scale, zero = exact(x, kept=1, **kind)
    assert scale[3] == scale[4] == 1 and y[0, 1] == np.iinfo(kind["dtype"]).min
    assert zero[5] == (0 if kind.get("scheme") == "SYMMETRIC" else np.iinfo(kind["dtype"]).max)
    exact(x, kept=0, **kind)


def test_zero_points_near_a_half() -> None:
    """Ranges whose zero point has another rounding in float32 than in float64, which LiteRT computes in."""
    rng = np.random.default_rng(0)
    low, high = -np.abs(rng.normal(size=2_000_000)).astype(np.float32), np.abs(rng.normal(size=2_000_000)).astype("f4")
    step = (high - low).astype(np.float64) / 255
    first, last = low / step, high / step
    zero = np.where(128 + np.abs(first) < 127 + np.abs(last), -128 - first, 127 - last)
    near = np.rint(2 * zero.astype(np.float32)) % 2 == 1
    near &= np.abs(zero * 2 - np.rint(2 * zero)) < 1e-5
    assert near.sum() > 10
    exact(np.stack([low[near], high[near]], axis=1), kept=1, dtype="int8", scheme="ASYMMETRIC")


@pytest.mark.parametrize("names", [("y", "", ""), ("", "s", ""), ("", "", "z"), ("", "s", "z")])
def test_results_left_out(names: tuple[str, ...]) -> None:
    x, node = floats(3, 5), Node("DynamicQuantizeLinear", ("x",), names, {"kept": 1})
    whole = reference.evaluate(node, [x])
    types = {"y": Value("y", "uint8", (3, 5)), "s": Value("s", "float32", (3, 1)), "z": Value("z", "uint8", (3, 1))}
    wanted = [types[name] for name in names if name]
    graph = Graph((Value("x", "float32", (3, 5)),), tuple(wanted), (node,), {})
    got = run(graph, {"x": x})
    for one, want in zip(got, (w for w, name in zip(whole, names, strict=True) if name), strict=True):
        np.testing.assert_array_equal(one, want)


def test_without_the_kept_input_it_is_onnxs_operator() -> None:
    for seed in range(5):
        x = floats(7, 33, seed=seed)
        for got, want in zip(exact(x), onnxruntime_results("DynamicQuantizeLinear", [x], {}, 3), strict=True):
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-7, atol=0)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_rows_are_quantised_apart(dtype: str) -> None:
    x = floats(6, 40)
    y, scale, zero = exact(x, kept=1, dtype=dtype)
    assert scale.shape == zero.shape == (6, 1)
    for row in range(6):
        node = Node("DynamicQuantizeLinear", ("x",), ("y", "s", "z"), {"dtype": dtype})
        one = reference.evaluate(node, [x[row]])
        np.testing.assert_array_equal(y[row], one[0])
        assert scale[row, 0] == one[1] and zero[row, 0] == one[2]
    assert np.abs((y.astype(np.float32) - zero) * scale - x).max() <= scale.max() * 1.01


@pytest.mark.parametrize("shift", [-3.0, -0.3, 0.0, 0.4, 5.0])
def test_signed_ranges_meet_an_end_exactly(shift: float) -> None:
    """The end whose rounding would cost more is met; only the other may saturate, by half a step."""
    x = floats(50, 30, seed=2) + np.float32(shift)
    _, scale, zero = exact(x, kept=1, dtype="int8")
    low, high = np.minimum(x.min(1, keepdims=True), 0), np.maximum(x.max(1, keepdims=True), 0)
    ends = [zero + low / scale, zero + high / scale]
    met = np.minimum(np.abs(ends[0] + 128), np.abs(ends[1] - 127))
    assert met.max() <= 0.501 and np.allclose(ends[1] - ends[0], 255, rtol=1e-5)


def test_no_elements_take_the_reference() -> None:
    check("DynamicQuantizeLinear", [floats(0, 4)], {"kept": 1}, outputs=3)
    check("DynamicQuantizeLinear", [floats(4, 0)], {"kept": 1}, outputs=3, native=False)


@pytest.mark.parametrize(("spec", "attrs"), [
    (Spec("float64", (2, 3)), {}),
    (Spec("float32", (2, 3)), {"kept": 2}),
    (Spec("float32", (2, 3)), {"kept": -1}),
    (Spec("float32", (2, 3)), {"dtype": "int16"}),
])  # fmt: skip
def test_operands_that_do_not_fit_are_refused(spec: Spec, attrs: dict[str, Any]) -> None:
    node = Node("DynamicQuantizeLinear", ("x",), ("y", "s", "z"), attrs)
    with pytest.raises(ShapeError, match="DynamicQuantizeLinear"):
        INFERS["DynamicQuantizeLinear"](Inference(node, (spec,), (None,)))


def everything() -> None:
    """What one process shows of a target."""
    for shape, kept in SHAPES:
        test_ranges_of_rows(shape, kept, KINDS[1])
    test_nan_and_infinity(KINDS[0])


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)
