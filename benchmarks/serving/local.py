"""`python -m benchmarks.serving.local`: what clients gain by kept answers, and those nearby by shared memory.

One client (NVIDIA's, over HTTP) asks a server process in turns in each of the ways; what is printed are medians of the
client's seconds, and the server's processor time per request.
"""

from __future__ import annotations

import argparse
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from benchmarks.serving.client import Server, serving
from benchmarks.serving.subjects import SUBJECTS

__all__ = ["Figures", "main", "shared", "turns"]


class Figures(NamedTuple):
    """Of one way of asking: median seconds until the answer, and the server's mean seconds of processor time."""

    seconds: float
    server: float


def turns(ways: Mapping[str, Callable[[], object]], requests: int, server: Server) -> dict[str, Figures]:
    """Ask in each way, in turns of a tenth of all requests."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    spent = dict.fromkeys(ways, 0.0)
    for _ in range(10):
        for name, ask in ways.items():
            ask()
            before = server.seconds
            for _ in range(max(1, requests // 10)):
                begun = perf_counter()
                ask()
                times[name].append(perf_counter() - begun)
            spent[name] += server.seconds - before
    return {name: Figures(median(times[name]), spent[name] / len(times[name])) for name in ways}


def shared(server: Server, model: str, width: int, requests: int) -> dict[str, Figures]:
    """A model with one input and one output, FP32 [n, width], asked with bytes and through shared memory."""
    import tritonclient.http as triton
    import tritonclient.utils.shared_memory as shm

    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=300)
    x, size = np.random.default_rng(0).random((1, width), np.float32), 4 * width
    keys = {side: f"/msedge-{side}-{secrets.token_hex(4)}" for side in ("in", "out")}
    handles = {side: shm.create_shared_memory_region(side, key, size) for side, key in keys.items()}
    for side, key in keys.items():
        client.register_system_shared_memory(side, key, size)
    wanted = triton.InferRequestedOutput("y")
    wanted.set_shared_memory("out", size)

    def by_bytes() -> object:
        given = triton.InferInput("x", [1, width], "FP32")
        given.set_data_from_numpy(x)
        return client.infer(model, [given]).as_numpy("y")

    def by_memory() -> object:
        shm.set_shared_memory_region(handles["in"], [x])
        given = triton.InferInput("x", [1, width], "FP32")
        given.set_shared_memory("in", size)
        client.infer(model, [given], outputs=[wanted])
        return shm.get_contents_as_numpy(handles["out"], np.float32, [1, width]).copy()

    try:
        if not np.array_equal(np.asarray(by_bytes()), np.asarray(by_memory())):
            raise SystemExit("the answers differ")
        return turns({"bytes": by_bytes, "shared memory": by_memory}, requests, server)
    finally:
        client.unregister_system_shared_memory()
        client.close()
        for handle in handles.values():
            shm.destroy_shared_memory_region(handle)


def _kept(server: Server, name: str, port: Any, requests: int) -> dict[str, Figures]:
    """A network asked with new inputs, and with the same again."""
    import tritonclient.http as triton

    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}", network_timeout=300)
    shape = [d if isinstance(d, int) else 1 for d in port.shape]
    x = np.random.default_rng(0).random(shape, np.float32)

    def ask(model: str) -> object:
        given = triton.InferInput(port.name, shape, "FP32")
        given.set_data_from_numpy(x)
        return client.infer(model, [given])

    found = turns({"computed": lambda: ask(name), "found": lambda: ask(f"{name}-kept")}, requests, server)
    client.close()
    return found


def _doubling(path: Path, width: int) -> None:
    """y = 2 x, FP32 [n, width]: as little work as there can be."""
    import msedge

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "xy")
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "doubling", [x], [y], [two])
    msedge.convert(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), output=path)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.local", description=__doc__)
    parser.add_argument("--widths", type=int, nargs="*", default=[3072, 150_528, 1_572_864], help="of FP32 tensors")
    parser.add_argument("--models", nargs="*", default=list(SUBJECTS), help="networks whose answers are kept")
    parser.add_argument("--requests", type=int, default=500)
    args = parser.parse_args(argv)
    import lite_runtime
    import msedge

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for width in args.widths:
            _doubling(folder / f"w{width}.mslite", width)
        for model in args.models:
            SUBJECTS[model].write(folder / f"{model}.onnx")
            msedge.convert(folder / f"{model}.onnx", output=folder / f"{model}.mslite")
            (folder / f"{model}-kept.mslite").write_bytes((folder / f"{model}.mslite").read_bytes())
            (folder / f"{model}-kept.toml").write_text("response_cache = {enable = true}")
        words = ["--threads", "1", "--access-shared-memory", "loopback", "--cache-bytes", "256MiB"]
        with serving([str(folder), *words]) as server:
            rows = {f"{4 * w // 1024} KiB": shared(server, f"w{w}", w, args.requests) for w in args.widths}
            for model in args.models:
                (port,) = lite_runtime.load(folder / f"{model}.mslite").inputs()
                rows[model] = _kept(server, model, port, args.requests)
    for what, found in rows.items():
        for way, figures in found.items():
            print(f"{what:>12} {way:>14}: {1e6 * figures.seconds:9.0f} us, server {1e6 * figures.server:9.0f} us")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
