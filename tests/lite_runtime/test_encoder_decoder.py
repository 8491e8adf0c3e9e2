"""Texts written by an encoder-decoder: beam search finds the best text where it follows all, and ends are kept."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import InputError
from lite_runtime.language import write

VOCABULARY, LENGTH = 5, 3
TABLE = np.random.default_rng(3).normal(0, 2, (2, VOCABULARY, VOCABULARY, LENGTH, VOCABULARY))
"""Logits of the next token, by the source, the last two tokens and the place."""


def model(source: Any, target: Any) -> Any:
    """Logits that depend on the source and the last two tokens."""
    before = np.concatenate([np.zeros((len(target), 1), np.int32), target[:, :-1]], 1)
    return TABLE[source[:, :1], before, target, np.arange(LENGTH)]


def chances(source: int, tokens: tuple[int, ...], *, padding: bool) -> float:
    """The log probability of a text; without `padding` that a text has none."""
    total, before, last = 0.0, 0, 1
    for place, token in enumerate(tokens):
        logits = TABLE[source, before, last, place].copy()
        logits -= np.log(np.exp(logits).sum())
        total += logits[token] if token or padding else -np.inf
        before, last = last, token
    return total


def texts() -> list[tuple[int, ...]]:
    """All texts: ended by 2, or as long as may be."""
    found = [text for n in range(1, LENGTH + 1) for text in itertools.product(range(VOCABULARY), repeat=n)]
    return [text for text in found if 2 not in text[:-1] and (text[-1] == 2 or len(text) == LENGTH)]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
def test_the_best_of_all_texts_is_found(alpha: float) -> None:
    made = write(model, np.array([[0], [1]], np.int32), LENGTH, beams=VOCABULARY**LENGTH, alpha=alpha)
    for source in (0, 1):
        ranked = {t: chances(source, t, padding=False) / ((5 + len(t)) / 6) ** alpha for t in texts()}
        best = max(ranked, key=lambda text: ranked[text])
        assert tuple(made[source]) == best + (0,) * (LENGTH - len(best))


def test_one_beam_takes_the_likeliest_token_each_time() -> None:
    made = write(model, np.array([[0], [1]] * 50, np.int32), LENGTH, end=-1)
    assert made.shape == (100, LENGTH) and (made[::2] == made[0]).all()
    for source in (0, 1):
        for place in range(LENGTH):
            chosen = tuple(made[source, :place])
            each = [chances(source, (*chosen, token), padding=True) for token in range(VOCABULARY)]
            assert made[source, place] == int(np.argmax(each))
    single = write(model, np.array([[0]], np.int32), LENGTH, beams=1)
    assert 0 not in single[0, : np.argmax(np.append(single[0], 2) == 2)]  # padding is no token


def test_wrong_arguments() -> None:
    assert write(model, np.zeros((0, 1), np.int32), LENGTH).shape == (0, LENGTH)
    for source, options in ((np.zeros(3, np.int32), {}), (np.zeros((1, 1), np.int32), {"beams": 0})):
        with pytest.raises(InputError, match="at least one beam"):
            write(model, source, LENGTH, **options)
