"""Robust rules compared with their papers' definitions, and with attacking devices."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.codec import Spec
from federated.errors import FederatedError
from federated.robust import AGGREGATORS, Aggregator, Mean, NormBound, aggregator_from
from federated.robust.aggregators import mean_of

Rows = np.ndarray


def krum_scores(rows: Rows, liars: int) -> list[float]:
    scores = []
    for row in rows.astype(float):
        squares = sorted(float(((row - other) ** 2).sum()) for other in rows)[1:]
        scores.append(sum(squares[: max(1, len(rows) - liars - 2)]) + 1e-9 * sum(squares))
    return scores


def krum(rows: Rows, weights: Rows) -> Rows:
    return rows[int(np.argmin(krum_scores(rows, ceil(0.2 * len(rows) - 1e-9))))]


def multi_krum(rows: Rows, weights: Rows) -> Rows:
    liars = ceil(0.2 * len(rows) - 1e-9)
    return rows[np.argsort(krum_scores(rows, liars), kind="stable")[: len(rows) - liars]].mean(axis=0)


def bulyan(rows: Rows, weights: Rows) -> Rows:
    liars, left, chosen = ceil(0.2 * len(rows) - 1e-9), list(rows), []
    while len(chosen) < len(rows) - 2 * liars:
        chosen.append(left.pop(int(np.argmin(krum_scores(np.array(left), liars)))))
    picked, result = np.array(chosen), []
    for column in picked.T:
        order = np.argsort(abs(column - np.median(column)), kind="stable")
        result.append(column[order[: len(picked) - 2 * liars]].mean())
    return np.array(result)


def trimmed_mean(rows: Rows, weights: Rows) -> Rows:
    cut = ceil(0.2 * len(rows) - 1e-9)
    return np.array([np.mean(sorted(column)[cut : len(rows) - cut]) for column in rows.T])


def norm_bound(rows: Rows, weights: Rows) -> Rows:
    norms = np.linalg.norm(rows, axis=1)
    scaled = [row * min(1, np.median(norms) / max(norm, 1e-30)) for row, norm in zip(rows, norms, strict=True)]
    return np.average(scaled, axis=0, weights=weights)


DEFINITIONS: dict[str, Callable[[Rows, Rows], Rows]] = {
    "mean": lambda rows, weights: np.average(rows, axis=0, weights=weights),
    "median": lambda rows, weights: np.array([np.median(column) for column in rows.T]),
    "trimmed_mean": trimmed_mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "bulyan": bulyan,
    "norm_bound": norm_bound,
}
ROBUST = [name for name in AGGREGATORS if name != "mean"]


def trees(rows: Rows) -> list[dict[str, object]]:
    return [{"b": {"c": row[:2]}, "a": row[2:].reshape(-1, 1)} for row in rows]


def flat(tree: dict) -> Rows:
    return np.concatenate([tree["b"]["c"], tree["a"].ravel()])


def combined(name: str, rows: Rows, weights: Rows) -> Rows:
    return flat(aggregator_from(name)(trees(rows.astype("f4")), list(weights)).tree)


@pytest.mark.parametrize("name", DEFINITIONS)
@settings(max_examples=30)
@given(devices=st.integers(7, 15), size=st.integers(3, 9), seed=st.integers(0, 999))
def test_rules_are_as_their_papers_say(name: str, devices: int, size: int, seed: int) -> None:
    if name == "bulyan":
        devices = 15
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(devices, size)).astype("f4"), rng.uniform(0.1, 5, devices)
    np.testing.assert_allclose(combined(name, rows, weights), DEFINITIONS[name](rows, weights), rtol=1e-4, atol=1e-6)


@settings(max_examples=40)
@given(devices=st.integers(3, 12), seed=st.integers(0, 999))
def test_no_point_is_nearer_to_all_than_the_geometric_median(devices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, weights = rng.normal(size=(devices, 4)).astype("f4"), rng.uniform(0.5, 2, devices)

    def cost(point: Rows) -> float:
        return float(weights @ np.linalg.norm(rows - point, axis=1))

    point = flat(aggregator_from("geometric_median", {"steps": 2000})(trees(rows), list(weights)).tree)
    least = cost(point)
    others = [*rows, *(point + 0.05 * rng.normal(size=(50, 4))), np.average(rows, axis=0, weights=weights)]
    assert all(least <= cost(other) * 1.0001 for other in others)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("lie", ["minus ten times", "huge", "all alike"])
def test_a_fifth_of_attackers_changes_a_robust_rule_little(name: str, lie: str) -> None:
    """Honest updates are around 1; the attack moves the mean far away, but no robust rule."""
    rng = np.random.default_rng(0)
    rows = 1 + 0.3 * rng.normal(size=(20, 50)).astype("f4")
    liars = slice(0, 4)
    rows[liars] = {"minus ten times": -10 * rows[liars], "huge": np.float32(1e20), "all alike": np.float32(-7)}[lie]
    found = aggregator_from(name)(trees(rows), [1.0] * 20)
    off = np.abs(flat(found.tree) - 1).mean()
    assert off < (0.75 if name == "norm_bound" else 0.35)
    assert np.abs(combined("mean", rows, np.ones(20)) - 1).mean() > 1
    if name in ("krum", "multi_krum"):
        assert {0, 1, 2, 3} <= set(found.left_out)


@pytest.mark.parametrize("name", AGGREGATORS)
@given(seed=st.integers(0, 99))
@settings(max_examples=10)
def test_rules_do_not_care_for_order_shift_and_alike_devices(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, order = rng.normal(size=(15, 6)).astype("f4"), rng.permutation(15)
    base = combined(name, rows, np.ones(15))
    np.testing.assert_allclose(combined(name, rows[order], np.ones(15)), base, atol=1e-5)
    if name != "norm_bound":
        np.testing.assert_allclose(combined(name, rows + np.float32(3), np.ones(15)), base + 3, atol=1e-4)
    same = np.repeat(rows[:1], 15, axis=0)
    np.testing.assert_allclose(combined(name, same, np.arange(15)), rows[0], rtol=1e-6)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum", "multi_krum", "bulyan"])
def test_a_claimed_weight_counts_nothing_where_devices_count_alike(name: str) -> None:
    rows = np.random.default_rng(1).normal(size=(15, 6)).astype("f4")
    np.testing.assert_array_equal(combined(name, rows, np.ones(15)), combined(name, rows, np.arange(1, 16)))


def test_norms_are_bounded_by_what_is_given() -> None:
    rows = np.array([[3, 0, 4], [0, 0.3, 0.4], [0, 0, 0]], "f4")
    got = flat(NormBound(1.0)(trees(rows), [1, 1, 2]).tree)
    np.testing.assert_allclose(got, [0.6 / 4, 0.3 / 4, 1.2 / 4], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "devices", "least"), [("krum", 4, 5), ("multi_krum", 4, 5), ("bulyan", 6, 11), ("trimmed_mean", 2, 3)]
)
def test_too_few_devices_for_a_rule(name: str, devices: int, least: int) -> None:
    with pytest.raises(FederatedError, match=f"{name}: expected at least {least} devices .* got {devices}"):
        combined(name, np.ones((devices, 3), "f4"), np.ones(devices))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_updates_that_do_not_fit_are_refused(name: str) -> None:
    rule, good = aggregator_from(name), trees(np.ones((15, 4), "f4"))
    bad: list[tuple[list[dict[str, object]], list[float], str]] = [
        ([*good[:14], {"b": {"c": np.array([1, np.nan], "f4")}, "a": np.ones((2, 1), "f4")}], [1] * 15, "nan in 'b/c'"),
        ([*good[:14], {"a": np.ones((2, 1), "f4")}], [1] * 15, "expected an array 'b/c'"),
        (good, [1] * 14, "as many weights as trees"),
        (good, [1] * 14 + [float("nan")], "finite weights"),
        (good, [1] * 14 + [-1], "finite weights"),
        (good, [0] * 15, "some above 0"),
        ([], [], "as many weights as trees"),
    ]
    for updates, weights, why in bad:
        with pytest.raises(FederatedError, match=why):
            rule(updates, weights)


@pytest.mark.parametrize(
    ("name", "parameters", "why"),
    [
        ("mode", {}, "unknown rule 'mode'; expected one of mean"),
        ("krum", {"f": 1}, "krum: f: no such key; expected one of share"),
        ("krum", {"share": 0.5}, r"share in \[0, 0.5\)"),
        ("krum", {"share": "a"}, "expected a number"),
        ("trimmed_mean", {"share": -0.1}, r"share in \[0, 0.5\)"),
        ("geometric_median", {"steps": 0}, "steps >= 1"),
        ("geometric_median", {"steps": 2.5}, "whole number"),
        ("norm_bound", {"bound": -1.0}, "bound from 0"),
    ],
)
def test_configurations_that_make_no_sense(name: str, parameters: dict[str, object], why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        aggregator_from(name, parameters)


def test_every_rule_states_how_many_attackers_it_tolerates() -> None:
    assert all(rule.tolerates and issubclass(rule, Aggregator) for rule in AGGREGATORS.values())


def test_the_mean_holds_one_row_at_a_time_and_has_no_order() -> None:
    rng = np.random.default_rng()
    rows = (rng.normal(size=(9, 5)) * 10.0 ** rng.integers(-9, 9, (9, 5))).astype(np.float32)
    weights = np.arange(1.0, 10.0)
    alive: list[weakref.ref[Rows]] = []

    def taken(order: Rows) -> Iterator[Rows]:
        for at in order:
            copy = rows[at].copy()
            alive.append(weakref.ref(copy))
            yield copy
            del copy
            assert sum(each() is not None for each in alive) <= 1

    exact = [sum(Fraction(float(x)) * int(w) for x, w in zip(column, weights, strict=True)) / 45 for column in rows.T]
    expected = np.array([float(each) for each in exact])
    means = []
    for order in (np.arange(9), rng.permutation(9)):
        mean, left_out = Mean().combine(taken(order), weights[order])
        np.testing.assert_allclose(mean, expected, rtol=1e-15)
        assert left_out == ()
        means.append(mean.tobytes())
    assert means[0] == means[1]
    np.testing.assert_array_equal(flat(Mean()(trees(rows), list(weights)).tree), expected.astype(np.float32))


@pytest.mark.parametrize("rule", [Mean(), NormBound(1.5)])
def test_rules_that_add_sum_parts_as_the_whole(rule: Aggregator) -> None:
    rows = np.random.default_rng().normal(size=(12, 7)).astype(np.float32)
    weights = [float(weight) for weight in np.random.default_rng().integers(1, 50, 12)]
    assert rule.adds and not NormBound().adds
    order = np.random.default_rng().permutation(12)
    whole = rule.summed(trees(rows[order]), [weights[at] for at in order])
    parts = [rule.summed(trees(rows[part]), weights[part]) for part in (slice(0, 5), slice(5, 6), slice(6, 12))]
    for part in parts[1:]:
        parts[0].merge(part)
    assert parts[0].value().tobytes() == whole.value().tobytes()
    found = Spec.of(trees(rows)[0]).flatten(rule(trees(rows), weights).tree)
    assert found.tobytes() == mean_of(whole).astype(np.float32).tobytes()
