"""Scales, zero points and ranges: the algebra holds for any numbers, and each method does what its name says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from converter.quantize.calibration.calibrate import (
    LIMITS,
    Histogram,
    Params,
    affine,
    choose,
    fake,
    saturated,
    symmetric,
)
from converter.quantize.calibration.observe import BINS, Statistics
from converter.quantize.options import METHODS, Options

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)
DTYPES = st.sampled_from(sorted(LIMITS))


def seen(values) -> Statistics:
    values = np.asarray(values, np.float32)
    low, high = float(values.min()), float(values.max())
    counts = np.histogram(values.astype(np.float64), BINS, (low, high))[0] if low < high else np.zeros(BINS, np.int64)
    return Statistics(low=low, high=high, elements=values.size, counts=counts)


@given(FLOATS, FLOATS, DTYPES)
def test_zero_is_exact_and_the_scale_sane(a, b, dtype):
    for params in (affine(min(a, b), max(a, b), dtype), symmetric(a, b, dtype)):
        first, last = LIMITS[dtype]
        assert first <= params.zero_point <= last
        assert np.float32(params.scale) == params.scale and np.isfinite(params.scale) and params.scale >= 2.0**-100
        assert fake(np.zeros(1, np.float32), params)[0] == 0


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32), st.integers(0, 255))
def test_values_in_range_move_half_a_step(a, b, i):
    low, high = min(a, b, 0.0), max(a, b, 0.0)
    params = affine(low, high)
    x = np.float32(low + (high - low) * i / 255)
    # the zero point's rounding shifts the span by half a step at most
    assert abs(float(fake(np.array([x]), params)[0]) - float(x)) <= params.scale * 1.001


@given(FLOATS, FLOATS, st.lists(FLOATS, min_size=1, max_size=20), DTYPES)
def test_fake_is_idempotent_and_monotone(a, b, values, dtype):
    params = affine(min(a, b), max(a, b), dtype)
    once = fake(np.sort(np.asarray(values, np.float32)), params)
    np.testing.assert_array_equal(fake(once, params), once)
    assert (np.diff(once) >= 0).all()


def test_constants_get_a_sane_scale():
    assert affine(0, 0) == Params(1 / 255, -128)
    assert symmetric(0, 0).zero_point == 0 and symmetric(0, 0).scale > 0
    for value in (3.0, -3.0, 1e-30):
        params = affine(*choose(seen([value, value]), Options()))
        assert fake(np.float32([value]), params)[0] == pytest.approx(value, rel=1e-6)
    assert choose(Statistics(), Options()) == (0, 0)


def test_one_sided_ranges_use_all_levels():
    assert affine(0, 25.5).zero_point == -128 and affine(-25.5, 0).zero_point == 127
    assert affine(1, 25.5) == affine(0, 25.5)
    assert affine(0, 25.5, "uint8").zero_point == 0


def test_symmetric_sixteen_bits_have_headroom():
    found = choose(seen([-1.0, 0.5]), Options(mode="int16x8"), "int16")
    assert found == (-2, 1) and symmetric(*found).scale == np.float32(2 / 32767)


@pytest.fixture
def outliers():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.standard_normal(200_000), [40.0, -30.0]]).astype(np.float32)


def test_minmax_keeps_all(outliers):
    assert choose(seen(outliers), Options(method="minmax")) == (-30, 40)


def test_percentile_cuts_both_sides(outliers):
    low, high = choose(seen(outliers), Options(method="percentile", percentile=99.0))
    inside = ((outliers >= low) & (outliers <= high)).mean()
    assert 0.99 <= inside < 0.995
    relu = np.maximum(outliers, 0)
    low, high = choose(seen(relu), Options(method="percentile", percentile=99.0))
    assert low == 0 and 0.985 <= (relu <= high).mean() < 0.995
    assert choose(seen(outliers), Options(method="percentile", percentile=100.0)) == pytest.approx((-30, 40))


@pytest.mark.parametrize("method", ["mse", "entropy", "percentile"])
def test_outliers_are_clipped(outliers, method):
    low, high = choose(seen(outliers), Options(method=method))
    assert -30 <= low < -2 and 2 < high < 30


def test_mse_is_minimal(outliers):
    for values in (outliers, np.maximum(outliers, 0), outliers[:-2] ** 3, np.abs(outliers) - 1):
        errors = {}
        for method in METHODS:
            params = affine(*choose(seen(values), Options(method=method)))
            errors[method] = float(np.square(fake(values, params).astype(np.float64) - values).mean())
        assert errors["mse"] <= min(errors.values()) * 1.02, errors


def test_uniform_values_are_not_clipped():
    values = np.linspace(-3, 5, 4001, dtype=np.float32)
    for method in ("mse", "entropy"):
        low, high = choose(seen(values), Options(method=method))
        assert low <= -2.9 and high >= 4.9


def test_a_relus_zeros_do_not_decide_the_entropy():
    rng = np.random.default_rng(1)
    values = np.maximum(rng.standard_normal(40_000), 0) * 10
    assert choose(seen(values), Options(method="entropy"))[1] > 20


def test_saturation_counts_values_outside_the_range(outliers):
    statistics = seen(outliers)
    histogram = Histogram(statistics.counts, statistics.low, statistics.high)
    assert saturated(histogram, affine(-30, 40)) == 0
    assert saturated(histogram, affine(-1, 1)) == pytest.approx((np.abs(outliers) > 1).mean(), abs=0.02)
