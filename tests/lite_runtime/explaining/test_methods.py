"""Explanations of models whose attributions are known: linear ones, products, games with few players."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ExplainError
from lite_runtime.explaining import (
    METHODS,
    Embedding,
    Limits,
    Subject,
    available,
    blocks,
    curves,
    explain,
    infidelity,
    input_x_gradient,
    integrated_gradients,
    kernel_shap,
    layout_of,
    occlusion,
    rise,
    saliency,
    sensitivity_max,
    smoothgrad,
    superpixels,
    wish_for,
)
from lite_runtime.graph import Array

RANDOM = np.random.default_rng(3)
WEIGHTS = RANDOM.standard_normal((6, 2))
X = RANDOM.standard_normal(6).astype(np.float32)


def linear(limits: Limits | None = None) -> Subject:
    def gradient(x: Array, target: int) -> Array:
        return np.broadcast_to(WEIGHTS[:, target], x.shape)

    return Subject("linear", (6,), 2, lambda x: x @ WEIGHTS + 1, gradient, limits=limits)


def squares() -> Subject:
    """Score 0: x0² + x1 x2; score 1: nothing. x3 is a dummy; x1 and x2 are symmetric."""

    def scores(x: Array) -> Array:
        x = x.astype(np.float64)
        return np.stack([x[:, 0] ** 2 + x[:, 1] * x[:, 2], 0 * x[:, 0]], 1)

    def gradient(x: Array, target: int) -> Array:
        x = x.astype(np.float64)
        return np.stack([2 * x[:, 0], x[:, 2], x[:, 1], 0 * x[:, 3]], 1) * (target == 0)

    return Subject("squares", (4,), 2, scores, gradient)


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "occlusion", "kernel_shap"])
def test_a_linear_model_is_explained_exactly(method: str) -> None:
    subject = linear()
    found = explain(subject, X, method, wish_for(subject, X), 1)
    assert np.allclose(found.attributions, X * WEIGHTS[:, 1], atol=1e-5)
    assert found.gap is None or abs(found.gap) < 1e-5
    assert found.score == pytest.approx((X @ WEIGHTS + 1)[1], abs=1e-5)


def test_the_slopes_of_a_linear_model_are_its_weights() -> None:
    assert np.allclose(saliency(linear(), X, 0).attributions, WEIGHTS[:, 0])
    assert np.allclose(smoothgrad(linear(), X, 0, samples=4).attributions, WEIGHTS[:, 0])
    assert np.allclose(saliency(linear(), X, 0, absolute=True).attributions, abs(WEIGHTS[:, 0]))


@pytest.mark.parametrize("rule", ["gauss_legendre", "middle", "trapezoid"])
def test_integrals_of_polynomials_are_complete(rule: str) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    base = np.array([0.5, 1.0, 0.0, 9.0], np.float32)
    found = integrated_gradients(squares(), x, 0, baselines=base, steps=5, rule=rule)  # type: ignore[arg-type]
    assert found.gap is not None and abs(found.gap) < 1e-6
    assert np.allclose(found.attributions, [0.75, 1.5, 4.5, 0.0], atol=1e-6)


def test_a_coarse_rule_says_how_much_is_missing() -> None:
    x = np.array([1.0, 0, 0, 0], np.float32)
    found = integrated_gradients(squares(), x, 0, baselines=0 * x, steps=4, rule="left")
    assert found.gap == pytest.approx(-0.25)


def test_several_baselines_are_averaged() -> None:
    bases = RANDOM.standard_normal((3, 4)).astype(np.float32)
    x = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    found = integrated_gradients(squares(), x, 0, baselines=bases, steps=8)
    each = [integrated_gradients(squares(), x, 0, baselines=base, steps=8).attributions for base in bases]
    assert np.allclose(found.attributions, np.mean(each, 0))
    assert found.gap is not None and abs(found.gap) < 1e-5


def game(x: Array) -> Array:
    """A score that is no sum of its features'."""
    x = x.astype(np.float64)
    return np.stack([np.maximum(x[:, 0], x[:, 1]) * x[:, 2] + np.sin(x[:, 3]) * x[:, 4], x[:, 0]], 1)


