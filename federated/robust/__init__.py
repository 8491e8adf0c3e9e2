"""Means that a few lying devices cannot move far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from federated.errors import FederatedError
from federated.robust.aggregators import Aggregate, Aggregator, Mean, NormBound
from federated.robust.coordinates import Median, TrimmedMean
from federated.robust.distances import Bulyan, GeometricMedian, Krum, MultiKrum

__all__ = [
    "AGGREGATORS", "Aggregate", "Aggregator", "Bulyan", "GeometricMedian", "Krum", "Mean", "Median", "MultiKrum",
    "NormBound", "TrimmedMean", "aggregator_from",
]  # fmt: skip

AGGREGATORS: dict[str, type[Aggregator]] = {
    rule.name: rule for rule in (Mean, NormBound, Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian)
}


def aggregator_from(name: str, parameters: Mapping[str, Any] | None = None) -> Aggregator:
    """The rule of a name with its parameters. FederatedError for a name or parameter that there is not."""
    if name not in AGGREGATORS:
        raise FederatedError(f"robust: unknown rule {name!r}; expected one of {', '.join(AGGREGATORS)}")
    rule = AGGREGATORS[name]
    known = {field.name: field.type for field in fields(rule)}  # type: ignore[arg-type]
    for key, value in (parameters or {}).items():
        if key not in known:
            raise FederatedError(f"robust: {name} has no parameter {key!r}; expected {', '.join(known) or 'none'}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise FederatedError(f"robust: {name}.{key}: expected a number, got {value!r}")
        if known[key] == "int" and not isinstance(value, int):
            raise FederatedError(f"robust: {name}.{key}: expected a whole number, got {value!r}")
    return rule(**(parameters or {}))
