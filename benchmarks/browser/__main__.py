"""msedge, ONNX Runtime Web and LiteRT.js in one browser: `python -m benchmarks.browser --models DIR`.

Each model and number of threads gets a new page of headless Chromium, in which all three are loaded and then run in
turns whose order rotates. Needs Chromium, and npm, which fetches the other two once, into the user's cache.
Prints a table; --json writes the figures, --docs the page docs/browser.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.browser.chromium import Chromium
from benchmarks.browser.packages import PACKAGES, installed
from benchmarks.browser.results import NAMES, Row, page, row_of, summary, table
from benchmarks.browser.site import Site, serving
from benchmarks.browser.subjects import Subject, prepared
from benchmarks.comparison import models_in
from benchmarks.machine import cpu
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["main"]

HERE = Path(__file__).parent
_NO_INT8 = b'{\n    dtype: "uint8",'
_INT8 = b'{\n    dtype: "int8",\n    typedArrayConstructor: Int8Array,\n    elementType: ElementType.INT8\n  },\n  '
REWRITES = {"/@litertjs/core/dist/index.js": lambda text: text.replace(_NO_INT8, _INT8 + _NO_INT8)}
"""LiteRT.js offers arrays of float32, int32 and uint8: its table gets a row for int8, which its module knows."""


def main() -> int:
    """Read the command line, measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.browser", description=__doc__)
    parser.add_argument("--models", nargs="+", type=Path, required=True, metavar="DIR", help="folders of models")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="only models whose names contain this")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], metavar="N")
    parser.add_argument("--rounds", type=int, default=21, metavar="N", help="turns of each contender")
    parser.add_argument("--chromium", default="", metavar="PATH", help="the browser (by default the one in PATH)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="write browser.md there")
    args = parser.parse_args()
    for folder in (args.docs, args.json and args.json.parent):
        if folder and not folder.is_dir():
            parser.error(f"{folder}: expected a folder to write to; create it first")
    try:
        with Chromium(args.chromium) as browser:
            version, rows = browser.version, list(_measured(args, browser))
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{table(rows)}\n\n{summary(rows)}")
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": f"{cpu()}, {os.cpu_count()} processors",
        "load, ours included": f"{os.getloadavg()[1]:.1f} (average of the last five minutes)",
        "Chromium": version,
    }
    if args.json:
        found = {"facts": {**facts, **PACKAGES}, "rows": [row._asdict() for row in rows]}
        write_atomically(args.json, (json.dumps(found, indent=1) + "\n").encode())
    if args.docs:
        write_atomically(args.docs / "browser.md", page(rows, {**facts, **PACKAGES}).encode())
    return 0


def _pairs(folders: Sequence[Path], only: Sequence[str]) -> list[tuple[Path, Path | None]]:
    """Each network once: the .tflite where it is published in both formats, and its twin."""
    found = dict[str, dict[str, Path]]()
    for path in models_in(folders):
        found.setdefault(path.stem.removesuffix("_fp32"), {})[path.suffix] = path
    pairs = [(files.get(".tflite") or files[".onnx"], files.get(".onnx")) for files in found.values()]
    chosen = [(path, twin if twin != path else None) for path, twin in pairs]
    return [pair for pair in chosen if not only or any(part in pair[0].name for part in only)]


def _measured(args: argparse.Namespace, browser: Chromium) -> Iterator[Row]:
    folders = {"npm": installed(), "page": HERE}
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving({**folders, "models": Path(scratch)}, REWRITES) as site,
    ):
        for path, twin in _pairs(args.models, args.only):
            try:
                subject = prepared(path, twin, Path(scratch))
            except MsedgeError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                continue
            firsts = {name: _first(subject, name, site, browser) for name in subject.forms}
            for threads in args.threads:
                answer = _asked(browser, site, "contest", _job(subject, threads, subject.forms, args.rounds))
                row = row_of(subject, threads, answer, firsts, twin is not None)
                print(row.line(), file=sys.stderr, flush=True)
                yield row
            shutil.rmtree(Path(scratch) / subject.name)


def _asked(browser: Chromium, site: Site, name: str, job: Mapping[str, Any]) -> Any:
    """What a function of page.mjs gives in a new page; None, with its message on stderr, if it fails."""
    try:
        with browser.page(f"{site.origin}/page/page.html") as page:
            return page.call(name, job, seconds=300)
    except MsedgeError as error:
        print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
        return None


def _job(subject: Subject, threads: int, names: Sequence[str] | Mapping[str, str], rounds: int) -> dict[str, Any]:
    contenders = [{"name": name, "where": f"/models/{subject.forms[name]}"} for name in NAMES if name in names]
    inputs = f"/models/{subject.inputs}"
    return {"contenders": contenders, "inputs": inputs, "ports": subject.ports, "threads": threads, "rounds": rounds}


def _first(subject: Subject, name: str, site: Site, browser: Chromium) -> dict[str, Any]:
    """Seconds to the first result in pages with empty caches, the least of three, and bytes that the page fetched."""
    seconds = []
    for _ in range(3):
        site.fetched()
        answer = _asked(browser, site, "first", _job(subject, 1, [name], 0))
        if not isinstance(answer, float | int):
            return {}
        seconds.append(float(answer))
    weight = {k: v for k, v in site.fetched().items() if not k.startswith("/page/") and not k.endswith("inputs.bin")}
    return {"seconds": min(seconds), "bytes": sum(weight.values())}


if __name__ == "__main__":
    sys.exit(main())
