"""Printing: results to stdout (one JSON object with --json), progress to stderr. rich is imported on first use."""

from __future__ import annotations

import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["bytes_text", "console", "emit", "plain", "say", "seconds_text", "shape_text", "table", "visible"]


def emit(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout; in a terminal with everything escaped that is not ASCII."""
    print(json.dumps(plain(result), indent=2, ensure_ascii=sys.stdout.isatty(), allow_nan=False))


def plain(value: Any) -> Any:
    """`value` in JSON's types; NaN and infinities, which JSON cannot represent, become null."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(visible(text), file=sys.stderr, flush=True)


_OBEYED, _HARMLESS = ("Cc", "Cf", "Cs", "Zl", "Zp"), "\n\t\u200c\u200d"
"""Categories of characters that a terminal obeys, or that change the direction of text; and those of them that do not:
the last two join letters and emoji, or keep them apart."""


def visible(text: str) -> str:
    """Text of others, with characters that a terminal obeys as escapes."""
    if text.isprintable():
        return text
    obeyed = (c not in _HARMLESS and unicodedata.category(c) in _OBEYED for c in text)
    return "".join(ascii(c)[1:-1] if bad else c for c, bad in zip(text, obeyed, strict=True))


WITHOUT_TERMINAL = 10_000
"""Columns of a file or a pipe: nothing is wrapped."""


def console(*, stderr: bool = False) -> Console:
    """rich's console without markup, so that a shape such as [1, 3] is printed unchanged. Without a terminal, and
    without a width in the variable COLUMNS, lines have their full width."""
    from rich.console import Console

    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WITHOUT_TERMINAL
    return made


def table(title: str, *columns: str, right: Sequence[str] = (), fold: Sequence[str] = ()) -> Table:
    """An empty table; columns in `right` are right-aligned, those in `fold` may wrap.

    Nothing is cut off: where the other columns do not fit, each row is printed as a list of its columns.
    """
    from rich import box

    from edge.cli.fitting import Fitting

    made = Fitting(
        title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        pad_edge=False,
    )  # fmt: skip
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in right else "left",
            overflow="fold" if name in fold else "ellipsis",
            no_wrap=name not in fold,
        )
    return made


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """A shape as text: `1×3×224×224`, with `?` for an unknown size or shape."""
    if shape is None:
        return "?"
    return "×".join("?" if d is None else str(d) for d in shape) or "scalar"


def bytes_text(count: float) -> str:
    """A size in the unit that keeps it short."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def seconds_text(seconds: float) -> str:
    """A duration in the unit that keeps it short."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
