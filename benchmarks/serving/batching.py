"""`python -m benchmarks.serving.batching [MODEL.onnx …]`: batches or single rows, for 64 clients and for one.

The default models are a wide MLP, whose speed is limited by reading its weights, and a small transformer, built here.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.serving.__main__ import running
from benchmarks.serving.contenders import CONTENDERS, Place
from benchmarks.serving.load import Load, Request, drive
from lite_runtime.graph import Array

__all__ = ["main", "transformer", "wide_mlp"]

_OURS = CONTENDERS[0]


def wide_mlp(width: int = 2048, layers: int = 3) -> onnx.ModelProto:
    """Dense layers of width x width in float32, with Relu between them: 16.8 MB per layer with a width of 2048."""
    rng = np.random.default_rng(0)
    nodes, weights, at = [], [], "x"
    for i in range(layers):
        weights.append(numpy_helper.from_array(rng.standard_normal((width, width), np.float32) / width**0.5, f"w{i}"))
        nodes += [helper.make_node("MatMul", [at, f"w{i}"], [f"m{i}"]), helper.make_node("Relu", [f"m{i}"], [f"r{i}"])]
        at = f"r{i}"
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width]) for name in "xy"]
    return _model(nodes, ends, weights)


def transformer(width: int = 256, length: int = 16, blocks: int = 4, heads: int = 4) -> onnx.ModelProto:
    """Encoder blocks on float32 [batch, length, width]: attention, a feed-forward of four times the width, norms."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def constant(name: str, array: Array) -> str:
        weights.append(numpy_helper.from_array(array, name))
        return name

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"t{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def dense(at: str, name: str, into: int, out: int) -> str:
        weight = constant(f"{name}.w", rng.standard_normal((into, out)).astype(np.float32) / into**0.5)
        return node("Add", node("MatMul", at, weight), constant(f"{name}.b", np.zeros(out, np.float32)))

    def norm(at: str, name: str) -> str:
        scale = constant(f"{name}.s", np.ones(width, np.float32))
        return node("LayerNormalization", at, scale, constant(f"{name}.h", np.zeros(width, np.float32)), axis=-1)

    split = constant("split", np.array([0, length, heads, width // heads], np.int64))
    join = constant("join", np.array([0, length, width], np.int64))
    root = constant("root", np.array((width // heads) ** -0.5, np.float32))
    at = "x"
    for i in range(blocks):
        q, k, v = (node("Reshape", dense(at, f"{i}.{n}", width, width), split) for n in "qkv")
        q, v = (node("Transpose", one, perm=[0, 2, 1, 3]) for one in (q, v))
        k = node("Transpose", k, perm=[0, 2, 3, 1])
        scores = node("Softmax", node("Mul", node("MatMul", q, k), root), axis=-1)
        mixed = node("Reshape", node("Transpose", node("MatMul", scores, v), perm=[0, 2, 1, 3]), join)
        at = norm(node("Add", at, dense(mixed, f"{i}.o", width, width)), f"{i}.n1")
        hidden = node("Relu", dense(at, f"{i}.f1", width, 4 * width))
        at = norm(node("Add", at, dense(hidden, f"{i}.f2", 4 * width, width)), f"{i}.n2")
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", length, width]) for name in "xy"]
    return _model(nodes, ends, weights)


def _model(nodes: Sequence[onnx.NodeProto], ends: Sequence[Any], weights: Sequence[Any]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "made", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@contextmanager
def _served(bundle: Path, name: str, x: Array, threads: int, rows: int) -> Iterator[tuple[int, Request]]:
    """A gateway that batches at most this many rows; its port, and the request for x."""
    from benchmarks.serving.__main__ import free_port

    place = Place(bundle, bundle, name, free_port(), threads, sys.executable)
    more = ["--batching-rows", str(rows)]
    contender = _OURS._replace(start=lambda place: ([*_OURS.start(place)[0], *more], {}))
    with running(contender, place, x):
        yield place.port, contender.ask["binary"](place, x)


def _bare(bundle: Path, name: str, x: Array, threads: int) -> float:
    """Median seconds per run in this process."""
    import lite_runtime

    model = lite_runtime.load(bundle, threads=threads)
    times: list[float] = []
    end = time.perf_counter() + 1.0
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 5000):
        begun = time.perf_counter()
        model.run({name: x})
        times.append(time.perf_counter() - begun)
    return median(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.batching", description=__doc__)
    parser.add_argument("models", type=Path, nargs="*", help="ONNX models with one float32 input")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    import lite_runtime
    import msedge

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sources: dict[str, Any] = {path.stem: path for path in args.models}
        for name, source in (sources or {"wide MLP": wide_mlp(), "transformer": transformer()}).items():
            bundle = Path(folder) / f"{name.replace(' ', '_')}.mslite"
            msedge.convert(source, output=bundle)
            (given,) = lite_runtime.load(bundle).inputs()
            shape = [d if isinstance(d, int) else 1 for d in given.shape or ()]
            x = np.random.default_rng().random(shape, np.float32)
            found: dict[str, list[Load]] = {"batches": [], "singles": [], "lone": []}
            bare = []
            for _ in range(args.rounds):
                bare.append(_bare(bundle, given.name, x, args.threads))
                for what, most in (("batches", 64), ("singles", 1)):
                    with _served(bundle, given.name, x, args.threads, most) as (port, request):
                        drive(port, request, 64, 1.0)
                        found[what].append(drive(port, request, 64, args.seconds))
                        if what == "batches":
                            found["lone"].append(drive(port, request, 1, args.seconds))
            rate = {what: median(load.rate for load in loads) for what, loads in found.items()}
            row: dict[str, Any] = {
                "model": name, "batches": rate["batches"], "singles": rate["singles"],
                "gain": rate["batches"] / rate["singles"], "bare": median(bare),
                "lone": median(load.p50 for load in found["lone"]),
                "failures": sum(load.failures for loads in found.values() for load in loads),
            }  # fmt: skip
            rows.append(row)
            print(
                f"{name:24} batches {row['batches']:9.1f}/s  singles {row['singles']:9.1f}/s  {row['gain']:5.2f} x"
                f"   lone p50 {1e3 * row['lone']:.3f} ms, bare {1e3 * row['bare']:.3f} ms", flush=True
            )  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
