"""The servers: how each is started, and the same request to each, as bytes and as JSON."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from benchmarks.serving.load import Request
from lite_runtime.graph import Array

__all__ = ["CONTENDERS", "ROWS", "Contender", "Place", "Variant"]

_HERE = Path(__file__).with_name("peers")
_JSON = {"Content-Type": "application/json"}
_BYTES = {"Content-Type": "application/octet-stream"}


class Place(NamedTuple):
    """Arguments for starting a server: the model's files and input, a free port, threads, the interpreter."""

    onnx: Path
    bundle: Path
    input: str
    port: int
    threads: int
    python: str


Variant = Callable[[Place], Mapping[str, str]]
"""Environment variables for a server's settings."""


class Contender(NamedTuple):
    """A server. `start`: its command and additional environment variables; `ask`: the request for an input, by form;
    `read`: the first output's numbers from a reply; `variants`: its settings by name, of which the fastest is
    compared."""

    name: str
    start: Callable[[Place], tuple[Sequence[str], Mapping[str, str]]]
    ask: Mapping[str, Callable[[Place, Array], Request]]
    read: Callable[[bytes, str], Array]
    variants: Mapping[str, Variant] = MappingProxyType({"": lambda place: {}})
    packages: Sequence[str] = ()
    """The packages of its environment that affect speed, by pip's names; the first is the server."""

    @property
    def environment(self) -> str:
        """Name of its environment's folder; "" if it runs in this environment."""
        return self.name.lower().replace(" ", "") if self.packages else ""


ROWS = "64"
"""The most rows of a batch: equal to the highest number of connections that is tried."""


def _variant(**settings: str) -> Variant:
    return lambda place: settings


_THROUGHPUT = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
"""Ray Serve's own settings for throughput, without the part that needs HAProxy in front."""
_BATCHES: Mapping[str, Variant] = {"one by one": _variant(ROWS="1"), "adaptive batching": _variant(ROWS=ROWS)}


def _script(name: str, model: str) -> Callable[[Place], tuple[Sequence[str], Mapping[str, str]]]:
    def start(place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
        path = getattr(place, model)
        return [place.python, str(_HERE / name), str(path), str(place.port), str(place.threads)], {}

    return start


def _numbers(x: Array) -> list[float]:
    """JSON as a client in Python would send it: float32 values with the shortest digits that identify them."""
    return [float(str(v)) for v in x.ravel()]


def _oip_json(place: Place, x: Array) -> Request:
    tensor = {"name": place.input, "shape": list(x.shape), "datatype": "FP32", "data": _numbers(x)}
    return Request("/v2/models/model/infer", json.dumps({"inputs": [tensor]}).encode(), _JSON)


def _oip_binary(place: Place, x: Array) -> Request:
    size = {"binary_data_size": x.nbytes}
    tensor = {"name": place.input, "shape": list(x.shape), "datatype": "FP32", "parameters": size}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head)), **_BYTES}
    return Request("/v2/models/model/infer", head + x.tobytes(), fields)


def _oip_base64(place: Place, x: Array) -> Request:
    text = base64.b64encode(x.tobytes()).decode()
    tensor = {"name": place.input, "shape": [1], "datatype": "BYTES", "data": [text]}
    return Request("/v2/models/model/infer", json.dumps({"inputs": [tensor]}).encode(), _JSON)


def _read_oip(body: bytes, form: str) -> Array:
    head, end = json.JSONDecoder().raw_decode(body.decode("latin-1"))
    if end < len(body):
        return np.frombuffer(body[end:], np.float32)
    return np.asarray(head["outputs"][0]["data"], np.float32)


def _ours(place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
    return [
        sys.executable, "-m", "edge.cli", "serve", f"model={place.bundle}",
        "--port", str(place.port), "--threads", str(place.threads),
    ], {}  # fmt: skip


def _bare_binary(place: Place, x: Array) -> Request:
    return Request("/v2/models/model/infer", x.tobytes(), _BYTES)


def _read_bare(body: bytes, form: str) -> Array:
    found = json.loads(body)["data"] if form == "json" else np.frombuffer(body, np.float32)
    return np.asarray(found, np.float32).ravel()


def _bentoml(place: Place) -> tuple[Sequence[str], Mapping[str, str]]:
    command = [str(Path(place.python).with_name("bentoml")), "serve", "bentoml_app:Onnx", "--port", str(place.port)]
    environment = {"MODEL": str(place.onnx), "THREADS": str(place.threads), "BENTOML_DO_NOT_TRACK": "True"}
    return [*command, "--host", "127.0.0.1", "--working-dir", str(_HERE)], environment


CONTENDERS: Sequence[Contender] = (
    Contender("msedge", _ours, {"binary": _oip_binary, "json": _oip_json}, _read_oip),
    Contender(
        "bare aiohttp", _script("bare_app.py", "bundle"), {"binary": _bare_binary, "json": _oip_json}, _read_bare
    ),
    Contender(
        "MLServer", _script("mlserver_app.py", "onnx"), {"binary": _oip_base64, "json": _oip_json}, _read_oip,
        _BATCHES, ("mlserver", "uvloop", "httptools", "orjson", "onnxruntime"),
    ),
    Contender(
        "LitServe",
        _script("litserve_app.py", "onnx"),
        {
            "binary": lambda place, x: Request(
                "/predict",
                json.dumps({"b64": base64.b64encode(x.tobytes()).decode(), "shape": list(x.shape)}).encode(),
                _JSON,
            ),
            "json": lambda place, x: Request(
                "/predict", json.dumps({"data": _numbers(x), "shape": list(x.shape)}).encode(), _JSON
            ),
        },
        lambda body, form: np.asarray(json.loads(body)["data"], np.float32),
        {
            f"{way}{queue}": _variant(ROWS=rows, QUEUE=kind)
            for way, rows in (("one by one", "1"), ("batching", ROWS))
            for queue, kind in (("", "plain"), (", fast queue", "fast"))
        },
        ("litserve", "uvloop", "httptools", "onnxruntime"),
    ),
    Contender(
        "BentoML",
        _bentoml,
        {
            "binary": lambda place, x: Request("/raw", x.tobytes(), _BYTES),
            "json": lambda place, x: Request("/predict", json.dumps({"x": x.astype(float).tolist()}).encode(), _JSON),
        },
        lambda body, form: (
            np.asarray(json.loads(body), np.float32).ravel() if form == "json" else np.frombuffer(body, np.float32)
        ),
        _BATCHES,
        ("bentoml", "uvloop", "httptools", "onnxruntime"),
    ),
    Contender(
        "Ray Serve",
        _script("ray_app.py", "onnx"),
        {
            "binary": lambda place, x: Request("/", x.tobytes(), _BYTES),
            "json": lambda place, x: Request("/", json.dumps({"data": _numbers(x)}).encode(), _JSON),
        },
        lambda body, form: (
            np.asarray(json.loads(body)["data"], np.float32) if form == "json" else np.frombuffer(body, np.float32)
        ),
        {
            "one by one": _variant(ROWS="1"),
            "dynamic batching": _variant(ROWS=ROWS),
            "one by one, throughput mode": _variant(ROWS="1", **_THROUGHPUT),
            "dynamic batching, throughput mode": _variant(ROWS=ROWS, **_THROUGHPUT),
        },
        ("ray", "uvloop", "httptools", "onnxruntime"),
    ),
)
"""MLServer and LitServe accept only JSON, so bytes are sent as base64 in it."""
