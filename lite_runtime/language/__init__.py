"""Language models on a device: tokenizers, caches, generation. Needs NumPy and the standard library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from lite_runtime.language.adapters import Adapter
    from lite_runtime.language.answer import Piece, Statistics
    from lite_runtime.language.embedding.model import EmbeddingModel
    from lite_runtime.language.encoder_decoder import write
    from lite_runtime.language.generation import LanguageModel
    from lite_runtime.language.sampling import Sampling
    from lite_runtime.language.template import ChatTemplate
    from lite_runtime.language.tokenizers import Detokenizer, Tokenizer
    from lite_runtime.learning.texts import Learning

__all__ = [
    "Adapter",
    "ChatTemplate",
    "Detokenizer",
    "EmbeddingModel",
    "LanguageModel",
    "Learning",
    "Piece",
    "Sampling",
    "Statistics",
    "Tokenizer",
    "write",
]

__getattr__ = lazy(
    __name__,
    {
        "Adapter": "lite_runtime.language.adapters",
        "ChatTemplate": "lite_runtime.language.template",
        "Detokenizer": "lite_runtime.language.tokenizers",
        "EmbeddingModel": "lite_runtime.language.embedding.model",
        "LanguageModel": "lite_runtime.language.generation",
        "Learning": "lite_runtime.learning.texts",
        "Piece": "lite_runtime.language.answer",
        "Sampling": "lite_runtime.language.sampling",
        "Statistics": "lite_runtime.language.answer",
        "Tokenizer": "lite_runtime.language.tokenizers",
        "write": "lite_runtime.language.encoder_decoder",
    },
)
