"""Clipping and noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated import tree
from federated.errors import FederatedError
from federated.privacy import AdaptiveBound, FlatClip, GaussianNoise, LayerClip, SecureSource, SeededSource
from federated.privacy.clipping import Clip


def update(number: int, size: float = 1.0) -> dict[str, object]:
    rng = np.random.default_rng(number)
    return {"a": (size * rng.normal(size=(3, 4))).astype("f4"), "b": {"c": (size * rng.normal(size=5)).astype("f4")}}


def norm(of: tree.Tree) -> float:
    return float(np.sqrt(sum((leaf.astype(np.float64) ** 2).sum() for _, leaf in tree.leaves(of))))


@pytest.mark.parametrize("kind", [FlatClip, LayerClip])
@given(number=st.integers(0, 99), size=st.floats(1e-6, 1e6), bound=st.floats(1e-3, 1e3))
def test_the_norm_is_within_the_bound(kind: type[Clip], number: int, size: float, bound: float) -> None:
    given_ = update(number, size)
    clipped, was, within = kind(bound)(given_)  # type: ignore[call-arg]
    assert norm(clipped) <= bound * 1.00001
    assert was == pytest.approx(norm(given_), rel=1e-5)
    if within:
        np.testing.assert_array_equal(clipped["a"], given_["a"])
    else:
        assert norm(clipped) < norm(given_)
    assert all(leaf.dtype == np.float32 for _, leaf in tree.leaves(clipped))


def test_flat_clipping_keeps_the_direction_and_by_layer_each_has_its_part() -> None:
    large = {"a": np.full(4, 3.0, "f4"), "b": np.full(4, 0.1, "f4")}
    flat = FlatClip(1.0)(large).tree
    np.testing.assert_allclose(flat["a"] / flat["b"], 30, rtol=1e-6)
    layers = LayerClip(1.0)(large).tree
    assert norm({"a": layers["a"]}) == pytest.approx(0.5**0.5, rel=1e-6)
    np.testing.assert_array_equal(layers["b"], large["b"])


def test_clipping_runs_under_vmap_as_on_a_device() -> None:
    jax = pytest.importorskip("jax")
    rows = [update(number, 2.0 ** (number - 3)) for number in range(7)]
    stacked = tree.map_leaves(lambda *leaves: np.stack(leaves), *rows)
    for clip in (FlatClip(3.0), LayerClip(3.0)):
        many = jax.jit(jax.vmap(lambda one, clip=clip: tuple(clip(one))))(stacked)
        for at, row in enumerate(rows):
            one = clip(row)
            np.testing.assert_allclose(many[0]["b"]["c"][at], one.tree["b"]["c"], rtol=1e-5)
            np.testing.assert_allclose([many[1][at], many[2][at]], [one.norm, one.within], rtol=1e-5)


def test_zeros_stay_and_nan_is_left_for_the_receiver_to_refuse() -> None:
    zero = FlatClip(1.0)(tree.zeros(update(0)))
    assert norm(zero.tree) == 0 and zero.within == 1
    assert np.isnan(FlatClip(1.0)({"a": np.array([np.nan, 1], "f4")}).tree["a"]).any()


def test_the_adaptive_bound_finds_the_quantile() -> None:
    norms = np.random.default_rng(0).lognormal(1.0, 0.5, 400)
    bound = AdaptiveBound(0.01, quantile=0.7)
    for _ in range(200):
        bound = bound.next(float((norms <= bound.bound).sum()), len(norms), 0.0)
    assert bound.bound == pytest.approx(np.quantile(norms, 0.7), rel=0.03)
    assert bound.clip == FlatClip(bound.bound)


def test_the_count_and_the_update_share_the_noise() -> None:
    """Andrew et al., theorem 1: together they are as private as the noise that was asked for."""
    bound = AdaptiveBound(count_noise=5.0)
    z = bound.multiplier(1.0)
    assert z > 1
    assert (z**-2 + (2 * 5.0) ** -2) ** -0.5 == pytest.approx(1.0)
    assert bound.multiplier(0.0) == 0
    with pytest.raises(FederatedError, match="must be above 5"):
        bound.multiplier(10.0)


@pytest.mark.parametrize("source", [SecureSource(), SeededSource(3)], ids=["secure", "seeded"])
def test_noise_is_normal(source: SecureSource | SeededSource) -> None:
    """Moments of 200,000 numbers, each within five standard errors."""
    x = source.normal(200_000)
    assert x.shape == (200_000,) and np.isfinite(x).all()
    for power, moment, deviation in [(1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)]:
        assert abs((x**power).mean() - moment) < 5 * deviation / len(x) ** 0.5
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 5 / len(x) ** 0.5
    assert source.normal(0).shape == (0,)


def test_noise_is_added_where_it_is_meant_to_be() -> None:
    zero = {"a": np.zeros(40_000, "f4")}
    for where, of_device, of_mean in [("central", 0.0, 2.0 * 3.0 / 50), ("local", 2 * 2.0 * 3.0, 0.0)]:
        noise = GaussianNoise(FlatClip(3.0), 2.0, where)  # type: ignore[arg-type]
        device = noise.of_device(zero, SeededSource(0))["a"]
        mean = noise.of_mean(zero, 50, SeededSource(0))["a"]
        assert device.dtype == mean.dtype == np.float32
        assert device.std() == pytest.approx(of_device, rel=0.02)
        assert mean.std() == pytest.approx(of_mean, rel=0.02)
    assert (SeededSource(1).normal(9) == SeededSource(1).normal(9)).all()
    assert (SecureSource().normal(9) != SecureSource().normal(9)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: FlatClip(0.0),
        lambda: LayerClip(float("inf")),
        lambda: AdaptiveBound(quantile=1.0),
        lambda: GaussianNoise(FlatClip(1.0), -1.0),
        lambda: GaussianNoise(FlatClip(1.0), 1.0, "nowhere"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(make: object) -> None:
    with pytest.raises(FederatedError, match="expected"):
        make()  # type: ignore[operator]
