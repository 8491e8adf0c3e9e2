"""Choice of devices: the same for the same seed, independent of the order in which they connected, and uniform."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from federated.server import rounds

NAMES = [f"device-{at:03d}" for at in range(50)]


@given(st.permutations(NAMES), st.integers(0, 50), st.integers(0, 2**62), st.integers(0, 1000))
def test_a_choice_depends_on_names_and_seed_alone(shuffled: list[str], count: int, seed: int, number: int) -> None:
    chosen = rounds.choose(shuffled, count, seed, number)
    assert chosen == rounds.choose(NAMES, count, seed, number) == sorted(set(chosen))
    assert len(chosen) == count and set(chosen) <= set(NAMES)


def test_rounds_and_attempts_differ() -> None:
    choices = {tuple(rounds.choose(NAMES, 10, 0, number, attempt)) for number in range(20) for attempt in range(3)}
    assert len(choices) == 60


def test_all_devices_are_chosen_equally_often() -> None:
    counts = dict.fromkeys(NAMES, 0)
    for number in range(2000):
        for name in rounds.choose(NAMES, 10, 3, number):
            counts[name] += 1
    # Binomial(2000, 0.2): mean 400, deviation 18.
    assert all(abs(count - 400) < 100 for count in counts.values())


def test_random_choices_follow_their_probability() -> None:
    sizes = [len(rounds.toss(NAMES, 0.3, "secret", number)) for number in range(1000)]
    assert abs(np.mean(sizes) - 15) < 0.6
    assert abs(np.var(sizes) - 50 * 0.3 * 0.7) < 3
    assert rounds.toss(NAMES, 1.0, "secret", 1) == NAMES
    assert rounds.toss(NAMES, 0.3, "secret", 1) != rounds.toss(NAMES, 0.3, "another", 1)


def test_held_out_devices_stay_held_out_when_others_join() -> None:
    before = rounds.held_out(NAMES[:30], 0.3, 0)
    assert rounds.held_out(NAMES, 0.3, 0) & set(NAMES[:30]) == before
    assert rounds.held_out(NAMES, 0.0, 0) == set()


def test_numbers_of_devices() -> None:
    assert rounds.wanted(10, 0.3, 1) == 3 and rounds.wanted(10, 0.31, 1) == 4
    assert rounds.wanted(10, 0.1, 5) == 5 and rounds.wanted(3, 0.1, 5) == 3
    assert rounds.asked(10, 3, 0.3) == 4 and rounds.asked(3, 3, 1.0) == 3


def test_weights_by_reliability_make_up_for_missing_answers() -> None:
    """Devices that answer with probability p, weighted by 1 / reliability, count as much as those that always do."""
    rng = np.random.default_rng(0)
    total, answered = 0.0, 0
    for asked in range(1, 4001):
        if rng.random() < 0.25:
            total += 1 / rounds.reliability(asked, answered)
            answered += 1
    assert abs(total / 4000 - 1) < 0.1
