"""Pictures of attributions: red raised the score, blue lowered it. Images are PNG inside the page, others SVG or
text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from edge.pages.pictures import png_address
from lite_runtime.explaining import Layout
from lite_runtime.graph import Array

__all__ = ["DARK", "STYLE", "colours", "limit_of", "part_names", "picture", "sample_image", "trimmed"]

_UP, _MIDDLE, _DOWN = np.array([178.0, 24, 43]), np.array([247.0, 247, 247]), np.array([33.0, 102, 172])
"""The ends and the middle of a diverging scale that people with colour blindness can tell apart."""
_MOST_ROWS, _MOST_CHANNELS, _MOST_POINTS = 16, 9, 600
WIDE, ROW = 640, 22
DARK = 110
"""Of green: below it, white letters are easier to read."""
_FEW = 2
"""Tokens of padding that are shown as they are."""
_LETTERS = 27
"""Of a feature's name, as many as there is room for on a phone."""
STYLE = """<style>
.heat { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)) }
.heat.wide { grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)) }
.heat figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem }
.heat figcaption { display: flex; justify-content: space-between; gap: .5rem; font-weight: 600; margin-bottom: .4rem;
  font-size: .9rem } .heat figcaption span { color: var(--soft); font-weight: 400 }
.heat img { display: block; width: 100%; image-rendering: pixelated; border-radius: .3rem } .heat svg { width: 100% }
.heat p.text { line-height: 2; margin: 0; max-width: none } .heat mark { color: #111; padding: .1rem .25rem;
  border-radius: .2rem; margin-right: .15rem } .heat svg polyline.wave { fill: none; stroke: #111; stroke-width: 1 }
.scale { height: .7rem; max-width: 20rem; border-radius: .3rem; border: 1px solid var(--line);
  background: linear-gradient(90deg, rgb(33,102,172), rgb(247,247,247), rgb(178,24,43)) }
.ends { display: flex; justify-content: space-between; max-width: 20rem; color: var(--soft); font-size: .8rem }
</style>"""


def limit_of(values: Array) -> float:
    """The magnitude with the full colour: nearly the greatest, so that a single element does not pale the others."""
    top = float(np.quantile(np.abs(values), 0.995)) if values.size > 200 else float(np.abs(values).max(initial=0))
    return top or float(np.abs(values).max(initial=0)) or 1.0


def colours(values: Array, limit: float) -> Array:
    """Colours (..., 3) uint8 of values between -limit and limit."""
    share = np.clip(values / limit, -1, 1)[..., None]
    mixed = _MIDDLE + abs(share) * (np.where(share > 0, _UP, _DOWN) - _MIDDLE)
    return np.asarray(np.rint(mixed), np.uint8)


def picture(sample: Array, attributions: Array, layout: Layout, names: Sequence[str] = ()) -> str:
    """Escaped HTML. names: of features, tokens or channels."""
    draw = {"image": _image, "sound": _waves, "series": _waves, "table": _bars, "text": _words}[layout.kind]
    return draw(sample, attributions, layout, names)


# -- images ------------------------------------------------------------------------------------------------------------


def _image(sample: Array, attributions: Array, layout: Layout, names: Sequence[str]) -> str:
    heat = layout.over_places(attributions)
    grey = layout.over_places(sample.astype(np.float64))
    grey = (grey - grey.min()) / (float(np.ptp(grey)) or 1.0)
    mixed = colours(heat, limit_of(heat)) * (0.85 + 0.15 * grey[..., None])
    return f'<img alt="attributions" src="{png_address(np.rint(mixed).astype(np.uint8))}">'


def sample_image(sample: Array, layout: Layout) -> str:
    """The sample itself, in grey or, with three channels, in colour."""
    values = np.moveaxis(sample.astype(np.float64), layout.places, (0, 1))
    values = values.reshape(*values.shape[:2], -1)
    values = values if values.shape[2] == 3 else np.repeat(values.mean(2, keepdims=True), 3, axis=2)
    values = (values - values.min()) / (float(np.ptp(values)) or 1.0)
    return f'<img alt="sample" src="{png_address(np.rint(values * 255).astype(np.uint8))}">'


# -- series and sound --------------------------------------------------------------------------------------------------


def _waves(sample: Array, attributions: Array, layout: Layout, names: Sequence[str]) -> str:
    """One strip a channel: the wave over columns in the colours of its attributions. Of many channels, those with the
    greatest attributions."""
    waves, heats = (_by_channel(values, layout) for values in (sample.astype(np.float64), attributions))
    limit = limit_of(heats)
    order = sorted(np.argsort(-np.abs(heats).sum(1), kind="stable")[:_MOST_CHANNELS].tolist())
    high = 44 if len(order) > 1 else 120
    strips = [_strip(waves[c], heats[c], limit, i * (high + 4), high) for i, c in enumerate(order)]
    known = [names[c] if c < len(names) else str(c) for c in order] if len(heats) > 1 else [""]
    marks = "".join(
        f'<text x="2" y="{i * (high + 4) + 11}" style="fill:#111">{escape(name[:24])}</text>'
        for i, name in enumerate(known)
    )
    left = len(heats) - len(order)
    more = f'<p class="soft">{left} more channels had less.</p>' if left else ""
    tall = len(order) * (high + 4)
    return f'<svg viewBox="0 0 {WIDE} {tall}" role="img" aria-label="attributions">{"".join(strips)}{marks}</svg>{more}'


