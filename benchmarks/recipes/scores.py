"""How near written texts are to those that people wrote: ROUGE and chrF."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

__all__ = ["chrf", "exact", "rouge", "rouge_longest"]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _f1(shared: int, made: int, wanted: int) -> float:
    return 2 * shared / (made + wanted) if made + wanted else 0.0


def rouge(made: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean F1 of the words that two texts share (ROUGE-1; Lin, "ROUGE: A Package for Automatic Evaluation of
    Summaries", 2004), in small letters without punctuation."""
    found = []
    for one, other in zip(made, wanted, strict=True):
        a, b = _words(one), _words(other)
        found.append(_f1((Counter(a) & Counter(b)).total(), len(a), len(b)))
    return float(np.mean(found))


def rouge_longest(made: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean F1 of the longest common subsequence of words (ROUGE-L; Lin, 2004)."""
    found = []
    for one, other in zip(made, wanted, strict=True):
        a, b = _words(one), _words(other)
        found.append(_f1(_longest(a, b), len(a), len(b)))
    return float(np.mean(found))


def _longest(a: Sequence[str], b: Sequence[str]) -> int:
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for i, other in enumerate(b, 1):
            before, row[i] = row[i], before + 1 if word == other else max(row[i], row[i - 1])
    return row[-1]


_ORDERS, _WEIGHT = 6, 4
"""Characters of the longest pieces, and how much recall weighs (beta squared)."""


def chrf(made: Sequence[str], wanted: Sequence[str]) -> float:
    """chrF2 of all texts together, from 0 to 1 (Popović, "chrF: character n-gram F-score for automatic MT evaluation",
    2015): the F-score of the mean precision and the mean recall of pieces of 1 to 6 characters without spaces."""
    totals = np.zeros((_ORDERS, 3))
    for one, other in zip(made, wanted, strict=True):
        for n in range(1, _ORDERS + 1):
            a, b = _pieces(one, n), _pieces(other, n)
            totals[n - 1] += ((a & b).total(), a.total(), b.total())
    kept = totals[(totals[:, 1:] > 0).all(1)]  # orders that both sides have
    if not kept.any():
        return 0.0
    precision, recall = (float(np.mean(kept[:, 0] / kept[:, i])) for i in (1, 2))
    return (1 + _WEIGHT) * precision * recall / (_WEIGHT * precision + recall) if precision + recall else 0.0


def _pieces(text: str, n: int) -> Counter[str]:
    dense = "".join(text.split())
    return Counter(dense[i : i + n] for i in range(len(dense) - n + 1))


def exact(made: Sequence[str], wanted: Sequence[str]) -> float:
    """The share of texts that are the same."""
    return float(np.mean([one == other for one, other in zip(made, wanted, strict=True)]))
