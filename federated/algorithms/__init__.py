"""Federated algorithms, a paper a file."""

from __future__ import annotations

from federated.algorithms.base import Algorithm, Update
from federated.algorithms.fedavg import FedAvg

__all__ = ["Algorithm", "FedAvg", "Update"]
