"""Small language models of every family with random weights: settings as in config.json, tensors as in safetensors
files, and both as files. The same model can be written as a GGUF file, as llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np

from converter.frontends.decoders import CONFIG_NAMES, GGUF_NAMES, family_of, roles
from lite_runtime.graph import Array

__all__ = ["CASES", "VOCABULARY", "config", "folder", "gguf_file", "safetensors", "tensors"]

VOCABULARY = 199
_BASE: Mapping[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu",
}  # fmt: skip
_GEMMA: Mapping[str, Any] = {
    "head_dim": 32, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_LLAMA3: Mapping[str, Any] = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CASES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 50_000.0},
    "llama, tied, with biases": {
        "model_type": "llama", "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
    },
    "llama 3": {"model_type": "llama", "rope_scaling": _LLAMA3},
    "llama, linear scaling": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "mistral": {"model_type": "mistral", "sliding_window": 9, "head_dim": 32},
    "qwen2": {"model_type": "qwen2"},
    "qwen2, window": {
        "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "smollm3": {"model_type": "smollm3", "no_rope_layer_interval": 4, "rope_theta": 2_000_000.0},
    "gemma": {"model_type": "gemma", **_GEMMA},
    "gemma2": {
        "model_type": "gemma2", **_GEMMA, "sliding_window": 9, "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text", **_GEMMA, "sliding_window": 9, "query_pre_attn_scalar": 32,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": 1_000_000.0,
    },
}  # fmt: skip


def config(case: str, **changes: Any) -> dict[str, Any]:
    """The contents of config.json."""
    return {**_BASE, **CASES[case], **changes}


def tensors(settings: Mapping[str, Any], seed: int = 0) -> dict[str, Array]:
    """Random weights by the names of safetensors files, float32, of about unit gain."""
    rng = np.random.default_rng(seed)
    family = family_of(settings["model_type"], "config", "test")
    c, names = settings, roles(CONFIG_NAMES, family)
    width, hidden, heads, kv = (
        c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"],
    )  # fmt: skip
    size = c.get("head_dim", width // heads)
    made: dict[str, Array] = {}

    def matrix(role: str, i: int, n: int, k: int, bias: bool = False) -> None:
        name = names[role].format(i=i)
        made[f"{name}.weight"] = (rng.standard_normal((n, k)) * 1.2 / k**0.5).astype(np.float32)
        if bias:
            made[f"{name}.bias"] = (rng.standard_normal(n) * 0.5).astype(np.float32)

    def norm(role: str, i: int, n: int) -> None:
        mean = 1 - family.norm_offset
        made[f"{names[role].format(i=i)}.weight"] = (mean + 0.3 * rng.standard_normal(n)).astype(np.float32)

    matrix("embedding", 0, c["vocab_size"], width)
    biased = c.get("attention_bias", False)
    for i in range(c["num_hidden_layers"]):
        norm("attention_norm", i, width)
        for role, n in (("query", heads), ("key", kv), ("value", kv)):
            matrix(role, i, n * size, width, biased or family.name == "qwen2")
        matrix("result", i, width, heads * size, biased)
        for role in ("query_norm", "key_norm") if family.head_norms else ():
            norm(role, i, size)
        norm("ffn_norm", i, width)
        for role in ("attention_post_norm", "ffn_post_norm") if family.post_norms else ():
            norm(role, i, width)
        for role, n, k in (("gate", hidden, width), ("up", hidden, width), ("down", width, hidden)):
            matrix(role, i, n, k, c.get("mlp_bias", False))
    norm("norm", 0, width)
    if not c["tie_word_embeddings"]:
        matrix("logits", 0, c["vocab_size"], width)
    return made


def safetensors(held: Mapping[str, Array]) -> bytes:
    """A file with these tensors."""
    kinds = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
    header, data = dict[str, Any](), bytearray()
    for name, array in held.items():
        begin = len(data)
        data += array.tobytes()
        extent = [begin, len(data)]
        header[name] = {"dtype": kinds[array.dtype.name], "shape": list(array.shape), "data_offsets": extent}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return len(text).to_bytes(8, "little") + text + data


def folder(path: Path, settings: Mapping[str, Any], held: Mapping[str, Array], dtype: Any = np.float32) -> Path:
    """A model's folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors").write_bytes(safetensors({name: a.astype(dtype) for name, a in held.items()}))
    return path


