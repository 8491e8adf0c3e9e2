"""Which pages of the caches belong to which sequence: a pure state machine, without the caches' memory.

A page holds sixteen positions. Sequences that begin alike share pages; a page is free when no sequence uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

from lite_runtime.errors import MsedgeError
from lite_runtime.operators.language import PAGE

__all__ = ["PAGE", "OutOfPages", "Pages", "needed"]


class OutOfPages(MsedgeError):
    """The caches have no room for more positions."""


def needed(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


class Pages:
    """The pages of a cache: how many sequences use each."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._users = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of pages that no sequence uses."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Pages for one sequence: all of them, or OutOfPages and none."""
        if count > len(self._free):
            raise OutOfPages(
                f"the cache has {self.count} pages of {PAGE} tokens, {len(self._free)} are free, {count} are needed;"
                " end a session, or load the model with room for more tokens (positions=…)"
            )
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more sequence uses these pages."""
        for page in pages:
            if not self._users[page]:
                raise ValueError(f"page {page} is free")
            self._users[page] += 1

    def give_back(self, pages: Iterable[int]) -> None:
        """One sequence less uses these pages."""
        for page in pages:
            if not self._users[page]:
                raise ValueError(f"page {page} is free")
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def shared(self, page: int) -> bool:
        """Whether several sequences use a page."""
        return self._users[page] > 1
