"""Does any model file crash the converter, hang it, or make it fail in a way it did not mean to?

    python -m tests.fuzz.converting --format onnx --cases 100000 --workers 2 --seed 1 --keep findings/

Case i of a seed is the same file everywhere where the same packages are installed. Each runs in a process of its own.
A file is converted (with or without quantisation, into a bundle or standard ONNX), and the bundle is run on made-up
inputs; or it is refused by one short error. Anything else is a finding: another exception, a signal, too much time or
memory, an error that calls itself a bug, one too long to read or with characters that a terminal obeys, a file left
behind. The result is printed as JSON. Exit status: 0 nothing found, 1 something found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converter import convert
from lite_runtime import MsedgeError
from tests.fuzz.bundles import try_file
from tests.fuzz.converting import gguf_seeds, seeds
from tests.fuzz.converting.serving import Limits, Served, serve
from tests.fuzz.converting.shrinking import shrunk
from tests.fuzz.converting.trying import CLEAN, Case, Seeds

__all__ = ["Summary", "fuzz", "main"]


@dataclass
class Summary:
    """The results of a run. `places`: how often what failed where; `first`: the first case of each."""

    counts: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")
    seconds: float = 0.0

    def add(self, served: Served) -> bool:
        """Count a case; whether it is the first of its kind that no file may cause."""
        kind, place, _ = served.outcome
        self.counts[kind] += 1
        self.slowest = max(self.slowest, (round(served.seconds, 3), served.case.key))
        self.largest = max(self.largest, (served.memory >> 20, served.case.key))
        if kind in CLEAN:
            return False
        self.places[f"{kind}: {place}"] += 1
        return self.first.setdefault(f"{kind}: {place}", served.case.key) == served.case.key

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        cases = self.counts.total()
        converted = self.counts["ran"] + self.counts["converted"]
        return {
            "cases": cases, "converted": converted, "ran": self.counts["ran"], "refused": self.counts["refused"],
            "failed": cases - converted - self.counts["refused"],
            "failures": [{"what": w, "times": n, "first": self.first[w]} for w, n in self.places.most_common()],
            "seconds": round(self.seconds, 1), "slowest_seconds": self.slowest, "most_memory_mib": self.largest,
        }  # fmt: skip


def fuzz(
    files: Seeds,
    cases: range,
    seed: int,
    *,
    workers: int = 2,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
    report: Callable[[Summary, Served, bool], None] = lambda summary, served, new: None,
) -> Summary:
    """Run the cases of these numbers."""
    started, summary = time.monotonic(), Summary()
    for data in files.files[:WARMING]:
        with contextlib.suppress(MsedgeError):
            made = convert(data)
            try_file(made.bundle, "native")
            if made.report.language:
                gguf_seeds.ran(made.bundle)
    for served in serve((Case.numbered(files, seed, number) for number in cases), workers, limits):
        report(summary, served, summary.add(served))
    summary.seconds = time.monotonic() - started
    return summary


WARMING = 60
"""Seeds that the parent itself converts and runs first, which loads all that children then share."""
PROGRESS = 1000


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.converting", description=__doc__.splitlines()[0])
    parser.add_argument("--format", choices=seeds.FORMATS, default="onnx")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--few", action="store_true", help="only the seeds that are built in a moment")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="folders of more seeds")
    parser.add_argument("--keep", type=Path, help="folder for the first file of each kind of failure, made small")
    a = parser.parse_args(arguments)
    files = Seeds(a.format, seeds.few(a.format) if a.few else seeds.many(a.format, a.models))
    print(f"{len(files.files)} seeds", file=sys.stderr, flush=True)
    limits, found = Limits(), list[Served]()

    def report(summary: Summary, served: Served, new: bool) -> None:
        if new:
            found.append(served)
            print(f"case {served.case.key}: {served.outcome.kind}: {served.outcome.place}", file=sys.stderr, flush=True)
        if summary.counts.total() % PROGRESS == 0:
            print(f"{summary.counts.total()} cases: {dict(summary.counts)}", file=sys.stderr, flush=True)

    summary = fuzz(files, range(a.first, a.first + a.cases), a.seed, workers=a.workers, limits=limits, report=report)
    if a.keep:
        a.keep.mkdir(parents=True, exist_ok=True)
        for served in found:
            stem = a.keep / f"{a.format}-{served.case.key.replace(':', '-')}"
            stem.with_suffix(f".{a.format}").write_bytes(shrunk(served.case, served.outcome, limits))
            stem.with_suffix(".txt").write_text(f"{served.case.asked()}\n{served.outcome.text}")
    print(json.dumps(summary.as_dict(), indent=1))
    return 1 if summary.places else 0


if __name__ == "__main__":
    sys.exit(main())