def _by_channel(values: Array, layout: Layout) -> Array:
    return np.moveaxis(values, layout.places[0], -1).reshape(-1, layout.shape[layout.places[0]])


def _strip(wave: Array, heat: Array, limit: float, top: float, high: float) -> str:
    count = len(wave)
    edges = np.unique(np.linspace(0, count, min(count, _MOST_POINTS) + 1).astype(int))
    heat = np.add.reduceat(heat, edges[:-1]) / np.diff(edges)
    columns = (
        f'<image x="0" y="{top:g}" width="{WIDE}" height="{high:g}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{png_address(colours(heat, limit)[None])}"/>'
    )
    low, span = float(wave.min()), float(np.ptp(wave)) or 1.0
    step = max(1, count // _MOST_POINTS)
    if step > 1:  # both extremes of each stretch, so that no peak is lost
        whole = wave[: count // step * step].reshape(-1, step)
        wave = np.stack([whole.min(1), whole.max(1)], 1).reshape(-1)
    x = (np.arange(len(wave)) + 0.5) * WIDE / len(wave)
    y = top + high - 3 - (wave - low) / span * (high - 6)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'{columns}<polyline class="wave" points="{points}"/>'


# -- tables and texts --------------------------------------------------------------------------------------------------


def part_names(count: int, names: Sequence[str]) -> list[str]:
    """A name for each of so many features: those given, else their numbers."""
    return [names[i] if i < len(names) else str(i) for i in range(count)]


def _bars(sample: Array, attributions: Array, layout: Layout, names: Sequence[str]) -> str:
    """The features with the greatest attributions, with their values."""
    heat, values = attributions.reshape(-1), sample.reshape(-1)
    known = part_names(len(heat), names)
    order = np.argsort(-np.abs(heat), kind="stable")[:_MOST_ROWS].tolist()
    limit = float(np.abs(heat).max(initial=0)) or 1.0
    middle, reach = 450, 125
    rows = []
    for i, feature in enumerate(order):
        length, y = abs(heat[feature]) / limit * reach, i * ROW + 15
        r, g, blue = colours(heat[feature : feature + 1], limit)[0].tolist()
        left = middle - length if heat[feature] < 0 else middle
        rows.append(
            f'<text class="big" x="234" y="{y}" text-anchor="end">{escape(known[feature][:_LETTERS])}</text>'
            f'<text class="big" x="242" y="{y}">{float(values[feature]):.4g}</text>'
            f'<rect x="{left:.1f}" y="{i * ROW + 4}" width="{length:.1f}" height="{ROW - 8}" '
            f'fill="rgb({r},{g},{blue})" stroke="rgb(120,120,120)" stroke-width=".5"/>'
            f'<text class="big" x="{WIDE - 2}" y="{y}" text-anchor="end">{heat[feature]:+.3g}</text>'
        )
    tall = len(order) * ROW + 4
    axis = f'<line class="grid" x1="{middle}" x2="{middle}" y1="0" y2="{tall}"/>'
    left_out = len(heat) - len(order)
    more = f'<p class="soft">{left_out} more features had less.</p>' if left_out else ""
    return f'<svg viewBox="0 0 {WIDE} {tall}" role="img" aria-label="attributions">{axis}{"".join(rows)}</svg>{more}'


def trimmed(
    sample: Array, attributions: Array, layout: Layout, names: Sequence[str]
) -> tuple[Array, list[str], str]:  # fmt: skip
    """Attributions and words of a text, without the padding behind it: token 0 again and again; and what that was."""
    heat = layout.over_places(attributions).reshape(-1)
    values = sample.reshape(len(heat), -1)[:, 0]
    used = np.flatnonzero(values)
    count = int(used[-1]) + 1 if len(used) else len(values)
    if len(values) - count < _FEW:
        count = len(values)
    known = [names[i] if i < len(names) else str(values[i]) for i in range(count)]
    left = f"then {len(heat) - count} times token 0: {heat[count:].sum():+.3g}" if count < len(heat) else ""
    return heat[:count], known, left


def _words(sample: Array, attributions: Array, layout: Layout, names: Sequence[str]) -> str:
    heat, known, left = trimmed(sample, attributions, layout, names)
    shown = colours(heat, limit_of(heat)).tolist()
    marks = []
    for word, part, (r, g, b) in zip(known, heat.tolist(), shown, strict=True):
        style = f"background:rgb({r},{g},{b});color:{'#fff' if g < DARK else '#111'}"
        marks.append(f'<mark style="{style}" title="{part:+.4g}">{escape(word[:40])}</mark> ')
    more = f'<p class="soft">{left}</p>' if left else ""
    return f'<p class="text">{"".join(marks)}</p>{more}'
