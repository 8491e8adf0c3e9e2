"""A gateway on 127.0.0.1 in a separate thread, for tests."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import msedge
from edge.gateway.gateway import Gateway
from edge.gateway.http.inside import running
from edge.gateway.http.server import HttpServer
from edge.gateway.operate.logs import Log
from edge.gateway.operate.settings import Logs
from edge.gateway.operate.sources import resolve


@dataclass
class Live:
    """A gateway that listens. `log`: what it wrote."""

    address: str
    port: int
    gateway: Gateway
    server: HttpServer
    loop: asyncio.AbstractEventLoop
    log: io.StringIO

    def call(self, coroutine: Any) -> Any:
        """Run something on the gateway's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)


@contextmanager
def live(models: Mapping[str, Path] | Path | str, **flags: Any) -> Iterator[Live]:
    """Serve bundles by name, a folder of models, or what the setting `models` says. flags: further settings,
    `batching__rows=8` for batching.rows."""
    words = tuple(f"{n}={p}" for n, p in models.items()) if isinstance(models, Mapping) else str(models)
    told = {"threads": 1, "port": 0, **{name.replace("__", "."): value for name, value in flags.items()}}
    log = io.StringIO()
    settings = resolve({"models": words, **told}, environment={}, folder=Path("/"))
    with running(settings, Log(Logs(), log)) as there:
        yield Live(*there, log)


def examples(folder: Path) -> Path:
    """NVIDIA's example models, one of every datatype, and one that has versions, as a folder of models."""
    simple(folder / "simple.mslite")
    simple_string(folder / "simple_string.mslite")
    numbers(folder / "numbers.mslite")
    for version in (1, 2):
        place = folder / "scaled" / str(version)
        place.mkdir(parents=True)
        scaled(place / "model.mslite", float(version))
    (folder / "scaled" / "config.toml").write_text('versions = "all"\nlabels = {canary = 2, stable = 1}\n')
    return folder


def bundle_of(path: Path, graph: onnx.GraphProto) -> Path:
    """A graph, converted."""
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    msedge.convert(made, output=path)
    return path


def simple(path: Path) -> Path:
    """NVIDIA's `simple`: the sum and the difference of two INT32 [batch, 16]."""
    ends = [helper.make_tensor_value_info(n, TensorProto.INT32, ["batch", 16]) for n in
            ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]  # fmt: skip
    nodes = [helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
             helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"])]  # fmt: skip
    return bundle_of(path, helper.make_graph(nodes, "simple", ends[:2], ends[2:]))


def simple_string(path: Path) -> Path:
    """The same on numbers written out: BYTES in and out."""
    ends = [helper.make_tensor_value_info(n, TensorProto.STRING, ["batch", 16]) for n in
            ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")]  # fmt: skip
    nodes = [helper.make_node("Cast", [f"INPUT{i}"], [f"n{i}"], to=TensorProto.INT32) for i in (0, 1)]
    nodes += [helper.make_node("Add", ["n0", "n1"], ["sum"]), helper.make_node("Sub", ["n0", "n1"], ["difference"])]
    nodes += [helper.make_node("Cast", ["sum"], ["OUTPUT0"], to=TensorProto.STRING),
              helper.make_node("Cast", ["difference"], ["OUTPUT1"], to=TensorProto.STRING)]  # fmt: skip
    return bundle_of(path, helper.make_graph(nodes, "simple_string", ends[:2], ends[2:]))


def scaled(path: Path, factor: float, size: int = 4) -> Path:
    """y = factor * x, float32 [batch, size]: models that can be recognised by their answers."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", size]) for n in "xy")
    weight = onnx.numpy_helper.from_array(np.float32(factor), "factor")
    return bundle_of(path, helper.make_graph([helper.make_node("Mul", ["x", "factor"], ["y"])], "scaled", [x], [y],
                                             [weight]))  # fmt: skip


def numbers(path: Path) -> Path:
    """Every datatype that JSON and bytes can carry, as it comes: `NAME` in, `NAME_out` out."""
    kinds = ("BOOL", "UINT8", "INT8", "INT64", "FLOAT16", "FLOAT", "DOUBLE", "STRING", "BFLOAT16")
    ins = [helper.make_tensor_value_info(k, getattr(TensorProto, k), ["batch", 3]) for k in kinds]
    outs = [helper.make_tensor_value_info(f"{k}_out", getattr(TensorProto, k), ["batch", 3]) for k in kinds]
    nodes = [helper.make_node("Identity", [k], [f"{k}_out"]) for k in kinds]
    return bundle_of(path, helper.make_graph(nodes, "numbers", ins, outs))
