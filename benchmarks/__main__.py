"""`python -m benchmarks --models DIR`: every model against every peer, 1 and 2 threads.

Prints the page; with --docs writes it with its chart and its figures (performance.md, .svg, .json), and puts the
summary between the marks in the README beside that folder. --again makes page and chart from saved figures. With
--resume every row is saved as it is measured, and a stopped run continues where it ended.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.chart import chart
from benchmarks.comparison import Row, compare, models_in, read_rows, trouble
from benchmarks.journal import Journal
from benchmarks.machine import code, facts, versions
from benchmarks.marks import replace_between, require_marks
from benchmarks.page import Run, excerpt, page, read_product, read_run, summary
from benchmarks.products import PRODUCTS, Measured, Product, measured
from edge.cli.output import plain
from edge.measuring.roofline import roofline
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError


def main() -> int:
    """Exit codes as msedge's: 0, 1 if a model did not run or gave wrong results, 3 if none could run."""
    parser = argparse.ArgumentParser(
        prog="benchmarks", description="Measures every model of the folders against every peer."
    )
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR", help="repeatable")
    parser.add_argument("--threads", default="1,2", metavar="N,…", help="numbers of threads (1,2)")
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="turns per contender")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose names contain it")
    parser.add_argument("--no-products", action="store_true", help="leave out the matrix products")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="where to write performance.md, .svg and .json")
    parser.add_argument(
        "--readme", type=Path, metavar="FILE", help="file with the begin and end marks (README.md beside --docs)"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="save rows in this file; reuse rows already in it")
    parser.add_argument("--minutes", type=float, metavar="N", help="start no new row after this many minutes")
    parser.add_argument("--again", type=Path, metavar="FILE.json", help="use these saved figures instead of measuring")
    args = parser.parse_args()
    readme = args.readme or (args.docs.resolve().parent / "README.md" if args.docs else None)
    try:
        if readme:
            require_marks(readme, "speed")
        run = read_run(json.loads(args.again.read_text(encoding="utf-8"))) if args.again else _measure(args)
        if args.docs:
            _write(args.docs, run)
        if readme:
            replace_between(readme, "speed", excerpt(run, args.docs.name if args.docs else "docs"))
        if args.resume:
            args.resume.unlink(missing_ok=True)
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
    machine, packages = facts(), versions()
    conditions = {"machine": machine, "versions": packages, "rounds": args.rounds, "code": code()}
    with Journal(args.resume, conditions, minutes=args.minutes) as journal:
        date = journal.get("date", measure=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())
        roofs = {count: text for count in counts if (text := journal.get("roof", count, measure=partial(_roof, count)))}
        rows: list[Row] = []
        for path in models:
            for count in counts:
                kept = journal.get(path.name, count, measure=partial(_row, path, count, args.rounds))
                row = read_rows([kept])[0]
                rows.append(row)
                best = f"{row.best.ratio:.2f} {row.best.name}" if row.best else row.error
                done = f"{len(rows)}/{len(models) * len(counts)}"
                print(f"{done} {row.model}, {row.threads} threads: {best}", file=sys.stderr, flush=True)
        products: list[Measured] = []
        for count in [] if args.no_products else counts:
            for one in PRODUCTS:
                kept = journal.get(one.name, count, measure=partial(_product, one, count, args.rounds))
                products.append(read_product(kept))
                print(f"{one.name}, {count} threads: {products[-1].share:.0%}", file=sys.stderr, flush=True)
    return Run(date, machine, roofs, packages, rows, products)


def _roof(count: int) -> str:
    found = roofline(count, afresh=True)
    return found.text if found else ""


def _row(path: Path, count: int, rounds: int) -> Any:
    return asdict(next(compare([path], threads=[count], rounds=rounds)))


def _product(product: Product, count: int, rounds: int) -> Any:
    return asdict(next(measured(count, rounds, [product])))


def _write(folder: Path, run: Run) -> None:
    figures = json.dumps(plain(run.as_dict()), indent=1, ensure_ascii=False, allow_nan=False)
    for ending, text in (("md", page(run)), ("svg", chart(run.rows)), ("json", figures + "\n")):
        write_atomically(folder / f"performance.{ending}", text.encode())


if __name__ == "__main__":
    sys.exit(main())
