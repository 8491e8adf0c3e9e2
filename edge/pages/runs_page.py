"""Training runs as one HTML page: their curves in common charts, how the time of a step is spent, distributions of
weights, lineage, the plan, different settings, environments. Made from a store of runs (`cloud.track`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from converter.report.html import document, facts, figure_cell, name_cell, size_text, table, text_cell
from edge.pages.charts import curves, densities, shares
from edge.pages.model_graph import STYLE
from edge.pages.run_steps import (
    PARTS,
    duration,
    epochs_section,
    graph_section,
    memory_section,
    profile_section,
)
from edge.pages.study_section import study_section

if TYPE_CHECKING:
    from cloud.track import Histogram, Run, Store

__all__ = ["flat", "runs_page", "runs_sections"]

POINTS = 240
"""The most points of a curve; of longer ones every n-th is drawn, for step/ curves as the mean of its neighbours."""
TENSORS = 12
"""The most weights whose distributions are drawn; of more, those whose norm changed most."""
WORDS = {
    "step/loss": "Loss of each step", "train/loss": "Training loss", "validation/loss": "Validation loss",
    "rate": "Learning rate", "step/skipped": "Skipped steps", "step/gradient_norm": "Gradient norm",
}  # fmt: skip
FIRST = ("step/loss", "train/loss", "validation/loss", "train/accuracy", "validation/accuracy", "rate")
"""These curves come first, in this order."""
LEFT_OUT = ("epoch", "step/examples", "time/epoch")


@dataclass(frozen=True)
class _Shown:
    """The runs on a page, by their labels."""

    store: Store
    runs: Mapping[str, Run]

    @property
    def first(self) -> Run:
        return next(iter(self.runs.values()))

    def last(self) -> dict[str, dict[str, float]]:
        return {name: self.store.last(run.id) for name, run in self.runs.items()}


def runs_page(store: Store, runs: Sequence[Run]) -> str:
    """The whole page of one or more runs; for the first also its model, files, weights and plan."""
    body = STYLE + "\n".join(runs_sections(store, runs).values())
    return document(" · ".join(_named(runs)), body, f"run {', '.join(run.id for run in runs)}")


def runs_sections(store: Store, runs: Sequence[Run]) -> dict[str, str]:
    """The page's parts by name, in order; "" for those without content."""
    shown = _Shown(store, _named(runs))
    return {name: section(shown) for name, section in SECTIONS.items()}


def _named(runs: Sequence[Run]) -> dict[str, Run]:
    """The runs by what they are called on the page."""
    return {run.name if run.name and [r.name for r in runs].count(run.name) == 1 else run.id: run for run in runs}


def _head(shown: _Shown) -> str:
    if len(shown.runs) > 1:
        listed = ", ".join(f"{run.id} ({run.state})" for run in shown.runs.values())
        return f'<h1>{len(shown.runs)} runs</h1><p class="soft">{escape(listed)}</p>'
    run = shown.first
    commit = f", commit {run.git['commit'][:10]}{' with changes' if run.git['dirty'] else ''}" if run.git else ""
    ended = f'<p class="poor">Ended by: {escape(run.error)}</p>' if run.error else ""
    words = f"{run.id} · {run.state} · started {_date(run.created)}{commit}"
    return f'<h1>{escape(run.name or run.id)}</h1><p class="soft">{escape(words)}</p>{ended}'


def _facts(shown: _Shown) -> str:
    pairs = []
    for name, last in shown.last().items():
        of = f", {name}" if len(shown.runs) > 1 else ""
        for key, value in last.items():
            where, _, figure = key.partition("/")
            if where == "validation" or (where == "train" and f"validation/{figure}" not in last):
                pairs.append((_number(value), f"{figure}, {'validation' if where == 'validation' else 'training'}{of}"))
        run = shown.runs[name]
        steps = _steps(shown, run)
        told = f"{int(last.get('epoch', 0))} epochs, {steps} steps" if steps else "in all"
        pairs.append((duration(run.seconds), f"{told}{of}"))
    return facts(pairs)


