"""A translation memory: for each text the most similar one of those that are known."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from lite_runtime.graph import Array

__all__ = ["nearest"]

_AT_ONCE = 128


def nearest(given: Sequence[str], known: Sequence[str], apart: tuple[Array, Array] | None = None) -> Array:
    """The index of the known text that shares most pieces of three characters with each given one, over all that both
    have, int64 [given]. `apart`: whole numbers [given] and [known]; where they are equal, a text is not looked at."""
    numbers: dict[str, int] = {}
    held, asked = _counted(known, numbers), _counted(given, numbers)
    width, sizes = len(numbers), np.array([len(row) for row in held], np.float32)
    table = _sparse(held, width).T.tocsr()
    found = []
    for at in range(0, len(given), _AT_ONCE):
        rows = asked[at : at + _AT_ONCE]
        shared = (_sparse(rows, width) @ table).toarray()
        alike = shared / (np.array([[len(row)] for row in rows], np.float32) + sizes - shared)
        if apart is not None:
            alike[apart[0][at : at + _AT_ONCE, None] == apart[1]] = -1
        found.append(alike.argmax(1))
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _counted(texts: Sequence[str], numbers: dict[str, int]) -> list[list[int]]:
    """The numbers of each text's pieces; new ones are added to `numbers`."""
    wholes = (f" {text.lower()} " for text in texts)
    sets = ({whole[i : i + 3] for i in range(len(whole) - 2)} for whole in wholes)
    return [[numbers.setdefault(piece, len(numbers)) for piece in sorted(pieces)] for pieces in sets]


def _sparse(rows: Sequence[Sequence[int]], width: int) -> Any:
    from scipy import sparse

    ends = np.cumsum([0, *map(len, rows)])
    places = np.fromiter(chain.from_iterable(rows), np.int64, ends[-1])
    return sparse.csr_matrix((np.ones(len(places), np.float32), places, ends), (len(rows), width))
