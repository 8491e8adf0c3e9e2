"""Random numbers of rows: their distribution, and what they depend on."""

from __future__ import annotations

import numpy as np
from scipy import stats

from cloud.data.draws import Draws, state_of

ROWS = Draws(np.concatenate([state_of((0, 1, 2**31 + 1, key)) for key in range(200)]))


def test_distributions() -> None:
    uniform, normal = ROWS.uniform(100), ROWS.normal(3, 35)
    assert uniform.shape == (200, 100) and normal.shape == (200, 3, 35) and normal.dtype == np.float32
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 0.001
    assert stats.kstest(normal.ravel(), "norm").pvalue > 0.001
    for numbers in (uniform, normal.reshape(200, -1)):  # rows next to each other, and numbers of one row
        assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.03
        assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.03
    counts = np.bincount(ROWS.integers(7, 100).ravel())
    assert len(counts) == 7 and stats.chisquare(counts).pvalue > 0.001


def test_every_call_and_part_gives_other_numbers_and_rows_keep_theirs() -> None:
    def fresh() -> Draws:
        return Draws(ROWS._states)

    draws = fresh()
    first, second = draws.uniform(2), draws.uniform(2)
    np.testing.assert_array_equal(np.concatenate([first, second], 1), fresh().uniform(4))
    some = np.array([5, 3])
    np.testing.assert_array_equal(draws.rows(some).uniform(2), first[some])
    np.testing.assert_array_equal(draws.part(1).rows(some).normal(4), fresh().part(1).normal(4)[some])
    assert not np.isin(fresh().part(1).uniform(9), fresh().part(0).uniform(9)).any()
    keys = [(0,), (0, 0), (1, 0), (0, 1), (2**64 + 1,), (2**200,), (2**201,)]
    assert len({int(state_of(key)[0]) for key in keys}) == len(keys)
