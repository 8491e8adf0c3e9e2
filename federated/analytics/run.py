"""A run of questions: each statistic with the error that noise is expected to cause."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import sqrt
from typing import Any

import numpy as np

from federated.analytics.config import Analysis, Statistic
from federated.analytics.counts import Counts, Moments
from federated.analytics.dyadic import consistent, quantile
from federated.analytics.panel import Panel, Total
from federated.analytics.prefixes import Prefixes, search
from federated.errors import FederatedError
from federated.server.gathering import Exchange
from lite_runtime._files import write_atomically

__all__ = ["run"]


def run(
    config: Analysis, exchange: Exchange, watch: Callable[[dict[str, Any]], None] = lambda row: None
) -> dict[str, Any]:
    """Ask for all statistics; returns the report, which is also written to `report.json`. `watch` is called with each
    result. Raises FederatedError if devices do not come or do not answer."""
    panel = Panel(exchange, config.rounds, config.privacy, config.multiplier)
    results = []
    for statistic in config.analytics:
        found = _KINDS[statistic.kind](statistic, panel)
        shown = statistic.name or statistic.feature
        results.append({"name": shown, "kind": statistic.kind, "weight": statistic.weight, **found})
        watch(results[-1])
    report = {"run": panel.run, "results": results, **summary(panel)}
    if config.report.json:
        text = json.dumps(report, indent=1, allow_nan=False)
        write_atomically(config.path(config.report.json), text.encode(), FederatedError)
    return report


def summary(panel: Panel) -> dict[str, Any]:
    """What the report says about a panel."""
    return {
        "devices": len(panel.members),
        "questions": len(panel.rows),
        "multiplier": panel.multiplier,
        "epsilon": panel.epsilon(),
        "delta": panel.privacy.delta if panel.privacy.noise != "none" else None,
        "turned_away": dict(sorted(panel.turned_away.items())),
        "bytes_down": panel.carried[0],
        "bytes_up": panel.carried[1],
        "rows": panel.rows,
    }


def _mean(statistic: Statistic, panel: Panel) -> dict[str, Any]:
    question = Moments(**statistic.ranged())
    total = panel.ask(question)
    first, second, weight = _weighed(total, total.values[2])
    mean, half = first / weight, (question.high - question.low) / 2
    return {
        "mean": question.low + half * (min(max(mean, -1.0), 1.0) + 1),
        "error": half * total.deviation * sqrt(1 + mean * mean) / weight,  # of a ratio, to first order
        "standard_deviation": half * sqrt(max(0.0, second / weight - mean * mean)),
        "total": weight,
        "devices": total.devices,
    }


def _histogram(statistic: Statistic, panel: Panel) -> dict[str, Any]:
    question = Counts(**statistic.ranged(), bins=statistic.bins or 64)
    total = panel.ask(question)
    return {
        "edges": np.linspace(question.low, question.high, question.bins + 1).tolist(),
        "counts": total.values.tolist(),
        "error": total.deviation,
        "devices": total.devices,
    }


def _quantiles(statistic: Statistic, panel: Panel) -> dict[str, Any]:
    # Without noise the bins alone say everything.
    question = Counts(**statistic.ranged(), bins=statistic.bins or 1024, dyadic=panel.privacy.noise != "none")
    total = panel.ask(question)
    leaves = consistent(total.values) if question.dyadic else total.values
    _weighed(total, float(leaves.sum()))
    found = [
        quantile(leaves, question.low, question.high, at, question.dyadic, total.deviation)
        for at in statistic.at or (0.25, 0.5, 0.75)
    ]
    return {"quantiles": [each._asdict() for each in found], "total": float(leaves.sum()), "devices": total.devices}


def _heavy_hitters(statistic: Statistic, panel: Panel) -> dict[str, Any]:
    totals: list[Total] = []

    def ask(question: Prefixes) -> tuple[Any, float]:
        totals.append(panel.ask(question))
        return totals[-1].values, totals[-1].deviation

    question = Prefixes(**statistic.fields(), longest=statistic.longest or 12)
    found, threshold, from_ = search(question, ask, 1.0 if statistic.threshold is None else statistic.threshold)
    return {
        "words": [each._asdict() for each in found],
        "error": totals[-1].deviation,
        "threshold": threshold,
        "found_from": from_,
        "devices": totals[-1].devices,
    }


def _weighed(total: Total, weight: float) -> list[float]:
    """The sums, if there is enough weight to divide by."""
    if weight <= max(0.0, total.deviation):
        raise FederatedError(
            f"analytics: expected devices of more weight than the noise of {total.deviation:.3g}, got {weight:.3g}; "
            "ask more devices, or allow a larger epsilon"
        )
    return [float(value) for value in total.values]


_KINDS: Mapping[str, Callable[[Statistic, Panel], dict[str, Any]]] = {
    "mean": _mean,
    "histogram": _histogram,
    "quantiles": _quantiles,
    "heavy_hitters": _heavy_hitters,
}
