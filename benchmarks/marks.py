"""Generated text in hand-written pages, between two comments: `<!-- NAME: begin -->`, `<!-- NAME: end -->`."""

from __future__ import annotations

from pathlib import Path

from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["replace_between", "require_marks"]


def require_marks(page: Path, name: str) -> None:
    """Raise MsedgeError if the page lacks one of the marks; called before hours of measuring."""
    _parts(page, name)


def replace_between(page: Path, name: str, text: str) -> None:
    """Put `text` between the two marks. Raises MsedgeError, and changes nothing, if the page lacks one of them."""
    before, after = _parts(page, name)
    write_atomically(page, f"{before}\n{text}\n{after}".encode())


def _parts(page: Path, name: str) -> tuple[str, str]:
    """The page up to the end of its first mark, and the page from its second mark on."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    held = page.read_text(encoding="utf-8") if page.exists() else ""
    before, first, rest = held.partition(begin)
    _, second, after = rest.partition(end)
    if not (first and second):
        raise MsedgeError(f"{page}: expected the lines {begin} and {end}; add them where the figures belong")
    return before + first, second + after
