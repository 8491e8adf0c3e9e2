"""Draws of many devices at once are those of a generator for each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloud.federated.draws import drawn, generators
from federated.data import draw
from federated.learner import Batch
from federated.server.rounds import seed_of, seeds_of

SEEDS = st.one_of(st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**64 - 1]), st.integers(0, 2**64 - 1))


@given(st.lists(SEEDS, min_size=1, max_size=20))
def test_generators_are_numpys(seeds: list[int]) -> None:
    for seed, rng in zip(seeds, generators(seeds), strict=True):
        own = np.random.default_rng(seed)
        assert rng.bit_generator.state == own.bit_generator.state
        # A number of 32 bits leaves half of a word for the next one: no generator inherits it.
        assert rng.integers(0, 9, 3, dtype=np.int32).tolist() == own.integers(0, 9, 3, dtype=np.int32).tolist()
        assert rng.permutation(30).tolist() == own.permutation(30).tolist()


@given(st.lists(st.text(max_size=8), max_size=9), st.integers(0, 2**63), st.text(max_size=5))
def test_seeds_of_names(names: list[str], seed: int, word: str) -> None:
    assert seeds_of(names, seed, word, 7) == [seed_of(seed, word, 7, name) for name in names]


def test_rows_are_those_that_each_device_draws() -> None:
    names = [f"d{at}" for at in range(6)]
    shards = [np.arange(100 * at, 100 * at + 5 + 3 * at) for at in range(6)]
    for steps, size in ((1, 3), (3, 4), (2, 30)):
        found = drawn(shards, names, (3, "train", 2), steps, size)
        for name, own, rows in zip(names, shards, found, strict=True):
            rng = np.random.default_rng(seed_of(3, "train", 2, name))
            np.testing.assert_array_equal(rows, draw(Batch({}, own), rng, steps, size).labels)
