"""Privacy loss distributions against dp-accounting's, against closed forms, and against Rényi divergences."""

from __future__ import annotations

from math import erfc, exp, inf, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated.privacy import Accountant
from federated.privacy.accountant import Spent
from federated.privacy.pld import epsilon

# (noise, rate, rounds) of a run, delta, and the epsilon of dp-accounting 0.6.0:
# PLDAccountant(value_discretization_interval=1e-4), compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)),
# rounds), get_epsilon(delta), which is an upper bound too.
SETTINGS: list[tuple[list[tuple[float, float, int]], float, float]] = [
    ([(1.0, 1.0, 1)], 1e-05, 4.37717810002493),
    ([(1.0, 0.01, 1000)], 0.001, 1.162517897877759),
    ([(0.5, 0.0005, 5000)], 1e-08, 5.696989767330337),
    ([(8.0, 1.0, 500)], 1e-06, 16.61073666598715),
    ([(2.0, 0.1, 300)], 1e-05, 4.183304660257017),
    ([(1.1, 0.004, 5000)], 1e-05, 1.271007434123455),
    ([(4.0, 0.5, 100)], 1e-07, 7.156834026194952),
    ([(0.7, 0.02, 50)], 0.0001, 2.393154439270956),
    ([(1.0, 0.001, 1)], 1e-06, 0.021833276385289414),
    ([(3.0, 0.05, 2000)], 1e-05, 3.267926082941709),
    ([(0.6, 0.0005, 200)], 1e-05, 0.46414894368644105),
    ([(1.5, 1.0, 20)], 1e-05, 16.542017332541892),
    ([(6.0, 0.2, 1000)], 1e-08, 6.233286680003203),
    ([(0.5, 1.0, 1)], 1e-05, 9.99725615024243),
    ([(0.8, 0.1, 10)], 0.001, 2.5703274288059155),
    ([(1.0, 0.01, 500), (2.0, 0.05, 300)], 1e-05, 2.3388467084496325),
    ([(1.2, 1.0, 2), (4.0, 0.1, 1000)], 1e-06, 7.374595793386229),
    ([(0.9, 0.002, 3000), (0.7, 0.02, 20)], 1e-05, 2.7239976562655577),
    ([(2.5, 0.3, 60), (5.0, 1.0, 10), (1.0, 0.005, 100)], 1e-05, 5.358282577080487),
    ([(1.3, 0.25, 5000)], 1e-05, 173.85956470575633),
]


@pytest.mark.parametrize(("spent", "delta", "theirs"), SETTINGS)
def test_it_agrees_with_dp_accounting(spent: list[tuple[float, float, int]], delta: float, theirs: float) -> None:
    """Both are upper bounds of the same epsilon: close, and never far below."""
    assert theirs * (1 - 5e-4) <= epsilon(spent, delta) <= theirs * 1.002


def test_it_is_tighter_than_divergences() -> None:
    gains = []
    for spent, delta, _ in SETTINGS:
        bounds = Accountant(tuple(Spent(*each) for each in spent)).bounds(delta)
        gains.append(bounds["rdp"] / bounds["pld"])
        assert Accountant(tuple(Spent(*each) for each in spent)).epsilon(delta) == bounds["pld"]
    assert min(gains) > 1.03 and np.median(gains) > 1.08
    rare = Accountant().charge(1.0, 0.001).bounds(1e-6)
    assert rare["rdp"] > 9 * rare["pld"]


def exact(noise: float, delta: float) -> float:
    """The epsilon of the Gaussian mechanism: Balle & Wang, "Improving the Gaussian Mechanism", ICML 2018, theorem 8."""

    def divergence(e: float) -> float:
        upper, lower = (0.5 * erfc(-z / sqrt(2)) for z in (0.5 / noise - e * noise, -0.5 / noise - e * noise))
        return upper - exp(min(e, 700.0)) * lower

    low, high = 0.0, 1e4
    while high - low > 1e-9 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > delta else (low, middle)
    return high


@settings(max_examples=40, deadline=None)
@given(st.floats(0.3, 200), st.floats(-9, -2), st.integers(1, 400))
def test_rounds_of_everybody_have_a_closed_form(noise: float, power: float, rounds: int) -> None:
    """Rounds with rate 1 are together one round with less noise."""
    got, want = epsilon([(noise * sqrt(rounds), 1.0, rounds)], 10**power), exact(noise, 10**power)
    assert want <= got * (1 + 1e-9) + 1e-9 and got <= want * 1.002 + 1e-4


@settings(max_examples=25, deadline=None)
@given(st.floats(0.4, 20), st.floats(-4, 0), st.integers(1, 300), st.floats(-8, -3))
def test_less_is_spent_with_more_noise_fewer_rounds_and_smaller_samples(
    noise: float, power: float, rounds: int, delta: float
) -> None:
    rate = 10**power
    base = epsilon([(noise, rate, rounds)], 10**delta)
    slack = 1.003 * base + 1e-9
    assert epsilon([(1.3 * noise, rate, rounds)], 10**delta) <= slack
    assert epsilon([(noise, rate / 2, rounds)], 10**delta) <= slack
    assert epsilon([(noise, rate, rounds // 2)], 10**delta) <= slack
    assert epsilon([(noise, rate, rounds // 2), (noise, rate, rounds - rounds // 2)], 10**delta) == pytest.approx(
        base, rel=2e-3, abs=1e-9
    )
    assert base <= Accountant().charge(noise, rate, rounds).bounds(10**delta)["rdp"] * 1.001 + 1e-6


def test_the_bound_holds_against_losses_that_were_drawn() -> None:
    """The divergence at the epsilon, estimated from samples of the run's loss, is at most delta."""
    rng = np.random.default_rng(7)
    noise, rate, rounds, delta = 0.8, 0.1, 20, 0.05
    bound = epsilon([(noise, rate, rounds)], delta)
    x = rng.normal(size=(200_000, rounds)) * noise + (rng.random((200_000, rounds)) < rate)
    losses = np.log(1 - rate + rate * np.exp((2 * x - 1) / (2 * noise**2))).sum(1)
    divergence = np.mean(np.maximum(0, 1 - np.exp(bound - losses)))
    assert delta * 0.9 < divergence < delta * 1.03


def test_ends_of_the_range() -> None:
    assert epsilon([], 1e-5) == 0 and epsilon([(1.0, 0.5, 0)], 1e-5) == 0
    assert epsilon([(0.0, 1.0, 1)], 1e-5) == inf and epsilon([(1.0, 1.0, 3), (0.0, 0.1, 1)], 1e-5) == inf
    assert epsilon([(1e6, 1.0, 1)], 1e-5) == 0
    assert exact(0.01, 1e-5) <= epsilon([(0.01, 1.0, 1)], 1e-5) < inf
    assert 0 < epsilon([(0.3, 0.9999, 3)], 1e-5) < inf
