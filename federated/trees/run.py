"""A run that grows trees: edges of bins first, then round by round."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from federated.analytics.panel import Panel
from federated.analytics.run import summary
from federated.errors import FederatedError
from federated.server.gathering import Exchange
from federated.trees import checkpoint
from federated.trees.booster import Booster
from federated.trees.config import TreesRun
from federated.trees.ensemble import xgboost_json
from lite_runtime._files import write_atomically

__all__ = ["run"]


def run(
    config: TreesRun,
    exchange: Exchange,
    watch: Callable[[dict[str, Any]], None] = lambda row: None,
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Grow all trees; returns the report, with `model` in XGBoost's JSON, which is also written to `report.model`.
    `watch` is called with a row per round. `resume`: continue from `state.checkpoint`. Raises FederatedError if devices
    do not come or do not answer."""
    words = config.trees
    panel = Panel(exchange, config.rounds, config.privacy, config.privacy.multiplier_for(words.questions))
    booster = Booster(config, panel)
    keep = config.path(config.state.checkpoint) if config.state.checkpoint else None
    if resume and keep is None:
        raise FederatedError("--resume: expected state.checkpoint in the configuration to continue from, got none")
    if resume and keep is not None:
        checkpoint.load(keep, config, booster)
        checkpoint.save(keep, config, booster)  # with the charge of the round that was lost, should it be lost again
    else:
        booster.begin()
    for number in range(len(booster.history) + 1, words.n_estimators + 1):
        grown = booster.round(number)
        row = {"round": number, "leaves": sum(tree.feature.count(-1) for tree in grown),
               "gain": float(sum(sum(tree.gain) for tree in grown)), "epsilon": panel.epsilon()}  # fmt: skip
        booster.history.append(row)
        if keep is not None:
            checkpoint.save(keep, config, booster)
        watch(row)
    model = xgboost_json(booster.trees, words.objective, words.features, words.classes, words.base)
    report = {"run": panel.run, "objective": words.objective, "results": booster.history, **summary(panel)}
    if config.report.model:
        write_atomically(config.path(config.report.model), model.encode(), FederatedError)
    if config.report.json:
        text = json.dumps(report, indent=1, allow_nan=False)
        write_atomically(config.path(config.report.json), text.encode(), FederatedError)
    return {**report, "model": model}
