"""Attacks that look for the nearest example: success is the model's, and each is as near as its paper promises."""

from __future__ import annotations

from importlib import import_module

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud.audit.attacks import carlini_wagner, deepfool, hop_skip_jump, pgd, square
from cloud.audit.attacks.results import Norm
from cloud.audit.victim import BlackBox, WhiteBox, open_bundle
from cloud.errors import AuditError
from tests.cloud.audit.test_attacks import check

Rows = tuple[np.ndarray, np.ndarray]
FEW = {"iterations": 8, "directions": 50, "most_directions": 150}


@pytest.fixture(scope="module")
def near(victim: WhiteBox, rows: Rows) -> dict:
    """What each finds, and PGD with an epsilon that suffices for all."""
    return {
        "carlini_wagner": carlini_wagner(victim, *rows, steps=150, searches=4),
        "deepfool": deepfool(victim, *rows),
        "hop_skip_jump": hop_skip_jump(victim, *rows, **FEW),
        "pgd": pgd(victim, *rows, epsilon=1.5, norm="L2", steps=40),
    }


@pytest.mark.parametrize("name", ["carlini_wagner", "deepfool", "hop_skip_jump"])
def test_every_row_is_found_and_success_is_the_models(victim: WhiteBox, rows: Rows, near: dict, name: str) -> None:
    check(victim, *rows, near[name])
    assert near[name].rate == 1
    assert near[name].queries.max() > 3


def test_carlini_wagner_is_nearer_than_pgd_at_equal_success(near: dict) -> None:
    ours, plain = near["carlini_wagner"], near["pgd"]
    assert ours.rate == plain.rate == 1
    assert ours.distances.mean() < plain.distances.mean()


def test_the_order_of_distances(near: dict) -> None:
    """More work, shorter ways; decisions alone come near to what gradients find."""
    best = near["carlini_wagner"].distances.mean()
    assert best < near["deepfool"].distances.mean() < 1.5 * best
    assert best < near["hop_skip_jump"].distances.mean() < 2 * best


def test_half_of_the_change_is_not_enough(victim: WhiteBox, rows: Rows, near: dict) -> None:
    """What they find is next to the boundary: on the way there, nearly all rows still have their class."""
    x, labels = rows
    for name in ("carlini_wagner", "deepfool"):
        short = victim.logits(x + 0.9 * (near[name].inputs - x)).argmax(1) == labels
        assert short.mean() > 0.8, name


def test_targets(victim: WhiteBox, rows: Rows, digits: Rows) -> None:
    x, wanted = rows[0], (rows[1] + 3) % 10
    exact = carlini_wagner(victim, x, wanted, targeted=True, steps=150, searches=4)
    jumped = hop_skip_jump(victim, x, wanted, targeted=True, examples=digits[0][64:264], **FEW)
    for found in (exact, jumped):
        check(victim, x, wanted, found, targeted=True)
    assert exact.rate > 0.9 and jumped.rate == 1
    assert exact.distances.mean() < jumped.distances.mean()
    with pytest.raises(AuditError, match="expected examples="):
        hop_skip_jump(victim, x, wanted, targeted=True)


def test_confidence_leaves_a_margin(victim: WhiteBox, rows: Rows) -> None:
    x, labels = rows
    found = carlini_wagner(victim, x, labels, confidence=2.0, steps=150, searches=4)
    scores = victim.logits(found.inputs)
    own = scores[np.arange(len(x)), labels].copy()
    scores[np.arange(len(x)), labels] = -np.inf
    was = victim.logits(x).argmax(1) == labels
    assert (scores.max(1) - own)[found.success & was].min() > 1.99


@pytest.fixture(scope="module")
def integers(network: ir.Model, digits: Rows) -> BlackBox:
    return open_bundle(converter.convert(network, quantize="int8", calibration={"x": digits[0][64:320]}).bundle)


def test_hop_skip_jump_on_an_integer_bundle(integers: BlackBox, rows: Rows) -> None:
    x, labels = rows[0][:8], rows[1][:8]
    few = hop_skip_jump(integers, x, labels, norm="Linf", seed=5, iterations=1, directions=50)
    found, again = (hop_skip_jump(integers, x, labels, norm="Linf", seed=5, **FEW) for _ in range(2))
    np.testing.assert_array_equal(found.inputs, again.inputs)
    np.testing.assert_array_equal(found.success, integers.logits(found.inputs).argmax(1) != labels)
    assert found.rate == few.rate == 1
    assert found.distances.mean() < 0.9 * few.distances.mean()
    assert (found.queries[found.queries > 1] > few.queries.max()).all()


@pytest.mark.parametrize("norm", ["L2", "Linf"])
def test_rounding_hides_no_example_from_hop_skip_jump(
    integers: BlackBox, victim: WhiteBox, rows: Rows, norm: Norm
) -> None:
    """On the integer bundle it comes as near as on the float network that this was made from."""
    rounded, exact = (
        hop_skip_jump(model, rows[0][:32], rows[1][:32], norm=norm, iterations=12) for model in (integers, victim)
    )
    assert integers.rounds and not victim.rounds
    assert rounded.rate == exact.rate == 1
    assert rounded.distances.mean() < 1.3 * exact.distances.mean()


def test_hop_skip_jump_starts_at_other_rows_where_no_random_point_does(rows: Rows) -> None:
    """A model that gives all noise one class, and rows of this class."""

    def forward(_: object, x: np.ndarray) -> np.ndarray:
        return jnp.stack([x[:, 0] * 0 + 0.9, x.mean(1)], 1)

    victim = WhiteBox("mean", forward, (), (64,), 2)
    x = np.concatenate([np.full((3, 64), 0.4, np.float32), np.full((1, 64), 0.95, np.float32)])
    found = hop_skip_jump(victim, x, np.array([0, 0, 0, 1]), norm="Linf", starts=5, iterations=3)
    assert found.success.all()
    np.testing.assert_allclose(found.distances, [0.5, 0.5, 0.5, 0.05], atol=0.1)


def test_square_keeps_large_patches_where_a_model_rounds(
    integers: BlackBox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rate() -> float:
        return float(np.mean([square(integers, *rows, epsilon=0.1, steps=300, seed=seed).rate for seed in range(3)]))

    large = rate()
    module = import_module("cloud.audit.attacks.square")  # the package has the function by this name
    monkeypatch.setattr(module, "_SELDOM", module._HALVINGS)
    assert large > rate() > 0.5
