"""`python -m benchmarks.serving.over_grpc --peers FOLDER`: requests per second over gRPC, ours and MLServer's.

As `python -m benchmarks.serving` measures HTTP: MLServer is first tried with each of its settings and each form of
request, and the fastest is compared; then both servers run at the same time and get load in alternating turns. The load
tool is h2load (apt install nghttp2-client). OpenVINO Model Server is not on PyPI, and Triton comes as a container.

h2load counts replies, not their codes, which are in trailers: a reply of another length than the right one, which is
checked before each turn, is a failure.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import facts, versions
from benchmarks.serving.__main__ import AGREE, WARM, Model, Paired, best_variants, model_of, running
from benchmarks.serving.contenders import CONTENDERS, Contender, Place
from benchmarks.serving.environments import python_of, versions_of
from benchmarks.serving.load import Load
from benchmarks.serving.subjects import SUBJECTS
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

__all__ = ["FORMS", "drive", "main", "summary"]

METHOD = "/inference.GRPCInferenceService/ModelInfer"
SETTLE = 10.0
"""Seconds for one call outside the measurement."""


class Peer(NamedTuple):
    """A server: how it is started, and the forms of requests it is tried with. It listens for gRPC at the port after
    that of HTTP."""

    contender: Contender
    forms: Sequence[str]


def _message(name: str) -> Any:
    from edge.gateway.grpc.messages import message

    return message(name)


def _raw(place: Place, x: Array) -> bytes:
    """The tensor's bytes, as NVIDIA's client sends them."""
    made = _message("ModelInferRequest")(model_name="model", raw_input_contents=[x.tobytes()])
    made.inputs.add(name=place.input, datatype="FP32", shape=x.shape)
    data: bytes = made.SerializeToString()
    return data


def _typed(place: Place, x: Array) -> bytes:
    """The tensor's elements as numbers."""
    made = _message("ModelInferRequest")(model_name="model")
    made.inputs.add(name=place.input, datatype="FP32", shape=x.shape).contents.fp32_contents.extend(x.ravel().tolist())
    data: bytes = made.SerializeToString()
    return data


def _text(place: Place, x: Array) -> bytes:
    """Base64 of the bytes as one element of type BYTES, as MLServer is asked over HTTP."""
    made = _message("ModelInferRequest")(model_name="model")
    one = made.inputs.add(name=place.input, datatype="BYTES", shape=[1])
    one.contents.bytes_contents.append(base64.b64encode(x.tobytes()))
    data: bytes = made.SerializeToString()
    return data


FORMS: Mapping[str, Callable[[Place, Array], bytes]] = {"raw": _raw, "typed": _typed, "base64": _text}
"""By name, what makes a request of an input."""


