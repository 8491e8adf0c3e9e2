"""Personal batches compared with one model for all: rows per second if every row is from another device.

    python -m benchmarks.serving.personal --devices 1000 --rows 32 64

It measures the cost of a batch without HTTP. Both runners take turns in one process, so other work on the machine slows
both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx_ir as ir

import lite_runtime
from cloud.zoo import mlp, resnet8
from cloud.zoo.build import BATCH, Builder
from converter.conversion import convert
from converter.training.options import Lora, Training
from edge.gateway.batching.runner import ModelRunner, Runner
from edge.gateway.job import Job
from edge.gateway.personal.heads import Heads
from edge.gateway.personal.runner import PersonalRunner
from edge.gateway.personal.versions import Versions
from edge.gateway.ports import ports_of
from federated.server.store import PersonalStore
from lite_runtime import bundle
from lite_runtime.graph import Array

__all__ = ["MODELS", "measure", "transformer"]


def transformer(seq: int = 32, width: int = 128, heads: int = 4, blocks: int = 2, classes: int = 10) -> ir.Model:
    """`x` [batch, seq, width] -> `logits`: pre-norm blocks without biases, a mean over positions, a dense head."""
    b = Builder("transformer")
    rng, flat, split = np.random.default_rng(0), (BATCH, seq, width), (BATCH, seq, heads, width // heads)
    scale = b.weight("scale", np.array((width // heads) ** -0.5, np.float32))
    apart, joined = (b.weight(n, np.array(s)) for n, s in (("apart", [0, *split[1:]]), ("joined", [0, *flat[1:]])))

    def norm(x: ir.Value, name: str) -> ir.Value:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return b.op("LayerNormalization", x, b.weight(f"{name}.scale", ones), b.weight(f"{name}.bias", zeros), axis=-1)

    def dense(x: ir.Value, name: str, ins: int, outs: int) -> ir.Value:
        values = (rng.standard_normal((ins, outs)) / ins**0.5).astype(np.float32)
        return b.op("MatMul", x, b.weight(name, values), shape=(BATCH, seq, outs))

    def by_heads(x: ir.Value, perm: tuple[int, ...]) -> ir.Value:
        sizes = tuple(split[i] for i in perm)
        return b.op("Transpose", b.op("Reshape", x, apart, shape=split), perm=list(perm), shape=sizes)

    x = b.input("x", flat)
    for i in range(blocks):
        y = norm(x, f"b{i}.norm1")
        q, k, v = (dense(y, f"b{i}.{name}", width, width) for name in "qkv")
        scores = b.op("MatMul", by_heads(q, (0, 2, 1, 3)), by_heads(k, (0, 2, 3, 1)), shape=(BATCH, heads, seq, seq))
        weights = b.op("Softmax", b.op("Mul", scores, scale), axis=-1)
        y = b.op("MatMul", weights, by_heads(v, (0, 2, 1, 3)), shape=(BATCH, heads, seq, width // heads))
        y = b.op("Reshape", b.op("Transpose", y, perm=[0, 2, 1, 3], shape=split), joined, shape=flat)
        x = b.op("Add", x, dense(y, f"b{i}.o", width, width))
        y = b.op("Gelu", dense(norm(x, f"b{i}.norm2"), f"b{i}.up", width, 4 * width))
        x = b.op("Add", x, dense(y, f"b{i}.down", 4 * width, width))
    mean = b.op("ReduceMean", x, b.weight("axes", np.array([1])), keepdims=0, shape=(BATCH, width))
    return b.model(logits=b.dense(mean, classes, name="head"))


MODELS: Mapping[str, tuple[Callable[[], ir.Model], Training, tuple[int, ...]]] = {
    "ResNet-8, head": (lambda: resnet8((3, 32, 32)), Training("head*"), (3, 32, 32)),
    "ResNet-8, norms and head": (
        lambda: resnet8((3, 32, 32)), Training(("*.bn.*", "head*"), batch_norm="train"), (3, 32, 32)
    ),
    "transformer, LoRA and head": (
        transformer, Training("head*", adapters=Lora(rank=8, targets=["*.q", "*.v"])), (32, 128)
    ),
    "MLP 64-128-10, all of it": (lambda: mlp(64, 10, hidden=(128,)), Training("*"), (64,)),
}  # fmt: skip
"""Builder, the personal parameters, shape of a row."""


def measure(name: str, devices: int, sizes: list[int], seconds: float, threads: int) -> dict[str, Any]:
    """Milliseconds per batch, with one model and personal, by rows; the largest difference from the devices' own
    bundles."""
    build, training, shape = MODELS[name]
    data = bytes(convert(build(), trainable=training).bundle)
    model = lite_runtime.load(data, threads=threads)
    held, ports = model.bundle, ports_of(model)
    names = list(held.uses["predict"].reads.values())
    base = {n: held.state[n] for n in names}
    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        store = PersonalStore(Path(folder) / "personal.sqlite")
        states = [_learned(base, i) for i in range(devices)]
        for i, state in enumerate(states):
            store.put(f"d{i}", held.digest, state, base, round=1, consent="serve")
        versions = Versions(store)
        versions.look()
        heads = Heads(versions, model, pool)
        heads._heads.update((f"d{i}", (versions.newest[f"d{i}"], heads.load(f"d{i}"))) for i in range(devices))
        limit = max(sizes)
        single = ModelRunner(model, "predict", ports, {"x": shape}, limit=limit)
        own = PersonalRunner(model, "predict", ports, {"x": shape}, heads, limit=limit, slots=devices + 1)
        rows = {str(rows): _compare(single, own, shape, devices, rows, seconds) for rows in sizes}
        worst = _difference(data, own, states, shape)
    return {"model": name, "devices": devices, "rows": rows, "largest difference": worst, "together": not own.apart}


def _learned(base: Mapping[str, Array], seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(a + 0.1 * np.abs(a).mean() * rng.standard_normal(a.shape), a.dtype) for n, a in base.items()}


def _jobs(shape: tuple[int, ...], devices: list[int], seed: int) -> list[Job]:
    x = np.random.default_rng(seed).standard_normal((len(devices), 1, *shape)).astype(np.float32)
    return [Job({"x": x[i]}, 1, lambda job: None, arrived=0.0, device=f"d{d}") for i, d in enumerate(devices)]


def _compare(
    single: ModelRunner, own: PersonalRunner, shape: tuple[int, ...], devices: int, rows: int, seconds: float
) -> dict[str, float]:
    order = np.random.default_rng(rows)
    runners: tuple[Runner, Runner] = (single, own)
    took: tuple[list[float], list[float]] = ([], [])
    end = perf_counter() + seconds
    turn = 0
    while perf_counter() < end or turn < 20:
        jobs = _jobs(shape, order.permutation(devices)[:rows].tolist(), turn)
        for runner, times in zip(runners, took, strict=True):
            begun = perf_counter()
            runner.run(jobs)
            times.append(perf_counter() - begun)
            if any(job.error for job in jobs):
                raise RuntimeError(f"{own.key}: {jobs[0].error}")
            for job in jobs:
                job.inputs = {"x": job.inputs["x"]}
        turn += 1
    one, personal = (1e3 * median(times[5:]) for times in took)
    return {"one model ms": round(one, 3), "personal ms": round(personal, 3), "ratio": round(one / personal, 3)}


def _difference(data: bytes, own: PersonalRunner, states: list[dict[str, Array]], shape: tuple[int, ...]) -> float:
    """The largest difference from the devices' own bundles over rows of 100 devices, relative to the largest output."""
    chosen = list(range(0, len(states), max(1, len(states) // 100)))
    jobs, worst = _jobs(shape, chosen, 7), 0.0
    own.run(jobs)
    for job, i in zip(jobs, chosen, strict=True):
        want = _alone(data, states[i], job)
        assert job.outputs is not None
        got = next(iter(job.outputs.values()))
        worst = max(worst, float(np.abs(got - want).max() / max(1.0, np.abs(want).max())))
    return worst


def _alone(data: bytes, state: dict[str, Array], job: Job) -> Array:
    model = lite_runtime.load(bundle.with_state(data, state))
    return next(iter(model.run({"x": job.inputs["x"]}).values()))


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    for name in given.models:
        print(json.dumps(measure(name, given.devices, given.rows, given.seconds, given.threads)), flush=True)


if __name__ == "__main__":
    main()
