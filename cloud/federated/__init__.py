"""Federated learning in the cloud: gradients computed by JAX, and a simulator of whole fleets."""

from __future__ import annotations

from cloud.federated.learner import JaxLearner
from cloud.federated.simulator import Report, Simulator

__all__ = ["JaxLearner", "Report", "Simulator"]
