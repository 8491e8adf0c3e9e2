"""Fewer bytes on the wire: what a round's trees travel as."""

from __future__ import annotations

from federated.codec.pipeline import Codec, Encoded
from federated.codec.spec import Spec

__all__ = ["Codec", "Encoded", "Spec"]