def shapley(x: Array, base: Array) -> Array:
    """By definition: the mean gain over all orders."""
    values = np.zeros(len(x))
    orders = list(permutations(range(len(x))))
    for order in orders:
        now = base.copy()
        for player in order:
            before = game(now[None])[0, 0]
            now[player] = x[player]
            values[player] += game(now[None])[0, 0] - before
    return values / len(orders)


def test_kernel_shap_of_few_parts_is_exact() -> None:
    x, base = RANDOM.standard_normal((2, 5)).astype(np.float32)
    found = kernel_shap(Subject("game", (5,), 2, game), x, 0, baseline=base, parts=np.arange(5))
    assert np.allclose(found.attributions, shapley(x, base), atol=1e-6)
    assert found.settings["exact"] and found.gap == pytest.approx(0, abs=1e-9)


def test_kernel_shap_by_drawing_comes_near_and_stays_complete() -> None:
    x, base = RANDOM.standard_normal((2, 5)).astype(np.float32)
    subject = Subject("game", (5,), 2, game)
    near = [
        kernel_shap(subject, x, 0, baseline=base, parts=np.arange(5), samples=28, seed=seed).attributions
        for seed in range(40)
    ]
    assert np.allclose(np.mean(near, 0), shapley(x, base), atol=0.1)
    assert np.allclose([one.sum() for one in near], (game(x[None]) - game(base[None]))[0, 0])


@pytest.mark.parametrize("samples", [1000, 8])
def test_dummies_get_nothing_and_twins_the_same(samples: int) -> None:
    x, base = np.array([1.0, 2.0, 2.0, 5.0], np.float32), np.array([0.0, 1.0, 1.0, 0.0], np.float32)
    found = kernel_shap(squares(), x, 0, baseline=base, parts=np.arange(4), samples=samples).attributions
    if samples > 14:
        assert found[3] == pytest.approx(0, abs=1e-9) and found[1] == pytest.approx(found[2])
    other = occlusion(squares(), x, 0, baseline=base, window=(1,)).attributions
    assert other[3] == 0 and other[1] == pytest.approx(other[2])


def test_parts_share_what_they_got() -> None:
    found = kernel_shap(linear(), X, 0, baseline=np.zeros(6, np.float32), parts=np.array([0, 0, 1, 1, 1, 2]))
    gains = X * WEIGHTS[:, 0]
    assert np.allclose(found.attributions[:2], gains[:2].sum() / 2, atol=1e-5)
    assert np.allclose(found.attributions[2:5], gains[2:5].sum() / 3, atol=1e-5)


def corner(x: Array) -> Array:
    """The mean of the upper left quarter, and of the rest."""
    whole = x.astype(np.float64).mean((1, 2, 3)) * 64 / 48
    quarter = x[:, 0, :4, :4].astype(np.float64).mean((1, 2))
    return np.stack([quarter, whole - quarter / 3], 1)


@pytest.mark.parametrize("method", ["occlusion", "rise", "kernel_shap"])
def test_methods_by_predictions_find_the_place_that_counts(method: str) -> None:
    subject = Subject("corner", (1, 8, 8), 2, corner)
    x = np.ones((1, 8, 8), np.float32)
    found = explain(subject, x, method, wish_for(subject, x, size=4), 0).attributions[0]
    assert found[:4, :4].min() > found[4:, 4:].max()
    assert found[:4, :4].sum() > 3 * abs(found[4:]).sum() - 1e-9 or method == "rise"


def test_rise_is_the_same_for_the_same_seed() -> None:
    subject, x = Subject("corner", (1, 8, 8), 2, corner), np.ones((1, 8, 8), np.float32)
    layout = layout_of((1, 8, 8), x.dtype)
    one, two, other = (
        rise(subject, x, 0, baseline=0 * x, layout=layout, masks=100, seed=seed).attributions for seed in (1, 1, 2)
    )
    assert np.array_equal(one, two) and not np.allclose(one, other)


