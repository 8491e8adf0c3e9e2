"""One run of federated learning with many canaries, each of which takes part in it with probability 1/2.

Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023; Andrew, Kairouz, Oh, Oprea,
McMahan and Suriyakumar, "One-shot Empirical Privacy Estimation for Federated Learning", ICLR 2024: canaries are devices
whose updates are orthogonal directions. Devices, messages, server, sampling, noise and account are those of every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cloud.audit.privacy.canaries.audited import Audited, evidence
from cloud.audit.privacy.canaries.bounds import epsilon_of_guesses
from cloud.errors import AuditError
from federated.client.device import Device
from federated.client.state import StateStore
from federated.config import parse
from federated.learner import Batch, Evaluation, Gradient
from federated.privacy.noise import NoiseSource
from federated.server.conduct import conduct
from federated.server.federation import Federation, Start
from federated.tree import Tree

__all__ = ["audit_run"]

SHARES = (0.125, 0.25, 0.5, 1.0)
"""The shares of canaries about which a guess is made; the confidence is divided among them."""
BUNDLE = "canaries"


class _Canary:
    """A learner whose gradient is minus one direction, longer than any bound."""

    second_order = False

    def __init__(self, size: int, place: int, length: float) -> None:
        self.params: Tree = {"model": np.zeros(size, np.float32)}
        self._slope = np.zeros(size, np.float32)
        self._slope[place] = -length

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """The direction, whatever the parameters are."""
        return Gradient(np.float32(0), {"model": self._slope}, {})

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """None."""
        raise NotImplementedError

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        """Nothing is right or wrong."""
        return Evaluation(np.float32(0), np.int64(0), np.int64(len(batch.labels)))

    def scan(
        self, step: Callable[[Any, Batch], tuple[Any, Any]], carry: Any, batches: Batch
    ) -> tuple[Any, dict[str, Any]]:
        """The one step."""
        carry, out = step(carry, Batch({}, batches.labels[0]))
        return carry, {**out, "loss": np.asarray([out["loss"]])}


def audit_run(
    privacy: Mapping[str, Any], *, canaries: int = 400, rounds: int = 1, rate: float = 1.0,
    source: NoiseSource | None = None, confidence: float = 0.95, seed: int = 0,
) -> Audited:  # fmt: skip
    """A lower bound of a run's epsilon beside what its own account says.

    privacy: the section [privacy] of the run, with central noise. rate: `rounds.fraction`. source: what the server
    draws its noise from; None: the operating system. Raises AuditError for too few canaries and a run without noise,
    FederatedError for settings that do not fit together.
    """
    if canaries < 40:
        raise AuditError(f"expected at least 40 canaries, got {canaries}")
    if privacy.get("noise") != "central":
        raise AuditError(f"expected central noise, got {privacy.get('noise', 'none')}")
    taking_part = np.random.default_rng(seed).random(canaries) < 0.5
    federation, models = _run(privacy, taking_part, rounds, rate, source)
    # The mean's divisor is public: the number of devices, or under Poisson sampling the expected one.
    divisor = federation.expected(int(taking_part.sum())) or int(taking_part.sum())
    steps = np.diff(np.stack(models), axis=0).T * (divisor / federation.transforms.privacy.clip)
    found = evidence(steps, federation.multiplier, rate)
    claimed = federation.epsilon()
    order = np.argsort(found, kind="stable")
    best, wrong = 0.0, 0
    for share in SHARES:
        each = max(1, int(canaries * share) // 2)
        right = int(taking_part[order[-each:]].sum() + (~taking_part[order[:each]]).sum())
        split = 1 - (1 - confidence) / len(SHARES)
        lower = epsilon_of_guesses(canaries, 2 * each, right, federation.transforms.privacy.delta, split)
        if lower >= best:
            best, wrong = lower, 2 * each - right
    delta = federation.transforms.privacy.delta
    return Audited(best, float("inf") if claimed is None else claimed, delta, confidence, canaries, wrong)


def _run(
    privacy: Mapping[str, Any], taking_part: np.ndarray, rounds: int, rate: float, source: NoiseSource | None
) -> tuple[Federation, list[np.ndarray]]:
    """The run when it is over, and its model before and after each round."""
    from federated.transport.local import run_here  # Flower

    size, store = len(taking_part), StateStore()
    length = 2 * float(privacy["clip"])  # of the update, at rate 1
    data = Batch({}, np.zeros(1, np.int64))
    learners = {f"canary-{place:05d}": _Canary(size, place, length) for place in np.flatnonzero(taking_part).tolist()}
    devices = {name: Device(name, learner, data, store, BUNDLE) for name, learner in learners.items()}
    words = {
        "model": {"bundle": "canaries.mslite"},
        "algorithm": {"name": "fedavg", "rate": 1.0},
        "local": {"steps": 1, "batch": 1},
        "rounds": {"count": rounds, "minimum": 1, "fraction": rate},
        "evaluation": {"every": 0},
        "data": {"test": 0.0},
        "privacy": dict(privacy),
    }
    start = Start({"model": np.zeros(size, np.float32)}, (), BUNDLE)
    federation = Federation.begin(parse(words), start)
    if source is not None:
        federation.source = source
    models = [np.asarray(federation.model()["model"]).copy()]

    def watch(row: dict[str, Any]) -> None:
        models.append(np.asarray(federation.model()["model"]).copy())

    run_here(lambda exchange: conduct(federation, exchange, watch=watch), devices)
    return federation, models
