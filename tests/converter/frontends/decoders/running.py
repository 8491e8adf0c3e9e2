"""Runs a bundle with a language model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import lite_runtime
from lite_runtime.graph import Array
from lite_runtime.language.engine import Engine, Part

__all__ = ["logits_of"]


def logits_of(bundle: bytes, tokens: Sequence[int], backend: str = "auto", first: int = 25) -> Array:
    """Logits of every token of one text, of which the `first` are given in one run and the others in a second."""
    engine = Engine(lite_runtime.load(bundle, backend=backend), 64)
    sequence = engine.start()
    parts = [part for part in (list(tokens[:first]), list(tokens[first:])) if part]
    return np.concatenate([engine.run([Part(sequence, part, len(part))])[0] for part in parts])
