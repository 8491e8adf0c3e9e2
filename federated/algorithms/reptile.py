"""Reptile: move the initial parameters towards those that devices reach.

Nichol, Achiam, Schulman, "On First-Order Meta-Learning Algorithms", 2018, algorithm 2 (batched): phi <- phi + epsilon *
mean(SGD_k(phi) - phi). In a round it is FedAvg with a server step below 1 and equal weights for devices (as noted by
Jiang et al., "Improving Federated Learning Personalization via Model Agnostic Meta Learning", 2019); it adapts in the
same way as it trains, with the rate of the inner steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from federated.algorithms.fedavg import FedAvg

__all__ = ["Reptile"]


@dataclass(frozen=True)
class Reptile(FedAvg):
    """`server_rate` is the paper's epsilon. Broadcast and payload as in FedAvg."""

    name = "reptile"
    server_rate: float = 0.5
    uniform: bool = field(default=True, kw_only=True)