def _with_grpc(contender: Contender) -> Contender:
    """Ours, which listens for gRPC only if it is told to."""

    def start(place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        command, environment = contender.start(place)
        return [*command, "--grpc-port", str(place.port + 1)], environment

    return contender._replace(start=start)


_OURS = Peer(_with_grpc(CONTENDERS[0]), ("raw",))
_PEERS = (Peer(next(one for one in CONTENDERS if one.name == "MLServer"), tuple(FORMS)),)


def _place(model: Model, python: str, threads: int) -> Place:
    """The model's place at a port that is free, as the one after it is."""
    while True:
        place = model.place(python, threads)
        try:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", place.port + 1))
                return place
        except OSError:
            continue


def _checked(name: str, place: Place, model: Model, form: str) -> int:
    """The length of the reply's message. Raises MsedgeError for a wrong answer."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{place.port + 1}") as channel:
        try:
            data = channel.unary_unary(METHOD)(FORMS[form](place, model.x), timeout=SETTLE, wait_for_ready=True)
        except grpc.RpcError as error:
            raise MsedgeError(f"{name}, {form}: no answer: {error}") from error
    reply = _message("ModelInferResponse").FromString(data)
    raw = reply.raw_output_contents
    found = np.frombuffer(raw[0], np.float32) if raw else np.asarray(reply.outputs[0].contents.fp32_contents)
    expected = model.expected
    if found.size != expected.size or np.abs(found - expected).max() > AGREE * np.abs(expected).max():
        raise MsedgeError(f"{name}, {form}: a wrong answer: {reply}")
    return len(data)


def drive(port: int, data: bytes, reply: int, connections: int, seconds: float) -> Load:
    """Send a request over this many connections, each waiting for its reply before the next request. data: the message;
    reply: the length of its answer. Raises MsedgeError if h2load is not installed or prints no result."""
    if shutil.which("h2load") is None:
        raise MsedgeError("h2load, the load tool, is not installed: apt install nghttp2-client")
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(b"\0" + struct.pack(">I", len(data)) + data)
        found = subprocess.run(
            ["h2load", "-t1", f"-c{connections}", "-m1", f"-D{seconds:g}", f"--warm-up-time={WARM}",
             f"--log-file={log}", "-H", "content-type: application/grpc", "-H", "te: trailers", "-d", str(body),
             f"http://127.0.0.1:{port}{METHOD}"], capture_output=True, text=True, check=False,
        )  # fmt: skip
        spent = [int(line.split("\t")[2]) / 1e6 for line in log.read_text().splitlines()] if log.exists() else []
    return summary(found.stdout, spent, reply, seconds)


def summary(told: str, spent: Sequence[float], reply: int, seconds: float) -> Load:
    """What h2load printed, and the seconds of each request. Raises MsedgeError if that is no result."""
    done = re.search(r"requests: .* (\d+) done, (\d+) succeeded", told)
    traffic = re.search(r"\((\d+)\) data", told)
    if done is None or traffic is None or not spent:
        raise MsedgeError(f"h2load gave no result: {told[-500:]}")
    answered = min(int(done[2]), int(traffic[1]) // (reply + 5))  # a frame of gRPC is five bytes and the message
    p50, p99 = np.quantile(spent, (0.5, 0.99)).tolist()
    return Load(answered / seconds, p50, p99, int(done[1]) - answered)


def _tried(peer: Peer, python: str, model: Model, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Requests per second by setting and form, at the highest number of connections."""
    found: dict[str, dict[str, Any]] = {}
    most = max(model.connections)
    for variant in peer.contender.variants:
        place, rates = _place(model, python, args.threads), found.setdefault(variant, {})
        with running(peer.contender, place, model.x, variant):
            for form in peer.forms:
                try:
                    length = _checked(peer.contender.name, place, model, form)
                    load = drive(place.port + 1, FORMS[form](place, model.x), length, most, args.trial)
                except MsedgeError as error:
                    print(f"{variant}, {form}: {error}", file=sys.stderr)
                    continue
                rates[form] = {"rate": load.rate, "failures": load.failures, "seconds": args.trial}
    return found


def _turns(
    peer: Peer, python: str, model: Model, variant: str, form: str, args: argparse.Namespace
) -> dict[int, list[Paired]]:
    """By number of connections, ours and theirs in alternating turns."""
    here, there = _place(model, sys.executable, args.threads), _place(model, python, args.threads)
    measured: dict[int, list[Paired]] = {count: [] for count in model.connections}
    with running(_OURS.contender, here, model.x), running(peer.contender, there, model.x, variant):
        for _ in range(args.rounds):
            for count, pairs in measured.items():
                loads = []
                for name, place, shape in (("msedge", here, "raw"), (peer.contender.name, there, form)):
                    length = _checked(name, place, model, shape)
                    loads.append(drive(place.port + 1, FORMS[shape](place, model.x), length, count, args.seconds))
                pairs.append(Paired(*loads))
    return measured


def _rows(name: str, measured: Mapping[int, Sequence[Paired]]) -> list[dict[str, Any]]:
    return [
        {
            "server": name, "connections": count, "ours": median(pair.ours.rate for pair in pairs),
            "theirs": median(pair.theirs.rate for pair in pairs),
            "ratio": median(pair.ours.rate / pair.theirs.rate for pair in pairs),
            "p99, ours": median(pair.ours.p99 for pair in pairs), "p99": median(pair.theirs.p99 for pair in pairs),
            "failures, ours": sum(pair.ours.failures for pair in pairs),
            "failures": sum(pair.theirs.failures for pair in pairs),
        }
        for count, pairs in measured.items()
    ]  # fmt: skip


def _compared(peer: Peer, python: str, model: Model, args: argparse.Namespace) -> dict[str, Any]:
    trials = _tried(peer, python, model, args)
    best = best_variants(trials, peer.forms)
    if not best:
        raise MsedgeError(f"{peer.contender.name} answered no request over gRPC")
    form = max(best, key=lambda one: trials[best[one]][one]["rate"])
    measured = _turns(peer, python, model, best[form], form, args)
    return {"model": model.name, "form": form, "setting": best[form], "trials": trials,
            "rows": _rows(peer.contender.name, measured)}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print JSON. Exit code 3 if something could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serving.over_grpc", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("models", type=Path, nargs="*", help="ONNX models with one float32 input")
    parser.add_argument("--peers", type=Path, required=True, help="folder with the environment mlserver")
    parser.add_argument("--connections", default="", help="numbers of connections, separated by commas")
    parser.add_argument("--seconds", type=int, default=5, help="seconds of each measurement")
    parser.add_argument("--trial", type=int, default=3, help="seconds to try each setting")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of each server's runtime")
    args = parser.parse_args(argv)
    counts = [int(count) for count in args.connections.split(",") if count]
    told: dict[str, Any] = {"machine": facts(), "versions": {"msedge": versions(["grpcio", "protobuf"])}, "runs": []}
    try:
        with tempfile.TemporaryDirectory() as folder:
            sources = {path.stem: (path, counts or (1, 16, 64)) for path in args.models}
            for name, subject in SUBJECTS.items() if not sources else ():
                sources[name] = Path(folder) / f"{name}.onnx", counts or list(subject.connections)
                subject.write(sources[name][0])
            for peer in _PEERS:
                python = python_of(peer.contender, args.peers)
                if python is None:
                    raise MsedgeError(f"no environment in --peers for {peer.contender.name}")
                told["versions"][peer.contender.name] = versions_of(peer.contender, python)
                make = partial(_compared, peer, python)
                for name, (path, chosen) in sources.items():
                    told["runs"].append(make(model_of(name, path, Path(folder), chosen), args))
                    print(json.dumps(told["runs"][-1]["rows"]), file=sys.stderr, flush=True)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    print(json.dumps(told, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
