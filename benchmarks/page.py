"""docs/performance.md from a run's figures: the tables and the chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.comparison import (
    DURATIONS,
    Row,
    geometric_mean,
    losses,
    read_rows,
    sections,
    trouble,
    twins,
    worst,
)
from benchmarks.machine import PEERS as PACKAGES
from benchmarks.machine import facts_table
from benchmarks.products import Measured
from edge.measuring.contest import PEERS

__all__ = ["Run", "excerpt", "headline", "page", "read_product", "read_run", "summary"]

CHART = "performance.svg"
_LOWEST = 4
"""Number of rows that the headline names; the tables have all."""


@dataclass(frozen=True, slots=True)
class Run:
    """All figures of one run of the benchmarks. `machine` (facts by name), `roof` and `versions` are texts for
    readers."""

    date: str
    machine: Mapping[str, str]
    roof: Mapping[int, str]
    versions: Mapping[str, str]
    rows: Sequence[Row]
    products: Sequence[Measured] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values, for JSON."""
        return asdict(self)

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that were timed."""
        return sorted({row.threads for row in self.rows})


def read_run(kept: Mapping[str, Any]) -> Run:
    """A run from the JSON form of what `as_dict` returned."""
    products = [read_product(one) for one in kept["products"]]
    roof = {int(count): text for count, text in kept["roof"].items()}
    machine = kept["machine"] if isinstance(kept["machine"], dict) else {"CPU": kept["machine"]}  # before 2026-11-22
    return Run(**{**kept, "machine": machine, "roof": roof, "rows": read_rows(kept["rows"]), "products": products})


def read_product(kept: Mapping[str, Any]) -> Measured:
    """A product's figures from the JSON form of what `dataclasses.asdict` returned for them."""
    return Measured(**{**kept, "row": read_rows([kept["row"]])[0]})


