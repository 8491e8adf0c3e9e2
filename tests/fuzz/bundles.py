"""Does any file crash the runtime, hang it, or make it fail in a way it did not mean to?

    python -m tests.fuzz.bundles --cases 100000 --seed 1 --workers 2 --backend native --keep findings/

Case i of a seed is the same file on every machine. Workers are processes that run many cases each, under a memory
limit; when one dies or falls silent, the case it was at is recorded with its file and another worker goes on after it.
Exit status: 0 nothing found, 1 something found, 2 the fuzzer itself could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import lite_runtime
from lite_runtime import MsedgeError, bundle, reference
from lite_runtime.graph import Array, Graph, StateUse, Value, numpy_dtype
from lite_runtime.learning.state import face
from tests.fuzz.agreement import compare
from tests.fuzz.integer_seeds import integer_bundles
from tests.fuzz.mutate import mutate
from tests.fuzz.schedules import in_all_ways
from tests.fuzz.seeds import seed_bundles
from tests.fuzz.training_seeds import training_bundles

__all__ = ["Finding", "Options", "Summary", "case", "fuzz", "main", "try_file"]

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("auto", "native", "reference", "guard", "definitions", "compare", "walked", "read")
"""Those of `lite_runtime.load`; the operators' NumPy definitions one after the other, which know no memory limit; guard
and reference side by side, whose results must agree; native code in the ways of `schedules`; and reading alone."""
FAMILIES: dict[str, Callable[[], list[bytes]]] = {
    "general": seed_bundles,
    "integers": integer_bundles,
    "training": training_bundles,
    "all": lambda: [*seed_bundles(), *integer_bundles(), *training_bundles()],
}
"""Which seeds cases are made from."""
PROGRAM: tuple[str, ...] = ("-m", "tests.fuzz.bundles")
"""What Python runs as a worker."""
PATIENCE = 10.0
"""Seconds a case may take before it counts as hanging."""
STARTUP = 180.0
"""Seconds a worker may take to start, which may include compiling kernels."""
MEMORY = 4 << 30
RUN_LIMIT = 1 << 28
"""Bytes an inference may hold; well under MEMORY, so that refusing must come before failing."""
ITERATIONS = 1000
"""Loop bodies an inference may run: a file may ask for 2^63, and each takes up to a millisecond between guard pages."""
ROUNDS = 4
"""Times that every signature of a bundle with state is run: state changes, stands still, and is then a constant."""
INPUT_LIMIT = 16 << 20
"""Maximum bytes of inputs that the fuzzer generates; a model that declares more is only read."""


@dataclass(frozen=True)
class Options:
    """What to run. `threads`: those of the runtime; `seconds`: when to stop, however many cases are left."""

    cases: int = 2000
    seed: int = 0
    workers: int = 2
    backend: str = "auto"
    threads: int = 1
    seconds: float | None = None
    keep: Path | None = None
    family: str = "general"


@dataclass(frozen=True)
class Finding:
    """A case that did what no file may make the runtime do: `kind` is crash, hang or error."""

    case: int
    kind: str
    text: str


@dataclass
class Summary:
    """The results of a run of the fuzzer."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        """The one line that says it all."""
        c, kinds = self.counts, Counter(f.kind for f in self.findings)
        return (
            f"cases {c['cases']}, read ok {c['read']}, ran ok {c['ran']}, refused {c['refused']}, "
            f"crashes {kinds['crash']}, hangs {kinds['hang']}, unexpected errors {kinds['error']}, "
            f"{self.seconds:.1f} s"
        )


# --------------------------------------------------------------------------------------------------------- one case


def case(seed: int, number: int, seeds: list[bytes]) -> bytes:
    """The file of a case."""
    return mutate(Random(f"{seed}:{number}"), seeds)


def try_file(data: bytes, backend: str, threads: int = 1, seed: int = 0) -> list[str]:
    """Read a file and run what it holds on made-up inputs: which of "read", "ran", "refused" came true.

    Any exception that is not an MsedgeError passes through.
    """
    done: list[str] = []
    try:
        held = bundle.read(data)
        done.append("read")
        if backend == "read":
            return done
        run = _runner(data, held, backend, threads)
        ran = 0
        for signature, graph in (ROUNDS if held.uses else 1) * list(held.signatures.items()):
            inputs = make_inputs(face(graph, held.uses.get(signature, StateUse({}, {}))), Random(seed))
            if inputs is not None:
                run(signature, inputs)
                ran += 1
        done += ["ran"] * bool(ran)
    except MsedgeError:
        done.append("refused")
    return done


def _runner(data: bytes, held: bundle.Bundle, backend: str, threads: int) -> Callable[[str, dict[str, Any]], Any]:
    if backend == "definitions":
        return lambda signature, inputs: reference.run(held.signatures[signature], {**_read(held, signature), **inputs})
    if backend == "walked":
        return in_all_ways(data, limit=RUN_LIMIT, iterations=ITERATIONS)
    made = ("guard", "reference") if backend == "compare" else (backend,)
    first, *rest = (
        lite_runtime.load(data, threads=threads, backend=name, limit=RUN_LIMIT, iterations=ITERATIONS) for name in made
    )
    if not rest:
        return lambda signature, inputs: first.run(inputs, signature)

    def both(signature: str, inputs: dict[str, Any]) -> None:
        compare(held.signatures[signature], *(partial(_run, model, signature, inputs) for model in (first, *rest)))
        if first.state_version:
            first.load_state_dict(rest[0].state_dict())

    return both


def _run(model: lite_runtime.Model, signature: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a run gives, and the state it leaves."""
    results = model.run(inputs, signature)
    return results | {f"state {name}": array for name, array in model.state_dict().items()}


