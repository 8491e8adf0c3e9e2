"""Attributions in a terminal: an image as half blocks, a series as a line a channel, a text as words on colours, a
table as a list. Without colours, a text is a list too, and shades stand for what raised the score, signs for what
lowered it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edge.cli.output import visible
from edge.pages.heat import DARK, colours, limit_of, part_names, trimmed

if TYPE_CHECKING:
    from rich.text import Text

    from lite_runtime.explaining import Layout
    from lite_runtime.graph import Array

__all__ = ["drawn"]

_UP, _DOWN = " ░▒▓█", " ·-=#"
_MOST_WIDE, _MOST_TALL, _MOST_LINES = 56, 56, 12


def drawn(sample: Array, attributions: Array, layout: Layout, names: Sequence[str], *, colour: bool) -> list[Text]:
    """Lines for rich's console."""
    draw = _DRAWN.get(layout.kind, _list)
    return draw(sample, attributions, layout, names, colour)


def _image(sample: Array, attributions: Array, layout: Layout, names: Sequence[str], colour: bool) -> list[Text]:
    from rich.text import Text

    heat = _shrunk(layout.over_places(attributions))
    limit = limit_of(heat)
    if not colour:
        return [Text("".join(2 * _shade(value, limit) for value in row)) for row in heat]
    if len(heat) % 2:
        heat = np.concatenate([heat, np.zeros_like(heat[:1])])
    shown = colours(heat, limit)
    lines = []
    for above, below in zip(shown[::2], shown[1::2], strict=True):
        line = Text()
        for up, down in zip(above, below, strict=True):
            line.append("▀", f"rgb({up[0]},{up[1]},{up[2]}) on rgb({down[0]},{down[1]},{down[2]})")
        lines.append(line)
    return lines


def _shrunk(heat: Array) -> Array:
    """Blocks of pixels added up, so that it fits."""
    for axis, most in ((0, _MOST_TALL), (1, _MOST_WIDE)):
        edges = np.unique(np.linspace(0, heat.shape[axis], min(most, heat.shape[axis]) + 1).astype(int))[:-1]
        heat = np.add.reduceat(heat, edges, axis)
    return heat


def _lines(sample: Array, attributions: Array, layout: Layout, names: Sequence[str], colour: bool) -> list[Text]:
    from rich.text import Text

    heat = np.moveaxis(attributions, layout.places[0], -1).reshape(-1, layout.shape[layout.places[0]])
    known = part_names(len(heat), names)
    heat = _shrunk(heat)
    limit, wide = limit_of(heat), max(map(len, known), default=0)
    lines = []
    for name, row in zip(known, heat, strict=False):
        line = Text(f"{visible(name[:wide]):>{wide}} ")
        for value, (r, g, b) in zip(row, colours(row, limit), strict=True):
            line.append(" " if colour else _shade(value, limit), f"on rgb({r},{g},{b})" if colour else "")
        lines.append(line)
    return lines


def _list(sample: Array, attributions: Array, layout: Layout, names: Sequence[str], colour: bool) -> list[Text]:
    from rich.text import Text

    heat = layout.over_places(attributions).reshape(-1)
    values = sample.reshape(len(heat), -1)[:, 0]
    known = part_names(len(heat), names)
    limit = float(np.abs(heat).max(initial=0)) or 1.0
    order = np.argsort(-np.abs(heat), kind="stable")[:_MOST_LINES].tolist()
    wide = max(len(visible(known[i][:32])) for i in order)
    lines = []
    for i in order:
        r, g, b = colours(heat[i : i + 1], limit)[0].tolist()
        length = max(1, round(abs(heat[i]) / limit * 24)) if heat[i] else 0
        line = Text(f"{visible(known[i][:32]):>{wide}} {float(values[i]):>9.4g} {heat[i]:>+10.3g} ")
        line.append(("█" if heat[i] > 0 else "-") * length, f"rgb({r},{g},{b})" if colour else "")
        lines.append(line)
    return lines


def _text(sample: Array, attributions: Array, layout: Layout, names: Sequence[str], colour: bool) -> list[Text]:
    from rich.text import Text

    if not colour:
        return _list(sample, attributions, layout, names, colour)
    heat, words, left = trimmed(sample, attributions, layout, names)
    line = Text()
    for word, (r, g, b) in zip(words, colours(heat, limit_of(heat)).tolist(), strict=True):
        line.append(f" {visible(word[:32])} ", f"{'white' if g < DARK else 'black'} on rgb({r},{g},{b})")
        line.append(" ")
    return [line, *([Text(left)] if left else [])]


def _shade(value: float, limit: float) -> str:
    return (_UP if value > 0 else _DOWN)[min(4, round(abs(value) / limit * 4))]


_DRAWN: Mapping[str, Callable[[Array, Array, Layout, Sequence[str], bool], list[Text]]] = {
    "image": _image, "sound": _lines, "series": _lines, "text": _text,
}  # fmt: skip