def page(run: Run) -> str:
    """The whole page, Markdown."""
    picture = f"![Speed compared with the fastest peer]({CHART})"
    parts = [_intro(run), "## Summary", headline(run), picture, summary(run)]
    for count in run.threads:
        for title, rows in _groups(run, count):
            shown = [row for row in rows if row.peers]
            if shown:
                parts += [f"## {title}, {_threads(count)}", _models(shown)]
    parts += [
        _section("int8 beside float32", _TWINS, _twins(run)),
        _section("Two threads over one, timed minutes apart", _SCALING, _scaling(run), _scaling_note(run)),
        _section("Matrix products", _PRODUCTS, _products(run)),
        _failures(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _groups(run: Run, threads: int) -> Iterator[tuple[str, list[Row]]]:
    return ((title, [row for row in rows if row.threads == threads]) for title, rows in sections(run.rows))


def headline(run: Run) -> str:
    """The geometric means in words, separately for long and short models, and the rows in which a peer is faster."""
    lines = []
    for duration in DURATIONS:
        means = []
        for count in run.threads:
            for title, rows in _groups(run, count):
                kind, _, where = title.partition(", ")
                held = [row for row in rows if row.best and where == duration]
                if held:
                    models = f"{len(held)} {kind} {'models' if len(held) > 1 else 'model'}"
                    means.append(f"{geometric_mean(held):.2f} for {models} with {_threads(count)}")
        if means:
            lines.append(f"- Models that take {duration}: {', '.join(means)}.")
    return f"""Speed of msedge relative to the fastest peer on each model, as geometric means:

{chr(10).join(lines)}

{_notes(run)}"""


def _notes(run: Run) -> str:
    ran = [row for row in run.rows if row.best]
    slower = losses(ran)
    named = [f"{row.model} {row.best.ratio:.2f} ({_threads(row.threads)})" for row in slower if row.best]
    lowest = ", ".join(named[:_LOWEST]) + f" and {len(named) - _LOWEST} more" * (len(named) > _LOWEST)
    return f"""In models that take less than 100 µs, the call from Python is a large part of the time of every runtime.
A peer is faster in {len(slower)} of {len(ran)} rows{": " * bool(slower)}{lowest}."""


def summary(run: Run) -> str:
    """Geometric means of the ratio to the best peer, and the worst rows."""
    cells = []
    for count in run.threads:
        for title, rows in _groups(run, count):
            low = worst(rows)
            if low and low.best:
                ran = [row for row in rows if row.best]
                cells.append([
                    title, str(count), str(len(ran)), str(sum(row.weights == "random" for row in ran)),
                    f"{geometric_mean(rows):.2f}", str(len(losses(rows))), f"{low.model} {low.best.ratio:.2f}",
                ])  # fmt: skip
    heads = ("models, by msedge's time", "threads", "rows", "of these with random weights",
             "× as fast as the best peer", "rows where a peer is faster", "lowest")  # fmt: skip
    return _table(heads, sorted(cells, key=lambda line: DURATIONS.index(line[0].partition(", ")[2])))


def _intro(run: Run) -> str:
    roofs = "\n".join(f"- {text}" for text in run.roof.values())
    return f"""# Performance

Written by `make bench` on {run.date}, on this machine and with these versions:

{facts_table({**run.machine, **run.versions})}

The machine's limits, measured by kernels that do nothing else:

{roofs}

**What is measured.** Every contender runs the same model on the same random inputs in one process, in alternating
turns, with the model's batch size (1 where it is open). Times are microseconds per run, including input and output
arrays, without loading, conversion and compilation (`load ms` and `first µs` show those of msedge). A ratio is a peer's
time divided by ours: the median of paired turns, followed by their middle half; above 1 msedge is faster. Peers run
with all their optimisations and the same number of threads; a † marks a peer that was faster with a form of the model
that ONNX Runtime's own tool quantised.

**Weights.** "trained" are published models; "random" are well-known architectures with random weights: their shapes
are real, their values and outputs have no meaning. "unknown": the models' folder does not say.

**What is left out.** Batches, other processors, energy, and accuracy, which `make accuracy` measures."""


def _models(rows: Sequence[Row]) -> str:
    peers = [name for name in PEERS if any(name == peer.name for row in rows for peer in row.peers)]
    heads = ("model", "weights", "msedge µs", *(f"{name} µs" for name in peers), "best peer's ratio", "middle half",
             "load ms", "first µs", "arena KiB", "by reference")  # fmt: skip
    cells = []
    for row in sorted(rows, key=lambda r: -r.best.ratio if r.best else 0.0):
        found = {peer.name: peer for peer in row.peers}
        best = row.best
        assert best is not None
        cells.append([
            row.model,
            row.weights,
            _micro(row.seconds),
            *(_micro(found[n].seconds) + " †" * bool(found[n].form) if n in found else "–" for n in peers),
            f"{best.ratio:.2f}",
            f"{best.low:.2f}–{best.high:.2f}",
            f"{row.load * 1e3:.1f}",
            _micro(row.first),
            f"{row.arena_bytes / 1024:.0f}",
            ", ".join(row.reference) or "–",
        ])  # fmt: skip
    return _table(heads, cells)


def excerpt(run: Run, place: str = "docs") -> str:
    """The README's part: machine, means and their table; `place`: the folder of the page."""
    peers = ", ".join(f"{name} {run.versions[name]}" for name in PACKAGES if name in run.versions)
    return f"""![Speed compared with the fastest peer]({place}/{CHART})

Compared with the fastest of {peers} on {run.machine.get("CPU", "an unnamed CPU")}, {run.date}; geometric means:

{summary(run)}

{_notes(run)}
Random weights: well-known architectures whose values have no meaning. Every model, load times and matrix products:
[{place}/performance.md]({place}/performance.md)."""


_TWINS = ("model", "threads", "float32 µs", "quantised µs", "× as fast")


def _twins(run: Run) -> Iterable[Sequence[str]]:
    for one, other in twins(run.rows):
        if not other.error:
            times = f"{one.seconds / other.seconds:.2f}"
            yield other.model, str(other.threads), _micro(one.seconds), _micro(other.seconds), times


_SCALING = ("model", "1 thread µs", "2 threads µs", "× as fast")


def _scaling(run: Run) -> Iterable[Sequence[str]]:
    alone = {row.model: row for row in run.rows if row.threads == 1 and not row.error}
    for row in run.rows:
        if row.threads == 2 and not row.error and row.model in alone:
            one = alone[row.model].seconds
            yield row.model, _micro(one), _micro(row.seconds), f"{one / row.seconds:.2f}"


def _scaling_note(run: Run) -> str:
    rows = list(_scaling(run))
    slower = [f"{cells[0]} {cells[-1]}" for cells in rows if float(cells[-1]) < 1]
    return f"Two threads are slower on {len(slower)} of {len(rows)} models{': ' * bool(slower)}{', '.join(slower)}."


_PRODUCTS = ("product", "threads", "µs", "GFLOP/s", "GB/s", "of the machine's limit", "peers' time / ours")


def _products(run: Run) -> Iterable[Sequence[str]]:
    for one in run.products:
        rates = (f"{amount / one.row.seconds / 1e9:.1f}" for amount in (one.operations, one.nbytes))
        peers = ", ".join(f"{peer.name} {peer.ratio:.2f}" for peer in one.row.peers)
        yield one.row.name, str(one.row.threads), _micro(one.row.seconds), *rates, f"{one.share:.0%}", peers


def _failures(run: Run) -> str:
    """Models and peers that did not run, and rows with different outputs."""
    lines = [f"- {text}" for text in dict.fromkeys(trouble(row) for row in run.rows) if text]
    absent = dict.fromkeys((row.model, why) for row in run.rows for why in (row.absent or {}).values())
    lines += [f"- {name}: {why}" for name, why in absent]
    return "## What did not run, and what differs\n\n" + "\n".join(lines) if lines else ""


def _section(title: str, heads: Sequence[str], cells: Iterable[Sequence[str]], note: str = "") -> str:
    held = list(cells)
    parts = (f"## {title}", note, _table(heads, held))
    return "\n\n".join(part for part in parts if part) if held else ""


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    words = ("weights", "lowest", "best peer, µs")
    lines = [heads, ["---"] + ["---" if head in words else "---:" for head in heads[1:]], *cells]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-4 else f"{seconds * 1e6:.0f}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
