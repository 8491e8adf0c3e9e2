"""Models × contenders: the table behind `make bench`, docs/performance.md and the tests of these figures.

Rows are plain values, so that they can be saved as JSON and the page can be made again without measuring.

A folder of models may have a MANIFEST.tsv with the columns `filename` and either `weights` ("trained" or "random") or
`source_repo` (where the trained weights were published).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.measuring.contest import Contest, Entry, contest, peer_of, peers_of
from lite_runtime.errors import InputError, MsedgeError

__all__ = [
    "DURATIONS",
    "LONG",
    "MANIFEST",
    "TOLERANCE",
    "Peer",
    "Row",
    "by_duration",
    "compare",
    "geometric_mean",
    "losses",
    "models_in",
    "read_rows",
    "row_of",
    "sections",
    "trouble",
    "twins",
    "weights_of",
    "worst",
]

TOLERANCE = 1e-4
"""The largest difference from a peer, relative to the output's range."""
LONG = 1e-4
"""Seconds. For a model with a shorter run, the call from Python is a large part of the time, for us and for peers."""
DURATIONS = ("100 µs or more", "less than 100 µs")
MANIFEST = "MANIFEST.tsv"
_QUANTISED = ("QLinear", "DynamicQuantizeLinear", "DequantizeLinear")
_PRECISION = re.compile(r"_(fp32|int8|uint8|dynrange)")


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer's seconds per run; `ratio`, `low` and `high`: its time divided by ours, the median of paired turns and
    their middle half. `form`: the file it ran, if that is not the model itself. `difference`: between its outputs and
    ours."""

    name: str
    seconds: float
    ratio: float
    low: float
    high: float
    difference: float | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One model with one number of threads, in seconds. `error`: why it did not run; then other fields are empty."""

    model: str
    threads: int
    integers: bool = False
    """Whether weights or activations are quantised."""
    seconds: float = 0.0
    first: float = 0.0
    load: float = 0.0
    arena_bytes: int = 0
    reference: tuple[str, ...] = ()
    """Operators without a native kernel, which their references compute."""
    peers: tuple[Peer, ...] = ()
    absent: Mapping[str, str] | None = None
    """By peer: why it did not run the model."""
    error: str = ""
    weights: str = "unknown"
    """"trained": published after training; "random": drawn by a generator, so that only the shapes are real; "unknown":
    the folder's manifest does not say."""

    @property
    def best(self) -> Peer | None:
        """The fastest peer; None if none ran."""
        return min(self.peers, key=lambda peer: peer.ratio, default=None)

    @property
    def name(self) -> str:
        """The model's name without its suffix."""
        return self.model.rpartition(".")[0] or self.model


def models_in(folders: Sequence[Path]) -> list[Path]:
    """Every .onnx and .tflite in the folders, by name, without the forms made for peers; raises InputError for a folder
    without any."""
    found: list[Path] = []
    for folder in folders:
        here = [p for p in folder.glob("*") if peer_of(p) and ".peers." not in p.name] if folder.is_dir() else []
        if not here:
            raise InputError(
                f"expected .onnx or .tflite files in {folder}, found none; name a folder that has some: --models DIR"
            )
        found += here
    return sorted(found, key=lambda path: path.name)


def weights_of(path: Path) -> str:
    """Whether the model's weights are trained or random, by its folder's manifest; "unknown" if it does not say.

    Raises InputError for a manifest with another word.
    """
    manifest = path.with_name(MANIFEST)
    if not manifest.exists():
        return "unknown"
    with open(manifest, encoding="utf-8", newline="") as lines:
        found = next((row for row in csv.DictReader(lines, delimiter="\t") if row["filename"] == path.name), {})
    weights = found.get("weights") or ("trained" if found.get("source_repo") else "unknown")
    if weights not in ("trained", "random", "unknown"):
        raise InputError(f"{manifest}: weights of {path.name}: expected trained or random, got {weights!r}")
    return weights


