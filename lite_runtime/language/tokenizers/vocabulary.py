"""What models of every kind share: the unknown token, and where a text may be cut without changing its tokens."""

from __future__ import annotations

import re

from lite_runtime.bundle.refusal import refuse
from lite_runtime.language.tokenizers.description import NORMAL, SECTION, Description

__all__ = ["UNDERLINE", "cut_of", "unknown_of"]

UNDERLINE = "\u2581"
"""SentencePiece's sign for a space."""


def unknown_of(number: int, description: Description) -> int | None:
    """The setting `unk` of a model: the id that stands for what has no token; -1 is none."""
    if not -1 <= number < len(description.tokens):
        refuse(f"{SECTION}, model, unk", f"an id below {len(description.tokens)}, or -1", str(number))
    return number if number >= 0 else None


def cut_of(description: Description) -> re.Pattern[str] | None:
    """Where a text may be cut because no token reaches across: before a sign for a space that follows another
    character. None if some token does.

    Parts repeat, so that their ids can be remembered; a whole text does not.
    """
    normal = [token for token, kind in zip(description.tokens, description.kinds, strict=True) if kind == NORMAL]
    text = b"\0".join(normal).decode("utf-8")
    if UNDERLINE.encode() not in normal or re.search(f"[^\0{UNDERLINE}]{UNDERLINE}", text):
        return None
    return re.compile(f"(?<=[^{UNDERLINE}])(?={UNDERLINE})")
