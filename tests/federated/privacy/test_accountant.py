"""The accountant against dp-accounting and against quadrature with 30 digits."""

from __future__ import annotations

import csv
import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.privacy import Accountant, noise_for
from federated.privacy.accountant import ORDERS, Spent, epsilon_of, renyi

ROWS = [
    {key: float(value) for key, value in row.items()}
    for row in csv.DictReader(
        line for line in (Path(__file__).parent / "dp_accounting.csv").read_text().splitlines() if line[0] != "#"
    )
]
WHOLE = (ORDERS % 1 == 0) & (ORDERS <= 256)

# noise, rate, order, divergence: mpmath 1.4.1, log(quad(integrand of Mironov et al. 2019, theorem 4)) / (order - 1).
QUADRATURE = [
    (0.3, 0.001, 1.1, 0.000843290832504114996),
    (0.3, 0.05, 1.1, 0.17550818386126102),
    (0.3, 0.5, 1.3, 4.610993860842189),
    (0.5, 0.01, 2.5, 0.014771278211720383),
    (1.0, 0.01, 32, 11.246275937048068),
    (1.0, 0.5, 1.1, 0.156130475685493),
    (2.0, 0.2, 1.7, 0.009470871586754661),
    (4.0, 0.001, 256, 1.0652757384639062),
    (10.0, 0.5, 1.9, 0.0023833240190006483),
    (10.0, 0.01, 1024, 0.5139640696841711),
    (0.8, 0.0001, 11, 2.3041291828998872e-07),
    (1.3, 0.05, 5.5, 0.006728570918082579),
]


def test_whole_orders_agree_with_dp_accounting() -> None:
    for row in ROWS:
        spent = row["rounds"] * renyi(row["noise"], row["rate"])[WHOLE]
        assert epsilon_of(spent, ORDERS[WHOLE], row["delta"]) == pytest.approx(row["epsilon_integers"], rel=1e-6), row


def test_all_orders_agree_with_dp_accounting_or_are_sharper() -> None:
    """Its series is too high at orders below 2 or does not converge: there, and only there, ours is the smaller."""
    close = 0
    for row in ROWS:
        account = Accountant().charge(row["noise"], row["rate"], int(row["rounds"]))
        ours = account.bounds(row["delta"], ("rdp",))["rdp"]
        assert ours <= row["epsilon"] * 1.0001
        close += ours == pytest.approx(row["epsilon"], rel=0.01)
    assert close >= 0.85 * len(ROWS)


@pytest.mark.parametrize(("noise", "rate", "order", "divergence"), QUADRATURE)
def test_divergences_to_nine_digits(noise: float, rate: float, order: float, divergence: float) -> None:
    at = int(np.argmin(abs(ORDERS - order)))
    assert ORDERS[at] == pytest.approx(order)
    assert renyi(noise, rate)[at] == pytest.approx(divergence, rel=1e-9)


def test_accounts_add_up_and_survive_storage() -> None:
    account = Accountant().charge(1.0, 0.01, 3).charge(1.0, 0.01).charge(2.0)
    assert account.spent == (Spent(1.0, 0.01, 4), Spent(2.0, 1.0, 1))
    assert Accountant.from_data(json.loads(json.dumps(account.as_data()))) == account
    assert Accountant().epsilon(1e-5) == 0
    assert account.charge(0.0).epsilon(1e-5) == inf
    assert account.epsilon(1e-5) > Accountant().charge(2.0).epsilon(1e-5)


@pytest.mark.parametrize(("epsilon", "rate", "rounds"), [(8, 0.01, 1000), (1, 1.0, 1), (0.5, 0.2, 30), (50, 1.0, 10)])
def test_noise_for_an_epsilon_is_enough_and_not_much_more(epsilon: float, rate: float, rounds: int) -> None:
    noise = noise_for(epsilon, 1e-5, rate, rounds)
    assert Accountant().charge(noise, rate, rounds).epsilon(1e-5) <= epsilon
    assert Accountant().charge(noise * 0.99, rate, rounds).epsilon(1e-5) > epsilon


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda: Accountant().charge(-1.0), "noise >= 0"),
        (lambda: Accountant().charge(float("nan")), "noise >= 0"),
        (lambda: Accountant().charge(1.0, 1.5), r"rate in \(0, 1\]"),
        (lambda: Accountant().epsilon(0), "delta"),
        (lambda: noise_for(0, 1e-5), "epsilon > 0"),
        (lambda: noise_for(1e-9, 1e-9, 1.0, 10**6), "no noise reaches"),
        (lambda: Accountant.from_data([[1.0, 0.5]]), "expected .noise, rate, rounds."),
        (lambda: Accountant.from_data([["1", 1, 1]]), "expected .noise, rate, rounds."),
    ],
)
def test_what_makes_no_sense_is_refused(use: object, why: str) -> None:
    with pytest.raises(FederatedError, match=why):
        use()  # type: ignore[operator]