def test_texts_are_explained_by_their_tokens() -> None:
    def scores(ids: Array) -> Array:
        return np.stack([(ids == 7).sum(1) * 2.0 + (ids == 3).sum(1), 0.0 * ids[:, 0]], 1)

    subject, x = Subject("text", (6,), 2, scores, dtype=np.int64), np.array([1, 7, 4, 3, 2, 2])
    wish = wish_for(subject, x)
    assert wish.layout.kind == "text" and available(subject) == ("occlusion", "rise", "kernel_shap")
    for method in ("occlusion", "kernel_shap"):
        assert np.allclose(explain(subject, x, method, wish, 0).attributions, [0, 2, 0, 1, 0, 0], atol=1e-9)
    found = explain(subject, x, "rise", wish, 0).attributions
    assert found.argmax() == 1
    with pytest.raises(ExplainError, match=r"input is not of floats; occlusion, rise, kernel_shap remain"):
        explain(subject, x, "saliency", wish, 0)


# -- faithfulness ------------------------------------------------------------------------------------------------------


def test_curves_prefer_the_right_order() -> None:
    subject, base = linear(), np.zeros(6, np.float32)
    layout = layout_of((6,), X.dtype)
    right = X * (WEIGHTS[:, 0] - WEIGHTS[:, 1])
    good, bad = (curves(subject, X, 0, sign * right, baseline=base, layout=layout) for sign in (1, -1))
    assert good.insertion_area > bad.insertion_area and good.deletion_area < bad.deletion_area
    assert good.insertion[0] == good.deletion[-1] and good.insertion[-1] == good.deletion[0]
    assert good.insertion_area == pytest.approx(np.trapezoid(good.insertion, good.shares))


def test_infidelity_of_a_linear_model_is_zero_for_what_explains_it() -> None:
    removed = RANDOM.random((20, 6)) < 0.5
    base = np.full(6, 0.3, np.float32)
    own, slope = (X - base) * WEIGHTS[:, 0], WEIGHTS[:, 0]
    assert infidelity(linear(), X, 0, own, removed, baseline=base) == pytest.approx(0, abs=1e-9)
    assert infidelity(linear(), X, 0, slope, removed, baseline=base, slopes=True) == pytest.approx(0, abs=1e-9)
    assert infidelity(linear(), X, 0, 3 * own, removed, baseline=base) > 0.1
    assert infidelity(linear(), X, 0, 3 * own, removed, baseline=base, scaled=True) == pytest.approx(0, abs=1e-9)


def test_sensitivity_is_the_largest_relative_change() -> None:
    changes = np.array([[0.1, 0.0], [0.0, -0.2]], np.float32)
    found = sensitivity_max(lambda x: x * 2, np.array([3.0, 4.0], np.float32), changes=changes)
    assert found == pytest.approx(0.4 / 10, rel=1e-5)
    assert sensitivity_max(lambda x: np.ones(2), np.zeros(2, np.float32), radius=0.5, samples=3) == 0


# -- kinds and parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kind", "places"),
    [
        ((3, 32, 32), "image", (1, 2)), ((28, 28, 1), "image", (0, 1)), ((1, 28, 28), "image", (1, 2)),
        ((9, 1, 128), "series", (2,)), ((49, 10, 1), "series", (0,)), ((10,), "table", (0,)), ((16000,), "sound", (0,)),
        ((1, 8000), "sound", (1,)), ((1, 500), "series", (1,)),
    ],
)  # fmt: skip
def test_kinds_follow_from_shapes(shape: tuple[int, ...], kind: str, places: tuple[int, ...]) -> None:
    found = layout_of(shape, np.dtype(np.float32))
    assert (found.kind, found.places) == (kind, places)


def test_parts_of_a_series_are_windows_of_one_channel() -> None:
    layout = layout_of((9, 1, 128), np.dtype(np.float32))
    parts = blocks(layout.shape, layout.part_sizes(32))
    assert parts.max() + 1 == 9 * 4 and len(np.unique(parts[2, 0])) == 4


