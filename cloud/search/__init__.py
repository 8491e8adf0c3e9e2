"""Architecture search for a device: networks of a space by accuracy with shared weights and by what they cost there."""

from __future__ import annotations

from cloud.search.cost import Cost, Measured, Modelled, oracle_of
from cloud.search.space import Choice, Elastic, Space, Stage, graph, space_for
from cloud.search.study import Outcome, search

__all__ = [
    "Choice", "Cost", "Elastic", "Measured", "Modelled", "Outcome", "Space", "Stage", "graph", "oracle_of", "search",
    "space_for",
]  # fmt: skip
