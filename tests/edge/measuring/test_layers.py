"""Values that quantisation scaled are compared as if it had not; wrong values are not."""

from __future__ import annotations

import numpy as np
import pytest

from edge.measuring.layers import layers


def _snr(wanted: np.ndarray, got: np.ndarray) -> float:
    (row,) = layers({"y": ("Conv", wanted)}, {"y": ("QLinearConv", got)})
    return row.snr


@pytest.mark.parametrize("axis", [1, 3])
def test_channels_that_equalisation_scaled(axis: int) -> None:
    rng = np.random.default_rng(3)
    wanted = rng.normal(size=(1, 6, 8, 6)).astype(np.float32)
    factors = np.array([1, 3.7, 0.21, 1, 1.3, 0.6], np.float32).reshape([6 if i == axis else 1 for i in range(4)])
    noise = rng.normal(0, 0.01, wanted.shape).astype(np.float32)
    assert 35 < _snr(wanted, (wanted + noise) * factors) < 45


@pytest.mark.parametrize("change", [lambda x: x * -1, lambda x: x * np.float32(1.05), lambda x: x[:, ::-1]])
def test_wrong_values_stay_wrong(change: object) -> None:
    """With another sign, a gain that is a little off, or channels in another order."""
    wanted = np.random.default_rng(4).normal(size=(1, 6, 8, 6)).astype(np.float32)
    assert _snr(wanted, change(wanted)) < 30  # type: ignore[operator]
