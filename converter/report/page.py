"""The report as one self-contained HTML page: no scripts, no fonts, no network. Charts are inline SVG.

`page(report)` is a list of sections; each is a function of the report that returns "" if it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from converter.report.html import document, facts, figure_cell, meter, name_cell, short, size_text, table, text_cell
from converter.report.layers import PERFECT
from converter.report.report import Report
from lite_runtime.operators import having

__all__ = ["page"]

WORST = 12
"""Layers whose histograms are shown."""
GOOD, FAIR = 30.0, 18.0
"""Decibels: from GOOD on, a layer's error is less than 1/1000 of its energy; below FAIR, more than 1/60."""


def page(report: Report) -> str:
    """The whole page."""
    body = "\n".join(section(report) for section in SECTIONS)
    return document(f"{report.source} · {report.quantize}", body, f"source digest {report.source_digest[:16]}")


MOVES = having("movement")
"""Operators without loss of accuracy, which get no rows."""


def _decibels(snr: float) -> str:
    return "exact" if snr >= PERFECT else f"{snr:.1f} dB"


def _grade(snr: float) -> str:
    return "good" if snr >= GOOD else "fair" if snr >= FAIR else "poor"


# -- sections ---------------------------------------------------------------------------------------------------------


def _head(report: Report) -> str:
    details = {"ONNX": f", opset {report.source_opset}", "TensorFlow Lite": f", integers: {report.integers}"}
    opset = details.get(report.source_format, "")
    return (
        f'<h1>{escape(report.source)}</h1><p class="soft">{escape(report.source_format)}{opset} → {report.quantize}</p>'
    )


def _facts(report: Report) -> str:
    worst = min(report.layers, key=lambda layer: layer.snr, default=None)
    pairs = [
        (size_text(report.bundle_bytes), f"from {size_text(report.source_bytes)}"),
        (size_text(report.arena_bytes), "working memory") if report.arena_bytes else ("", ""),
        *((_decibels(o.snr), f"output {short(o.name)}, cosine {o.cosine:.5f}") for o in report.outputs),
        (_decibels(worst.snr), f"worst layer: {short(worst.name)}") if worst else ("", ""),
        *_accuracy(report),
        (f"{report.coverage:.0%}", f"of {report.native + report.reference} operators have native kernels"),
    ]
    return facts(pairs)


def _accuracy(report: Report) -> list[tuple[str, str]]:
    found = report.budget
    if not found:
        return []
    lost = f"{found['drop']:.4g} lost of {found['limit']:.4g} allowed, {found['gain']:.0%} of the size gain kept"
    return [(f"{found['score']:.4g}", f"{found['metric']}, {found['float']:.4g} in float: {lost}")]


_WAYS = {"float": "in floating point", "plain": "rounded without data", "gptq": "rounded by GPTQ",
         "mix": "the mix that meets the budget"}  # fmt: skip


def _rounding(report: Report) -> str:
    """Of a language model: perplexities, and how products are stored."""
    found = report.language.get("rounding")
    if not found:
        return ""
    kinds = [kind for kind in ("w4", "w8", "float") if any(kind in counts for counts in found["mix"].values())]
    scores = ((text_cell(_WAYS[way]), figure_cell(f"{score:.2f}")) for way, score in found["perplexity"].items())
    mix = (
        (text_cell(role), *(figure_cell(str(counts.get(kind, ""))) for kind in kinds))
        for role, counts in found["mix"].items()
    )
    ranking = (
        (text_cell(u["unit"]), figure_cell(f"{u['gain']:.3f}"), figure_cell(size_text(u["bytes"])))
        for u in found.get("ranking", ())
    )
    tokens = found["tokens"]
    won = (
        "<h2>What 8 bits win</h2><p>By how much perplexity on a part of the calibration text falls if these products "
        "alone have 8 bits.</p>" + table(("products", "#won", "#bytes more"), ranking)
    )
    return (
        f"<h2>Perplexity</h2><p>On {tokens['held']} tokens of text that was held out; rounded by the inputs that "
        f"{tokens['calibration']} others cause.</p>"
        + table(("matrices", "#perplexity"), scores)
        + "<h2>Products by precision</h2>"
        + table(("role", *(f"#{kind}" for kind in kinds)), mix)
        + won * bool(found.get("ranking"))
    )


def _findings(report: Report) -> str:
    told = report.quantization.findings if report.quantization else []
    found = [*((str(f.kind), f.text) for f in told), *(("left out", text) for text in report.left_out)]
    if not found:
        return ""
    rows = "".join(f"<li><b>{escape(kind)}</b> {escape(text)}</li>" for kind, text in found)
    return f'<h2>Findings</h2><section class="card"><ul class="findings">{rows}</ul></section>'


def _training(report: Report) -> str:
    found = report.training
    if not found:
        return ""
    rows = ((name_cell(p["name"]), figure_cell(" x ".join(map(str, p["shape"])))) for p in found["parameters"])
    settings = ((text_cell(k), text_cell(str(v))) for k, v in found["settings"].items())
    pairs = [
        (str(found["count"]), f"trained numbers in {len(found['parameters'])} parameters"),
        (size_text(found["state_bytes"]), "state"),
        *(
            (size_text(size), f"working memory of {name} for a batch of {found['batch']}")
            for name, size in found.get("arena_bytes", {}).items()
            if size is not None
        ),
    ]
    return (
        "<h2>Training</h2>"
        + facts(pairs)
        + table(("parameter", "#shape"), rows)
        + f"<details><summary>settings</summary>{table(('option', 'value'), settings)}</details>"
    )