def _steps(shown: _Shown, run: Run) -> int:
    steps = shown.store.scalars(run.id, "step/loss", most=1).steps
    return steps[-1] if steps else 0


def _curves(shown: _Shown) -> str:
    known = dict.fromkeys(name for run in shown.runs.values() for name in shown.store.names(run.id))
    order = [n for n in FIRST if n in known] + [n for n in known if n not in FIRST]
    drawn = [
        _curve(shown, name) for name in order if name not in LEFT_OUT and not name.startswith(("time/", "memory/"))
    ]
    charts = "".join(drawn)
    return f'<h2>Curves</h2><div class="charts two">{charts}</div>' if charts else ""


def _curve(shown: _Shown, name: str) -> str:
    """One scalar of all runs, over steps."""
    found = {label: _thin(shown, run, name) for label, run in shown.runs.items()}
    found = {label: points for label, points in found.items() if points}
    if all(len(points) < 2 for points in found.values()):
        return ""
    x = sorted({step for points in found.values() for step in points})
    series = {label: [points.get(step) for step in x] for label, points in found.items()}
    return curves(WORDS.get(name) or _title(*name.split("/", 1)), x, series)


def _title(where: str, figure: str = "") -> str:
    """The title of a curve that is not in `WORDS`."""
    known = {"step": f"{figure} of each step", "train": f"training {figure}"}
    return known.get(where, f"{where} {figure}").capitalize()


