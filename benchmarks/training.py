"""Training steps of a bundle against PyTorch's with the same network, weights, batch and threads, in alternating turns.

    python -m benchmarks.training [--threads 1 2] [--seconds 10] [--docs docs] [--resume FILE]

A step is forward, backward and an SGD step with momentum. PyTorch runs eager and through `torch.compile` (inductor),
each in both memory layouts, with its fused optimizer; it runs the graph of our model operator by operator. Before
anything is timed, all contenders take two steps from the same weights, and their losses must agree; a contender with
other losses, or that does not run, is a row with the reason. `torch.compile` needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

import lite_runtime
from benchmarks.journal import Journal
from benchmarks.machine import code, facts, facts_table, versions
from benchmarks.marks import replace_between, require_marks
from cloud.zoo import resnet8
from cloud.zoo.build import BATCH, Builder
from converter import convert
from converter.training import Training
from edge.measuring.measure import interleave, ratio
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["TASKS", "VARIANTS", "Ours", "Task", "Torch", "linear", "main", "mobilenet_v2", "text", "timed"]

RATE, MOMENTUM = 0.01, 0.9
AGREE = (1e-4, 2e-2)
"""Allowed relative differences of the losses of the first and of the second step. MobileNetV2's last normalisations are
over few pixels: after one step PyTorch's own layouts differ by 0.1 %, and from float64 by 1 % (ours by 0.001 %)."""


def mobilenet_v2(size: int = 96, classes: int = 10, seed: int = 0) -> ir.Model:
    """MobileNetV2 at width 1 (Sandler et al., 2018): `x` [batch, 3, size, size] -> `logits` [batch, classes]."""
    b = Builder("mobilenet_v2", seed)
    y = _relu6(b, b.conv(b.input("x", (BATCH, 3, size, size)), 32, 3, stride=2, name="stem"), "stem")
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for i, (expand, width, repeats, stride) in enumerate(stages):
        for j in range(repeats):
            y = _inverted(b, y, expand, width, stride if j == 0 else 1, f"stage{i}.{j}")
    y = _relu6(b, b.conv(y, 1280, 1, name="last"), "last")
    return b.model(logits=b.dense(b.global_average_pool(y), classes, name="head"))


def _relu6(b: Builder, x: ir.Value, name: str) -> ir.Value:
    low, high = (b.weight(f"{name}.{k}", np.array(v, np.float32)) for k, v in (("low", 0), ("high", 6)))
    return b.op("Clip", b.batch_norm(x, name=f"{name}.bn"), low, high)


def _inverted(b: Builder, x: ir.Value, expand: int, width: int, stride: int, name: str) -> ir.Value:
    assert x.shape is not None
    channels, y = int(x.shape[1]), x  # type: ignore[arg-type]
    if expand > 1:
        y = _relu6(b, b.conv(y, channels * expand, 1, name=f"{name}.expand"), f"{name}.expand")
    y = _relu6(b, b.depthwise(y, 3, stride=stride, name=f"{name}.depthwise"), f"{name}.depthwise")
    y = b.batch_norm(b.conv(y, width, 1, name=f"{name}.project"), name=f"{name}.project.bn")
    return b.add(x, y) if stride == 1 and channels == width else y


def linear(features: int = 1280, classes: int = 10, seed: int = 0) -> ir.Model:
    """One dense layer on features that a frozen backbone computed before: `x` [batch, features] -> `logits`."""
    b = Builder("linear", seed)
    return b.model(logits=b.dense(b.input("x", (BATCH, features)), classes, name="head"))


class Task(NamedTuple):
    """A network, its data and the trained parameters. `shape`: of one example."""

    model: Callable[[], ir.Model]
    batch: int
    shape: tuple[int, ...]
    trainable: str
    batch_norm: Literal["train", "frozen"]
    """"train": normalised by the batch, statistics move; "frozen"."""


