"""Tokenizers of model files, as the description that a bundle stores."""

from __future__ import annotations

from converter.frontends.language.gguf import from_gguf
from converter.frontends.language.huggingface import from_tokenizer_json
from converter.frontends.language.sentencepiece import from_sentencepiece

__all__ = ["from_gguf", "from_sentencepiece", "from_tokenizer_json"]
