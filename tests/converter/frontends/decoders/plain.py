"""A model of the llama family in plain NumPy, in float32: what bundles are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lite_runtime.graph import Array

__all__ = ["logits"]


def logits(
    tokens: Sequence[int], matrix: Callable[[str], Array], numbers: Mapping[str, float], tied: bool = True
) -> Array:
    """Logits of every token of a text, (tokens, vocabulary). `matrix`: a tensor of a GGUF file by name, float32;
    `numbers`: layers, heads, kv_heads, epsilon and base."""
    layers, heads, kv = (int(numbers[name]) for name in ("layers", "heads", "kv_heads"))
    table = matrix("token_embd.weight")
    x = table[list(tokens)]
    rows = len(x)
    later = np.triu(np.ones((rows, rows), bool), 1)

    def norm(x: Array, name: str) -> Array:
        mean = (x * x).mean(-1, keepdims=True) + np.float32(numbers["epsilon"])
        made: Array = x / np.sqrt(mean) * matrix(f"{name}.weight")
        return made

    def turned(x: Array) -> Array:
        """(rows, heads, size), neighbours are a pair."""
        size = x.shape[-1]
        angles = np.arange(rows)[:, None] * numbers["base"] ** (-np.arange(0, size, 2) / size)
        cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
        made = np.empty_like(x)
        made[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
        made[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
        return made

    for i in range(layers):
        block = f"blk.{i}."
        n = norm(x, block + "attn_norm")
        q, k, v = (n @ matrix(f"{block}attn_{part}.weight").T for part in "qkv")
        q, k = turned(q.reshape(rows, heads, -1)), turned(k.reshape(rows, kv, -1))
        k, v = (np.repeat(t.reshape(rows, kv, -1), heads // kv, 1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.float32(q.shape[-1] ** 0.5)
        scores = np.where(later, np.float32(-np.inf), scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        y = np.einsum("hqk,khd->qhd", shares / shares.sum(-1, keepdims=True), v).reshape(rows, -1)
        x = x + y @ matrix(f"{block}attn_output.weight").T
        n = norm(x, block + "ffn_norm")
        gate, up = (n @ matrix(f"{block}ffn_{part}.weight").T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ matrix(f"{block}ffn_down.weight").T
    made: Array = norm(x, "output_norm") @ (table if tied else matrix("output.weight")).T
    return made
