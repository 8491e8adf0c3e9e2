"""Inputs on a regular grid keep its step; others are calibrated."""

from __future__ import annotations

import numpy as np
import pytest

from converter.quantize.calibration.lattice import lattice


@pytest.mark.parametrize(("step", "zero"), [(1.0, -128), (1 / 255, -128), (0.5847029, 83), (2.0**-9, 0), (3e4, 127)])
def test_dequantised_bytes_are_recognised_exactly(step: float, zero: int) -> None:
    rng = np.random.default_rng(zero % 7)
    stored = rng.integers(-128, 128, (40, 33)).astype(np.float32)
    stored[0, :2] = -128, 127
    real = (stored - zero) * np.float32(step)
    found = lattice([real[:20], real[20:]])
    assert found is not None and found.zero_point == zero
    assert found.scale == pytest.approx(step, rel=1e-5)
    np.testing.assert_array_equal(np.rint(real / np.float32(found.scale)) + found.zero_point, stored)


def test_unused_range_is_shared_unless_all_values_have_one_sign() -> None:
    pixels = lattice([np.arange(3, 200, dtype=np.float32)])
    assert pixels is not None and (pixels.scale, pixels.zero_point) == (1.0, -128)
    below = lattice([-np.arange(3, 200, dtype=np.float32)])
    assert below is not None and below.zero_point == 127
    both = lattice([np.arange(-50, 51, dtype=np.float32)])
    assert both is not None and both.scale == 1 and abs(both.zero_point) <= 2


@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).standard_normal(1000),  # no steps
        np.arange(300),  # too many
        np.arange(8),  # too few to decide
        np.array([*range(20), 19.5, 400]),  # too wide
        np.arange(40) + 0.25,  # zero is between two steps
        np.arange(1000, 1100),  # zero is too far away
        np.append(np.arange(40), 7.31),  # one value between two
        np.zeros(0),
    ],
)
def test_other_values_are_not_on_a_lattice(values: np.ndarray) -> None:
    assert lattice([values.astype(np.float32)]) is None