TASKS: Mapping[str, Task] = {
    "ResNet-8 32×32, everything, batch norms train": Task(partial(resnet8, (3, 32, 32)), 32, (3, 32, 32), "*", "train"),
    "ResNet-8 32×32, everything, batch norms frozen": Task(
        partial(resnet8, (3, 32, 32)), 32, (3, 32, 32), "*", "frozen"
    ),
    "ResNet-8 32×32, the last layer": Task(partial(resnet8, (3, 32, 32)), 32, (3, 32, 32), "head.*", "frozen"),
    "MobileNetV2 96×96, everything, batch norms train": Task(mobilenet_v2, 8, (3, 96, 96), "*", "train"),
    "MobileNetV2 96×96, the last layer": Task(mobilenet_v2, 8, (3, 96, 96), "head.*", "frozen"),
    "linear layer, 1280 features": Task(linear, 32, (1280,), "*", "frozen"),
}


# -- the two sides ----------------------------------------------------------------------------------------------------


def _symmetric(model: ir.Model) -> ir.Model:
    """Padding of one row on all sides instead of SAME's, which PyTorch can only do by a separate operator."""
    for node in model.graph:
        if node.op_type == "Conv" and any(node.attributes["pads"].as_ints()):
            node.attributes["pads"] = ir.AttrInt64s("pads", [1, 1, 1, 1])
    return model


class Ours:
    """The converted model, trained on one batch."""

    def __init__(self, task: Task, fed: Mapping[str, Any], threads: int) -> None:
        training = Training(
            task.trainable, optimizer="momentum", learning_rate=RATE, momentum=MOMENTUM, batch_norm=task.batch_norm
        )
        data = convert(_symmetric(task.model()), trainable=training).bundle
        self.model, self.fed = lite_runtime.load(data, threads=threads), dict(fed)

    def step(self) -> float:
        """The loss before the step."""
        return float(self.model.run(self.fed, "train_step")["loss"])


