"""What is chosen of trained models, and how the choice, or a budget that none meets, is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloud.search.cost import Cost
from cloud.search.evolve import LIMITS, Candidate, beyond
from cloud.search.goal import told

__all__ = ["merit", "unreachable", "verdict"]


def merit(row: Mapping[str, Any]) -> tuple[float, float]:
    """By what the result is chosen."""
    return row["validation"], -row["cost"]["seconds"]


def verdict(top: Mapping[str, Any], body: Mapping[str, Any], limits: Mapping[str, float], figure: str) -> str:
    """Which of networks and plain models was better, and by what."""
    plain = body.get("plain", [])
    if not plain:
        return ""

    def said(row: Mapping[str, Any]) -> str:
        over = ", beyond the budget" if beyond(Cost(**row["cost"]), limits) else ""
        test = f" ({told(figure, row['test'])} on the test part)" if "test" in row else ""
        return f"{row['text']}: {told(figure, row['validation'])}{test}, {row['cost']['seconds'] * 1e6:.3g} µs{over}"

    won = any(row["files"] == top["files"] for row in plain)
    other = max(body["finalists"] if won else plain, key=merit, default=None)
    first, second = ("a plain model", "the best network") if won else ("a network", "the best plain model")
    rest = f"{second}, {said(other)}" if other is not None else "no network meets the budget"
    return f"{first} wins by the validation part: {said(top)}; {rest}"


def unreachable(nearest: Candidate, limits: Mapping[str, float]) -> str:
    """What binds, and how near the nearest network comes."""
    over = beyond(nearest.cost, limits)
    shown = {"seconds": lambda v: f"{v * 1e6:.1f} µs of latency", "file_bytes": lambda v: f"{v:.0f} bytes of file",
             "arena_bytes": lambda v: f"{v:.0f} bytes of arena"}  # fmt: skip
    parts = [
        f"{shown[name](getattr(nearest.cost, name))}, {over[name]:.2f} times the budget of {shown[name](limits[name])}"
        for name in LIMITS if name in over
    ]  # fmt: skip
    return (
        f"budget: no network of this space meets it; the nearest, {nearest.choice.text}, has {' and '.join(parts)}: "
        "raise that limit"
    )
