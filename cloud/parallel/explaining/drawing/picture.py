"""A plan as one self-contained HTML page: how tensors are sharded, when collectives run, what memory is used for, and
where time is spent. Each mesh axis has a colour; a tensor is drawn cut as it is sharded, with the first device's part
filled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from math import sqrt

from cloud.errors import PlanError
from cloud.parallel.explaining.drawing.boxes import tensor
from cloud.parallel.explaining.drawing.gantt import gantt
from cloud.parallel.explaining.drawing.holding import busy, holding
from cloud.parallel.explaining.drawing.picture_style import STYLE
from cloud.parallel.explaining.explain import Other, explain
from cloud.parallel.explaining.explanation import Explanation
from cloud.parallel.explaining.ledger import KINDS, Ledger
from cloud.parallel.explaining.words import alike, axes_text, duration, link_text, place
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Estimate, Mesh, Plan
from cloud.parallel.searching.predict import Moved
from cloud.parallel.searching.walk import lying
from cloud.parallel.staged.schedule import Schedule
from cloud.parallel.topology import Topology
from converter.report.html import document, facts, figure_cell, size_text, table, text_cell

__all__ = ["picture"]

MARKS = 300
"""The most collectives drawn: those that take longest."""

WORKERS = 12
"""The most operators whose results are drawn."""

@dataclass(frozen=True)
class _Shown:
    made: Explanation
    ledger: Ledger
    rivals: Mapping[str, Estimate]
    schedule: Schedule | None

    @property
    def mesh(self) -> Mesh:
        return self.ledger.plan.mesh


def picture(graph: Graph, plan: Plan, topology: Topology, rivals: Mapping[str, Other] | None = None, *,
            memory: float | None = None, reduce_scatter: bool = True,
            schedule: Schedule | None = None) -> str:  # fmt: skip
    """The page; arguments are those of `explain`. `schedule`: of pipeline parallelism, drawn tick by tick."""
    made = explain(graph, plan, topology, rivals, memory=memory, reduce_scatter=reduce_scatter)
    others = {name: one.estimate for name, one in (rivals or {}).items() if not isinstance(one, PlanError)}
    shown = _Shown(made, Ledger(graph, plan, topology, reduce_scatter), others, schedule)
    body = STYLE + "\n".join(section(shown) for section in _SECTIONS)
    return document(f"plan for {topology.name}", body, f"plan for the graph {plan.graph[:12]} on {topology.name}")


def _head(shown: _Shown) -> str:
    made = shown.made
    hidden = made.collective_seconds - made.exposed_seconds
    cards = [
        (duration(made.step_seconds), "per step"),
        (duration(made.compute_seconds), "computing"),
        (duration(made.exposed_seconds), "of collectives not hidden by computing"),
        (duration(hidden) if hidden > 0 else "", "of collectives hidden by computing"),
        (size_text(made.peak_bytes), f"peak memory per device, of {size_text(made.limit)}"),
    ]
    title = escape(made.strategy[:1].upper() + made.strategy[1:])
    return f'<h1>{title}</h1><p class="soft">{escape(made.topology)}; {escape(made.mesh)}</p>{facts(cards)}'


def _times(shown: _Shown) -> str:
    costs = {"this plan": shown.ledger.plan.estimate, **shown.rivals}
    words = {one.name: f"{one.strategy}; {one.loses}" for one in shown.made.rivals}
    most = max(cost.compute_seconds + cost.collective_seconds for cost in costs.values()) or 1.0
    lanes = []
    for name, cost in costs.items():
        parts = (("k0", cost.compute_seconds), ("k4", cost.exposed_seconds),
                 ("line", cost.collective_seconds - cost.exposed_seconds))  # fmt: skip
        bars = "".join(
            f'<i style="width:{100 * seconds / most:.2f}%;background:var(--{colour})"></i>' for colour, seconds in parts
        )
        note = words.get(name, shown.made.strategy)
        lanes.append(
            f'<div class="lane"><span>{escape(name)}</span><div class="strip">{bars}</div>'
            f"<p>{escape(duration(cost.step_seconds))} · {escape(note)}</p></div>"
        )
    without = [one for one in shown.made.rivals if one.step_seconds is None]
    listed = "".join(f"<li><b>{escape(one.name)}</b> {escape(one.loses)}</li>" for one in without)
    refused = f'<ul class="findings">{listed}</ul>' if listed else ""
    key = _key((("k0", "computing"), ("k4", "collectives not hidden"), ("line", "hidden by computing")))
    return f"<h2>Where time is spent</h2>{key}{''.join(lanes)}{refused}"


def _tensors(shown: _Shown) -> str:
    """Parameters and the batch, one row for each kind of block."""
    graph, plan, ledger = shown.ledger.graph, shown.ledger.plan, shown.ledger
    blocks: dict[str, dict[tuple[str, Shape, Split], int]] = {}
    for v, split in zip(graph.entering, plan.entering, strict=True):
        value = graph.values[v]
        if ledger.kind(v) != "other state" and value.shape:
            row, name = _block(value.name)
            key = name, value.shape, split
            blocks.setdefault(row, {}).setdefault(key, 0)
            blocks[row][key] += 1
    rows = [
        f'<div class="block"><b>{escape(row)}</b>'
        + "".join(tensor(name, shape, split, plan.mesh, times) for (name, shape, split), times in found.items())
        + "</div>"
        for row, found in blocks.items()
    ]
    return f"<h2>How tensors are sharded</h2>{_axes_key(shown)}{''.join(rows)}"


Shape = tuple[int, ...]


def _block(name: str) -> tuple[str, str]:
    """`params.block3.up.w` -> the row `params.block*` and `up.w` in it."""
    parts = alike(name).split(".")
    at = next((n + 1 for n, part in enumerate(parts) if "*" in part), 1)
    at = at if at < len(parts) else max(len(parts) - 1, 1)
    return ".".join(parts[:at]), ".".join(parts[at:]) or parts[-1]


def _workers(shown: _Shown) -> str:
    """Results of the operators with the most FLOPs, in the order of the step."""
    graph, plan = shown.ledger.graph, shown.ledger.plan
    lies, found = lying(graph, plan), dict[tuple[str, Shape, Split], float]()
    count: dict[tuple[str, Shape, Split], int] = {}
    for op in graph.ops:
        if op.flops and not op.follows:
            v = op.outputs[0]
            key = f"{op.primitive} at {place(op.where)}", graph.values[v].shape, lies[v]
            found[key] = found.get(key, 0.0) + op.flops * op.times
            count[key] = count.get(key, 0) + 1
    kept = sorted(found, key=lambda key: -found[key])[:WORKERS]
    total = sum(found.values()) or 1.0
    boxes = "".join(
        tensor(*key, plan.mesh, count[key], f"{found[key] / total:.0%} of FLOPs") for key in found if key in kept
    )
    return f'<h2>Results of the largest operators</h2><div class="block">{boxes}</div>' if boxes else ""


def _step(shown: _Shown) -> str:
    """Collectives at the time when they run, above the memory use."""
    ledger = shown.ledger
    drawn = busy(ledger)
    longest = sorted(ledger.moved, key=lambda one: -one.seconds)[:MARKS]
    most = longest[0].seconds if longest else 1.0
    marks = "".join(
        _mark(one, _moment(ledger, one, drawn) / drawn, sqrt(one.seconds / most), ledger) for one in longest
    )
    over = f'<div class="over">{marks}</div>' if marks else "<p>The devices exchange no data.</p>"
    kinds = [(f"k{n}", kind) for n, kind in enumerate(KINDS) if ledger.memory[kind].max() > 0]
    return (
        f"<h2>Collectives and memory over the step</h2><p>Above: collectives, sized by their time, coloured by "
        f"mesh axis. Below: memory per device.</p>{_axes_key(shown)}<figure>{over}{holding(ledger, shown.made.limit)}"
        f'<div class="ends">{_phases(ledger, drawn)}</div></figure>{_key(kinds)}'
        f"<p>The peak is in {escape(shown.made.peak_at)}.</p>"
    )


def _moment(ledger: Ledger, one: Moved, last: int) -> int:
    return min(ledger.lives.at[one.op], last) if one.op >= 0 else last


def _phases(ledger: Ledger, last: int) -> str:
    """Where forward and backward begin, from JAX's names of operators."""
    found = next((k for k, op in enumerate(ledger.graph.ops) if "transpose(" in op.where), None)
    back = None if found is None else ledger.lives.at[found]
    words = '<span style="left:0">forward</span>'
    return words + (f'<span style="left:{100 * back / last:.1f}%">backward</span>' if back and back < last else "")


