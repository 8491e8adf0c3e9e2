"""Secure aggregation: reveals only the sum of devices' updates, even if devices drop out."""

from __future__ import annotations

from federated.privacy.secure.device import SecureDevice
from federated.privacy.secure.fixed_point import FixedPoint, Quantised
from federated.privacy.secure.identity import Identity
from federated.privacy.secure.messages import Stage, Terms, lowest_threshold
from federated.privacy.secure.server import SecureServer, SecureSum

__all__ = [
    "FixedPoint",
    "Identity",
    "Quantised",
    "SecureDevice",
    "SecureServer",
    "SecureSum",
    "Stage",
    "Terms",
    "lowest_threshold",
]
