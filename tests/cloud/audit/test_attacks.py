"""Attacks within an epsilon: bounds hold exactly, success is what the model says, stronger attacks are stronger."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.audit.attacks import Attacked, auto_pgd, fgsm, pgd, square
from cloud.audit.attacks.results import within
from cloud.audit.victim import WhiteBox
from cloud.errors import AuditError

BOUNDED = {"fgsm": fgsm, "pgd": pgd, "auto_pgd": auto_pgd, "square": square}
EPSILON = {"Linf": 0.1, "L2": 0.6}
MORE = {"fgsm": {}, "pgd": {"steps": 10}, "auto_pgd": {"steps": 10}, "square": {"steps": 200}}
Rows = tuple[np.ndarray, np.ndarray]


def distances(x: np.ndarray, other: np.ndarray, norm: str) -> np.ndarray:
    difference = (other.astype(np.float64) - x.astype(np.float64)).reshape(len(x), -1)
    return np.abs(difference).max(1) if norm == "Linf" else np.sqrt((difference**2).sum(1))


def check(victim: WhiteBox, x: np.ndarray, labels: np.ndarray, found: Attacked, targeted: bool = False) -> None:
    """What every result must satisfy, computed here anew."""
    right = victim.logits(found.inputs).argmax(1) == labels
    np.testing.assert_array_equal(found.success, right if targeted else ~right)
    np.testing.assert_allclose(found.distances, distances(x, found.inputs, found.norm), rtol=1e-12)
    assert found.inputs.dtype == np.float32
    assert found.inputs.min() >= 0 and found.inputs.max() <= 1
    assert (found.distances[~found.success] == 0).all()
    assert (found.queries >= 1).all()


@pytest.mark.parametrize("norm", EPSILON)
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_hold_exactly_and_success_is_the_models(victim: WhiteBox, rows: Rows, name: str, norm: str) -> None:
    x, labels = rows
    found = BOUNDED[name](victim, x, labels, epsilon=EPSILON[norm], norm=norm, **MORE[name])
    check(victim, x, labels, found)
    assert (distances(x, found.inputs, norm) <= EPSILON[norm]).all()
    assert (victim.logits(x).argmax(1) == labels).mean() > 0.9
    assert found.rate > 0.2  # the network alone errs on less than a tenth


@given(st.integers(0, 2**32 - 1), st.floats(1e-9, 4), st.sampled_from([1e-8, 0.01, 1.0, 1000.0]))
def test_no_value_leaves_the_ball_by_its_last_bit(seed: int, epsilon: float, scale: float) -> None:
    random = np.random.default_rng(seed)
    x = (random.standard_normal((2, 9000)) * scale).astype(np.float32)
    edge = x + np.float32(epsilon) * random.choice(np.float32([-1, 1]), x.shape)
    moved = np.where(random.random(x.shape) < 0.5, edge, x + random.uniform(-1.5, 1.5, x.shape) * epsilon)
    moved = moved.astype(np.float32)
    found = within(x, moved, epsilon)
    far = np.abs(found.astype(np.float64) - x)
    was = np.abs(moved.astype(np.float64) - x)
    assert (far <= epsilon).all()
    np.testing.assert_array_equal(found[was <= epsilon], moved[was <= epsilon])
    beyond = np.abs(np.nextafter(found, moved).astype(np.float64) - x) > epsilon * (1 - 1e-6)
    small = epsilon < np.spacing(np.abs(x))  # no other value is within
    assert (beyond | small)[was > epsilon].all()  # hardly anything nearer to what was asked for is inside


@pytest.mark.parametrize("name", BOUNDED)
def test_targets_are_reached(victim: WhiteBox, rows: Rows, name: str) -> None:
    x, labels = rows
    wanted = (labels + 1) % 10
    few = BOUNDED[name](victim, x, wanted, epsilon=0.05, targeted=True, **MORE[name])
    many = BOUNDED[name](victim, x, wanted, epsilon=0.3, targeted=True, **MORE[name])
    check(victim, x, wanted, many, targeted=True)
    assert many.rate > few.rate
    assert many.rate > 0.1


@pytest.mark.parametrize("norm", EPSILON)
def test_auto_pgd_is_at_least_as_strong_as_pgd(victim: WhiteBox, digits: Rows, norm: str) -> None:
    """In sum over two epsilons: which rows a single run misses depends on its start."""
    x, labels = digits[0][:256], digits[1][:256]
    plain, auto = (
        sum(float(attack(victim, x, labels, epsilon=EPSILON[norm] * share, norm=norm, steps=40, batch=64).success.sum())
            for share in (0.5, 0.75))
        for attack in (pgd, auto_pgd)
    )  # fmt: skip
    assert auto >= plain > 60
    assert auto < 2 * len(x) - 60  # otherwise the comparison says nothing


def test_iterations_and_restarts_add_strength(victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    one = fgsm(victim, x, labels, epsilon=0.1)
    many = pgd(victim, x, labels, epsilon=0.1, steps=20)
    again = pgd(victim, x, labels, epsilon=0.1, steps=20, restarts=3)
    assert one.rate <= many.rate <= again.rate
    assert (again.queries[~again.success] > many.queries[~again.success]).all()
    assert (again.queries[many.success] == many.queries[many.success]).all()


def noisy(attack: Callable[..., Attacked], more: dict) -> Callable[..., Attacked]:
    return lambda *given, **settings: attack(*given, epsilon=0.08, **more, **settings)


@pytest.mark.parametrize("name", ["pgd", "auto_pgd", "square"])
def test_a_seed_decides_and_batches_do_not(victim: WhiteBox, rows: Rows, name: str) -> None:
    x, labels = rows
    more = {**MORE[name], **({"restarts": 2} if name == "pgd" else {})}
    attack = noisy(BOUNDED[name], more)
    first, again, other = (attack(victim, x, labels, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.queries, again.queries)
    assert (first.inputs != other.inputs).any()
    if name == "square":
        return
    parts = attack(victim, x, labels, seed=3, batch=24)
    assert (parts.success == first.success).mean() > 0.95  # products of other sizes round differently
    np.testing.assert_allclose(parts.inputs[:20], first.inputs[:20], atol=0.17)


def test_queries_are_counted(victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    before = victim.queries
    found = fgsm(victim, x, labels, epsilon=0.1, batch=len(x))
    asked = found.queries.sum()
    wrong = int((victim.logits(x).argmax(1) != labels).sum())
    assert asked == wrong + 3 * (len(x) - wrong)  # before, the gradient, after
    assert victim.queries - before >= asked


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"epsilon": 0}, "epsilon above 0"),
        ({"epsilon": 0.1, "norm": "L1"}, "expected a norm of Linf, L2, got 'L1'"),
        ({"epsilon": 0.1, "clip": (1, 0)}, "low < high"),
        ({"epsilon": 0.1, "clip": (0, 0.5)}, "state their range"),
        ({"epsilon": 0.1, "loss": "other"}, "expected a loss of ce, dlr, margin"),
        ({"epsilon": 0.1, "batch": 0}, "rows in a batch"),
    ],
)
def test_settings_that_do_not_fit(victim: WhiteBox, rows: Rows, settings: dict, text: str) -> None:
    with pytest.raises(AuditError, match=text.replace("(", r"\(")):
        fgsm(victim, *rows, **settings)


def test_inputs_that_do_not_fit(victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    with pytest.raises(AuditError, match=r"expected inputs of shape \[rows, \*\[64\]\]"):
        fgsm(victim, x[:, :3], labels, epsilon=0.1)
    with pytest.raises(AuditError, match="NaN or infinity"):
        fgsm(victim, np.full_like(x, np.nan), labels, epsilon=0.1)
    with pytest.raises(AuditError, match="expected labels from 0 to 9, got 10 to 19"):
        fgsm(victim, x, labels + 10, epsilon=0.1)
    with pytest.raises(AuditError, match="expected 64 labels"):
        fgsm(victim, x, labels[:3], epsilon=0.1)
    with pytest.raises(AuditError, match="at least one input"):
        fgsm(victim, x[:0], labels[:0], epsilon=0.1)


@pytest.mark.parametrize("norm", EPSILON)
def test_square_finds_examples_among_images(victim: WhiteBox, rows: Rows, norm: str) -> None:
    """Patches of two dimensions: the same network, asked for images."""
    x, labels = rows[0].reshape(-1, 1, 8, 8), rows[1]
    inner = victim._forward
    images = WhiteBox("images", lambda w, x: inner(w, x.reshape(-1, 64)), victim._weights, (1, 8, 8), 10)
    found = square(images, x, labels, epsilon=EPSILON[norm], norm=norm, steps=200)
    check(images, x, labels, found)
    assert (distances(x, found.inputs, norm) <= EPSILON[norm]).all()
    assert found.rate > (images.logits(x).argmax(1) != labels).mean() + 0.2
