"""The families of language models that are known, as data: what each has beside the plain decoder, and how files name
its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from converter.errors import ConvertError

__all__ = ["CONFIG_NAMES", "FAMILIES", "GGUF_NAMES", "Family", "family_of", "listed", "roles", "windows"]


@dataclass(frozen=True)
class Family:
    """One family. `gguf`: its names in GGUF files; `config`: its `model_type` in config.json."""

    name: str
    gguf: tuple[str, ...]
    config: tuple[str, ...]
    interleaved: bool = False
    """GGUF files have the rows of q and k in an order in which the features of a pair are neighbours. Safetensors files
    never do."""
    activation: str = "Silu"
    head_norms: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    """Added to weights of normalisations in safetensors files; GGUF files contain the sum."""
    base: float = 10_000.0
    """Base of rotary positions where config.json names none."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the square root of their width."""
    global_every: int = 0
    """Every such layer attends to all positions, the others to a window. 0: all have the window, if there is one."""
    local_base: float = 0.0
    """Base of rotary positions of layers with a window, if it differs."""
    unrotated_every: int = 0
    """Every such layer has no positions."""
    wide_scale_layers: int = 0
    """In GGUF files, the number of layers of the one model whose attention scale is (width / heads)^-0.5."""


FAMILIES: tuple[Family, ...] = (
    Family("llama", ("llama",), ("llama", "mistral"), interleaved=True),
    Family("qwen2", ("qwen2",), ("qwen2",)),
    Family("qwen3", ("qwen3",), ("qwen3",), head_norms=True),
    Family("smollm3", ("smollm3",), ("smollm3",), interleaved=True, unrotated_every=4, base=2e6),
    Family("gemma", ("gemma",), ("gemma",), activation="Gelu", norm_offset=1.0, scaled_embedding=True),
    Family(
        "gemma2", ("gemma2",), ("gemma2",), activation="Gelu", norm_offset=1.0, scaled_embedding=True,
        post_norms=True, global_every=2, wide_scale_layers=46,
    ),
    Family(
        "gemma3", ("gemma3",), ("gemma3_text",), activation="Gelu", norm_offset=1.0, scaled_embedding=True,
        post_norms=True, head_norms=True, global_every=6, base=1e6, local_base=10_000.0, wide_scale_layers=62,
    ),
)  # fmt: skip

GGUF_NAMES: Mapping[str, str] = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "logits": "output",
    "attention_norm": "blk.{i}.attn_norm",
    "query": "blk.{i}.attn_q",
    "key": "blk.{i}.attn_k",
    "value": "blk.{i}.attn_v",
    "query_norm": "blk.{i}.attn_q_norm",
    "key_norm": "blk.{i}.attn_k_norm",
    "result": "blk.{i}.attn_output",
    "attention_post_norm": "blk.{i}.post_attention_norm",
    "ffn_norm": "blk.{i}.ffn_norm",
    "gate": "blk.{i}.ffn_gate",
    "up": "blk.{i}.ffn_up",
    "down": "blk.{i}.ffn_down",
    "ffn_post_norm": "blk.{i}.post_ffw_norm",
}
"""Role -> name, without ".weight" or ".bias"."""

CONFIG_NAMES: Mapping[str, str] = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "logits": "lm_head",
    "attention_norm": "model.layers.{i}.input_layernorm",
    "query": "model.layers.{i}.self_attn.q_proj",
    "key": "model.layers.{i}.self_attn.k_proj",
    "value": "model.layers.{i}.self_attn.v_proj",
    "query_norm": "model.layers.{i}.self_attn.q_norm",
    "key_norm": "model.layers.{i}.self_attn.k_norm",
    "result": "model.layers.{i}.self_attn.o_proj",
    "attention_post_norm": "model.layers.{i}.post_attention_layernorm",
    "ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "gate": "model.layers.{i}.mlp.gate_proj",
    "up": "model.layers.{i}.mlp.up_proj",
    "down": "model.layers.{i}.mlp.down_proj",
    "ffn_post_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_BEFORE_FFN = {"ffn_norm": "model.layers.{i}.pre_feedforward_layernorm"}
"""Where a norm follows attention, the one before the feed-forward layer has a name of its own."""


def family_of(name: object, known: str, where: str) -> Family:
    """The family that a file names. known: "gguf" or "config". Raises ConvertError with the list of known ones."""
    names: dict[str, Family] = {text: family for family in FAMILIES for text in getattr(family, known)}
    if not isinstance(name, str) or name not in names:
        raise ConvertError(
            f"{where}: expected a language model of {', '.join(names)}, got {name!r}; convert one of these families"
        )
    return names[name]


def roles(names: Mapping[str, str], family: Family) -> Mapping[str, str]:
    """The names of a family's tensors by role."""
    return {**names, **_BEFORE_FFN} if names is CONFIG_NAMES and family.post_norms else names


def windows(layers: int, window: int, every: int) -> tuple[int, ...]:
    """By layer: the window, and 0 for every `every`-th layer."""
    return tuple(0 if every and (i + 1) % every == 0 else window for i in range(layers))


def listed(items: Iterable[str], shown: int = 4) -> str:
    """The first of some names, and how many more there are."""
    names = sorted(items)
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")
