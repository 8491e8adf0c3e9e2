"""Two checkouts in alternating turns: `python -m benchmarks.paired --before OLD --after . --models DIR`.

Each version runs in its own process with its own kernel cache, and they take turns (before after, after before, …), so
that disturbances of the machine affect both. Every start of the two processes gives some rounds; rows whose interval is
still wider than the tolerance get further starts. Models are converted by the old checkout unless --convert says
otherwise; bundles (.mslite) run unchanged. Repeating starts until a row is decided makes a wrong verdict slightly more
likely than the interval says.

Prints, per model, both times, the ratio of the time after to the time before with its 95 % interval, and a verdict.
Exit codes: 0, 1 when a row is slower, differs or did not run, 2 when rows are undecided, 3 when nothing could run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from benchmarks.comparison import models_in
from benchmarks.journal import Journal
from benchmarks.machine import code, facts, versions
from benchmarks.paired.verdicts import Compared, Verdict, compared, verdict
from lite_runtime.errors import InputError, MsedgeError

__all__ = ["Row", "Setting", "Side", "WorkerError", "main", "measured", "table"]

WORKER = Path(__file__).with_name("worker.py")
CONVERTERS = ("before", "after", "each")


class Side(NamedTuple):
    """A version: its checkout, the interpreter that runs it, the folder of its compiled kernels."""

    checkout: Path
    python: str
    cache: Path


class Setting(NamedTuple):
    """How a row is measured. `rounds`: per start; `turn` and `wake`: seconds that are measured, and of warm-up before
    them; `core`: the core on which both processes run, None for any."""

    threads: int
    call: Literal["run", "bind"]
    rounds: int
    turn: float
    wake: float
    core: int | None


class WorkerError(MsedgeError):
    """A command to a version failed; the message is the version's own."""


