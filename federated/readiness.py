"""What can be known before the first round about a configuration, its learner and its bundle.

A bundle's `train_step` has its own optimiser, which a device uses when it trains alone. Federated algorithms take their
own steps with the bundle's gradients, so settings of that optimiser must be stated in [algorithm] instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from federated.algorithms import Algorithm
from federated.client.lite import CURVATURE
from federated.config import Config
from federated.errors import FederatedError
from lite_runtime.bundle import Bundle

__all__ = ["check", "check_algorithm"]

TRAIN_STEP = "train_step"
"""The key of the optimiser's settings in a bundle's metadata; `converter` writes those that are not the default."""
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "optimizer": ("momentum",),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "weight_decay": ("weight_decay",),
    "clip_norm": ("clip_norm",),
    "clip_value": ("clip_norm",),
}
"""The keys of [algorithm] one of which must be stated if a bundle was converted with this setting."""


def check(config: Config, held: Bundle) -> None:
    """Raises FederatedError, with the remedy, for a setting of the bundle's optimiser that the run does not state, for
    an algorithm that the bundle cannot compute, and for results that it does not have."""
    check_algorithm(config.algorithm, second_order=CURVATURE in held.uses)
    if config.report.adapter and not held.metadata.get("language", {}).get("adapters"):
        raise FederatedError(
            "report.adapter: expected a language model converted with --lora, got a bundle without adapters; use "
            "report.bundle"
        )
    _check_settings(config.algorithm, config.source.get("algorithm", {}), held.metadata.get(TRAIN_STEP, {}))


def check_algorithm(algorithm: Algorithm, *, second_order: bool) -> None:
    """Raises FederatedError, naming the alternatives, for an algorithm that a learner cannot compute; `second_order`:
    as in `Learner`."""
    if algorithm.second_order and not second_order:
        raise FederatedError(
            f"algorithm.name: {algorithm.name} needs exact second-order gradients, which this bundle does not offer; "
            f"convert the model with --second-order, or choose {' or '.join(algorithm.instead)}"
        )


def _check_settings(algorithm: Algorithm, words: Mapping[str, Any], settings: object) -> None:
    keys = {entry.name for entry in fields(algorithm)} - algorithm.idle().keys()
    answers = {**ANSWERS, "learning_rate": algorithm.local_rates or ("rate",)}
    for name, value in settings.items() if isinstance(settings, Mapping) else ():
        stated = [key for key in answers.get(name, ()) if key in keys]
        if name not in answers or (name, value) == ("optimizer", "sgd") or any(key in words for key in stated):
            continue
        flag = f"--{name.replace('_', '-')}"
        fix = f"state {' or '.join(stated)} in [algorithm], or " if stated else ""
        other = ", or choose an adaptive server (fedadam, fedyogi)" if value == "adam" else ""
        raise FederatedError(
            f"model.bundle: it was converted with {flag} {value}, which only its own train_step uses; {algorithm.name} "
            f"takes its own steps: {fix}convert the model without {flag}{other}"
        )
