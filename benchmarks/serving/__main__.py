"""`python -m benchmarks.serving --peers FOLDER --docs docs`: requests per second and latency of servers.

Each server is first tried with each of its settings, for every form of requests, and the fastest setting is compared.
Then our server and the other run at the same time and get load in alternating turns. The environments are created by
`python -m benchmarks.serving.environments FOLDER`. With --resume every measurement is saved, and a stopped run
continues.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.journal import Journal
from benchmarks.machine import code, facts, versions
from benchmarks.serving.contenders import CONTENDERS, Contender, Place
from benchmarks.serving.environments import python_of, versions_of
from benchmarks.serving.load import Load, Request, drive
from benchmarks.serving.page import figures, require_page, write
from benchmarks.serving.subjects import SUBJECTS
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array

__all__ = ["AGREE", "WARM", "Model", "Paired", "best_variants", "free_port", "main", "model_of", "running"]

STARTING = 90.0
"""Seconds a server may take until its first answer."""
AGREE = 2e-3
"""Allowed difference of answers from ONNX Runtime's, relative to its largest number."""
FAILING = 0.01
"""The fraction of requests that may fail with a setting that is compared."""
WARM = 1
"""Seconds of warm-up load, which are not counted."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", type=Path, nargs="*", help="ONNX models with one float32 input (default: two generated ones)"
    )
    parser.add_argument("--peers", type=Path, help="folder with the environments mlserver, litserve, bentoml, rayserve")
    parser.add_argument("--only", default="", help="names of servers, separated by commas")
    parser.add_argument("--forms", default="binary,json")
    parser.add_argument(
        "--connections", default="", help="numbers of connections, separated by commas, instead of each model's own"
    )
    parser.add_argument("--seconds", type=int, default=5, help="seconds of each measurement")
    parser.add_argument("--trial", type=int, default=3, help="seconds to try each setting")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of each server's runtime")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--docs", type=Path, metavar="DIR", help="folder of serving.md, .svg and .json")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="save measurements in this file; reuse those already in it"
    )
    parser.add_argument("--minutes", type=float, metavar="N", help="start no measurement after this many minutes")
    return parser.parse_args(argv)


def free_port() -> int:
    """A port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _post(port: int, request: Request) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", request.path, request.body, dict(request.fields))
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


@contextlib.contextmanager
def running(
    contender: Contender, place: Place, x: Array, variant: str = "", tell: Path | None = None
) -> Iterator[None]:
    """Run the server; the block starts after its first answer, and all its processes are ended after the block.
    `variant`: name of its settings, the first by default; `tell`: file to which it writes how many rows its calls
    had."""
    command, environment = contender.start(place)
    settings = contender.variants[variant or next(iter(contender.variants))](place)
    told = {"TELL": str(tell)} if tell else {}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment, **settings, **told}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            end = time.monotonic() + STARTING
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if _post(place.port, contender.ask["json"](place, x))[0] == 200:
                        break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = " / ".join(log.read()[-600:].decode(errors="replace").split("\n"))
                    raise MsedgeError(f"{contender.name} did not start within {STARTING:g} s: … {said}")
                time.sleep(0.2)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Model(NamedTuple):
    """A model to serve: its files and input, one row, and ONNX Runtime's answer to it."""

    name: str
    onnx: Path
    bundle: Path
    input: str
    x: Array
    expected: Array
    connections: Sequence[int]

    def place(self, python: str, threads: int) -> Place:
        """Place the model's server at a free port."""
        return Place(self.onnx, self.bundle, self.input, free_port(), threads, python)


def model_of(name: str, path: Path, folder: Path, connections: Sequence[int]) -> Model:
    """A network to serve, converted into the folder. Raises InputError if its batch dimension is fixed."""
    import onnxruntime

    import msedge

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    if isinstance(given.shape[0], int):
        raise InputError(
            f"{path}: expected an open batch dimension, got {given.shape}; with a fixed one no server can batch"
        )
    x = np.random.default_rng(0).random([d if isinstance(d, int) else 1 for d in given.shape], np.float32)
    bundle = folder / f"{path.stem}.mslite"
    msedge.convert(path, output=bundle)
    expected = session.run(None, {given.name: x})[0].ravel()
    return Model(name, path.resolve(), bundle, given.name, x, expected, connections)


def _check(contender: Contender, place: Place, model: Model, form: str) -> None:
    status, body = _post(place.port, contender.ask[form](place, model.x))
    found, expected = contender.read(body, form) if status == 200 else None, model.expected
    if found is None or found.size != expected.size or np.abs(found - expected).max() > AGREE * np.abs(expected).max():
        raise MsedgeError(f"{contender.name}, {form}: a wrong answer ({status}): {body[:300]!r}")


