"""Which texts are computed in one run: texts of about the same length, so that little of a run is padding."""

from __future__ import annotations

from collections.abc import Sequence as Items

from lite_runtime.frozen import NamedTuple

__all__ = ["Group", "Sizes", "rounded"]

ROWS = (1, 2, 4, 8, 16, 32)
"""Texts of a run that has open sizes. Each size is planned for itself, so there are few."""
ROOM = 512
"""Tokens of a run, padding included, unless a single text has more. With 2048, MiniLM took the same time for a token,
and more memory."""
RUN = 12
"""What a run costs in itself, in tokens: it reads all weights once. MiniLM with one thread, AVX-512: 0.21 ms a token
and 2.3 ms a run."""


class Group(NamedTuple):
    """A run: the numbers of its texts, at most `rows`, and the size that its arrays have."""

    members: Items[int]
    rows: int
    length: int


class Sizes(NamedTuple):
    """The sizes that runs of a model may have. rows, length: those of a graph that fixes them, else None. most: the
    most tokens of a text."""

    most: int
    rows: int | None = None
    length: int | None = None

    def groups(self, lengths: Items[int]) -> list[Group]:
        """Runs that compute texts of these numbers of tokens, with the least padding.

        Texts are sorted by length, and runs are made of neighbours:
        f(n) = min over rows r of f(max(0, n - r)) + r * rounded(length of text n) + RUN, f(0) = 0.
        """
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        sizes = [self.length or min(rounded(lengths[text]), self.most) for text in order]
        best: list[tuple[int, int]] = [(0, 0)]
        """By number of texts, f and the rows of the last run."""
        for n, length in enumerate(sizes, 1):
            best.append(min((best[max(0, n - r)][0] + r * length + RUN, r) for r in self._choices(length)))
        made, n = list[Group](), len(order)
        while n:
            rows = best[n][1]
            made.append(Group(order[max(0, n - rows) : n], rows, sizes[n - 1]))
            n -= min(n, rows)
        return made

    def _choices(self, length: int) -> Items[int]:
        """The numbers of rows that runs of that length may have."""
        if self.rows is not None:
            return (self.rows,)
        return [rows for rows in ROWS if rows == 1 or rows * length <= ROOM]


def rounded(length: int) -> int:
    """The next multiple of 8 up to 64 tokens, of 16 up to 128, of 32 up to 256 and so on: four sizes an octave."""
    step = max(8, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step