def test_superpixels_follow_colours() -> None:
    x = np.zeros((1, 16, 16), np.float32)
    x[0, :, 5:] = 4.0
    parts = superpixels(x, layout_of(x.shape, x.dtype), count=9, weight=0.2)
    dark, light = set(parts[0, :, :5].flat), set(parts[0, :, 5:].flat)
    assert not dark & light and parts.max() + 1 == len(dark | light)


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    subject = linear()
    wish = wish_for(subject, X)
    for x, words in ((X[:5], r"shape \[6\], got \[5\]"), (X * np.nan, "finite"), (np.array(["a"] * 6), "got <U1")):
        with pytest.raises(ExplainError, match=words):
            explain(subject, x, "saliency", wish, 0)
    with pytest.raises(ExplainError, match="output from 0 to 1, got 2"):
        explain(subject, X, "occlusion", wish, 2)
    with pytest.raises(ExplainError, match="expected one of saliency"):
        explain(subject, X, "magic", wish, 0)
    black = Subject("black", (6,), 2, lambda x: x @ WEIGHTS)
    with pytest.raises(ExplainError, match="only predicts; occlusion, rise, kernel_shap remain"):
        explain(black, X, "smoothgrad", wish, 0)
    with pytest.raises(ExplainError, match="expected an image"):
        wish_for(subject, X, superpixel_count=4)
    with pytest.raises(ExplainError, match="expected an image of rows"):
        wish_for(subject, X, kind="image")
    with pytest.raises(ExplainError, match="baseline: expected a number or one of"):
        wish_for(subject, X, baselines=["nothing"])
    with pytest.raises(ExplainError, match="at least 12 for 6 parts"):
        kernel_shap(subject, X, 0, baseline=0 * X, parts=np.arange(6), samples=11)
    with pytest.raises(ExplainError, match="stride <= window"):
        occlusion(subject, X, 0, baseline=0 * X, window=(2,), stride=(3,))


def test_rows_are_limited_before_anything_is_asked() -> None:
    subject = linear(Limits(rows=30))
    wish = wish_for(subject, X)
    with pytest.raises(ExplainError, match=r"50 steps and 1 baselines needs 52 rows .* leaves 30; use fewer steps"):
        explain(subject, X, "integrated_gradients", wish, 0)
    assert subject.asked == 0
    assert explain(subject, X, "occlusion", wish, 0).rows == subject.asked == 7


@pytest.mark.parametrize(
    ("method", "settings"),
    [("integrated_gradients", {"steps": 10**9}), ("integrated_gradients", {"steps": 10**9, "rule": "middle"}),
     ("smoothgrad", {"samples": 10**12}), ("rise", {"samples": 10**12}), ("kernel_shap", {"samples": 10**12})],
)  # fmt: skip
def test_what_needs_too_many_rows_takes_no_memory(method: str, settings: dict[str, Any]) -> None:
    """Nothing of that size is made before it is refused; Gauss's points have a limit of their own."""
    subject = linear(Limits(rows=30))
    x = np.zeros(70, np.float32) if method == "kernel_shap" else X
    if method == "kernel_shap":
        subject = Subject("wide", (70,), 2, lambda x: x[:, :2], None, limits=Limits(rows=30))
    with pytest.raises(ExplainError, match=r"and the limit leaves 30|at most 2000 for the rule"):
        explain(subject, x, method, wish_for(subject, x, **settings), 0)
    assert subject.asked == 0


def test_more_rows_than_one_call_takes_give_the_same() -> None:
    subject = linear()
    many = 3 * subject.rows_at_once + 5
    found = integrated_gradients(subject, X, 0, baselines=0 * X, steps=many, rule="middle")
    assert np.allclose(found.attributions, X * WEIGHTS[:, 0]) and found.rows == many + 2
    curved = Subject("curved", (6,), 1, lambda x: (x**3).sum(1, keepdims=True), lambda x, t: 3 * x**2)
    noise = np.random.default_rng(4).standard_normal((many, 6), np.float32) * (0.15 * float(np.ptp(X)))
    drawn = smoothgrad(curved, X, 0, samples=many, seed=4)
    assert np.allclose(drawn.attributions, (3 * (X + noise).astype(np.float64) ** 2).mean(0), rtol=1e-5)
    assert np.array_equal(drawn.attributions, smoothgrad(curved, X, 0, noise=noise).attributions)


