"""The report as one HTML page that needs nothing else: no scripts, no fonts, no network. Charts are inline SVG.

`page(report)` is a list of sections; each is a function of the report that returns "" when it has nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from converter.report.layers import PERFECT
from converter.report.report import Report

__all__ = ["page"]

WORST = 12
"""Layers whose histograms are shown."""
GOOD, FAIR = 30.0, 18.0
"""Decibels: from GOOD up a layer's error is below a thousandth of its energy, below FAIR above a sixtieth."""


def page(report: Report) -> str:
    """The whole page."""
    title = f"{report.source} · {report.quantize}"
    body = "\n".join(section(report) for section in SECTIONS)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – msedge</title><style>{_style()}</style></head>\n<body>\n{body}\n"
        f"<footer>msedge · source digest {escape(report.source_digest[:16])}</footer>\n</body></html>\n"
    )


@cache
def _style() -> str:
    return resources.files("converter.report").joinpath("page.css").read_text(encoding="utf-8")


MOVES = frozenset("Expand Flatten Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split())
"""Operators that lose nothing: no rows of their own."""
_KINDS = {"#": "n", "~": "spare"}

# -- pieces -----------------------------------------------------------------------------------------------------------


def _head_cell(title: str) -> str:
    kind = _KINDS.get(title[:1])
    return f'<th class="{kind}">{title[1:]}</th>' if kind else f"<th>{title}</th>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of finished cells; a column named with a leading # holds figures, one with a leading ~ has no place on
    phones."""
    heads = "".join(map(_head_cell, columns))
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>'


LONGEST = 56
"""Characters of a name that are shown; all of it in its tooltip."""


def _short(text: str) -> str:
    """A name's telling end: of those that converters join with semicolons, the last."""
    last = text.rsplit(";", 1)[-1]
    return last if len(last) <= LONGEST else f"…{last[1 - LONGEST :]}"


def _name(text: str) -> str:
    return f'<td class="name" title="{escape(text)}">{escape(_short(text))}</td>'


def _text(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _figure(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def _decibels(snr: float) -> str:
    return "exact" if snr >= PERFECT else f"{snr:.1f} dB"


def _grade(snr: float) -> str:
    return "good" if snr >= GOOD else "fair" if snr >= FAIR else "poor"


def _meter(share: float, grade: str) -> str:
    return f'<span class="meter"><i class="{grade}" style="width:{100 * min(1.0, max(0.02, share)):.0f}%"></i></span>'


# -- sections ---------------------------------------------------------------------------------------------------------


def _head(report: Report) -> str:
    opset = f", opset {report.source_opset}" if report.source_format == "onnx" else ""
    return (
        f'<h1>{escape(report.source)}</h1><p class="soft">{escape(report.source_format)}{opset} → {report.quantize}</p>'
    )


def _facts(report: Report) -> str:
    worst = min(report.layers, key=lambda layer: layer.snr, default=None)
    facts = [
        (_size(report.bundle_bytes), f"from {_size(report.source_bytes)}"),
        (_size(report.arena_bytes), "working memory") if report.arena_bytes else ("", ""),
        *((_decibels(o.snr), f"output {_short(o.name)}, cosine {o.cosine:.5f}") for o in report.outputs),
        (_decibels(worst.snr), f"worst layer: {_short(worst.name)}") if worst else ("", ""),
        *_accuracy(report),
        (f"{report.coverage:.0%}", f"of {report.native + report.reference} operators have native kernels"),
    ]
    cards = "".join(f"<div><b>{escape(big)}</b><span>{escape(small)}</span></div>" for big, small in facts if big)
    return f'<div class="facts">{cards}</div>'


def _accuracy(report: Report) -> list[tuple[str, str]]:
    found = report.budget
    if not found:
        return []
    lost = f"{found['drop']:.4g} lost of {found['limit']:.4g} allowed, {found['gain']:.0%} of the size gain kept"
    return [(f"{found['score']:.4g}", f"{found['metric']}, {found['float']:.4g} in float: {lost}")]


def _findings(report: Report) -> str:
    found = report.quantization.findings if report.quantization else []
    if not found:
        return ""
    rows = "".join(f"<li><b>{escape(f.kind)}</b> {escape(f.text)}</li>" for f in found)
    return f'<h2>Worth a look</h2><section class="card"><ul class="findings">{rows}</ul></section>'


def _layers(report: Report) -> str:
    shown = [layer for layer in report.layers if layer.op not in MOVES]
    if not shown:
        return ""
    best = max([GOOD * 2, *(layer.snr for layer in shown if layer.snr < PERFECT)])
    rows = (
        (
            _name(layer.name),
            _text(layer.op),
            _text(layer.status, "spare"),
            _figure(_decibels(layer.snr)),
            f'<td class="wide spare">{_meter(layer.snr / best, _grade(layer.snr))}</td>',
            _figure(f"{layer.cosine:.5f}"),
            _text(layer.source, "spare"),
        )
        for layer in shown
    )
    table = _table(("tensor", "operator", "~computed as", "#signal to noise", "~", "#cosine", "~source"), rows)
    return (
        "<h2>Layer by layer</h2><p>Every computed tensor of the quantised model against the float one, in order. "
        "Errors add up along the way: a sudden drop marks the layer that costs, a slow decline is normal.</p>" + table
    )


def _sensitivity(report: Report) -> str:
    if not report.sensitivity:
        return ""
    most = max(abs(s["loss"]) for s in report.sensitivity) or 1.0
    rows = (
        (
            _figure(str(rank)),
            _name(str(s["node"])),
            _text(str(s["op"])),
            _figure(f"{s['loss']:.4g}"),
            f'<td class="wide spare">{_meter(abs(s["loss"]) / most, "fair")}</td>',
            _figure(_decibels(s["snr"])),
        )
        for rank, s in enumerate(report.sensitivity, 1)
    )
    table = _table(("#", "node", "operator", "#loss", "~", "#output signal to noise"), rows)
    return (
        "<h2>What each layer costs alone</h2><p>Accuracy lost with this layer alone quantised, measured; "
        "the costliest first.</p>" + table
    )


def _histograms(report: Report) -> str:
    done = report.quantization
    if done is None or not done.histograms:
        return ""
    computed = [layer for layer in report.layers if layer.op not in MOVES]
    order = [layer.name for layer in sorted(computed, key=lambda layer: layer.snr)] or list(done.histograms)
    shown = [name for name in dict.fromkeys(order) if name in done.histograms][:WORST]
    charts = "".join(_histogram(name, done.histograms[name], done.tensors.get(name)) for name in shown)
    return (
        "<h2>Values of the worst layers</h2><p>Counts on a logarithmic scale; dashed lines bound what the stored type "
        f'holds, red is clipped.</p><div class="charts">{charts}</div>'
    )


_BARS, _WIDE, _HIGH = 64, 280, 90


def _histogram(name: str, seen: dict[str, Any], params: Any) -> str:
    from math import log1p

    low, high, counts = float(seen["low"]), float(seen["high"]), _rebinned(seen["counts"], _BARS)
    span = (high - low) or 1.0
    limits = _limits(params) or (low, high)
    left, right = min(low, limits[0]), max(high, limits[1])
    scale = _WIDE / ((right - left) or 1.0)
    tallest = log1p(max(counts)) or 1.0
    bars = []
    for i, count in enumerate(counts):
        start, width = low + span * i / len(counts), span / len(counts)
        tall = _HIGH * log1p(count) / tallest
        kind = "in" if limits[0] <= start + width / 2 <= limits[1] else "out"
        bars.append(
            f'<rect class="{kind}" x="{(start - left) * scale:.1f}" y="{_HIGH - tall:.1f}" '
            f'width="{max(0.6, width * scale - 0.4):.1f}" height="{tall:.1f}"/>'
        )
    cuts = "".join(
        f'<line class="cut" x1="{(x - left) * scale:.1f}" x2="{(x - left) * scale:.1f}" y1="0" y2="{_HIGH}"/>'
        for x in limits
    )
    axis = (
        f'<line x1="0" x2="{_WIDE}" y1="{_HIGH}" y2="{_HIGH}"/><text x="0" y="{_HIGH + 11}">{left:.3g}</text>'
        f'<text x="{_WIDE}" y="{_HIGH + 11}" text-anchor="end">{right:.3g}</text>'
    )
    about = f"{params.dtype}, step {params.scale[0]:.3g}, {params.saturated:.2%} clipped" if params else "float"
    picture = f'<svg viewBox="-2 0 {_WIDE + 4} {_HIGH + 14}" role="img">{"".join(bars)}{cuts}{axis}</svg>'
    caption = f'<code title="{escape(name)}">{escape(_short(name))}</code><br>{escape(about)}'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _rebinned(counts: Sequence[int], bars: int) -> list[int]:
    step = max(1, -(-len(counts) // bars))
    return [sum(counts[i : i + step]) for i in range(0, len(counts), step)]


_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _limits(params: Any) -> tuple[float, float] | None:
    """The least and the greatest real number a tensor of these parameters holds."""
    if params is None or params.dtype not in _RANGES or len(params.scale) != 1:
        return None
    low, high = _RANGES[params.dtype]
    return (low - params.zero_point[0]) * params.scale[0], (high - params.zero_point[0]) * params.scale[0]


def _floats(report: Report) -> str:
    if not report.left_float:
        return ""
    rows = ((_name(name), _text(op), _text(why)) for name, op, why in report.left_float)
    return "<h2>What stayed in floating point, and why</h2>" + _table(("node", "operator", "reason"), rows)


def _operators(report: Report) -> str:
    every = sorted({*report.ops_before, *report.ops_after})
    rows = (
        (
            _text(op),
            _figure(str(report.ops_before.get(op, "")) or ""),
            _figure(str(report.ops_after.get(op, "")) or ""),
            _text("reference only" if op in report.reference_ops else "native" if op in report.ops_after else ""),
        )
        for op in every
    )
    places = [
        (_name(name), _text(op), _text(source or "the file does not say")) for name, op, source in report.by_reference
    ]
    slow = f"<p>Run by the NumPy reference:</p>{_table(('node', 'operator', 'source'), places)}" if places else ""
    return "<h2>Operators</h2>" + _table(("operator", "#in the source", "#in the bundle", ""), rows) + slow


def _steps(report: Report) -> str:
    passes = (
        (_text(p.name), _figure(str(p.rewrites)), _figure(f"{p.seconds:.2f} s")) for p in report.passes if p.rewrites
    )
    options = ((_text(k), _text(str(v))) for k, v in report.options.items())
    sizes = ((_text(k), _figure(_size(v))) for k, v in report.weight_bytes.items())
    return (
        "<h2>How it was made</h2>"
        + _table(("weights stored as", "#size"), sizes)
        + f"<details><summary>settings</summary>{_table(('option', 'value'), options)}</details>"
        + f"<details><summary>passes</summary>{_table(('pass', '#rewrites', '#time'), passes)}</details>"
    )


SECTIONS: tuple[Callable[[Report], str], ...] = (
    _head,
    _facts,
    _findings,
    _layers,
    _sensitivity,
    _histograms,
    _floats,
    _operators,
    _steps,
)
