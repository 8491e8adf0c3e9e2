"""`python -m benchmarks --models DIR`: every model against every peer, 1 and 2 threads.

Prints the page; with --docs writes it with its chart and its figures (performance.md, .svg, .json). --again makes page
and chart of figures that were kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chart import chart
from benchmarks.comparison import Row, compare, models_in, trouble
from benchmarks.page import Run, page, read_run, summary
from benchmarks.products import measured
from edge.cli.output import plain
from edge.extras import EXTRAS, installed_version
from edge.measuring.roofline import roofline
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError


def main() -> int:
    """Exit codes as msedge's: 0, 1 when a model did not run or not right, 3 when none could."""
    parser = argparse.ArgumentParser(prog="benchmarks", description="Every model in folders against every peer.")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR", help="repeatable")
    parser.add_argument("--threads", default="1,2", metavar="N,…", help="numbers of threads (1,2)")
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="turns each contender takes")
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose names hold it")
    parser.add_argument("--no-products", action="store_true", help="without the matrix products")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="where to write performance.md, .svg and .json")
    parser.add_argument("--again", type=Path, metavar="FILE.json", help="kept figures, instead of measuring")
    args = parser.parse_args()
    try:
        run = read_run(json.loads(args.again.read_text(encoding="utf-8"))) if args.again else _measure(args)
        if args.docs:
            _write(args.docs, run)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(summary(run) if args.docs else page(run))
    wrong = [text for row in run.rows if (text := trouble(row))]
    for text in wrong:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if wrong else 0


def _measure(args: argparse.Namespace) -> Run:
    counts = [int(count) for count in args.threads.split(",")]
    models = [path for path in models_in(args.models) if args.only in path.name]
    roofs = {count: found for count in counts if (found := roofline(count, afresh=True))}
    rows: list[Row] = []
    for row in compare(models, threads=counts, rounds=args.rounds):
        rows.append(row)
        best = f"{row.best.ratio:.2f} {row.best.name}" if row.best else row.error
        done = f"{len(rows)}/{len(models) * len(counts)}"
        print(f"{done} {row.model}, {row.threads} threads: {best}", file=sys.stderr, flush=True)
    products = [] if args.no_products else [one for count in counts for one in measured(count, args.rounds)]
    machine = next((found.machine for found in roofs.values()), "a machine without kernels")
    return Run(
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        machine,
        {count: found.text for count, found in roofs.items()},
        _versions(("numpy", *EXTRAS["oracle"].packages.values())),
        rows,
        products,
    )


def _versions(names: Sequence[str]) -> dict[str, str]:
    return {name: version for name in names if (version := installed_version(name))}


def _write(folder: Path, run: Run) -> None:
    figures = json.dumps(plain(run.as_dict()), indent=1, ensure_ascii=False, allow_nan=False)
    for ending, text in (("md", page(run)), ("svg", chart(run.rows)), ("json", figures + "\n")):
        write_atomically(folder / f"performance.{ending}", text.encode())


if __name__ == "__main__":
    sys.exit(main())
