"""Texts as windows of tokens: some to calibrate on, others, held out of that, to measure perplexity on."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from converter.errors import QuantizeError
from converter.frontends.decoders import LanguageModel
from lite_runtime.graph import Array
from lite_runtime.language.tokenizers import Tokenizer, pack

__all__ = ["LENGTH", "Windows", "cut", "read", "spread", "windows"]

LENGTH = 512
"""Tokens of a window."""
_SHORTEST = 16
_CALIBRATED, _HELD = 32, 16
"""Windows that are used, at most, evenly spread over the text: of the text to calibrate on and of the other."""
_SHARE = 4
"""One text for both: a part of so many, at its end, is not calibrated on."""
_LARGEST = 1 << 26


@dataclass(frozen=True)
class Windows:
    """Tokens, int32 (windows, length)."""

    calibration: Array
    held: Array
    """Of text that is not calibrated on."""

    @property
    def length(self) -> int:
        """Tokens of a window."""
        return int(self.held.shape[1])


def windows(model: LanguageModel, calibration: object, evaluation: object = None) -> Windows:
    """Windows of one text, or of two: each is the path of a text in UTF-8, or its tokens as integers. Raises
    QuantizeError for texts that are too short or no tokens of the model."""
    learned = _tokens(model, calibration, "calibration")
    held = None if evaluation is None else _tokens(model, evaluation, "evaluation")
    parts = 2 if held is None else 1
    length = min(LENGTH, model.decoder.context, len(learned) // parts, LENGTH if held is None else len(held))
    if length < _SHORTEST:
        raise QuantizeError(
            f"calibration: expected texts of at least {_SHORTEST * parts} tokens, got {len(learned)}"
            + (f" and {len(held)} of evaluation" if held is not None else "")
        )
    first = _cut(model, learned, length)
    if held is not None:
        return Windows(spread(first, _CALIBRATED), spread(_cut(model, held, length), _HELD))
    apart = max(1, len(first) // _SHARE)
    return Windows(spread(first[:-apart], _CALIBRATED), spread(first[-apart:], _HELD))


def _tokens(model: LanguageModel, text: object, what: str) -> Array:
    """The tokens of a text, int32."""
    if isinstance(text, str | os.PathLike):
        if model.tokenizer is None:
            raise QuantizeError(f"{what}: this model has no tokenizer for a text; give token ids as an array")
        return np.array(Tokenizer.from_bytes(pack(model.tokenizer)).encode(read(text, what), special=False), np.int32)
    tokens = np.asarray(text)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        got = f"{tokens.dtype} of shape {list(tokens.shape)}"
        raise QuantizeError(f"{what}: expected the path of a text, or token ids in one row, got {got}")
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < model.decoder.vocabulary:
        raise QuantizeError(f"{what}: expected token ids from 0 to {model.decoder.vocabulary - 1}")
    return tokens.astype(np.int32)


def read(path: str | os.PathLike[str], what: str) -> str:
    """A text in UTF-8. Raises QuantizeError for a file that is none; `what` names it in errors."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise QuantizeError(f"{what}: cannot read {path}: {error.strerror or error}") from None
    if len(data) > _LARGEST:
        raise QuantizeError(f"{what}: expected a text of at most {_LARGEST >> 20} MiB; {path} is larger; give a part")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise QuantizeError(
            f"{what}: expected a text in UTF-8, got byte {data[error.start]} at {error.start} of {path}"
        ) from None


def _cut(model: LanguageModel, tokens: Array, length: int) -> Array:
    return cut(tokens, length, model.bos if model.begins else None)


def cut(tokens: Array, length: int, bos: int | None) -> Array:
    """Windows behind one another, (windows, length); each begins with `bos` where the model's texts do."""
    lead = 0 if bos is None else 1
    step = length - lead
    made = tokens[: len(tokens) // step * step].reshape(-1, step)
    return np.pad(made, ((0, 0), (lead, 0)), constant_values=bos or 0)


def spread(found: Array, most: int) -> Array:
    """At most so many of the windows, evenly spread."""
    return found if len(found) <= most else found[np.linspace(0, len(found) - 1, most).round().astype(int)]
