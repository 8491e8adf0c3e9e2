"""`python -m benchmarks.zoo fetch|run|page --models DIR`: public models, msedge against the runtimes of their formats.

    fetch    download what DIR lacks, and check every digest
    run      compare every model of DIR, and write DOCS/models.json and DOCS/models.md
    page     write DOCS/models.md from DOCS/models.json, with the explanations of models.json

`run` saves each result as it is measured: with --resume a stopped run continues where it ended.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.journal import Journal
from benchmarks.machine import code, versions
from benchmarks.zoo.compare import Outcome, apart
from benchmarks.zoo.fetch import fetch, is_there
from benchmarks.zoo.listing import LIST, Entry, entries, file_of
from benchmarks.zoo.page import read, write
from lite_runtime.errors import MsedgeError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes as msedge's: 0, 1 if a model is missing or differs by more than rounding, 3 for a mistake."""
    parser = argparse.ArgumentParser(prog="benchmarks.zoo", description="Compares msedge with peers on public models.")
    parser.add_argument("command", choices=("fetch", "run", "page"))
    parser.add_argument("--models", type=Path, default=Path("build/zoo"), metavar="DIR", help="the models' files")
    parser.add_argument("--list", type=Path, default=LIST, metavar="FILE", help="the list of models")
    parser.add_argument("--names", type=Path, metavar="DIR", help="fetch: links to the files by their models' names")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="where models.md and models.json are written")
    parser.add_argument("--only", default="", metavar="TEXT", help="only models whose names contain it")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="save results in this file; reuse those in it")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="models at a time")
    parser.add_argument("--seconds", type=float, default=300, metavar="N", help="limit for one model")
    parser.add_argument("--gigabytes", type=float, default=6, metavar="N", help="limit of memory for one model")
    args = parser.parse_args(arguments)
    try:
        models = [entry for entry in entries(args.list) if args.only in entry.name]
        if args.command == "fetch":
            return _fetch(models, args.models, args.names)
        results = read(args.docs) if args.command == "page" else _run(models, args)
        if args.docs:
            write(args.docs, models, results)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 1 if any(results[entry.name].result not in ("equal", "rounding") for entry in models) else 0


def _fetch(models: Sequence[Entry], folder: Path, names: Path | None) -> int:
    failed = set()
    for entry, why in fetch(models, folder):
        failed.add(entry.name)
        print(f"missing: {entry.name}: {why}", file=sys.stderr)
    print(f"{len(models) - len(failed)} of {len(models)} models are in {folder}")
    if names is not None:
        there = [entry for entry in models if entry.name not in failed]
        print("\n".join(str(_named(entry, folder, names)) for entry in there))
    return 1 if failed else 0


def _named(entry: Entry, folder: Path, names: Path) -> Path:
    """A link to a model's file, which has its digest as name."""
    names.mkdir(parents=True, exist_ok=True)
    file = file_of(entry, folder).resolve()
    link = names / f"{entry.name.replace(' ', '-')}{file.suffix}"
    link.unlink(missing_ok=True)
    link.symlink_to(file)
    return link


def _run(models: Sequence[Entry], args: argparse.Namespace) -> dict[str, Outcome]:
    lacking = [entry.name for entry in models if not is_there(entry, args.models)]
    if lacking:
        raise MsedgeError(f"{args.models} lacks {len(lacking)} models, {lacking[0]} first; fetch them")
    conditions = {"versions": versions(), "code": code()}
    with Journal(args.resume, conditions) as journal, ThreadPoolExecutor(args.jobs) as pool:

        def measured(entry: Entry) -> Any:
            path, limits = file_of(entry, args.models), {"seconds": args.seconds, "gigabytes": args.gigabytes}
            key = json.dumps({**entry.as_dict(), "note": ""}, sort_keys=True)
            return journal.get(key, measure=lambda: asdict(apart(entry, path, **limits)))

        waiting = {entry.name: pool.submit(measured, entry) for entry in models}
        results = {}
        for number, (name, future) in enumerate(waiting.items(), 1):
            held = future.result()
            results[name] = Outcome(**{**held, "reference": tuple(held["reference"])})
            print(f"{number}/{len(models)} {name}: {held['result']} {held['where']}", file=sys.stderr, flush=True)
    return results


if __name__ == "__main__":
    sys.exit(main())