def test_seconds_are_limited() -> None:
    subject = linear(Limits(seconds=1e-9))
    with pytest.raises(ExplainError, match="not finished after"):
        explain(subject, X, "occlusion", wish_for(subject, X), 0)


def test_answers_that_are_not_finite_are_told() -> None:
    with np.errstate(all="ignore"), pytest.raises(ExplainError, match="not finite"):
        saliency(Subject("log", (1,), 1, np.log, lambda x, t: 1 / x), np.zeros(1, np.float32), 0)


def test_every_method_is_in_the_table() -> None:
    for name, function in {
        "saliency": saliency, "input_x_gradient": input_x_gradient, "integrated_gradients": integrated_gradients,
        "smoothgrad": smoothgrad, "occlusion": occlusion, "rise": rise, "kernel_shap": kernel_shap,
    }.items():  # fmt: skip
        assert function.__name__ == name
        assert explain(linear(), X, name, wish_for(linear(), X, samples=64), 0).method == name
        assert name in METHODS


TABLE = RANDOM.standard_normal((9, 3))
PLACES = RANDOM.standard_normal((4, 3))


def text() -> Subject:
    """Token ids [4]; score 0: the sum of vectors times a vector for each place, of tokens that are not 0."""

    def around(ids: Array) -> Subject:
        seen = (ids != 0)[:, None]

        def scores(e: Array) -> Array:
            first = (e * PLACES * seen).sum((1, 2))
            return np.stack([first, 0 * first], 1)

        return Subject("vectors", (4, 3), 2, scores, lambda e, t: np.broadcast_to(PLACES * seen * (t == 0), e.shape))

    def scores(x: Array) -> Array:
        return np.concatenate([around(ids).scores(TABLE[ids][None]) for ids in x])

    vectors = Embedding(lambda x: TABLE[x].astype(np.float32), around, 9)
    return Subject("text", (4,), 2, scores, dtype=np.int32, embedding=vectors)


@pytest.mark.parametrize("method", ["input_x_gradient", "integrated_gradients", "occlusion", "kernel_shap"])
def test_tokens_get_what_their_vectors_add(method: str) -> None:
    subject, ids = text(), np.array([3, 0, 8, 1])
    wish = wish_for(subject, ids, baselines=(0,))
    found = explain(subject, ids, method, wish, 0)
    added = (PLACES * (ids != 0)[:, None] * (TABLE[ids] - (TABLE[0] if method == "integrated_gradients" else 0))).sum(1)
    np.testing.assert_allclose(found.attributions, added, atol=1e-6)
    assert found.attributions.shape == (4,) and found.rows == subject.asked
    assert found.gap is None or abs(found.gap) < 1e-6


def test_the_slope_of_a_token_is_the_length_of_its_gradient() -> None:
    subject, ids = text(), np.array([3, 0, 8, 1])
    for method in ("saliency", "smoothgrad"):
        found = explain(subject, ids, method, wish_for(subject, ids, samples=4), 0)
        np.testing.assert_allclose(found.attributions, np.linalg.norm(PLACES, axis=1) * [1, 0, 1, 1], atol=1e-6)
    assert set(available(subject)) == set(METHODS)


def test_limits_hold_inside_the_vectors() -> None:
    subject, ids = text().within(Limits(rows=20)), np.array([3, 0, 8, 1])
    with pytest.raises(ExplainError, match="the limit leaves 20"):
        explain(subject, ids, "integrated_gradients", wish_for(subject, ids), 0)
    explain(subject, ids, "integrated_gradients", wish_for(subject, ids, steps=8), 0)
    assert subject.asked == 10
    with pytest.raises(ExplainError, match="the limit leaves 10"):
        explain(subject, ids, "smoothgrad", wish_for(subject, ids), 0)
