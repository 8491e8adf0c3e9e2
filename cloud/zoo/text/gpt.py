"""GPT."""

from __future__ import annotations

import onnx_ir as ir

from cloud.zoo.transformer import transformer

__all__ = ["gpt"]


def gpt(
    length: int = 1024, vocabulary: int = 50257, seed: int = 0, *, width: int = 768, layers: int = 12, heads: int = 12,
    hidden: int = 0, dropout: float = 0.1,
) -> ir.Model:  # fmt: skip
    """GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) in its smallest size:
    `transformer` with the paper's defaults; 124,439,808 parameters, logits tied to the embedding."""
    return transformer(
        length, vocabulary, seed, width=width, layers=layers, heads=heads, hidden=hidden, dropout=dropout
    )  # fmt: skip
