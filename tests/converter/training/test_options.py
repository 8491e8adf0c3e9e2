"""Settings: which are refused, and with which messages."""

from __future__ import annotations

from typing import Any

import pytest

from converter.errors import TrainingError
from converter.training import Lora, Training


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "trainable: expected globs"),
        ({"trainable": ()}, "trainable: expected globs"),
        ({"trainable": ("",)}, "trainable: expected globs"),
        ({"trainable": 3}, "trainable: expected globs"),
        ({"loss": "hinge"}, "loss: expected one of softmax_cross_entropy"),
        ({"optimizer": "lion"}, "optimizer: expected one of sgd"),
        ({"batch_norm": True}, "batch_norm: expected one of frozen, train"),
        ({"nesterov": 1}, "nesterov: expected one of True, False"),
        ({"learning_rate": -1.0}, "learning_rate: expected a number of 0 or more"),
        ({"learning_rate": float("nan")}, "learning_rate: expected"),
        ({"learning_rate": "fast"}, "learning_rate: expected"),
        ({"momentum": 1.0}, "momentum: expected a number of 0 or more below 1"),
        ({"betas": (0.9,)}, "betas: expected two numbers"),
        ({"betas": (0.9, 1.0)}, "betas: expected"),
        ({"clip_norm": 0.0}, "clip_norm: expected a positive number"),
        ({"clip_norm": 1.0, "clip_value": 1.0}, "expected clip_norm or clip_value, got both"),
        ({"signatures": ("train",)}, "signatures: expected one of predict"),
        ({"signatures": ("predict",)}, "signatures: expected train_step or gradients"),
        ({"arena_budget": 1000, "signatures": ("gradients",)}, "arena_budget needs train_step"),
        ({"arena_budget": 0}, "arena_budget: expected"),
        ({"arena_batch": 0}, "arena_batch: expected"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(TrainingError, match=text):
        Training(**({} if settings in ({}, {"trainable": ()}) else {"trainable": "*"}) | settings)


@pytest.mark.parametrize("settings", [{"rank": 0}, {"rank": True}, {"alpha": -1.0}, {"targets": ()}])
def test_adapters_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(settings))):
        Lora(**settings)


def test_globs_are_a_tuple_however_they_are_given() -> None:
    assert Training("head.*") == Training(["head.*"]) == Training(("head.*",))
    assert Training(adapters=Lora(2)).trainable == ()
    assert Lora(4).factor == 1.0 and Lora(4, alpha=8).factor == 2.0
