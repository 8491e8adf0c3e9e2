"""Random small networks, trained by the converter's signatures: kernels, definitions and JAX must agree on them.

    python -m tests.fuzz.training_models --cases 500 --seed 1

Case i of a seed is the same network everywhere. Of each: `gradients` against `jax.grad` and against the operators'
definitions, steps of `train_step` against the definitions, and to the bit among guard pages, with three workers, and
walked in the ways of `schedules`. Exit status: 0 nothing found, 1 something found.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import numpy as np
import onnx_ir as ir

import lite_runtime
from cloud.zoo.build import BATCH, Builder
from converter import convert
from converter.training import Training
from lite_runtime.graph import Array
from tests.converter.training.models import Batch, batches, gradients, shaken
from tests.fuzz.schedules import WAYS, walked

__all__ = ["check", "main", "network"]

CLASSES = 3
LIMIT = 1e-3
"""Of the largest number of a tensor: what sums in another order may come to through a few layers."""
STEPS = 2
Shape = list[Any]


class _Net:
    """A network as it grows."""

    def __init__(self, rng: Random, shape: Sequence[int]) -> None:
        self.rng, self.b, self.at = rng, Builder("net", rng.randrange(1 << 30)), 0
        self.y = self.b.input("x", (BATCH, *shape))

    @property
    def shape(self) -> Shape:
        """Of the latest value, without the batch."""
        return [int(d) for d in list(self.y.shape or ())[1:]]

    def name(self) -> str:
        self.at += 1
        return f"layer{self.at}"

    def weight(self, name: str, *shape: int) -> ir.Value:
        make = np.random.default_rng(self.rng.randrange(1 << 30))
        return self.b.weight(name, (make.standard_normal(shape) * 0.4).astype(np.float32))

    def op(self, op: str, *more: ir.Value | None, shape: Sequence[int] | None = None, **attrs: Any) -> ir.Value:
        full = None if shape is None else (BATCH, *shape)
        return self.b.op(op, self.y, *more, shape=full, **attrs)


def _window(net: _Net, most: int = 3) -> dict[str, list[int]]:
    """A kernel that fits, strides, pads smaller than the kernel."""
    rng = net.rng
    kernel = [min(rng.choice((1, 2, 3, 3, 3, 5)), most, size) for size in net.shape[1:]]
    pads = [rng.randrange(k) if rng.random() < 0.6 else k // 2 for k in kernel * 2]
    return {"kernel_shape": kernel, "strides": [rng.choice((1, 1, 2)) for _ in kernel], "pads": pads}


def _sizes(net: _Net, w: Mapping[str, list[int]]) -> list[int]:
    axes = range(len(w["kernel_shape"]))
    whole = [net.shape[1 + i] + w["pads"][i] + w["pads"][i + len(axes)] - w["kernel_shape"][i] for i in axes]
    return [n // w["strides"][i] + 1 for i, n in enumerate(whole)]


def _conv(net: _Net) -> ir.Value:
    rng, channels = net.rng, net.shape[0]
    window = _window(net, most=5)
    group = rng.choice([1, 1, *(g for g in range(2, channels + 1) if channels % g == 0)])
    filters = group * rng.choice((1, 2, 3, 5, 8, 17))
    name = net.name()
    weights = [net.weight(f"{name}.weight", filters, channels // group, *window["kernel_shape"])]
    weights += [net.weight(f"{name}.bias", filters)] * (rng.random() < 0.5)
    return net.op("Conv", *weights, shape=(filters, *_sizes(net, window)), group=group, **window)


def _winograd(net: _Net) -> ir.Value:
    filters, name = net.rng.choice((4, 16, 33)), net.name()
    weight = net.weight(f"{name}.weight", filters, net.shape[0], *[3] * (len(net.shape) - 1))
    pads = [1] * 2 * (len(net.shape) - 1)
    return net.op("Conv", weight, shape=(filters, *net.shape[1:]), kernel_shape=[*weight.shape][2:], pads=pads)


def _transposed(net: _Net) -> ir.Value:
    channels, name = net.shape[0], net.name()
    filters, stride = net.rng.choice((1, 3, 6)), net.rng.choice((1, 2))
    axes = len(net.shape) - 1
    weight = net.weight(f"{name}.weight", channels, filters, *[3] * axes)
    sizes = [(n - 1) * stride + 1 for n in net.shape[1:]]
    attrs = {"kernel_shape": [3] * axes, "strides": [stride] * axes, "pads": [1] * 2 * axes}
    return net.op("ConvTranspose", weight, shape=(filters, *sizes), **attrs)


def _pool(op: str) -> Callable[[_Net], ir.Value]:
    def make(net: _Net) -> ir.Value:
        window = _window(net)
        more = {"count_include_pad": net.rng.randrange(2)} if op == "AveragePool" else {}
        return net.op(op, shape=(net.shape[0], *_sizes(net, window)), **window, **more)

    return make


def _batch_norm(net: _Net) -> ir.Value:
    return net.b.batch_norm(net.y, name=net.name())


def _group_norm(op: str) -> Callable[[_Net], ir.Value]:
    def make(net: _Net) -> ir.Value:
        channels, name = net.shape[0], net.name()
        weights = [net.weight(f"{name}.{part}", channels) for part in ("weight", "bias")]
        groups = net.rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
        return net.op(op, *weights, **({"num_groups": groups} if op == "GroupNormalization" else {}))

    return make


def _activation(net: _Net) -> ir.Value:
    return net.op(net.rng.choice("Relu Relu Sigmoid Tanh LeakyRelu Elu HardSwish Gelu Softplus Mish".split()))


def _residual(net: _Net) -> ir.Value:
    before = net.y
    net.y = _winograd(net) if net.rng.random() < 0.5 else _activation(net)
    if net.shape != [int(d) for d in list(before.shape or ())[1:]]:
        return net.y
    return net.op(net.rng.choice(("Add", "Mul", "Sub")), before)


def _layer_norm(net: _Net) -> ir.Value:
    name, last = net.name(), net.shape[-1]
    weights = [net.weight(f"{name}.{part}", last) for part in ("weight", "bias")]
    return net.op("LayerNormalization", *weights[: net.rng.choice((1, 2))], axis=-1)


def _matmul(net: _Net) -> ir.Value:
    units = net.rng.choice((1, 2, 5, 8, 19))
    return net.op("MatMul", net.weight(f"{net.name()}.weight", net.shape[-1], units), shape=(*net.shape[:-1], units))


def _attention(net: _Net) -> ir.Value:
    """softmax(y y^T) y: the batch symbolic, the sequence known."""
    times, size = net.shape
    turned = net.op("Transpose", perm=[0, 2, 1], shape=(size, times))
    scores = net.op("MatMul", turned, shape=(times, times))
    weights = net.b.op("Softmax", scores, axis=-1)
    return net.b.op("MatMul", weights, net.y, shape=(BATCH, times, size))


def _recurrent(op: str, gates: int) -> Callable[[_Net], ir.Value]:
    def make(net: _Net) -> ir.Value:
        (times, size), name, hidden = net.shape, net.name(), net.rng.choice((1, 3, 4, 9))
        ways = net.rng.choice((1, 1, 2))
        attrs = {"hidden_size": hidden, "direction": "bidirectional" if ways == 2 else "forward"}
        attrs |= {"linear_before_reset": net.rng.randrange(2)} if op == "GRU" else {}
        weights = [net.weight(f"{name}.{part}", ways, gates * hidden, n) for part, n in (("w", size), ("r", hidden))]
        weights += [net.weight(f"{name}.b", ways, 2 * gates * hidden)] * (net.rng.random() < 0.7)
        first = net.b.op("Transpose", net.y, perm=[1, 0, 2], shape=(times, BATCH, size))
        walked_ = net.b.op(op, first, *weights, shape=(times, ways, BATCH, hidden), **attrs)
        back = net.b.op("Transpose", walked_, perm=[2, 0, 1, 3], shape=(BATCH, times, ways, hidden))
        shape = net.b.weight(f"{name}.shape", np.array([0, times, ways * hidden], np.int64))
        return net.b.op("Reshape", back, shape, shape=(BATCH, times, ways * hidden))

    return make


_IMAGES = (
    _conv, _conv, _conv, _winograd, _transposed, _pool("MaxPool"), _pool("AveragePool"), _batch_norm, _batch_norm,
    _group_norm("GroupNormalization"), _group_norm("InstanceNormalization"), _activation, _activation, _residual,
)  # fmt: skip
_SEQUENCES = (
    _matmul, _matmul, _layer_norm, _layer_norm, _attention, _recurrent("LSTM", 4), _recurrent("GRU", 3), _activation,
    _residual,
)  # fmt: skip
"""The operators of which a network of each kind may consist."""


def network(rng: Random) -> ir.Model:
    """x [batch, ...] -> logits [batch, CLASSES]; one or two spatial axes, or a sequence."""
    sequence = rng.random() < 0.3
    axes = [rng.randrange(1, 14) for _ in range(1 if sequence or rng.random() < 0.2 else 2)]
    net = _Net(rng, (*axes, rng.choice((1, 3, 8))) if sequence else (rng.choice((1, 2, 3, 6, 16)), *axes))
    made_of = [layer for layer in _SEQUENCES if layer is not _residual] if sequence else _IMAGES
    for _ in range(rng.randrange(1, 6)):
        net.y = rng.choice(made_of)(net)
    if not sequence and rng.random() < 0.5:
        net.y = net.b.global_average_pool(net.y)
    else:
        net.y = net.op("Flatten", shape=(int(np.prod(net.shape)),), axis=1)
    return shaken(net.b.model(logits=net.b.dense(net.y, CLASSES, name="head")), rng.randrange(1 << 30))


def check(seed: int, number: int) -> None:
    """Raises AssertionError, `schedules.Fault`, or what no network should make."""
    rng = Random(f"{seed}:{number}")
    model = network(rng)
    train = rng.random() < 0.5
    data = batches(model, CLASSES, rng.choice((2, 3, 5, 9, 17)), STEPS, rng.randrange(1 << 30))
    settings: dict[str, Any] = {"optimizer": rng.choice(("sgd", "momentum", "adam")), "learning_rate": 0.01}
    settings |= {"clip_norm": 1.0} if rng.random() < 0.5 else {}
    bundle = convert(model, trainable=Training("*", batch_norm="train" if train else "frozen", **settings)).bundle
    plain = _trained(bundle, data, backend="native")
    _near("definitions", plain, _trained(bundle, data, backend="reference"), settings["optimizer"] == "adam")
    for workers, backend in ((1, "guard"), (3, "guard"), (3, "native")):
        _equal(f"{backend} with {workers} workers", plain, _trained(bundle, data, backend=backend, threads=workers))
    for way in WAYS:
        _equal(way, plain, _trained(bundle, data, way, backend="native"))
    wanted = gradients(model, None, data[0], train=train)
    _near("jax", plain, {f"grad/{name}": g for name, g in wanted.items()})


def _trained(bundle: Any, data: Sequence[Batch], way: str = "", **how: Any) -> dict[str, Array]:
    """Gradients of the first batch, losses and predictions of steps, and the state they leave."""
    with walked(way, 3) if way else nullcontext():
        model = lite_runtime.load(bundle, **how)
        first = {"x": data[0][0], "labels": data[0][1]}
        found = dict(model.run(first, "gradients"))
        for i, (x, labels) in enumerate(data):
            found[f"loss {i}"] = model.run({"x": x, "labels": labels}, "train_step")["loss"]
        found |= model.run(first, "evaluate") | model.run({"x": data[0][0]}, "predict")
        return found | {f"state {name}": array for name, array in model.state_dict().items()}


def _equal(what: str, wanted: Mapping[str, Array], got: Mapping[str, Array]) -> None:
    for name, array in wanted.items():
        assert array.tobytes() == got[name].tobytes(), f"{what}: {name} has other bits"


def _near(what: str, got: Mapping[str, Array], wanted: Mapping[str, Array], adam: bool = False) -> None:
    """adam: what follows from its steps says little, as they go by the sign of gradients that may be all error."""
    for name, array in wanted.items():
        if array.dtype != np.float32 or name not in got or (adam and not name.startswith("grad/")):
            continue
        assert got[name].shape == array.shape, (what, name, got[name].shape, array.shape)
        span = max(1e-2, float(np.abs(array).max(initial=0)))
        error = float(np.abs(got[name].astype(np.float64) - array).max(initial=0)) / span
        assert error <= LIMIT, f"{what}: {name} {list(array.shape)} is off by {error:.2g} of {span:.2g}"


def main(arguments: list[str] | None = None) -> int:
    """The program."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.training_models", description=about)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so long, however many are left")
    a = parser.parse_args(arguments)
    until, done, found = time.monotonic() + a.seconds, 0, 0
    for number in range(a.first, a.cases):
        if time.monotonic() > until:
            break
        done += 1
        try:
            check(a.seed, number)
        except Exception as error:  # the point of a fuzzer
            found += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            ops = " ".join(node.op_type for node in network(Random(f"{a.seed}:{number}")).graph)
            where = f"{last.filename}:{last.lineno}"
            print(f"case {number}: {type(error).__name__} at {where}: {error}\n    {ops}", flush=True)
    print(f"cases {done}, findings {found}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