def _read(held: bundle.Bundle, signature: str) -> dict[str, Array]:
    """State that a signature reads, as the bundle holds it."""
    use = held.uses.get(signature, StateUse({}, {}))
    return {name: held.state[state] for name, state in use.reads.items()}


def make_inputs(graph: Graph, rng: Random) -> dict[str, Any] | None:
    """Inputs of the declared types; None where they would take more than INPUT_LIMIT, empty dimensions not counted."""
    sizes: dict[str, int] = {}
    shapes = {v.name: _sizes(v, sizes, rng) for v in graph.inputs}
    if sum(8 * np.prod([d or 1 for d in shape], dtype=np.float64) for shape in shapes.values()) > INPUT_LIMIT:
        return None
    return {v.name: _wrapped(v, shapes[v.name], rng) for v in graph.inputs}


def _sizes(value: Value, known: dict[str, int], rng: Random) -> tuple[int, ...]:
    if value.shape is None:
        return tuple(rng.randrange(4) for _ in range(rng.randrange(5)))
    return tuple(
        d if isinstance(d, int) else known.setdefault(d, rng.randrange(1, 5)) if d else rng.randrange(5)
        for d in value.shape
    )


def _wrapped(value: Value, shape: tuple[int, ...], rng: Random) -> Any:
    if value.kind == "sequence":
        return [_array(value.dtype, shape, rng) for _ in range(rng.randrange(4))]
    if value.kind == "optional" and rng.random() < 0.5:
        return None
    return _array(value.dtype, shape, rng)


def _array(dtype: str, shape: tuple[int, ...], rng: Random) -> Array:
    make = np.random.default_rng(rng.randrange(1 << 30))
    if dtype == "string":
        return np.array(make.choice(["", "a", "ß", "word"], shape), object).reshape(shape)
    kind = numpy_dtype(dtype)
    if dtype in ("int8", "uint8", "int16") and make.random() < 0.7:
        return make.integers(np.iinfo(kind).min, np.iinfo(kind).max + 1, shape).astype(kind)
    numbers = make.standard_normal(shape) * 3 if make.random() < 0.5 else make.integers(0, 7, shape)
    if dtype == "float32" and make.random() < 0.1:
        odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38, -1e-38])
        numbers = np.where(make.random(shape) < 0.3, make.choice(odd, shape), numbers)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(numbers) if dtype.startswith("uint") else numbers).astype(kind)


# ------------------------------------------------------------------------------------------------------------ worker


def _work(options: Options, first: int, step: int) -> None:
    """Run cases, one JSON line each on standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    seeds = FAMILIES[options.family]()
    for data in seeds:
        try_file(data, options.backend, options.threads)
    _say(["ready"])
    for number in range(first, options.cases, step):
        try:
            done = try_file(case(options.seed, number, seeds), options.backend, options.threads, number)
            _say([number, *done])
        except Exception as error:  # the point of a fuzzer; the type checker's rule is about the product
            _say([number, "error", _place(error), traceback.format_exc()])


def _say(row: list[Any]) -> None:
    os.write(1, json.dumps(row).encode() + b"\n")


def _place(error: BaseException) -> str:
    """Where an error arose: type and the innermost line of this repository."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(ROOT))]
    where = f"{Path(ours[-1].filename).relative_to(ROOT)}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}"


# ------------------------------------------------------------------------------------------------------------ parent


