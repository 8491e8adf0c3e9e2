"""Sketches of values: quantiles within their error, sums as if all values had been in one, distances."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.updates import telemetry
from lite_runtime.updates.fields import ProtocolError
from lite_runtime.updates.sketch import ACCURACY, MOST, Sketch
from lite_runtime.updates.telemetry import Batch, Part, packed, read_batch, unpacked

VALUES = st.lists(st.floats(-1e9, 1e9).filter(lambda one: one == 0 or abs(one) > 1e-6), min_size=1, max_size=200)


def of(values: Sequence[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


@given(VALUES, st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
def test_quantiles_are_within_their_error(values: list[float], share: float) -> None:
    found = of(values).quantile(share)
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    assert found is not None
    assert abs(found - exact) <= ACCURACY * 1.001 * abs(exact)


@given(VALUES, VALUES)
def test_a_sum_is_as_if_all_values_had_been_in_one(one: list[float], two: list[float]) -> None:
    merged = of(one)
    merged.merge(of(two))
    both = of([*one, *two])
    assert (merged.zero, merged.positive, merged.negative) == (both.zero, both.positive, both.negative)
    assert merged.count == len(one) + len(two)


@given(VALUES)
def test_what_is_packed_is_unpacked(values: list[float]) -> None:
    sketch = of(values)
    raw = telemetry.written(Batch(1, (Part("a", "1", 0.0, 1.0, {}, {"x": packed(sketch)}),)))
    found = unpacked(read_batch(raw).parts[0].sketches["x"])
    assert (found.zero, found.positive, found.negative) == (sketch.zero, sketch.positive, sketch.negative)


def test_the_number_of_bins_is_bounded_and_large_values_stay_right() -> None:
    values = [1.03**n for n in range(-900, 900)]
    sketch = of(values)
    assert len(sketch.positive) == MOST
    assert sketch.count == len(values)
    assert sketch.quantile(0.99) == pytest.approx(sorted(values)[int(0.99 * len(values)) - 1], rel=0.05)


def test_what_is_no_number_is_left_out() -> None:
    sketch = of([math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, 1e-300])
    assert (sketch.count, sketch.zero) == (4, 2)
    assert Sketch().quantile(0.5) is None


def test_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    draw = random.Random(1)
    one, same, other = ([draw.gauss(mean, 1) for _ in range(4000)] for mean in (0, 0, 1))

    def exact(left: list[float], right: list[float]) -> float:
        return max(abs(sum(x <= at for x in left) / 4000 - sum(x <= at for x in right) / 4000) for at in other[:200])

    assert of(one).distance(of(same)) < 0.05
    assert of(one).distance(of(other)) == pytest.approx(exact(one, other), abs=0.03)
    assert of(one).distance(of([-value for value in one])) == pytest.approx(0, abs=0.05)
    assert of([1.0]).distance(of([2.0])) == 1.0
    assert Sketch().distance(of(one)) == 0.0


WRONG = {
    "a serial": (b'{"protocol":1,"serial":0,"parts":[]}', "serial"),
    "a bin": (b'{"protocol":1,"serial":1,"parts":[{"application":"a","version":"1","begun":0,"ended":1,"sketches":'
              b'{"x":{"positive":[{"at":99999,"number":1}]}}}]}', "at: expected a whole number"),
    "a count below 0": (b'{"protocol":1,"serial":1,"parts":[{"application":"a","version":"1","begun":0,"ended":1,'
                        b'"sketches":{"x":{"zero":-1}}}]}', "zero: expected a number"),
    "a label": (b'{"protocol":1,"serial":1,"parts":[{"application":"a","version":"1","begun":0,"ended":1,"classes":'
                b'{"x":{"a b":1}}}]}', "expected a name"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_batches_are_refused(case: str) -> None:
    raw, message = WRONG[case]
    with pytest.raises(ProtocolError, match=message):
        read_batch(raw)
