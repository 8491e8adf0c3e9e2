"""A round of an aggregator that has devices: as that of any server, but its sum is handed up."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from federated.hierarchy.partial import Partial
from federated.server.conduct import secure_sum
from federated.server.federation import Federation, Round
from federated.server.gathering import Exchange, gather
from federated.server.influence import Bounds, limit
from federated.tree import Array

__all__ = ["Leaf"]


@dataclass
class Leaf:
    """The round, and what was handed up of it."""

    round: Round
    opened: Partial | None = None

    @classmethod
    def open(cls, federation: Federation, nodes: Collection[int]) -> Leaf:
        """Raises FederatedError if too few devices are present."""
        federation.rows.clear()  # they are the root's
        return cls(federation.open(nodes))

    def gather(self, exchange: Exchange) -> None:
        """Ask the devices, and wait for their updates."""
        round_ = self.round
        if self._secure:
            self.opened = secure_sum(round_, exchange)
            return
        deadline = round_.federation.config.rounds.deadline
        round_.bytes_down, round_.bytes_up = gather(exchange, "train", round_.messages(), deadline, round_.take)

    @property
    def measured(self) -> Array:
        """Norm and weight of each update (float64 [n, 2]); none if updates are not compared, or too few came."""
        round_ = self.round
        if self._secure or not round_.federation.compares or len(round_.received) < round_.quorum:
            return np.zeros((0, 2))
        return np.array([(each.norm, weight) for each, weight in self._weighted()], np.float64).reshape(-1, 2)

    def sum(self, exchange: Exchange, allowed: Bounds) -> None:
        """Add the updates up, held to the bounds."""
        round_, federation = self.round, self.round.federation
        if self._secure:
            return
        limited = round_.held(limit(self._weighted(), allowed))
        if len(limited.updates) >= round_.quorum:
            self.opened = federation.partial(limited.updates, round_.there)

    def _weighted(self) -> list[tuple[Any, float]]:
        received = self.round.received
        return [(received[name], self.round.federation.weight(received[name])) for name in sorted(received)]

    @property
    def _secure(self) -> bool:
        return self.round.federation.transforms.privacy.secure

    def result(self) -> tuple[Partial | None, dict[str, Any]]:
        """The sum (None: too few updates, or not yet), and the report's row."""
        answered = self.opened.devices if self.opened else len(self.round.received)
        return self.opened, self.round.row(self.opened is not None, answered, ())