def fuzz(options: Options, report: Callable[[Finding], None] = lambda finding: None) -> Summary:
    """Run all cases in worker processes. Raises RuntimeError when a worker cannot start."""
    started = time.monotonic()
    summary, seeds, lock = Summary(), FAMILIES[options.family](), threading.Lock()
    until = started + options.seconds if options.seconds else None
    failures: list[RuntimeError] = []

    def found(finding: Finding) -> None:
        with lock:
            summary.findings.append(finding)
            summary.counts["cases"] += 1
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                stem = options.keep / f"{finding.kind}-{options.seed}-{finding.case}"
                stem.with_suffix(".mslite").write_bytes(case(options.seed, finding.case, seeds))
                stem.with_suffix(".txt").write_text(finding.text)
            report(finding)

    def tend(first: int) -> None:
        try:
            next_case: int | None = first
            while next_case is not None and next_case < options.cases:
                next_case = _tend_one(options, next_case, until, summary, lock, found)
        except RuntimeError as error:
            failures.append(error)

    tenders = [threading.Thread(target=tend, args=(first,)) for first in range(options.workers)]
    for tender in tenders:
        tender.start()
    for tender in tenders:
        tender.join()
    if failures:
        raise failures[0]
    summary.seconds = time.monotonic() - started
    return summary


def _tend_one(
    options: Options,
    first: int,
    until: float | None,
    summary: Summary,
    lock: threading.Lock,
    found: Callable[[Finding], None],
) -> int | None:
    """Follow one worker from case `first` on. The case the next worker begins with, None when all is done."""
    flags = ["--first", str(first), "--step", str(options.workers), "--cases", str(options.cases)]
    flags += ["--seed", str(options.seed), "--backend", options.backend, "--threads", str(options.threads)]
    flags += ["--family", options.family]
    command = [sys.executable, *PROGRAM, "--work", *flags]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        errors = _Tail(worker)
        at: int | None = None
        for line in _lines(worker, until):
            if line is None:
                worker.kill()
                if at is None:
                    raise RuntimeError(f"a worker did not start within {STARTUP:.0f} s")
                found(Finding(at, "hang", f"no answer within {PATIENCE:.0f} s"))
                return at + options.workers
            if line == "late":
                worker.kill()
                return None
            row = json.loads(line)
            if row != ["ready"]:
                _count(row, summary, lock, found)
            at = first if at is None else at + options.workers
        status = worker.wait()
        if status == 0:
            return None
        if at is None:
            raise RuntimeError(f"a worker could not start:\n{errors.text()}")
        name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        found(Finding(at, "crash", f"{name}\n{errors.text()}"))
        return at + options.workers


def _count(row: list[Any], summary: Summary, lock: threading.Lock, found: Callable[[Finding], None]) -> None:
    number, *done = row
    if done[0] == "error":
        found(Finding(number, "error", f"{done[1]}\n{done[2]}"))
        return
    with lock:
        summary.counts["cases"] += 1
        summary.counts.update(done)


def _lines(worker: subprocess.Popen[bytes], until: float | None) -> Iterator[bytes | str | None]:
    """The worker's lines; None when the next is not there in time; "late" once `until` has passed."""
    assert worker.stdout is not None
    handle, rest, patience = worker.stdout.fileno(), b"", STARTUP
    while True:
        *whole, rest = rest.split(b"\n")
        yield from whole
        patience = PATIENCE if whole else patience
        if until is not None and time.monotonic() > until:
            yield "late"
        if not _readable(handle, patience):
            yield None
        block = os.read(handle, 1 << 16)
        if not block:
            return
        rest += block


def _readable(handle: int, patience: float) -> bool:
    """Wait until there is something to read; False where that takes longer."""
    return bool(select.select([handle], [], [], patience)[0])


class _Tail:
    """The last of what a worker writes to standard error, read so that its pipe never fills."""

    def __init__(self, worker: subprocess.Popen[bytes]) -> None:
        self._stream, self._kept = worker.stderr, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with contextlib.suppress(ValueError):
            for line in self._stream:
                self._kept = (self._kept + line)[-4000:]

    def text(self) -> str:
        self._thread.join(5)
        return self._kept.decode("utf-8", "replace")


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bundles", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, help="stop after so long, however many cases are left")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--family", choices=tuple(FAMILIES), default="general", help="which seeds cases are made from")
    parser.add_argument("--threads", type=int, default=1, help="workers inside the runtime")
    parser.add_argument("--keep", type=Path, help="folder for the files of findings")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    options = Options(a.cases, a.seed, a.workers, a.backend, a.threads, a.seconds, a.keep, a.family)
    if a.work:
        _work(options, a.first, a.step)
        return 0
    try:
        summary = fuzz(options, _report)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 2
    _report_places(summary)
    print(summary.line())
    return 1 if summary.findings else 0


def _report(finding: Finding) -> None:
    print(f"case {finding.case}: {finding.kind}: {finding.text.splitlines()[0]}", file=sys.stderr, flush=True)


def _report_places(summary: Summary) -> None:
    places: Mapping[str, int] = Counter(f"{f.kind}: {f.text.splitlines()[0]}" for f in summary.findings)
    for place, times in sorted(places.items(), key=lambda row: -row[1]):
        print(f"{times:6}  {place}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
