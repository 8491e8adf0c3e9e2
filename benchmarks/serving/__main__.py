"""`python -m benchmarks.serving MODEL.onnx`: requests a second and their latency, server by server, turn by turn."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.serving.contenders import CONTENDERS, Contender, Place
from benchmarks.serving.load import Load, Request, drive
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["free_port", "main", "running"]

STARTING = 90.0
"""Seconds a server may take until its first answer."""
AGREE = 2e-3
"""How far answers may be from ONNX Runtime's, as a part of its largest number."""


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("model", type=Path, help="an ONNX model with one float32 input")
    parser.add_argument("--peers", type=Path, help="folder of environments: mlserver, litserve, bentoml, rayserve")
    parser.add_argument("--only", default="", help="names of servers, separated by commas")
    parser.add_argument("--forms", default="binary,json")
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each server's runtime")
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args(argv)


def _python(peers: Path | None, name: str) -> str | None:
    """The interpreter of a peer's environment; ours where it needs none; None where it has none."""
    if name in ("msedge", "bare aiohttp"):
        return sys.executable
    path = peers / name.lower().replace(" ", "") / "bin" / "python" if peers else None
    return str(path) if path is not None and path.exists() else None


def free_port() -> int:
    """A port that nobody listens at now."""
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
def running(contender: Contender, place: Place, x: Array) -> Iterator[None]:
    """The server, from its first answer on; all its processes are gone afterwards."""
    command, environment = contender.start(place)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            end = time.monotonic() + STARTING
            while True:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if _post(place.port, contender.ask["json"](place, x))[0] == 200:
                        break
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise MsedgeError(f"{contender.name} did not start: {log.read()[-2000:].decode(errors='replace')}")
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


def _check(contender: Contender, place: Place, x: Array, form: str, expected: Array) -> None:
    status, body = _post(place.port, contender.ask[form](place, x))
    found = contender.read(body, form) if status == 200 else None
    if found is None or found.size != expected.size or np.abs(found - expected).max() > AGREE * np.abs(expected).max():
        raise MsedgeError(f"{contender.name}, {form}: a wrong answer ({status}): {body[:300]!r}")


class Paired(NamedTuple):
    """Ours, and right after it the other server's, both running all the while."""

    ours: Load
    theirs: Load


def _rows(figures: Mapping[tuple[str, str, int], Sequence[Paired]]) -> list[dict[str, Any]]:
    """Medians by server, form and connections. `ratio`: of our requests a second to theirs, pair by pair; `tail`: of
    our 99th percentile to theirs. Ours are of all pairs but Ray's, whose idle processes take a good part of a core."""
    rows = []
    for form, connections in dict.fromkeys((form, count) for _, form, count in figures):
        mine = {name: pairs for (name, f, c), pairs in figures.items() if (f, c) == (form, connections)}
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


def _ceiling(bundle: bytes, name: str, x: Array, threads: int) -> float:
    """Rows a second in this process, the median of ten half seconds."""
    import lite_runtime

    call = lite_runtime.load(bundle, threads=threads).bind({name: x.shape})
    call.inputs[name][...] = x
    rates = []
    for _ in range(10):
        count, begun = 0, time.perf_counter()
        while time.perf_counter() < begun + 0.5:
            call()
            count += 1
        rates.append(count / (time.perf_counter() - begun))
    return median(rates)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = _arguments(argv)
    import onnxruntime

    import msedge

    session = onnxruntime.InferenceSession(str(args.model), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    shape = [d if isinstance(d, int) else 1 for d in given.shape]
    x = np.random.default_rng().random(shape, np.float32)
    expected = session.run(None, {given.name: x})[0].ravel()
    only = [name.strip() for name in args.only.split(",") if name.strip()]
    figures: dict[tuple[str, str, int], list[Paired]] = {}
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "model.mslite"
        msedge.convert(args.model, output=bundle)
        bundle_bytes = bundle.read_bytes()
        def placed(contender: Contender, python: str) -> Place:
            return Place(args.model.resolve(), bundle, given.name, free_port(), args.threads, python)

        ours = CONTENDERS[0]
        here = placed(ours, sys.executable)
        with running(ours, here, x):
            for _ in range(args.rounds):
                for contender in CONTENDERS[1:]:
                    python = _python(args.peers, contender.name)
                    if python is None or (only and contender.name not in only):
                        continue
                    place = placed(contender, python)
                    with running(contender, place, x):
                        for form in args.forms.split(","):
                            pair = [(ours, here), (contender, place)]
                            for one, there in pair:
                                _check(one, there, x, form, expected)
                                drive(there.port, one.ask[form](there, x), 8, 1.0)
                            for connections in map(int, args.connections.split(",")):
                                loads = [drive(t.port, o.ask[form](t, x), connections, args.seconds) for o, t in pair]
                                figures.setdefault((contender.name, form, connections), []).append(Paired(*loads))
                                say = f"{contender.name:14} {form:7} {connections:4} {loads}"
                                print(say, file=sys.stderr, flush=True)
    ceiling = _ceiling(bundle_bytes, given.name, x, args.threads)
    print(f"the runtime alone, one row at a time: {ceiling:.1f}/s")
    rows = _rows(figures)
    for row in rows:
        words = "{server:14} {form:7} {connections:4}  {rate:9.1f}/s  p50 {p50:.5f}  p99 {p99:.5f}"
        print(words.format(**row), f"  ours {row['ratio']:.2f} x" if "ratio" in row else "")
    told = {"model": args.model.stem, "threads": args.threads, "ceiling": ceiling}
    if args.json:
        args.json.write_text(json.dumps({**told, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
