"""Whether a run's model may be exported: what [gate] demands of its last evaluation. Pure functions of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from federated.config import Gate

__all__ = ["objection"]

Evaluations = Mapping[str, Any]


def objection(gate: Gate, start: Evaluations | None, rows: Sequence[Mapping[str, Any]]) -> str:
    """Why the model must not be exported, "" if it may. `start`: the evaluations before the first round by group of
    devices ("training", "held_out"); `rows`: the report's."""
    if not gate.active:
        return ""
    found = [row["evaluation"] for row in rows if "evaluation" in row]
    if not found:
        return "no evaluation of this model"
    before = (found[-2] if gate.against == "previous" and len(found) > 1 else start) or {}
    for group, survey in found[-1].items():
        if why := _too_few(gate, survey) or _worse(gate, before.get(group), survey):
            return f"{group.replace('_', ' ')} devices: {why}"
    return ""


def _too_few(gate: Gate, survey: Mapping[str, Any]) -> str:
    if survey["answered"] >= gate.answered * survey["asked"] - 1e-9:
        return ""
    lost = ", ".join(f"{count} {reason}" for reason, count in survey["lost"].items())
    return (
        f"expected {100 * gate.answered:g} % of {survey['asked']} devices to answer the evaluation "
        f"(gate.answered), got {survey['answered']} ({lost})"
    )


def _worse(gate: Gate, before: Mapping[str, Any] | None, survey: Mapping[str, Any]) -> str:
    if gate.against == "none":
        return ""
    old, new = (_figure(gate.figure, each) for each in (before, survey))
    if old is None:
        return f"no {gate.figure} of the {gate.against} model to compare with (gate.against)"
    loss = gate.figure.startswith("loss")
    if new is not None and (new - old if loss else old - new) <= gate.margin + 1e-9:
        return ""
    got = "none that is finite" if new is None else f"{new:.4f}"
    bound = f"at {'most' if loss else 'least'} {old + gate.margin if loss else old - gate.margin:.4f}"
    return (
        f"expected {gate.figure} of {bound}, which is the {gate.against} model's {old:.4f} within gate.margin, "
        f"got {got}"
    )


def _figure(name: str, survey: Mapping[str, Any] | None) -> float | None:
    """The mean accuracy, or the median of losses, which one device cannot make infinite; with noise, the mean of
    losses, which are bounded."""
    summary = (survey or {}).get("summary")
    if summary is None:
        return None
    median = name.startswith("loss") and not summary.get("noisy")
    value: float | None = summary[f"median_{name}"] if median else summary[name]["mean"]
    return value