def _mark(one: Moved, at: float, size: float, ledger: Ledger) -> str:
    wide = 5 + 34 * size
    axis = min(one.collective.axes, default=0) % 4
    what = f"{one.collective.kind} over {axes_text(one.collective.axes)}, {one.collective.why}"
    return (
        f'<i title="{escape(f"{duration(one.seconds)}: {what}")}" class="{"" if ledger.exposed(one) else "hides"}" '
        f'style="left:{100 * at:.2f}%;width:{wide:.0f}px;height:{wide:.0f}px;background:var(--m{axis})"></i>'
    )


def _moves(shown: _Shown) -> str:
    rows = [
        [figure_cell(duration(one.seconds)), text_cell(one.kind), text_cell(one.axes), figure_cell(str(one.times)),
         figure_cell(size_text(one.bytes)), text_cell(one.why)]
        for one in shown.made.moves
    ]  # fmt: skip
    heads = ("#time", "kind", "over", "#times", "#bytes", "why")
    return f"<h2>Collectives per step</h2>{table(heads, rows)}" if rows else ""


def _pipeline(shown: _Shown) -> str:
    if shown.schedule is None:
        return ""
    return f"<h2>Schedule of the best pipeline-parallel plan</h2>{gantt(shown.schedule)}"


def _axes_key(shown: _Shown) -> str:
    mesh, topology = shown.mesh, shown.ledger.topology
    words = [
        (f"m{n % 4}", f"m{n}: {size} devices at {link_text(level, topology)}")
        for n, (size, level) in enumerate(zip(mesh.sizes, mesh.levels, strict=True))
    ]
    return _key([*words, ("soft", "whole on every device")])


def _key(pairs: Iterable[tuple[str, str]]) -> str:
    words = "".join(f'<span><i style="background:var(--{name})"></i>{escape(text)}</span>' for name, text in pairs)
    return f'<div class="key">{words}</div>'


_SECTIONS: tuple[Callable[[_Shown], str], ...] = (_head, _times, _tensors, _workers, _step, _moves, _pipeline)
