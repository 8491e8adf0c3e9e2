"""The options of an embedding model, validated once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from converter.errors import ConvertError
from lite_runtime.language.embedding.recipe import MOST

__all__ = ["Embedding", "Pooling"]

Pooling = Literal["mean", "cls", "last", "none"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


@dataclass(frozen=True)
class Embedding:
    """How a bundle turns texts into vectors. What is None is as the source says, if it is a folder of Sentence
    Transformers. Raises ConvertError for values that a field does not allow."""

    tokenizer: str | os.PathLike[str] | bytes | None = None
    """A `tokenizer.json`, or its bytes."""
    pooling: Pooling | None = None
    """How the states of a text's tokens become one vector: their mean, the first one (cls), the last one, or none if
    the graph does it. By default mean, and none for a graph whose output has no axis of tokens."""
    normalize: bool | None = None
    """Whether vectors are divided by their length; by default they are."""
    tokens: int | None = None
    """The most tokens of a text; by default what `tokenizer.json` says in `truncation`."""
    prompt: str | None = None
    """What is put before every text."""

    def __post_init__(self) -> None:
        if self.pooling not in (None, *POOLINGS):
            raise ConvertError(f"pooling: expected one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        if self.tokens is not None and (type(self.tokens) is not int or not 0 < self.tokens <= MOST):
            raise ConvertError(f"tokens: expected a number of tokens from 1 to {MOST}, got {self.tokens!r}")