BFLOAT16 = ml_dtypes.bfloat16


def gguf_file(path: Path, settings: Mapping[str, Any], held: Mapping[str, Array], kind: str = "F32") -> Path:
    """The same model as a GGUF file, matrices of this type: rows of queries and keys are put in the order in which the
    family's files have them, and weights of normalisations get the family's offset."""
    c, family = settings, family_of(settings["model_type"], "config", "test")
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    size = c.get("head_dim", c["hidden_size"] // heads)
    out = gguf.GGUFWriter(path, family.gguf[0])
    _settings(out, c, size)
    theirs, ours = roles(CONFIG_NAMES, family), GGUF_NAMES
    table = {
        f"{theirs[role].format(i=i)}.{part}": (role, f"{ours[role].format(i=i)}.{part}")
        for i in range(c["num_hidden_layers"]) for role in ours for part in ("weight", "bias")
        if role in needed(family)
    }  # fmt: skip
    for name, array in held.items():
        role, new = table[name]
        if role in ("query", "key") and family.interleaved:
            count = heads if role == "query" else kv
            array = array.reshape(count, 2, size // 2, -1).swapaxes(1, 2).reshape(array.shape)
        if array.ndim == 1 and "norm" in role:
            array = array + np.float32(family.norm_offset)
        kept = "F32" if array.ndim == 1 else kind
        number = gguf.GGMLQuantizationType[kept]
        out.add_tensor(new, gguf.quants.quantize(np.ascontiguousarray(array), number), raw_dtype=number)
    if (c.get("rope_scaling") or {}).get("rope_type") == "llama3":
        out.add_tensor("rope_freqs.weight", _divisors(c, size))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def needed(family: Any) -> set[str]:
    """The roles of a family's tensors."""
    left = {"query_norm", "key_norm"} if not family.head_norms else set()
    return set(GGUF_NAMES) - left - ({"attention_post_norm", "ffn_post_norm"} if not family.post_norms else set())


def _settings(out: gguf.GGUFWriter, c: Mapping[str, Any], size: int) -> None:
    out.add_name("tiny")
    out.add_context_length(c["max_position_embeddings"])
    out.add_embedding_length(c["hidden_size"])
    out.add_block_count(c["num_hidden_layers"])
    out.add_feed_forward_length(c["intermediate_size"])
    out.add_head_count(c["num_attention_heads"])
    out.add_head_count_kv(c["num_key_value_heads"])
    out.add_key_length(size)
    out.add_value_length(size)
    out.add_layer_norm_rms_eps(c["rms_norm_eps"])
    out.add_rope_dimension_count(size)
    out.add_rope_freq_base(c.get("rope_theta", 10_000.0))
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(scaling["factor"])
    if c.get("sliding_window"):
        out.add_sliding_window(c["sliding_window"])
    if c.get("attn_logit_softcapping"):
        out.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        out.add_final_logit_softcapping(c["final_logit_softcapping"])


def _divisors(c: Mapping[str, Any], size: int) -> Array:
    """Llama 3's divisors of frequencies, by the rule of the library transformers."""
    s = c["rope_scaling"]
    made = []
    for i in range(size // 2):
        wave = 2 * np.pi * c.get("rope_theta", 10_000.0) ** (2 * i / size)
        original = s["original_max_position_embeddings"]
        if wave < original / s["high_freq_factor"]:
            made.append(1.0)
        elif wave > original / s["low_freq_factor"]:
            made.append(s["factor"])
        else:
            spread = s["high_freq_factor"] - s["low_freq_factor"]
            smooth = (original / wave - s["low_freq_factor"]) / spread
            made.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(made, np.float32)