class Torch:
    """The same graph in PyTorch: parameters are leaf tensors, everything else is functions."""

    def __init__(self, task: Task, fed: Mapping[str, Any], *, last: bool, compiled: bool) -> None:
        import torch

        graph = _symmetric(task.model()).graph
        kind = torch.channels_last if last else torch.contiguous_format
        x = torch.from_numpy(fed["x"])
        self.x = x.contiguous(memory_format=kind) if x.ndim == 4 else x
        self.labels = torch.from_numpy(fed["labels"])
        self.values = {}
        for name, value in graph.initializers.items():
            assert value.const_value is not None
            tensor = torch.from_numpy(value.const_value.numpy().copy())
            self.values[name] = tensor.contiguous(memory_format=kind) if tensor.ndim == 4 else tensor
        trained = [
            tensor.requires_grad_()
            for name, tensor in self.values.items()
            if fnmatch(name, task.trainable) and tensor.ndim and "running" not in name
        ]
        self.optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, fused=True)
        self.calls = [_call(node, task.batch_norm == "train") for node in graph]
        self.forward = torch.compile(self._loss, fullgraph=True) if compiled else self._loss

    def _loss(self, x: Any, labels: Any) -> Any:
        from torch.nn import functional

        values = {**self.values, "x": x}
        for output, function, names in self.calls:
            values[output] = function(*(values[name] for name in names))
        return functional.cross_entropy(values["logits"], labels)

    def step(self) -> float:
        """The loss before the step."""
        self.optimizer.zero_grad()
        loss = self.forward(self.x, self.labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def _call(node: ir.Node, training: bool) -> tuple[str, Callable[..., Any], list[str]]:
    """A node's output, PyTorch's function for it with its attributes read, and its inputs."""
    names = [value.name or "" for value in node.inputs if value is not None]
    return node.outputs[0].name or "", _TORCH[node.op_type](node, training), names


def _conv(node: ir.Node, training: bool) -> Callable[..., Any]:
    from torch.nn import functional

    strides, pads = list(node.attributes["strides"].as_ints()), list(node.attributes["pads"].as_ints()[:2])
    group = node.attributes["group"].as_int()
    return lambda x, w, bias=None: functional.conv2d(x, w, bias, strides, pads, 1, group)


def _norm(node: ir.Node, training: bool) -> Callable[..., Any]:
    from torch.nn import functional

    momentum, epsilon = 1 - node.attributes["momentum"].as_float(), node.attributes["epsilon"].as_float()
    return lambda x, scale, bias, mean, variance: functional.batch_norm(
        x, mean, variance, scale, bias, training, momentum, epsilon
    )


def _linear(node: ir.Node, training: bool) -> Callable[..., Any]:
    from torch.nn import functional

    return lambda x, w, bias: functional.linear(x, w, bias)


_TORCH: Mapping[str, Callable[[ir.Node, bool], Callable[..., Any]]] = {
    "Conv": _conv,
    "BatchNormalization": _norm,
    "Relu": lambda node, training: lambda x: x.relu(),
    "Clip": lambda node, training: lambda x, low, high: x.clamp(0, 6),
    "Add": lambda node, training: lambda a, b: a + b,
    "GlobalAveragePool": lambda node, training: lambda x: x.mean((2, 3), keepdim=True),
    "Flatten": lambda node, training: lambda x: x.flatten(1),
    "Gemm": _linear,
}

VARIANTS: Mapping[str, Mapping[str, bool]] = {
    "torch eager": {"last": False, "compiled": False},
    "torch eager, channels last": {"last": True, "compiled": False},
    "torch.compile": {"last": False, "compiled": True},
    "torch.compile, channels last": {"last": True, "compiled": True},
}
"""The ways in which PyTorch runs."""


# -- the comparison ---------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A contender's time per step; `ratio`, `low` and `high`: its time divided by ours, the median and the middle half.
    `error`: why there is no time."""

    who: str
    seconds: float = 0.0
    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    error: str = ""


def timed(
    name: str, threads: int, seconds: float, variants: Mapping[str, Mapping[str, bool]] = VARIANTS
) -> list[Row]:
    """Times of one task, ours first. A contender that did not run, or has other losses, is a row with an error."""
    import torch

    torch.set_num_threads(threads)
    torch._dynamo.reset()  # code compiled for other tasks counts towards its limit
    task, random = TASKS[name], np.random.default_rng(0)
    x = random.standard_normal((task.batch, *task.shape)).astype(np.float32)
    fed = {"x": x, "labels": random.integers(0, 10, task.batch)}
    ours = Ours(task, fed, threads)
    expected = [ours.step() for _ in range(2)]
    calls: dict[str, Callable[[], float]] = {"msedge": ours.step}
    errors: dict[str, str] = {}
    for variant, options in variants.items():
        if task.model is linear and options["last"]:
            continue  # a matrix has only one layout
        made, errors[variant] = _first_steps(partial(Torch, task, fed, **options), expected)
        if made is not None:
            calls[variant] = made.step
    timings = interleave(calls, seconds=seconds)
    rows = []
    for who, error in {"msedge": "", **errors}.items():
        if error:
            rows.append(Row(who, error=error))
        else:
            r = ratio(timings["msedge"], timings[who])
            rows.append(Row(who, timings[who].median, r.median, r.low, r.high))
    return rows


def _first_steps(make: Callable[[], Torch], expected: Sequence[float]) -> tuple[Torch | None, str]:
    """The contender after two steps; None and the reason if it does not run or has other losses."""
    try:
        made = make()
        losses = [made.step() for _ in range(2)]
    except (RuntimeError, TypeError, ValueError, NotImplementedError, OSError, subprocess.SubprocessError) as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return None, f"{type(error).__name__}: {first}"[:200]
    for got, ours, apart in zip(losses, expected, AGREE, strict=True):
        if not abs(got - ours) <= apart * abs(ours):
            return None, f"its losses differ: {got:.6g}, expected {ours:.6g}"
    return made, ""


def text(told: Mapping[str, Any]) -> str:
    """Markdown: machine and method, one row per contender, and the number of rows in which PyTorch is faster."""
    lines = [
        f"| task | threads | msedge ms | {' | '.join(f'{who}, ms' for who in VARIANTS)} | best, its time over ours |",
        "| --- | ---: | ---: |" + " ---: |" * len(VARIANTS) + " --- |",
    ]
    faster, failed, ran = [], [], 0
    for one in told["results"]:
        rows = {row.who: row for row in (Row(*kept) for kept in one["rows"])}
        cells = [_cell(rows.get(who)) for who in ("msedge", *VARIANTS)]
        others = [row for who, row in rows.items() if who != "msedge" and not row.error]
        failed += [f"- {one['task']}, {one['threads']} thread(s), {r.who}: {r.error}" for r in rows.values() if r.error]
        last = "–"
        if others:
            best, ran = min(others, key=lambda row: row.ratio), ran + 1
            last = f"{best.who} {best.ratio:.2f} ({best.low:.2f}–{best.high:.2f})"
            if best.ratio < 1:
                faster.append(f"{one['task']}, {one['threads']} thread(s): {best.ratio:.2f}")
        lines.append(f"| {one['task']} | {one['threads']} | {' | '.join(cells)} | {last} |")
    heads = _heads(told["results"])
    table = facts_table({**told["machine"], **told["versions"]})
    why = "\n\nWhat did not run:\n\n" + "\n".join(failed) if failed else ""
    return f"""Written by `python -m benchmarks.training --docs docs` on {told["date"]}:

{table}

A step is forward, backward and SGD with momentum (PyTorch: its fused implementation) on random weights and examples,
batch 32 (MobileNetV2: 8), with the same graph, weights, batch and threads, in alternating turns in one process. Times
do not include compilation. A ratio is PyTorch's time divided by ours, the median of paired turns and their middle half:
above 1 msedge is faster.

{chr(10).join(lines)}

PyTorch is faster in {len(faster)} of {ran} rows{": " * bool(faster)}{"; ".join(faster)}.{heads}{why}"""


def _heads(results: Sequence[Mapping[str, Any]]) -> str:
    """How many times as fast msedge trains the last layer as the whole network, for models with both times."""
    ours = {(one["task"], one["threads"]): Row(*kept) for one in results for kept in one["rows"] if kept[0] == "msedge"}
    said = []
    for (task, threads), row in ours.items():
        whole = ours.get((task.replace("the last layer", "everything, batch norms train"), threads))
        if "the last layer" in task and whole is not None:
            said.append(f"{task.partition(',')[0]}, {threads} thread(s): {whole.seconds / row.seconds:.1f}")
    what = "Steps per second of the last layer alone, divided by those of everything, with msedge"
    return f" {what}: {'; '.join(said)}." if said else ""


def _cell(row: Row | None) -> str:
    return "–" if row is None else "failed" if row.error else f"{row.seconds * 1e3:.3g}"


def _conditions(args: argparse.Namespace) -> dict[str, Any]:
    held = {"machine": facts(), "versions": versions(("torch",)), "code": code()}
    return {**held, "seconds": args.seconds, "sources": code(packages=("cloud/zoo",))}


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    conditions, results = _conditions(args), []
    with Journal(args.resume, conditions, minutes=args.minutes) as journal:
        date = journal.get("date", measure=lambda: datetime.datetime.now(datetime.UTC).date().isoformat())
        for threads in args.threads:
            for name in args.tasks:
                rows = journal.get(name, threads, measure=partial(timed, name, threads, args.seconds))
                results.append({"task": name, "threads": threads, "rows": rows})
                for row in (Row(*kept) for kept in rows):
                    said = row.error or f"{row.seconds * 1e3:.3f} ms, {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
                    print(f"{name}, {threads} thread(s), {row.who}: {said}", file=sys.stderr, flush=True)
    return {"date": date, "machine": conditions["machine"], "versions": conditions["versions"], "results": results}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables; with --docs put them between the marks in training.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--docs", type=Path, metavar="DIR", help="folder of training.md, where training.json is also written"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="save tasks there; reuse those already in it")
    parser.add_argument("--minutes", type=float, metavar="N", help="start no task after this many minutes")
    args = parser.parse_args(argv)
    try:
        if args.docs:
            require_marks(args.docs / "training.md", "speed")
        told = _measured(args)
        print(text(told))
        if args.docs:
            replace_between(args.docs / "training.md", "speed", text(told))
            write_atomically(args.docs / "training.json", (json.dumps(told, indent=1) + "\n").encode())
        if args.resume:
            args.resume.unlink(missing_ok=True)
    except MsedgeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