def _thin(shown: _Shown, run: Run, name: str) -> dict[int, float | None]:
    """Points by step. Values of single steps are noisy: of many, means of neighbours are drawn."""
    series = shown.store.scalars(run.id, name)
    size = -(-len(series) // POINTS) or 1
    made: dict[int, float | None] = {}
    for at in range(0, len(series), size):
        part = [v for v in series.values[at : at + size] if math.isfinite(v)]
        made[series.steps[min(at + size, len(series)) - 1]] = sum(part) / len(part) if part else None
    return made


def _times(shown: _Shown) -> str:
    rows = {}
    for label, run in shown.runs.items():
        parts = {part: shown.store.scalars(run.id, f"time/{part}").values for part in PARTS}
        if all(parts.values()):
            # The first epoch includes compilation: leave it out if there are others.
            kept = {part: values[1:] or values for part, values in parts.items()}
            rows[label] = {part: sum(values) / len(values) for part, values in kept.items()}
    drawn = shares("Time of a step, mean over epochs after the first", rows)
    if not drawn:
        return ""
    cells = ([text_cell(label), *(figure_cell(duration(parts[p])) for p in PARTS)] for label, parts in rows.items())
    return (
        "<h2>Where the time goes</h2><p>Waiting for data; computing the step; everything else: validation, the record, "
        f'checkpoints.</p><div class="half">{drawn}{table(("per step", *(f"#{p}" for p in PARTS)), cells)}</div>'
    )


def _weights(shown: _Shown) -> str:
    found = shown.store.histograms(shown.first.id)
    moved = sorted(found, key=lambda name: -abs(math.log(_moved(found[name]))))[:TENSORS]
    if not moved:
        return ""
    drawn = "".join(_spread(name, found[name]) for name in found if name in moved)
    rest = len(found) - len(moved)
    note = f" The {rest} whose norm changed least are not shown." if rest else ""
    return (
        f"<h2>Weights</h2><p>The distribution of a parameter's values after the first epoch and after the last.{note}"
        f'</p><div class="charts">{drawn}</div>'
    )


def _moved(over: Sequence[Histogram]) -> float:
    """The last norm divided by the first."""
    return max(over[-1].norm, 1e-12) / max(over[0].norm, 1e-12)


def _spread(name: str, over: Sequence[Histogram]) -> str:
    ends = {f"step {h.step}": (h.edges, h.counts) for h in (over[0], over[-1])}
    title = f"{name.removeprefix('weights/')}: norm {over[0].norm:.3g} → {over[-1].norm:.3g}"
    return densities(title, ends)


def _lineage(shown: _Shown) -> str:
    from cloud.track import lineage

    chain = lineage(shown.store, shown.first.id)
    if len(chain) < 2:
        return ""
    boxes = []
    for number, link in enumerate(chain):
        made_of = f"made from {', '.join(str(n + 1) for n in link.sources)}" if link.sources else "from outside"
        boxes.append(
            f'<li class="{"here" if link.digest == shown.first.id else ""}"><b>{number + 1} · {escape(link.kind)}</b>'
            f"<code>{escape(link.digest[:16])}</code><span>{escape(link.text)}</span><i>{made_of}</i></li>"
        )
    sizes = [
        [text_cell(made.kind), name_cell(made.path), figure_cell(size_text(made.bytes))]
        for made in shown.store.artifacts(shown.first.id)
    ]
    files = table(("file", "path", "#size"), sizes) if sizes else ""
    return f'<h2>Lineage</h2><ol class="chain">{"".join(boxes)}</ol>{files}'


def _plan(shown: _Shown) -> str:
    plan = shown.first.plan
    if not plan:
        return ""
    rows = [[text_cell(key), text_cell(_short(value))] for key, value in flat(plan).items() if not _long(value)]
    return f"<h2>Plan</h2>{table(('', ''), rows)}"


def _settings(shown: _Shown) -> str:
    tables = [flat(run.config) for run in shown.runs.values()]
    keys = dict.fromkeys(key for made in tables for key in made)
    differ = [key for key in keys if len({str(made.get(key)) for made in tables}) > 1]
    if len(tables) == 1:
        return f"<h2>Settings</h2>{_pairs(tables[0])}" if keys else ""
    same = {key: tables[0][key] for key in keys if key not in differ}
    rows = [[text_cell(key), *(text_cell(_short(made.get(key, "default"))) for made in tables)] for key in differ]
    apart = table(("key", *map(escape, shown.runs)), rows) if rows else "<p>All settings are the same.</p>"
    common = f"<details><summary>common settings</summary>{_pairs(same)}</details>" if same else ""
    return f"<h2>Different settings</h2>{apart}{common}"


def _ground(shown: _Shown) -> str:
    parts = []
    for label, run in shown.runs.items():
        told = _pairs({**flat(run.environment), **{f"git.{k}": v for k, v in run.git.items()}, "seed": run.seed})
        parts.append(f"<details><summary>environment of {escape(label)}</summary>{told}</details>")
        rows = [[text_cell(_date(e.time)), text_cell(e.kind), text_cell(e.text)] for e in shown.store.events(run.id)]
        if rows:
            parts.append(
                f"<details><summary>events of {escape(label)}</summary>{table(('when', 'what', ''), rows)}</details>"
            )
    return f"<h2>Environment</h2>{''.join(parts)}"


def _pairs(values: Mapping[str, Any]) -> str:
    rows = ([text_cell(key), text_cell(_short(value), "name")] for key, value in values.items())
    return table(("key", "value"), rows)


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as one flat table: {"train.rate": 0.1}."""
    made: dict[str, Any] = {}
    for key, inner in value.items():
        made |= flat(inner, f"{before}{key}.") if isinstance(inner, Mapping) else {f"{before}{key}": inner}
    return made


def _short(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 160 else f"{text[:159]}…"


def _long(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 8


def _number(value: float) -> str:
    return f"{value:.4g}"


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _of_steps(section: Callable[[Store, Mapping[str, Run]], str]) -> Callable[[_Shown], str]:
    return lambda shown: section(shown.store, shown.runs)


SECTIONS: Mapping[str, Callable[[_Shown], str]] = {
    "head": _head, "facts": _facts, "study": _of_steps(study_section), "curves": _curves, "times": _times,
    "epochs": _of_steps(epochs_section),
    "profile": _of_steps(profile_section), "memory": _of_steps(memory_section), "graph": _of_steps(graph_section),
    "weights": _weights, "lineage": _lineage, "plan": _plan, "settings": _settings, "ground": _ground,
}  # fmt: skip
"""The parts of a page by name, in order."""
