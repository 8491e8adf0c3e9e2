"""Where an application's learned state is: `personal/RELEASE/FILE.msstate`, for each version that has some.

A version that was there before finds its own again when it returns. Others are deleted, the oldest first, when there
are more than `keep`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from edge.agent.slots import PERSONAL, remove
from edge.agent.update import Installed

__all__ = ["KEEP", "Kept"]

KEEP = 4
"""Versions whose state is kept, those in slots included."""
_SUFFIX, _LETTERS = ".msstate", 16


class Kept:
    """The learned state of one application. folder: of the application."""

    def __init__(self, folder: Path, keep: int = KEEP) -> None:
        self._folder, self._keep = folder / PERSONAL, keep

    def path(self, one: Installed, name: str) -> Path:
        """Where a program keeps what it learned on a file of a version; there may be none yet."""
        return self._folder / one.release[:_LETTERS] / f"{name}{_SUFFIX}"

    def names(self, one: Installed) -> list[str]:
        """The files of a version on which something was learned."""
        try:
            found = sorted((self._folder / one.release[:_LETTERS]).iterdir())
        except OSError:
            return []
        return [path.name.removesuffix(_SUFFIX) for path in found if path.name.endswith(_SUFFIX)]

    def prepare(self, one: Installed) -> None:
        """Make the folder of a version. Raises OSError."""
        (self._folder / one.release[:_LETTERS]).mkdir(parents=True, exist_ok=True)

    def expire(self, held: Collection[Installed]) -> None:
        """Delete what is more than `keep` versions; what those in slots have learned stays."""
        named = {one.release[:_LETTERS] for one in held}
        try:
            folders = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        except OSError:
            return
        others = [path for path in folders if path.name not in named]
        for path in others[max(0, self._keep - len(named)) :]:
            remove(path)
