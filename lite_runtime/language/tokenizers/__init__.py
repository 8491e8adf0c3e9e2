"""Tokenizers of language models: text to ids and back, from one section of a bundle, with NumPy alone.

    tokenizer = Tokenizer.from_bytes(bundle.section(SECTION))
    ids = tokenizer.encode("Hello", special=False)
    tokenizer.decode(ids)

`description` says what a tokenizer is made of. `converter.frontends.language` makes descriptions from `tokenizer.json`,
GGUF metadata and SentencePiece's files. Results are those of the library `tokenizers`.
"""

from __future__ import annotations

from lite_runtime.language.tokenizers.decoders import Detokenizer
from lite_runtime.language.tokenizers.description import SECTION, AddedToken, Description, pack, unpack
from lite_runtime.language.tokenizers.tokenizer import Tokenizer

__all__ = ["SECTION", "AddedToken", "Description", "Detokenizer", "Tokenizer", "pack", "unpack"]
