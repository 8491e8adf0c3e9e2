"""Robust aggregation: means that a few malicious devices cannot change much."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from federated.errors import FederatedError
from federated.robust.aggregators import Aggregate, Aggregator, Mean, NormBound
from federated.robust.coordinates import Median, TrimmedMean
from federated.robust.distances import Bulyan, GeometricMedian, Krum, MultiKrum
from federated.tables import Reader

__all__ = [
    "AGGREGATORS", "Aggregate", "Aggregator", "Bulyan", "GeometricMedian", "Krum", "Mean", "Median", "MultiKrum",
    "NormBound", "TrimmedMean", "aggregator_from",
]  # fmt: skip

_READ = Reader(FederatedError, "")
AGGREGATORS: dict[str, type[Aggregator]] = {
    rule.name: rule for rule in (Mean, NormBound, Median, TrimmedMean, Krum, MultiKrum, Bulyan, GeometricMedian)
}


def aggregator_from(name: str, parameters: Mapping[str, Any] | None = None) -> Aggregator:
    """The rule of that name with its parameters. Raises FederatedError for an unknown name or parameter."""
    if name not in AGGREGATORS:
        raise FederatedError(f"robust: unknown rule {name!r}; expected one of {', '.join(AGGREGATORS)}")
    return _READ.read(AGGREGATORS[name], parameters or {}, f"robust {name}: ")
