"""What a decoder-only language model is, besides its weights: sizes, positions, and what its family adds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from converter.errors import ConvertError
from lite_runtime.graph import Array
from lite_runtime.operators.language import SCALE

__all__ = ["MOST_LAYERS", "Decoder", "Rope", "llama3_divisors"]

MOST_LAYERS = 1024


@dataclass(frozen=True)
class Rope:
    """Rotary positions (Su et al., 2021): pair i of the first `features` of a head is turned by
    position * base^(-2 i / features) / divisor[i]."""

    base: float
    features: int
    divisors: tuple[float, ...] = ()
    """One for each pair, or one for all of them (linear scaling), or none."""

    def angles(self, positions: int) -> tuple[Array, Array]:
        """Cosines and sines of positions 0 to `positions`, each float32 (positions, features / 2)."""
        steps = np.arange(0, self.features, 2, dtype=np.float64) / self.features
        turns = self.base**-steps / (np.asarray(self.divisors, np.float64) if self.divisors else 1.0)
        angles = np.arange(positions, dtype=np.float64)[:, None] * turns
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def llama3_divisors(rope: Rope, factor: float, low: float, high: float, original: int) -> tuple[float, ...]:
    """Divisors of Llama 3.1's scaling: waves longer than original / low are divided by factor, those shorter than
    original / high by 1, and between these two the frequency is interpolated."""
    turns = rope.base ** -(np.arange(0, rope.features, 2, dtype=np.float64) / rope.features)
    share = (original * turns / (2 * np.pi) - low) / (high - low)
    share = np.clip(share, 0, 1)
    return tuple((1 / (share + (1 - share) / factor)).tolist())


@dataclass(frozen=True)
class Decoder:
    """Sizes and settings of one model."""

    architecture: str
    name: str
    context: int
    """Most positions of a sequence."""
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    """Width of the feed-forward layers."""
    epsilon: float
    """Of all normalisations."""
    ropes: tuple[Rope | None, ...]
    """By layer; None: a layer without positions."""
    windows: tuple[int, ...]
    """By layer: how many positions it attends to, 0 for all."""
    interleaved: bool
    """Whether the features of a pair are neighbours in q and k; otherwise one is in each half."""
    scale: float
    """Factor of the products of queries and keys."""
    softcap: float = 0.0
    """Bound of these products, by tanh; 0 for none."""
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "Silu"
    """Of the gate: Silu, or Gelu by tanh."""
    head_norms: bool = False
    """Normalisation of each head's query and key."""
    post_norms: bool = False
    """Normalisation of what attention and feed-forward add."""
    norm_offset: float = 0.0
    """What is added to the stored weights of normalisations."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConvertError(
                f"expected heads to share keys evenly, got {self.heads} heads and {self.kv_heads} of keys; the file is "
                "damaged"
            )

    @property
    def angle_bytes(self) -> int:
        """Bytes of the tables of cosines and sines."""
        return self.context * 4 * sum(rope.features for rope in {*self.ropes} - {None} if rope is not None)

    def cache_bytes(self, kind: str = "float16") -> int:
        """Bytes of the caches for one token, of elements of this kind."""
        held = self.head_size + SCALE if kind == "int8" else self.head_size * {"float16": 2, "float32": 4}[kind]
        return self.layers * 2 * self.kv_heads * held