def _tried(contender: Contender, python: str, model: Model, variant: str, args: argparse.Namespace) -> dict[str, Any]:
    """Requests per second by form with one setting, and how many rows its calls had; or why it did not work."""
    place, most = model.place(python, args.threads), max(model.connections)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        tell = Path(folder) / "rows"
        try:
            with running(contender, place, model.x, variant, tell):
                for form in args.forms.split(","):
                    _check(contender, place, model, form)
                    request = contender.ask[form](place, model.x)
                    drive(place.port, request, most, 2 * WARM)  # adaptive batching learns from it
                    before = _rows_told(tell)
                    load = drive(place.port, request, most, args.trial)
                    time.sleep(0.6)
                    _post(place.port, request)  # the server writes its numbers of rows while it runs
                    calls = _rows_told(tell) - before
                    found[form] = {
                        "rate": load.rate, "failures": load.failures, "connections": most, "seconds": args.trial,
                        "rows a call": sum(n * c for n, c in calls.items()) / max(1, sum(calls.values())),
                        "most rows": max(calls, default=0),
                    }  # fmt: skip
        except MsedgeError as error:
            found["error"] = str(error)[:700]
    return found


def _rows_told(tell: Path) -> Counter[int]:
    """The number of calls by number of rows, over all the server's processes."""
    told: Counter[int] = Counter()
    for path in tell.parent.glob(f"{tell.name}.*"):
        if path.suffix != ".new":
            told.update({int(rows): count for rows, count in json.loads(path.read_text()).items()})
    return told


def best_variants(trials: Mapping[str, Mapping[str, Any]], forms: Sequence[str]) -> dict[str, str]:
    """By form, the setting with the most answered requests per second; settings that fail more often than FAILING are
    only used if all do."""
    best: dict[str, str] = {}
    for form in forms:
        ran = {variant: tried[form] for variant, tried in trials.items() if form in tried}
        if ran:
            best[form] = max(ran, key=lambda variant: (_works(ran[variant]), ran[variant]["rate"]))
    return best


def _works(tried: Mapping[str, Any]) -> bool:
    return bool(tried["failures"] <= FAILING * tried["rate"] * tried["seconds"])


class Paired(NamedTuple):
    """A measurement of ours and right after it one of the other server, both running all the time."""

    ours: Load
    theirs: Load


def _measured(
    contender: Contender, python: str, model: Model, form: str, variant: str, args: argparse.Namespace
) -> list[Any]:
    """For each number of connections, ours and theirs."""
    ours = CONTENDERS[0]
    here, there = model.place(sys.executable, args.threads), model.place(python, args.threads)
    pair = [(ours, here), (contender, there)]
    with running(ours, here, model.x), running(contender, there, model.x, variant):
        for one, place in pair:
            _check(one, place, model, form)
            drive(place.port, one.ask[form](place, model.x), 8, WARM)
        return [
            [drive(place.port, one.ask[form](place, model.x), count, args.seconds) for one, place in pair]
            for count in model.connections
        ]


def _rows(measured: Mapping[tuple[str, str, int], Sequence[Paired]]) -> list[dict[str, Any]]:
    """Medians by server, form and connections. `ratio`: our requests per second divided by theirs, pair by pair;
    `tail`: the same for the 99th percentile. Our medians are over all pairs except Ray's, whose idle processes use much
    of a core."""
    rows = []
    for form, connections in dict.fromkeys((form, count) for _, form, count in measured):
        mine = {name: pairs for (name, f, c), pairs in measured.items() if (f, c) == (form, connections)}
        calm = {name: pairs for name, pairs in mine.items() if name != "Ray Serve"} or mine
        rows.append(_row("msedge", form, connections, [pair.ours for pairs in calm.values() for pair in pairs]))
        for name, pairs in mine.items():
            ratio = median(pair.ours.rate / pair.theirs.rate for pair in pairs)
            tail = median(pair.ours.p99 / pair.theirs.p99 for pair in pairs)
            row = _row(name, form, connections, [pair.theirs for pair in pairs])
            rows.append({**row, "ratio": ratio, "tail": tail})
    return sorted(rows, key=lambda row: [c.name for c in CONTENDERS].index(row["server"]))


def _row(name: str, form: str, connections: int, loads: Sequence[Load]) -> dict[str, Any]:
    return {
        "server": name, "form": form, "connections": connections,
        "rate": median(load.rate for load in loads), "p50": median(load.p50 for load in loads),
        "p99": median(load.p99 for load in loads), "failures": sum(load.failures for load in loads),
    }  # fmt: skip