def _layers(report: Report) -> str:
    shown = [layer for layer in report.layers if layer.op not in MOVES]
    if not shown:
        return ""
    best = max([GOOD * 2, *(layer.snr for layer in shown if layer.snr < PERFECT)])
    rows = (
        (
            name_cell(layer.name),
            text_cell(layer.op),
            text_cell(layer.status, "spare"),
            figure_cell(_decibels(layer.snr)),
            f'<td class="wide spare">{meter(layer.snr / best, _grade(layer.snr))}</td>',
            figure_cell(f"{layer.cosine:.5f}"),
            text_cell(layer.source, "spare"),
        )
        for layer in shown
    )
    rows_html = table(("tensor", "operator", "~computed as", "#signal to noise", "~", "#cosine", "~source"), rows)
    return (
        "<h2>Layer by layer</h2><p>Every computed tensor of the quantised model against the float one, in order. "
        "Errors accumulate: a sudden drop shows the layer that loses accuracy, a slow decline is normal.</p>"
        + rows_html
    )


def _sensitivity(report: Report) -> str:
    if not report.sensitivity:
        return ""
    most = max(abs(s["loss"]) for s in report.sensitivity) or 1.0
    rows = (
        (
            figure_cell(str(rank)),
            name_cell(str(s["node"])),
            text_cell(str(s["op"])),
            figure_cell(f"{s['loss']:.4g}"),
            f'<td class="wide spare">{meter(abs(s["loss"]) / most, "fair")}</td>',
            figure_cell(_decibels(s["snr"])),
        )
        for rank, s in enumerate(report.sensitivity, 1)
    )
    rows_html = table(("#", "node", "operator", "#loss", "~", "#output signal to noise"), rows)
    return (
        "<h2>Accuracy cost of each layer</h2><p>Measured accuracy loss when only this layer is quantised, "
        "the largest first.</p>" + rows_html
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
        "<h2>Values of the worst layers</h2><p>Counts on a logarithmic scale. Dashed lines mark the range of the "
        f'stored type; red values are clipped.</p><div class="charts">{charts}</div>'
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
    caption = f'<code title="{escape(name)}">{escape(short(name))}</code><br>{escape(about)}'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def _rebinned(counts: Sequence[int], bars: int) -> list[int]:
    step = max(1, -(-len(counts) // bars))
    return [sum(counts[i : i + step]) for i in range(0, len(counts), step)]


_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def _limits(params: Any) -> tuple[float, float] | None:
    """The smallest and largest real number that a tensor with these parameters can hold."""
    if params is None or params.dtype not in _RANGES or len(params.scale) != 1:
        return None
    low, high = _RANGES[params.dtype]
    return (low - params.zero_point[0]) * params.scale[0], (high - params.zero_point[0]) * params.scale[0]


def _floats(report: Report) -> str:
    if not report.left_float:
        return ""
    rows = ((name_cell(name), text_cell(op), text_cell(why)) for name, op, why in report.left_float)
    return "<h2>What stayed in floating point, and why</h2>" + table(("node", "operator", "reason"), rows)


def _operators(report: Report) -> str:
    every = sorted({*report.ops_before, *report.ops_after})
    rows = (
        (
            text_cell(op),
            figure_cell(str(report.ops_before.get(op, "")) or ""),
            figure_cell(str(report.ops_after.get(op, "")) or ""),
            text_cell("reference only" if op in report.reference_ops else "native" if op in report.ops_after else ""),
        )
        for op in every
    )
    places = [
        (name_cell(name), text_cell(op), text_cell(source or "not stated in the file"))
        for name, op, source in report.by_reference
    ]
    slow = f"<p>Run by the NumPy reference:</p>{table(('node', 'operator', 'source'), places)}" if places else ""
    return "<h2>Operators</h2>" + table(("operator", "#in the source", "#in the bundle", ""), rows) + slow


def _steps(report: Report) -> str:
    passes = (
        (text_cell(p.name), figure_cell(str(p.rewrites)), figure_cell(f"{p.seconds:.2f} s"))
        for p in report.passes
        if p.rewrites
    )
    options = ((text_cell(k), text_cell(str(v))) for k, v in report.options.items())
    sizes = ((text_cell(k), figure_cell(size_text(v))) for k, v in report.weight_bytes.items())
    return (
        "<h2>Conversion</h2>"
        + table(("weights stored as", "#size"), sizes)
        + f"<details><summary>settings</summary>{table(('option', 'value'), options)}</details>"
        + f"<details><summary>passes</summary>{table(('pass', '#rewrites', '#time'), passes)}</details>"
    )


SECTIONS: tuple[Callable[[Report], str], ...] = (
    _head,
    _facts,
    _rounding,
    _training,
    _findings,
    _layers,
    _sensitivity,
    _histograms,
    _floats,
    _operators,
    _steps,
)
