"""Clipping, noise, privacy accounting, and secure aggregation."""

from __future__ import annotations

from federated.privacy.accountant import Accountant, Spent, noise_for
from federated.privacy.clipping import AdaptiveBound, Clip, Clipped, FlatClip, LayerClip
from federated.privacy.noise import GaussianNoise, NoiseSource, SecureSource, SeededSource

__all__ = [
    "Accountant", "AdaptiveBound", "Clip", "Clipped", "FlatClip", "GaussianNoise", "LayerClip", "NoiseSource",
    "SecureSource", "SeededSource", "Spent", "noise_for",
]  # fmt: skip
