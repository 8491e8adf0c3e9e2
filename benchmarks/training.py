"""Training steps of a bundle against PyTorch's on the same network, weights, batch and threads, turn by turn.

    python -m benchmarks.training [--threads 1] [--seconds 10] [--compile] [--json FILE]

A step is forward, backward and an SGD step with momentum. PyTorch runs eager, in both layouts (and compiled, where
asked and where that works); it is given the graph of our model operator by operator. Before anything is timed both
take two steps from the same weights, and their losses must agree.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx_ir as ir

import lite_runtime
from cloud.zoo import resnet8
from cloud.zoo.build import BATCH, Builder
from converter import convert
from converter.training import Training
from edge.measuring.measure import Timing, interleave, ratio

__all__ = ["TASKS", "Task", "main", "mobilenet_v2", "timed"]

RATE, MOMENTUM = 0.01, 0.9
AGREE = (1e-4, 2e-2)
"""How far the losses of the first and of the second step may lie apart, relative. MobileNetV2 normalises by few pixels
late: after one step PyTorch's own layouts differ by 0.1 %, and from float64 by 1 % (ours by 0.001 %)."""


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


class Task(NamedTuple):
    """What is trained on what."""

    model: Callable[[], ir.Model]
    batch: int
    size: int
    trainable: str
    batch_norm: Literal["train", "frozen"]
    """"train": normalised by the batch, statistics move; "frozen"."""


TASKS: Mapping[str, Task] = {
    "resnet8": Task(partial(resnet8, (3, 32, 32)), 32, 32, "*", "train"),
    "resnet8 frozen norms": Task(partial(resnet8, (3, 32, 32)), 32, 32, "*", "frozen"),
    "mobilenet_v2": Task(mobilenet_v2, 8, 96, "*", "train"),
    "mobilenet_v2 last layer": Task(mobilenet_v2, 8, 96, "head.*", "frozen"),
}


# -- the two sides ----------------------------------------------------------------------------------------------------


def _symmetric(model: ir.Model) -> ir.Model:
    """Borders of one row on all sides, as PyTorch has them without a step of its own, instead of SAME's."""
    for node in model.graph:
        if node.op_type == "Conv" and any(node.attributes["pads"].as_ints()):
            node.attributes["pads"] = ir.AttrInt64s("pads", [1, 1, 1, 1])
    return model


class Ours:
    """The converted model, stepping through its batch."""

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
    """The same graph in PyTorch, which sees its parameters as leaves and everything else as functions."""

    def __init__(self, task: Task, fed: Mapping[str, Any], *, last: bool, compiled: bool) -> None:
        from fnmatch import fnmatch

        import torch

        graph = _symmetric(task.model()).graph
        kind = torch.channels_last if last else torch.contiguous_format
        self.x = torch.from_numpy(fed["x"]).contiguous(memory_format=kind)
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
        self.optimizer = torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM)
        self.nodes, self.training = list(graph), task.batch_norm == "train"
        self.forward = torch.compile(self._forward) if compiled else self._forward

    def _forward(self, x: Any) -> Any:
        values = {**self.values, "x": x}
        for node in self.nodes:
            operands = (values[v.name or ""] for v in node.inputs if v is not None)
            values[node.outputs[0].name or ""] = _TORCH[node.op_type](self, node, *operands)
        return values["logits"]

    def step(self) -> float:
        """The loss before the step."""
        from torch.nn import functional

        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.forward(self.x), self.labels)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())


def _conv(_: Torch, node: ir.Node, x: Any, w: Any, bias: Any = None) -> Any:
    from torch.nn import functional

    strides, pads = node.attributes["strides"].as_ints(), node.attributes["pads"].as_ints()
    return functional.conv2d(x, w, bias, list(strides), list(pads[:2]), 1, node.attributes["group"].as_int())


def _norm(net: Torch, node: ir.Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    from torch.nn import functional

    momentum, epsilon = 1 - node.attributes["momentum"].as_float(), node.attributes["epsilon"].as_float()
    return functional.batch_norm(x, mean, variance, scale, bias, net.training, momentum, epsilon)


_TORCH: Mapping[str, Callable[..., Any]] = {
    "Conv": _conv,
    "BatchNormalization": _norm,
    "Relu": lambda _, node, x: x.relu(),
    "Clip": lambda _, node, x, low, high: x.clamp(0, 6),
    "Add": lambda _, node, a, b: a + b,
    "GlobalAveragePool": lambda _, node, x: x.mean((2, 3), keepdim=True),
    "Flatten": lambda _, node, x: x.flatten(1),
    "Gemm": lambda _, node, x, w, bias: x @ w.T + bias,
}


# -- the comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A task's times, by who took them."""

    task: str
    threads: int
    timings: Mapping[str, Timing]

    def rows(self) -> Iterator[tuple[str, float, float, float, float]]:
        """Contender, milliseconds, and its time over ours with the middle half's bounds."""
        for name, timing in self.timings.items():
            r = ratio(self.timings["msedge"], timing)
            yield name, timing.median * 1e3, r.median, r.low, r.high


def timed(name: str, threads: int, seconds: float, *, compiled: bool = False) -> Result:
    """Times of one task. Raises AssertionError where losses part."""
    import torch

    torch.set_num_threads(threads)
    task, random = TASKS[name], np.random.default_rng(0)
    x = random.standard_normal((task.batch, 3, task.size, task.size)).astype(np.float32)
    fed = {"x": x, "labels": random.integers(0, 10, task.batch)}
    sides: dict[str, Ours | Torch] = {
        "msedge": Ours(task, fed, threads),
        "torch": Torch(task, fed, last=False, compiled=False),
        "torch channels last": Torch(task, fed, last=True, compiled=False),
    }
    if compiled:
        sides["torch compiled"] = Torch(task, fed, last=True, compiled=True)
    losses = {side: [net.step() for _ in range(2)] for side, net in sides.items()}
    for side, got in losses.items():
        for theirs, ours, apart in zip(got, losses["msedge"], AGREE, strict=True):
            np.testing.assert_allclose(theirs, ours, rtol=apart, err_msg=f"{name}: losses of {side}")
    return Result(name, threads, interleave({k: v.step for k, v in sides.items()}, seconds=seconds))


def main() -> None:
    """Print the table; with --json also write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=10.0, help="for each task")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    results = []
    print("| task | threads | | ms a step | its time over ours (middle half) |\n|---|---|---|---|---|")
    for threads in options.threads:
        for name in options.tasks:
            result = timed(name, threads, options.seconds, compiled=options.compile)
            results.append(result)
            for who, ms, middle, low, high in result.rows():
                print(f"| {name} | {threads} | {who} | {ms:.2f} | {middle:.2f} ({low:.2f} to {high:.2f}) |", flush=True)
    if options.json:
        rows = [{"task": r.task, "threads": r.threads, "rows": list(r.rows())} for r in results]
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
