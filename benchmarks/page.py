"""docs/performance.md out of a run's figures: tables for people, the chart beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.comparison import Row, geometric_mean, read_rows, trouble, twins, worst
from benchmarks.products import Measured
from edge.measuring.contest import PEERS

__all__ = ["Run", "page", "read_run", "summary"]

CHART = "performance.svg"


@dataclass(frozen=True, slots=True)
class Run:
    """All figures of one run of the benchmarks. `machine`, `roof` and `versions` are for people to read."""

    date: str
    machine: str
    roof: Mapping[int, str]
    versions: Mapping[str, str]
    rows: Sequence[Row]
    products: Sequence[Measured] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that were timed."""
        return sorted({row.threads for row in self.rows})


def read_run(kept: Mapping[str, Any]) -> Run:
    """A run out of what `as_dict` gave, by way of JSON."""
    products = [Measured(**{**one, "row": read_rows([one["row"]])[0]}) for one in kept["products"]]
    roof = {int(count): text for count, text in kept["roof"].items()}
    return Run(**{**kept, "roof": roof, "rows": read_rows(kept["rows"]), "products": products})


def page(run: Run) -> str:
    """The whole page, Markdown."""
    parts = [_intro(run), f"![Speed compared with the fastest peer]({CHART})", summary(run)]
    for count in run.threads:
        for title, integers in (("float32", False), ("quantised", True)):
            rows = [row for row in run.rows if row.threads == count and row.integers is integers and row.peers]
            if rows:
                parts += [f"## {title}, {_threads(count)}", _models(rows)]
    parts += [
        _section("int8 beside float32", _TWINS, _twins(run)),
        _section("Two threads over one, timed minutes apart", _SCALING, _scaling(run)),
        _section("Matrix products", _PRODUCTS, _products(run)),
        _failures(run),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(run: Run) -> str:
    """Geometric means of the ratio to the best peer, and the worst rows."""
    cells = []
    for count in run.threads:
        for title, integers in (("float32", False), ("quantised", True)):
            rows = [row for row in run.rows if row.threads == count and row.integers is integers]
            low = worst(rows)
            if low and low.best:
                mean = f"{geometric_mean(rows):.2f}"
                models = str(sum(bool(row.best) for row in rows))
                cells.append([title, str(count), models, mean, f"{low.model} {low.best.ratio:.2f}"])
    return _table(("models", "threads", "count", "× as fast as the best peer", "lowest"), cells)


def _intro(run: Run) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    roofs = "\n".join(f"- {text}" for text in run.roof.values())
    return f"""# Performance

Written by `make bench` on {run.date}: {run.machine}; {versions}.
What this machine can do at most, measured by kernels that do nothing else:

{roofs}

Every contender runs the same model on the same inputs in one process, turn by turn; a ratio is a peer's time over ours,
the median of paired turns with the middle half in brackets. Above 1 msedge is faster. Peers run with all their
optimisations; a † marks a peer that was faster with a form of the model that ONNX Runtime's own tool quantised. Times
are microseconds a run, input and output arrays included."""


def _models(rows: Sequence[Row]) -> str:
    peers = [name for name in PEERS if any(name == peer.name for row in rows for peer in row.peers)]
    heads = ("model", "msedge µs", *(f"{name} µs" for name in peers), "best peer's ratio", "middle half", "load ms",
             "first µs", "arena KiB", "by reference")  # fmt: skip
    cells = []
    for row in sorted(rows, key=lambda r: -r.best.ratio if r.best else 0.0):
        found = {peer.name: peer for peer in row.peers}
        best = row.best
        assert best is not None
        cells.append([
            row.model,
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


_PRODUCTS = ("product", "threads", "µs", "GFLOP/s", "GB/s", "of the machine's best", "peers' time over ours")


def _products(run: Run) -> Iterable[Sequence[str]]:
    for one in run.products:
        rates = (f"{amount / one.row.seconds / 1e9:.1f}" for amount in (one.operations, one.nbytes))
        peers = ", ".join(f"{peer.name} {peer.ratio:.2f}" for peer in one.row.peers)
        yield one.row.name, str(one.row.threads), _micro(one.row.seconds), *rates, f"{one.share:.0%}", peers


def _failures(run: Run) -> str:
    """What did not run, and where outputs differ."""
    lines = [f"- {text}" for text in dict.fromkeys(trouble(row) for row in run.rows) if text]
    absent = dict.fromkeys((row.model, why) for row in run.rows for why in (row.absent or {}).values())
    lines += [f"- {name}: {why}" for name, why in absent]
    return "## What did not run, and what differs\n\n" + "\n".join(lines) if lines else ""


def _section(title: str, heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    held = list(cells)
    return f"## {title}\n\n{_table(heads, held)}" if held else ""


def _table(heads: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *cells]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}" if seconds < 1e-4 else f"{seconds * 1e6:.0f}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