def _ceiling(model: Model, threads: int) -> float:
    """Rows per second in this process, the median of ten half seconds."""
    import lite_runtime

    call = lite_runtime.load(model.bundle, threads=threads).bind({model.input: model.x.shape})
    call.inputs[model.input][...] = model.x
    rates = []
    for _ in range(10):
        count, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + 0.5:
            call()
            count += 1
        rates.append(count / (time.perf_counter() - begun))
    return median(rates)


def _run(model: Model, found: Sequence[tuple[Contender, str]], journal: Journal, args: argparse.Namespace) -> Any:
    """All measurements of one model."""
    forms, trials, best = args.forms.split(","), {}, {}
    for contender, python in found:
        tried = {}
        for variant in contender.variants:
            measure = partial(_tried, contender, python, model, variant, args)
            tried[variant] = journal.get(model.name, "trial", contender.name, variant, measure=measure)
            print(f"{model.name}: tried {contender.name} {variant}: {tried[variant]}", file=sys.stderr, flush=True)
        trials[contender.name], best[contender.name] = tried, best_variants(tried, forms)
    measured: dict[tuple[str, str, int], list[Paired]] = {}
    for number in range(args.rounds):
        for contender, python in found:
            for form, variant in best[contender.name].items():
                turns = partial(_measured, contender, python, model, form, variant, args)
                kept = journal.get(model.name, contender.name, form, number, measure=turns)
                for count, (ours, theirs) in zip(model.connections, kept, strict=True):
                    pair = Paired(Load(*ours), Load(*theirs))
                    measured.setdefault((contender.name, form, count), []).append(pair)
                done = f"{model.name}, round {number + 1} of {args.rounds}: {contender.name}, {form}"
                print(f"{done}: {kept}", file=sys.stderr, flush=True)
    ceiling = journal.get(model.name, "ceiling", measure=partial(_ceiling, model, args.threads))
    return {
        "model": model.name, "threads": args.threads, "ceiling": ceiling, "rows": _rows(measured), "trials": trials,
        "settings": best,
    }  # fmt: skip


def _ended(number: int, frame: object) -> None:
    """A signal that stops the benchmark also stops the servers that it started."""
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Exit code 3 if something could not run or the time limit was reached."""
    args = _arguments(argv)
    signal.signal(signal.SIGTERM, _ended)
    try:
        if args.docs:
            require_page(args.docs)
        told = _all(args)
        print(figures(told))
        if args.json:
            args.json.write_text(json.dumps(told, indent=1))
        if args.docs:
            write(args.docs, told)
        if args.resume:
            args.resume.unlink(missing_ok=True)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


def _all(args: argparse.Namespace) -> dict[str, Any]:
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    wanted = [contender for contender in CONTENDERS[1:] if not only or contender.name in only]
    pythons = [(contender, python_of(contender, args.peers)) for contender in wanted]
    found = [(contender, python) for contender, python in pythons if python is not None]
    absent = [contender.name for contender, python in pythons if python is None]
    if absent:
        print(f"no environment in --peers for {', '.join(absent)}", file=sys.stderr)
    machine = facts()
    packages = {
        "msedge": versions(["aiohttp", "orjson"]), **{one.name: versions_of(one, python) for one, python in found}
    }  # fmt: skip
    settings = {name: getattr(args, name) for name in ("forms", "connections", "seconds", "trial", "rounds", "threads")}
    conditions = {"machine": machine, "versions": packages, "code": code(), **settings}
    with tempfile.TemporaryDirectory() as folder, Journal(args.resume, conditions, minutes=args.minutes) as journal:
        date = journal.get("date", measure=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())
        counts = [int(count) for count in args.connections.split(",") if count]
        sources: dict[str, tuple[Path, Sequence[int]]] = {p.stem: (p, counts or (1, 16, 64)) for p in args.models}
        if not sources:
            for name, subject in SUBJECTS.items():
                path = Path(folder) / f"{name}.onnx"
                subject.write(path)
                sources[name] = (path, counts or subject.connections)
        models = [model_of(name, path, Path(folder), chosen) for name, (path, chosen) in sources.items()]
        runs = [_run(model, found, journal, args) for model in models]
    if not all(run["rows"] for run in runs):
        raise MsedgeError(f"expected at least one server to compare with, got none that worked: {runs}")
    return {
        "date": date, "machine": machine, "versions": packages, "absent": absent, "seconds": args.seconds,
        "rounds": args.rounds, "runs": runs,
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
