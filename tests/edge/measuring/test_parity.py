"""When two arrays count as equal, and where two graphs diverge."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import converter
from edge.measuring.parity import compare, first_divergence, worst
from edge.peers.oracle import Oracle
from lite_runtime import bundle
from tests.edge.conftest import Small

REALS = arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=4), elements=st.floats(-100, 100, width=32))


@given(REALS)
def test_an_array_equals_itself(x: np.ndarray) -> None:
    assert compare("x", x, x.copy()).within(0)


@given(REALS, st.floats(0.25, 1000))
def test_the_difference_is_relative_to_the_expected_range(x: np.ndarray, scale: float) -> None:
    wide = x.astype(np.float64)
    expected = np.concatenate([wide.ravel(), [0.0, 1.0]]) * scale
    got = expected.copy()
    got[-1] += 0.01 * scale
    span = (max(wide.max(), 1.0) - min(wide.min(), 0.0)) * scale
    found = compare("x", got, expected)
    assert math.isclose(found.relative, 0.01 * scale / span, rel_tol=1e-6)
    assert found.at == (len(expected) - 1,)


@pytest.mark.parametrize(
    ("got", "expected", "why"),
    [
        (np.zeros(3, np.float32), np.zeros((3, 1), np.float32), "shape"),
        (np.zeros(3, np.float64), np.zeros(3, np.float32), "float64"),
        (np.array([1, 2]), np.array([1, 3]), "1 of 2 elements"),
        (np.array([np.nan, 1]), np.array([0.0, 1]), "got nan"),
        (np.array([0.0, 1]), np.array([np.nan, 1]), "expected nan"),
        (np.array([-np.inf, 1]), np.array([np.inf, 1]), "expected inf"),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), "1 of 2 elements"),
    ],
)
def test_what_no_tolerance_allows(got: np.ndarray, expected: np.ndarray, why: str) -> None:
    found = compare("x", got, expected)
    assert not found.within(1e9) and why in found.why


def test_rounding_is_no_difference_however_small_the_range() -> None:
    tiny = np.array([0.0, 1e-6])
    found = compare("x", tiny + np.array([0, 2e-7]), tiny)
    assert found.relative > 0.1 and found.within(0)
    assert not compare("x", tiny + np.array([0, 1e-6]), tiny).within(1e-4)
    assert compare("x", tiny + np.array([0, 1e-6]), tiny).within(1e-4, absolute=1e-5)
    assert not compare("x", tiny + np.array([0, 1e-7]), tiny).within(1e-4, absolute=0.0)


def test_nan_and_infinity_in_their_places_are_equal() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 2.0])
    assert compare("x", x, x.copy()).within(0)


def test_of_several_runs_the_worst_counts() -> None:
    near, far = (compare("x", np.array([0.0, 1 + d]), np.array([0.0, 1.0])) for d in (1e-6, 1e-3))
    assert worst([[near], [far]]) == [far]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_may_differ_by_its_last_place(dtype: np.dtype) -> None:
    step = 2.0**-10 if dtype == np.float16 else 2.0**-7
    expected = np.array([0.0, 1.0, -3.0, 1000.0]).astype(dtype)
    near = np.array([0.0, 1.0 + step, -3.0 - 2 * step, 1000.0 + 512 * step]).astype(dtype)
    assert (near != expected).sum() == 3
    assert compare("x", near, expected, steps=1).within(0)
    assert not compare("x", near, expected).within(1e-6, absolute=1e-6)
    far = np.array([0.0, 1.0, -3.0 - 4 * step, 1000.0]).astype(dtype)
    assert not compare("x", far, expected, steps=1).within(0)


def test_the_first_divergence_in_half_precision() -> None:
    """Bundles compute in float32 what their sources compute in float16."""

    def model(factor: float) -> onnx.ModelProto:
        text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float16[2, 3] x) => (float16[2, 3] y) {{
            c = Constant <value = float {{{factor}}}> ()
            k = CastLike (c, x)
            a = Relu (x)
            b = Mul (a, k)
            y = Neg (b)
        }}"""
        return onnx.parser.parse_model(text)

    x = {"x": np.random.default_rng(3).standard_normal((2, 3)).astype(np.float16)}
    graphs = [bundle.read(converter.convert(model(f)).bundle).signatures["predict"] for f in (0.5, 0.75)]
    right, wrong = (first_divergence(model(0.5), g, x, 1e-3, threads=1, backend="reference") for g in graphs)
    assert right is None
    assert wrong is not None and wrong.difference.name == "b"


def test_the_first_divergence_is_found_and_a_right_bundle_has_none(small: Small) -> None:
    model = Oracle(small.source).model
    x = {"x": np.random.default_rng(3).standard_normal((2, 3, 8, 8)).astype(np.float32)}

    def part(path: object) -> object:
        graph = bundle.read(path).signatures["predict"]  # type: ignore[arg-type]
        return first_divergence(model, graph, x, 1e-4, threads=1, backend="reference")

    assert part(small.bundle) is None
    found = part(small.wrong)
    assert found is not None and found.difference.name in ("c2", "r2") and found.agreeing >= 1  # type: ignore[attr-defined]
