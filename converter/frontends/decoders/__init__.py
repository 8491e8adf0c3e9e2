"""Decoder-only language models: from settings and tensors, which a format's front end reads, to the graph of a bundle.

    loaded(LanguageModel(decoder, tensors, names, ...), format, settings) -> Loaded

`families` has what is known of each family as data, `building` the one graph of all of them, `weights` how files hold
matrices, and `rounding` makes blocks of dense ones.
"""

from __future__ import annotations

from converter.frontends.decoders.decoder import MOST_LAYERS, Decoder, Rope, llama3_divisors
from converter.frontends.decoders.families import CONFIG_NAMES, GGUF_NAMES, Family, family_of, roles, windows
from converter.frontends.decoders.graph import Activations, Cache
from converter.frontends.decoders.source import KEY, LanguageModel, Rounding, Settings, loaded, shortened
from converter.frontends.decoders.tensors import Rounded, Tensors
from converter.frontends.decoders.weights import Blocked, Dense, Matrix, finite
from converter.frontends.decoders.whole import to_whole_ir

__all__ = [
    "CONFIG_NAMES",
    "GGUF_NAMES",
    "KEY",
    "MOST_LAYERS",
    "Activations",
    "Blocked",
    "Cache",
    "Decoder",
    "Dense",
    "Family",
    "LanguageModel",
    "Matrix",
    "Rope",
    "Rounded",
    "Rounding",
    "Settings",
    "Tensors",
    "family_of",
    "finite",
    "llama3_divisors",
    "loaded",
    "roles",
    "shortened",
    "to_whole_ir",
    "windows",
]
