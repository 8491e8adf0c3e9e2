"""Networks that are trained here, for more labelled tasks of more families than models are published for.

`python -m benchmarks.accuracy.trained --data DIR --trained DIR` trains those that are missing. Seeds are fixed; another
machine's rounding may give other weights.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from benchmarks.accuracy import examples, networks
from benchmarks.accuracy.examples import Examples
from benchmarks.accuracy.measures import Measure, Task, pixels, top1
from cloud.zoo import mlp, resnet8, transformer
from converter.training.options import Loss
from lite_runtime.graph import Array

__all__ = ["NETWORKS", "Network", "tasks", "train"]

_CALIBRATION = 256
"""Rows of the training data that calibrate."""


@dataclass(frozen=True)
class Network:
    """A network, its data and how long it is trained. `measure`: of labels, how outputs are scored."""

    name: str
    build: Callable[[], ir.Model]
    examples: Callable[[Path], Examples]
    epochs: int
    rate: float = 2e-3
    loss: Loss = "softmax_cross_entropy"
    measure: Callable[[Array], Measure] = top1
    batch: int = 64


_HAR, _WRIST, _SPOKEN, _SCENE, _CHARACTER = (9, 1, 128), (3, 1, 96), (1, 32, 48), (3, 48, 48), (1, 52, 52)

NETWORKS: tuple[Network, ...] = (
    Network("motion separable", lambda: networks.separable(_HAR, 6), examples.motion, 12),
    Network("motion mixer", lambda: networks.mixer(_HAR, 6), examples.motion, 12),
    Network("motion mlp", lambda: mlp(9 * 128, 6, (128, 64)), lambda data: _flat(examples.motion(data)), 10),
    Network("wrist gru", lambda: networks.recurrent(_WRIST, 14), examples.wrist, 15),
    Network("wrist separable", lambda: networks.separable(_WRIST, 14), examples.wrist, 15),
    Network("spoken mobilenet-v3", lambda: networks.mobilenet_v3(_SPOKEN, 10), examples.spoken_digits, 15),
    Network("spoken lstm", lambda: networks.recurrent((32, 1, 48), 10, kind="LSTM"),
            lambda data: _as_bands(examples.spoken_digits(data)), 20),
    Network("spoken convnext", lambda: networks.convnext(_SPOKEN, 10), examples.spoken_digits, 15, 1e-3),
    Network("scenes mobilenet-v2", lambda: networks.mobilenet_v2(_SCENE, 10), examples.cluttered_digits, 8),
    Network("scenes densenet", lambda: networks.densenet(_SCENE, 10), examples.cluttered_digits, 5),
    Network("scenes resnet", lambda: resnet8(_SCENE, 10), examples.cluttered_digits, 5),
    Network("scenes unet", lambda: networks.unet(_SCENE), examples.digit_masks, 3,
            loss="sigmoid_cross_entropy", measure=pixels),
    Network("characters efficientnet", lambda: networks.efficientnet(_CHARACTER, 136), examples.characters, 10),
    Network("text transformer", partial(transformer, 64, 256, width=96, layers=3), examples.text, 2,
            1e-3),
)  # fmt: skip


def _flat(found: Examples) -> Examples:
    (x, y), (held, labels) = found
    return (x.reshape(len(x), -1), y), (held.reshape(len(held), -1), labels)


def _as_bands(found: Examples) -> Examples:
    """[n, 1, bands, frames] -> [n, bands, 1, frames]"""
    (x, y), (held, labels) = found
    return (np.ascontiguousarray(x.swapaxes(1, 2)), y), (np.ascontiguousarray(held.swapaxes(1, 2)), labels)


def file_of(network: Network, folder: Path) -> Path:
    """Where a trained network is kept."""
    return folder / f"{network.name.replace(' ', '_')}.onnx"


def train(network: Network, data: Path, folder: Path) -> Path:
    """Train a network as a bundle does on a device, and write it, with an open batch dimension.

    XLA's gradients of depthwise convolutions take minutes an epoch on a processor; these take seconds.
    """
    import lite_runtime
    from converter import Training, convert

    (x, y), model = network.examples(data)[0], network.build()
    how = Training("*", loss=network.loss, optimizer="adam", weight_decay=1e-3, clip_norm=5.0, batch_norm="train")
    learner = lite_runtime.load(convert(ir.to_proto(model), trainable=how).bundle)
    labels, rng = y if y.dtype.kind == "f" else y.astype(np.int64), np.random.default_rng(0)
    steps = len(x) // network.batch
    for epoch in range(network.epochs):
        order, total = rng.permutation(len(x)), 0.0
        for step, rows in enumerate(order[: steps * network.batch].reshape(steps, -1)):
            done = (epoch + step / steps) / network.epochs
            rate = np.float32(network.rate * (1 + np.cos(np.pi * done)) / 2)
            learner.load_state_dict({"hyper/learning_rate": np.asarray(rate)}, strict=False)
            rows = np.sort(rows)
            total += float(learner.run({"x": x[rows], "labels": labels[rows]}, "train_step")["loss"])
        print(f"{network.name}: epoch {epoch + 1}, loss {total / steps:.4f}", file=sys.stderr, flush=True)
    for name, value in learner.state_dict().items():
        if name in model.graph.initializers:
            model.graph.initializers[name].const_value = ir.tensor(np.asarray(value, np.float32), name=name)
    folder.mkdir(parents=True, exist_ok=True)
    path = file_of(network, folder)
    ir.save(model, path)
    return path


def tasks(data: Path, folder: Path) -> Iterator[Task]:
    """The tasks of those networks that are trained."""
    for network in NETWORKS:
        if file_of(network, folder).exists():
            yield _task(network, data, folder)


def _task(network: Network, data: Path, folder: Path) -> Task:
    (fitted, _), (held, labels) = network.examples(data)
    chosen = np.random.default_rng(0).choice(len(fitted), _CALIBRATION, replace=False)
    path = file_of(network, folder)
    return Task(network.name, path, {"x": fitted[np.sort(chosen)]}, {"x": held}, network.measure(labels))


def main() -> int:
    """Trains every network that is missing."""
    parser = argparse.ArgumentParser(prog="benchmarks.accuracy.trained", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--trained", type=Path, required=True, metavar="DIR", help="the networks' files")
    args = parser.parse_args()
    for network in NETWORKS:
        if not file_of(network, args.trained).exists():
            print(train(network, args.data, args.trained))
    return 0


if __name__ == "__main__":
    sys.exit(main())
