"""The tree of counts against least squares solved directly, and quantiles against sorted data."""

from __future__ import annotations

import numpy as np
import pytest

from federated.analytics.dyadic import consistent, contrast_deviation, quantile


def matrix(bins: int) -> np.ndarray:
    """Leaves to the nodes of the tree, the root first."""
    rows = [np.kron(np.eye(1 << level), np.ones(bins >> level)) for level in range(bins.bit_length())]
    return np.concatenate(rows)


@pytest.mark.parametrize("bins", [2, 4, 16, 64])
def test_the_consistent_tree_is_the_least_squares_solution(bins: int) -> None:
    noisy = np.random.default_rng(bins).normal(size=2 * bins - 1)
    best = np.linalg.lstsq(matrix(bins), noisy, rcond=None)[0]
    np.testing.assert_allclose(consistent(noisy), best, atol=1e-10)


def test_the_stated_deviation_is_that_of_the_estimate() -> None:
    bins, contrast = 16, np.arange(16) < 5
    tree = matrix(bins)
    exact = 3.0 * np.sqrt(contrast @ np.linalg.inv(tree.T @ tree) @ contrast)
    assert contrast_deviation(contrast * 1.0, True, 3.0) == pytest.approx(exact)
    assert contrast_deviation(contrast * 1.0, False, 3.0) == pytest.approx(3.0 * np.sqrt(5))


@pytest.mark.parametrize("at", [0.0, 0.1, 0.5, 0.99, 1.0])
def test_quantiles_without_noise_are_within_a_bin(at: float) -> None:
    values = np.random.default_rng(0).normal(size=5000).clip(-4, 4)
    leaves = np.histogram(values, 256, (-4, 4))[0].astype(float)
    found = quantile(leaves, -4, 4, at, False, 0.0)
    assert abs(found.value - np.quantile(values, at)) <= 8 / 256
    assert found.low <= np.quantile(values, at) <= found.high and found.rank_deviation == 0


def test_the_interval_holds_the_quantile_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=2000).clip(-4, 4)
    leaves = np.histogram(values, 128, (-4, 4))[0].astype(float)
    tree, inside, ranks = matrix(128) @ leaves, 0, []
    for _ in range(300):
        found = quantile(consistent(tree + rng.normal(0, 20, tree.shape)), -4, 4, 0.3, True, 20.0)
        inside += found.low <= np.quantile(values, 0.3) <= found.high
        ranks.append((values <= found.value).mean() - 0.3)
    assert inside >= 0.93 * 300
    assert np.std(ranks) == pytest.approx(found.rank_deviation, rel=0.3)
