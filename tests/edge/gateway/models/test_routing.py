from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.models.config import ModelConfig, Policy
from edge.gateway.models.memory import Resident, victims
from edge.gateway.models.routing import Split, dealt, default, labelled, plan, point_of

VERSIONS = st.sets(st.integers(1, 50), max_size=6)
WEIGHTS = st.dictionaries(st.integers(1, 9), st.floats(0.01, 100), min_size=1, max_size=5)


@given(WEIGHTS, st.integers(200, 2000))
def test_requests_without_ids_are_dealt_out_in_shares(weights: dict[int, float], count: int) -> None:
    split = Split(weights)
    got = Counter(split.pick() for _ in range(count))
    for version, weight in weights.items():
        # Two ends of an interval, each off by at most the discrepancy of the golden ratio's multiples, O(log n).
        assert abs(got[version] - count * weight / sum(weights.values())) <= 12


@given(WEIGHTS)
@settings(max_examples=25)
def test_requests_with_ids_are_dealt_out_in_shares_and_stay(weights: dict[int, float]) -> None:
    ids = [f"request-{i}" for i in range(4000)]
    split, other = Split(weights), Split(dict(reversed(weights.items())))
    picks = [split.pick(i) for i in ids]
    assert picks == [other.pick(i) for i in ids]
    got = Counter(picks)
    for version, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(got[version] / 4000 - share) <= 5 * (0.25 / 4000) ** 0.5 + 1e-9


@given(st.floats(0, 1), st.floats(0, 1), st.lists(st.text(min_size=1), min_size=1, max_size=50))
def test_a_growing_share_takes_requests_and_gives_none_away(one: float, other: float, ids: list[str]) -> None:
    less, more = sorted((one, other))
    before, after = (Split({1: 1 - share, 2: share}) if 0 < share < 1 else None for share in (less, more))
    if before is not None and after is not None:
        assert all(after.pick(i) == 2 for i in ids if before.pick(i) == 2)


@given(st.text(min_size=1))
def test_ids_have_points_in_the_unit_interval(text: str) -> None:
    assert 0 <= point_of(text) < 1


def test_half_a_surrogate_is_an_id_as_well() -> None:
    assert 0 <= point_of("\ud800") < 1


@given(VERSIONS, VERSIONS, st.integers(1, 4))
def test_a_plan_tries_the_newest_first_and_what_is_named(there: set[int], named: set[int], count: int) -> None:
    made = plan(Policy("latest", count), there, named)
    assert list(made.order) == sorted(there | named, reverse=True)
    assert (made.named, made.enough) == (named, count)
    assert plan(Policy("all"), there, named).enough == len(there)
    chosen = plan(Policy("specific", 0, (2, 7)), there, named)
    assert chosen.named == {2, 7, *named} == set(chosen.order) and chosen.enough == 0


def test_labels_are_those_whose_version_is_there() -> None:
    config = ModelConfig(labels={"stable": 3, "canary": "latest", "old": 1})
    assert labelled(config, [3, 4]) == {"stable": 3, "canary": 4}
    assert labelled(config, []) == {}


def test_requests_without_a_version_go_to_stable_and_to_no_other_instead() -> None:
    plain, promised = ModelConfig(), ModelConfig(labels={"stable": 3})
    assert default(plain, {}, [2, 5]) == 5
    assert default(plain, {}, []) is None
    assert default(promised, labelled(promised, [3, 5]), [3, 5]) == 3
    assert default(promised, labelled(promised, [5]), [5]) is None


def test_the_share_of_a_missing_version_goes_to_the_default_version() -> None:
    config = ModelConfig(labels={"stable": 3, "canary": 4}, split={"stable": 0.9, "canary": 0.1})
    both = Split.of(config, labelled(config, [3, 4]), [3, 4])
    assert both is not None and both.shares == pytest.approx({3: 0.9, 4: 0.1})
    alone = Split.of(config, labelled(config, [3]), [3])
    assert alone is not None and alone.shares == {3: 1.0}
    assert Split.of(config, labelled(config, [4]), [4]) is None
    assert Split.of(ModelConfig(), {}, [3]) is None


@given(st.floats(0.001, 1), st.integers(1, 500))
def test_a_share_of_calls_is_due(fraction: float, count: int) -> None:
    due = dealt(fraction)
    assert abs(sum(due() for _ in range(count)) - fraction * count) <= 1


RESIDENTS = st.lists(
    st.builds(Resident, st.uuids().map(str), st.integers(0, 100), st.floats(0, 10), st.booleans()), max_size=8
)


@given(RESIDENTS, st.integers(0, 500), st.integers(0, 200))
def test_room_is_made_by_the_longest_unused_and_no_more_than_it_takes(
    residents: list[Resident], cap: int, wanted: int
) -> None:
    chosen = victims(residents, cap, wanted)
    total = sum(r.nbytes for r in residents) + wanted
    if chosen is None:
        assert total - sum(r.nbytes for r in residents if r.free) > cap
        return
    by_name = {r.name: r for r in residents}
    gone = [by_name[name] for name in chosen]
    assert all(r.free for r in gone)
    assert total - sum(r.nbytes for r in gone) <= cap
    if gone:
        assert total - sum(r.nbytes for r in gone[:-1]) > cap
        assert all(r.used >= gone[-1].used for r in residents if r.free and r not in gone)
