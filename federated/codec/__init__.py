"""Codecs: how the trees of a round are compressed for sending."""

from __future__ import annotations

from federated.codec.codec import Codec, Encoded
from federated.codec.spec import Spec

__all__ = ["Codec", "Encoded", "Spec"]