def compare(
    models: Iterable[Path], *, threads: Sequence[int] = (1,), rounds: int = 25, backend: str = "auto"
) -> Iterator[Row]:
    """Each model with each number of threads against every peer that reads its format; one that does not run becomes a
    row with an error."""
    for path in models:
        for count in threads:
            try:
                found = contest(path, against=peers_of(path), threads=count, rounds=rounds, backend=backend)
                yield row_of(found, weights_of(path))
            except MsedgeError as error:
                yield Row(path.name, count, error=str(error).splitlines()[0], weights=weights_of(path))


def row_of(result: Contest, weights: str = "unknown") -> Row:
    """The figures of one comparison."""
    ours, *peers = result.entries
    nodes = result.runtime.bundle.signatures["predict"].nodes
    return Row(
        result.model,
        result.threads,
        any(node.op.startswith(_QUANTISED) for node in nodes),
        ours.timing.median,
        ours.first,
        ours.load,
        result.cost.arena_bytes,
        tuple(sorted(set(result.cost.reference))),
        tuple(_peer(entry) for entry in peers),
        {peer.name: peer.reason for peer in result.absent},
        weights=weights,
    )


def _peer(entry: Entry) -> Peer:
    times = entry.ratio
    assert times is not None
    return Peer(entry.name, entry.timing.median, times.median, times.low, times.high, entry.difference, entry.form)


def read_rows(kept: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows from the JSON form of what `dataclasses.asdict` returned for them."""
    return [
        Row(**{**row, "reference": tuple(row["reference"]), "peers": tuple(Peer(**peer) for peer in row["peers"])})
        for row in kept
    ]


def trouble(row: Row) -> str:
    """What is wrong with a row, "" if nothing: a row with wrong outputs does not count, even if it is fast.

    Outputs are compared with the runtime for which the file was made: others may quantise the graph at other points.
    """
    if row.error:
        return f"{row.model} did not run: {row.error}"
    own = (p for p in row.peers if p.name == peer_of(Path(row.model)))
    far = [p for p in own if p.difference is not None and not p.difference <= TOLERANCE]
    return f"{row.model} differs from {far[0].name} by {far[0].difference:.0e} of the output's range" if far else ""


def geometric_mean(rows: Iterable[Row], peer: str = "") -> float:
    """The geometric mean of the ratios to `peer`, or to each row's best peer; NaN if there is none."""
    found = (row.best if not peer else next((p for p in row.peers if p.name == peer), None) for row in rows)
    logs = [math.log(p.ratio) for p in found if p]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def worst(rows: Iterable[Row]) -> Row | None:
    """The row with the lowest ratio to its best peer; None if there is no row with a peer."""
    return min((row for row in rows if row.best), key=lambda row: row.best.ratio if row.best else 0.0, default=None)


def losses(rows: Iterable[Row]) -> list[Row]:
    """The rows whose best peer was faster than msedge, the largest difference first."""
    slower = ((row.best.ratio, row) for row in rows if row.best and row.best.ratio < 1)
    return [row for _, row in sorted(slower, key=lambda pair: pair[0])]


def by_duration(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(rows of models that take msedge LONG or more, rows of the others), without rows that did not run.

    All rows of a model are in the same list: the time with the fewest threads decides.
    """
    ran = [row for row in rows if not row.error]
    first: dict[str, Row] = {}
    for row in sorted(ran, key=lambda row: row.threads):
        first.setdefault(row.model, row)
    long = [row for row in ran if first[row.model].seconds >= LONG]
    return long, [row for row in ran if first[row.model].seconds < LONG]


def sections(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Title and rows of each part of the tables: long models before short ones, float32 before quantised."""
    for duration, held in zip(DURATIONS, by_duration(rows), strict=True):
        for kind, integers in (("float32", False), ("quantised", True)):
            yield f"{kind}, {duration}", [row for row in held if row.integers is integers]


def twins(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """(float, quantised) pairs: models whose names differ only in the word for their precision."""
    floats = {(_PRECISION.sub("", row.model), row.threads): row for row in rows if not row.integers and not row.error}
    pairs = ((floats.get((_PRECISION.sub("", row.model), row.threads)), row) for row in rows if row.integers)
    return [(one, other) for one, other in pairs if one is not None]
