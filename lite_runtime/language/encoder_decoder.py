"""Texts written by an encoder-decoder such as T5, greedily or by beam search.

The model is any function of (source [n, length], what was written so far behind a start token [n, target length]) to
the logits of the next token at each position. It has no cache: each token costs a run of the whole model, which suits
targets of some tens of tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lite_runtime.calibration.scores import log_softmax
from lite_runtime.errors import InputError
from lite_runtime.graph import Array

__all__ = ["write"]

_ROWS = 64
"""Texts that a run of the model holds at most, all beams counted."""


def write(
    model: Callable[[Array, Array], Array], source: Array, length: int, *, start: int = 1, end: int = 2, beams: int = 1,
    alpha: float = 0.6,
) -> Array:  # fmt: skip
    """The tokens for each source [n, source length] int32: int32 [n, length], with `end` behind a text that ended by
    itself and zeros behind that.

    `model`: (sources int32 [rows, source length], targets int32 [rows, length]) -> logits [rows, length, vocabulary].
    `beams`: texts that are followed at a time; 1 takes the likeliest token each time. Texts are compared by their log
    probability over ((5 + tokens) / 6)^`alpha` (Wu et al., "Google's Neural Machine Translation System", 2016).
    `end` below 0: texts end with `length` alone. Id 0 is padding, and not written unless `end` is below 0. Raises
    InputError for sources that are no matrix, fewer than one beam, and a length below 1.
    """
    if np.ndim(source) != 2 or beams < 1 or length < 1:
        got = f"sources of rank {np.ndim(source)}, {beams} beams and a length of {length}"
        raise InputError(f"expected sources [n, length], at least one beam and a length from 1, got {got}")
    at_once = max(_ROWS // beams, 1)
    parts = [
        _written(model, source[at : at + at_once], length, start, end, beams, alpha)
        for at in range(0, len(source), at_once)
    ]
    return np.concatenate(parts) if parts else np.zeros((0, length), np.int32)


def _written(
    model: Callable[[Array, Array], Array], source: Array, length: int, start: int, end: int, beams: int, alpha: float
) -> Array:  # fmt: skip
    count = len(source)
    sources, rows = np.repeat(source, beams, axis=0), np.arange(count)[:, None]
    made = np.zeros((count, beams, length), np.int32)
    scores = np.full((count, beams), -np.inf)  # of the tokens' probabilities, and below over the lengths' penalty
    scores[:, 0] = 0
    ended, sizes = np.zeros((count, beams), bool), np.zeros((count, beams), np.int64)
    for place in range(length):
        target = np.full((count, beams, length), 0, np.int32)
        target[..., 0], target[..., 1 : place + 1] = start, made[..., :place]
        logits = model(sources, target.reshape(-1, length))[:, place]
        chance = log_softmax(logits).reshape(count, beams, -1)
        if end >= 0:
            chance[..., 0] = -np.inf
        chance[ended] = -np.inf  # an ended text goes on with padding alone, at no cost
        chance[ended, 0] = 0
        grown = sizes + ~ended
        total = scores[..., None] + chance
        ranked = total / ((5 + grown) / 6)[..., None] ** alpha
        best = np.argsort(-ranked.reshape(count, -1), axis=1, kind="stable")[:, :beams]
        parent, token = np.divmod(best, chance.shape[2])
        made, sizes, ended = made[rows, parent], grown[rows, parent], ended[rows, parent]
        scores = total[rows, parent, token]
        made[..., place] = token
        ended |= token == end
        if ended.all():
            break
    final = scores / ((5 + sizes) / 6) ** alpha
    return np.asarray(made[np.arange(count), final.argmax(1)], np.int32)
