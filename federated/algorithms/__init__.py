"""Federated algorithms, one file per paper."""

from __future__ import annotations

from federated.algorithms.base import Algorithm, Update
from federated.algorithms.fedavg import FedAvg
from federated.algorithms.registry import ALGORITHMS, algorithm_from

__all__ = ["ALGORITHMS", "Algorithm", "FedAvg", "Update", "algorithm_from"]