class _Process:
    """A worker of one side."""

    def __init__(self, side: Side, core: int | None = None) -> None:
        pinned = ["taskset", "-c", str(core)] if core is not None else []
        environment = {**os.environ, "PYTHONPATH": str(side.checkout), "MSEDGE_CACHE": str(side.cache)}
        self._process = subprocess.Popen(
            [*pinned, side.python, "-P", str(WORKER), str(side.checkout)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, cwd=side.checkout,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, **command: Any) -> Mapping[str, Any]:
        """The answer to a command. Raises WorkerError if the command failed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "the worker ended; its messages are above"}
        if "error" in answer:
            raise WorkerError(answer["error"])
        return dict(answer)


class _Started(NamedTuple):
    """One start: (before, after) seconds of its rounds, and the difference of the two versions' outputs."""

    rounds: list[tuple[float, float]]
    difference: float


def _start(sides: tuple[Side, Side], bundles: tuple[Path, Path], setting: Setting) -> _Started:
    """Start two new processes, and let them run the rounds in turn."""
    with tempfile.TemporaryDirectory() as folder:
        with _Process(sides[0], setting.core) as before, _Process(sides[1], setting.core) as after:
            both, files = (before, after), (Path(folder) / "before.npz", Path(folder) / "after.npz")
            for process, bundle, file in zip(both, bundles, files, strict=True):
                process.ask(load=str(bundle), threads=setting.threads, call=setting.call, outputs=str(file))
            rounds = []
            for i in range(-1, setting.rounds):  # the first round is warm-up
                seconds = [0.0, 0.0]
                for k in (0, 1) if i % 2 else (1, 0):
                    seconds[k] = both[k].ask(turn=setting.turn, wake=setting.wake)["seconds"]
                if i >= 0:
                    rounds.append((seconds[0], seconds[1]))
        return _Started(rounds, _difference(*files))


def _difference(before: Path, after: Path) -> float:
    """The largest difference of outputs, relative to their range; infinite where they cannot be compared."""
    with np.load(before) as old, np.load(after) as new:
        if set(old.files) != set(new.files) or any(old[name].shape != new[name].shape for name in old.files):
            return float("inf")
        return max((_apart(old[name], new[name]) for name in old.files), default=0.0)


def _apart(old: Any, new: Any) -> float:
    if np.array_equal(old, new, equal_nan=old.dtype.kind == "f" and new.dtype.kind == "f") or not old.size:
        return 0.0
    if old.dtype.kind not in "fiub" or new.dtype.kind not in "fiub":
        return float("inf")
    one, other = old.astype(np.float64), new.astype(np.float64)
    span = float(np.ptp(one)) or 1.0
    far = float(np.abs(one - other).max()) / span
    return far if far == far else float("inf")


@dataclass(frozen=True, slots=True)
class Row:
    """A model with one number of threads. `error`: why it did not run; the other fields are then empty."""

    model: str
    threads: int
    found: Compared | None
    verdict: Verdict | Literal["did not run"]
    difference: float = 0.0
    starts: int = 0
    error: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is slower, has different outputs or did not run."""
        return self.verdict in ("slower", "did not run") or self.difference > 0


def measured(
    name: str, start: Callable[[int], _Started], setting: Setting, *, fewest: int, most: int, tolerance: float
) -> Row:
    """A row: processes are started until the interval decides, at least `fewest` and at most `most` times."""
    starts: list[_Started] = []
    found: Compared | None = None
    decided: Verdict = "undecided"
    while len(starts) < fewest or (decided == "undecided" and len(starts) < most):
        starts.append(start(len(starts)))
        found = compared([one.rounds for one in starts])
        decided = verdict(found, tolerance)
    return Row(name, setting.threads, found, decided, max(one.difference for one in starts), len(starts))


def table(rows: Sequence[Row], tolerance: float) -> str:
    """Markdown: the rows, the slowest ratio first, and a summary in words."""
    lines = [
        "| model | threads | before µs | after µs | after / before | 95 % interval | starts × rounds | outputs |"
        " verdict |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -row.found.ratio if row.found else 0.0):
        if row.found is None:
            lines.append(f"| {row.model} | {row.threads} | | | | | | | did not run: {row.error.replace('|', '/')} |")
            continue
        f, same = row.found, "same" if row.difference == 0 else f"differ by {row.difference:.0e}"
        lines.append(
            f"| {row.model} | {row.threads} | {f.before * 1e6:.2f} | {f.after * 1e6:.2f} | {f.ratio:.4f} |"
            f" {f.low:.4f}–{f.high:.4f} | {row.starts} × {f.rounds // row.starts} | {same} |"
            f" {_WORDS[row.verdict].format(tolerance)} |"
        )
    ran = [row for row in rows if row.found]
    counts = ", ".join(f"{sum(r.verdict == v for r in rows)} {w.format(tolerance)}" for v, w in _WORDS.items())
    lines += ["", f"{len(rows)} rows: {counts}; {len(rows) - len(ran)} did not run."]
    if ran:
        worst = max(ran, key=lambda row: row.found.ratio if row.found else 0.0)
        mean = float(np.exp(np.mean([np.log(row.found.ratio) for row in ran if row.found])))
        assert worst.found is not None
        lines.append(
            f"Geometric mean of after / before: {mean:.4f}. Worst row: {worst.model}, {worst.threads} thread(s):"
            f" {worst.found.ratio:.4f} ({worst.found.low:.4f}–{worst.found.high:.4f})."
        )
    return "\n".join(lines)


_WORDS: Mapping[str, str] = {
    "within": "within {:.1%}", "slower": "slower by more than {:.1%}", "faster": "faster by more than {:.1%}",
    "undecided": "undecided at {:.1%}",
}  # fmt: skip


def _bundles(paths: Sequence[Path], sides: tuple[Side, Side], who: str, folder: Path) -> dict[str, Any]:
    """By model, the bundle for each side, or why there is none."""
    made: dict[str, Any] = {path.name: (path, path) for path in paths if path.suffix == ".mslite"}
    sources = [path for path in paths if path.suffix != ".mslite"]
    wanted = {"before": (0,), "after": (1,), "each": (0, 1)}[who]
    for k in wanted if sources else ():
        into = folder / CONVERTERS[k]
        into.mkdir(parents=True, exist_ok=True)
        with _Process(sides[k]) as process:
            for path in sources:
                bundle = into / f"{path.name}.mslite"
                try:
                    process.ask(convert=str(path.resolve()), to=str(bundle))
                except WorkerError as error:
                    made[path.name] = f"not converted by the version {CONVERTERS[k]}: {error}"
                    continue
                one, other = made.get(path.name, (bundle, bundle))
                made[path.name] = (one, bundle) if k else (bundle, other)
    return made


def _paths(folders: Sequence[Path], only: str) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        bundles = sorted(folder.glob("*.mslite"))
        found += bundles or models_in([folder])
    chosen = [path for path in found if only in path.name]
    if not chosen:
        raise InputError(f"expected models whose names contain {only!r}, found none of {len(found)}; change --only")
    return chosen


def _checkout(path: Path) -> Path:
    if not (path / "lite_runtime" / "__init__.py").exists():
        raise InputError(f"expected a checkout with lite_runtime in it, got {path}; `git worktree add` makes one")
    return path.resolve()


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paired", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, metavar="DIR", help="checkout of the old version")
    parser.add_argument("--after", type=Path, default=Path("."), metavar="DIR", help="checkout of the new one (.)")
    parser.add_argument("--models", type=Path, action="append", required=True, metavar="DIR", help="repeatable")
    parser.add_argument("--only", default="", metavar="TEXT", help="models whose names contain it")
    parser.add_argument("--threads", default="1,2", metavar="N,…")
    parser.add_argument("--call", choices=("run", "bind"), default="run", help="how the model is called (run)")
    parser.add_argument(
        "--convert", choices=CONVERTERS, default="before", help="the version whose converter makes the bundles"
    )
    parser.add_argument("--tolerance", type=float, default=0.01, help="allowed relative difference of the times (0.01)")
    parser.add_argument("--starts", type=int, default=3, metavar="N", help="fewest starts of both processes (3)")
    parser.add_argument("--most-starts", type=int, default=10, metavar="N", help="most starts, for undecided rows (10)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="rounds per start (20)")
    parser.add_argument("--turn", type=float, default=0.02, metavar="SECONDS", help="measured time per turn (0.02)")
    parser.add_argument("--wake", type=float, default=0.01, metavar="SECONDS", help="warm-up before each turn (0.01)")
    parser.add_argument("--core", type=int, help="run both processes on this core; for one thread")
    parser.add_argument("--python-before", default=sys.executable, metavar="PATH", help="the old version's interpreter")
    parser.add_argument(
        "--work", type=Path, default=Path("build/paired"), metavar="DIR", help="folder for kernels and bundles"
    )
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="save starts in this file; reuse starts already in it"
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="start nothing new after this many minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = _arguments(argv)
    try:
        rows = _rows(args)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(table(rows, args.tolerance))
    if args.json:
        kept = [{**_plain(row), "bad": row.bad} for row in rows]
        args.json.write_text(json.dumps({"machine": facts(), "versions": versions(), "rows": kept}, indent=1))
    return 1 if any(row.bad for row in rows) else 2 if any(row.verdict == "undecided" for row in rows) else 0


def _plain(row: Row) -> dict[str, Any]:
    f = row.found
    times = {} if f is None else {"before": f.before, "after": f.after, "ratio": f.ratio, "low": f.low, "high": f.high}
    difference = row.difference if np.isfinite(row.difference) else "not comparable"
    told = {"model": row.model, "threads": row.threads, "verdict": row.verdict, "starts": row.starts}
    return {**told, **times, "difference": difference, "error": row.error}


def _rows(args: argparse.Namespace) -> list[Row]:
    if args.core is not None and shutil.which("taskset") is None:
        raise InputError("--core needs taskset, which is not installed; install util-linux or omit --core")
    before, after = _checkout(args.before), _checkout(args.after)
    digests = tuple(code(checkout, ("lite_runtime", "converter")) for checkout in (before, after))
    work = args.work.resolve()
    sides = (
        Side(before, args.python_before, work / f"kernels-{digests[0]}"),
        Side(after, sys.executable, work / f"kernels-{digests[1]}"),
    )
    paths = _paths(args.models, args.only)
    settings = [
        Setting(int(count), args.call, args.rounds, args.turn, args.wake, args.core)
        for count in args.threads.split(",")
    ]
    conditions = {
        "before": digests[0], "after": digests[1], "machine": facts(), "versions": versions(), "convert": args.convert,
        "setting": [list(setting[1:]) for setting in settings[:1]], "python": args.python_before,
    }  # fmt: skip
    rows: list[Row] = []
    with Journal(args.resume, conditions, minutes=args.minutes) as journal:
        bundles = _bundles(paths, sides, args.convert, work / "bundles")
        for path in paths:
            for setting in settings:
                rows.append(_row(path.name, bundles[path.name], sides, setting, journal, args))
                row = rows[-1]
                said = row.error or (f"{row.found.ratio:.4f}, {row.verdict}" if row.found else "")
                done = f"{len(rows)}/{len(paths) * len(settings)}"
                print(f"{done} {row.model}, {row.threads} thread(s): {said}", file=sys.stderr, flush=True)
    return rows


def _row(
    name: str, bundles: Any, sides: tuple[Side, Side], setting: Setting, journal: Journal, args: argparse.Namespace
) -> Row:
    def start(number: int) -> _Started:
        kept = journal.get(name, setting.threads, number, measure=partial(_start, sides, bundles, setting))
        return _Started([(one, other) for one, other in kept[0]], kept[1])

    if isinstance(bundles, str):
        return Row(name, setting.threads, None, "did not run", error=bundles)
    try:
        return measured(
            name, start, setting, fewest=args.starts, most=max(args.starts, args.most_starts), tolerance=args.tolerance
        )
    except WorkerError as error:
        return Row(name, setting.threads, None, "did not run", error=str(error).splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
