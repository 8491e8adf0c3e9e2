"""Digits of MNIST reconstructed from the messages of a federated round, with each protection on and off.

    python -m benchmarks.privacy.inversion --data DIR [--out OUT.npz] [--models dense cnn]
    python -m benchmarks.privacy.inversion --data DIR --sums

Devices train a bundle for one step (FedSGD) and answer over the grid in this process; the messages of one of them are
attacked as its server has them. `--out` also holds the pictures: originals and reconstructions by setting. `--sums`
attacks secure sums alone, by the number of devices and of each one's examples, as the server has them and with a little
central noise as the next model shows them; before training, and after three epochs of 10,000 digits.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import optax

from cloud.audit.privacy.inversion import (
    Observed,
    Tap,
    compare,
    invert,
    labels_of,
    observe,
    observe_change,
    observe_mean,
    record,
    recorded_rounds,
    trained_function,
)
from cloud.audit.privacy.inversion.observe import Loss
from cloud.train import Trainer
from cloud.zoo import Builder, mlp
from converter import convert
from lite_runtime._files import write_atomically


class Setting(NamedTuple):
    """How a round is protected, and whether its sum is attacked instead of one device's message."""

    name: str
    up: Sequence[str] = ()
    privacy: Mapping[str, Any] = {}
    of_sum: bool = False


SETTINGS = (
    Setting("plain"),
    Setting("codec int8", ("int8",)),
    Setting("codec topk:0.05", ("topk:0.05",)),
    Setting("clip 0.1", (), {"clip": 0.1}),
    Setting("clip 1, central noise 1", (), {"clip": 1.0, "noise": "central", "multiplier": 1.0}),
    Setting("clip 1, local noise 0.5", (), {"clip": 1.0, "noise": "local", "multiplier": 0.5}),
    Setting("clip 1, local noise 0.01", (), {"clip": 1.0, "noise": "local", "multiplier": 0.01}),
    Setting("secure sums, a message", (), {"clip": 1.0, "secure": True}),
    Setting("secure sums, the sum of all devices", (), {"clip": 1.0, "secure": True}, True),
)


NOISE = (0.01, 0.1)
"""Multipliers of central noise on a sum."""


def dense() -> ir.Model:
    """784 to 10 by way of 64."""
    return mlp(784, 10, [64])


def cnn() -> ir.Model:
    """Three convolutions of 12 filters and a dense layer."""
    b = Builder("cnn", 0)
    y = b.input("x", ("batch", 1, 28, 28))
    for name, stride in (("first", 2), ("second", 2), ("third", 1)):
        y = b.relu(b.conv(y, 12, 5, name=name, stride=stride, bias=True))
    return b.model(logits=b.dense(b.op("Flatten", y, shape=("batch", 12 * 49), axis=1), 10, name="head"))


def seen(model: ir.Model, taps: Mapping[str, Tap], setting: Setting) -> Observed:
    """What the server has: one device's message, or the change of the model."""
    (message, reply), *later = next(iter(taps.values())).trained
    return observe_change(model, message, later[0][0], len(taps)) if setting.of_sum else observe(model, message, reply)


def attacked(name: str, setting: Setting, batch: int, data: Any, seed: int, devices: int) -> tuple[dict[str, Any], Any]:
    """One row, and the pictures."""
    images, labels = data
    model, shape = (dense(), (784,)) if name == "dense" else (cnn(), (1, 28, 28))
    order = np.random.default_rng(seed).permutation(len(images))
    shards = {
        f"device-{i:02d}": (images[rows].reshape(-1, *shape), labels[rows])
        for i, rows in enumerate(order[: devices * batch].reshape(devices, batch))
    }
    taps = recorded_rounds(
        model, shards, batch=batch, rounds=1 + setting.of_sum, up=setting.up, privacy=setting.privacy
    )
    observed = seen(model, taps, setting)
    chosen = list(shards.values()) if setting.of_sum else [shards["device-00"]]
    originals = np.concatenate([x for x, _ in chosen]).reshape(-1, 28, 28)
    found = compare(invert(observed).reshape(-1, 28, 28), originals, images[order[-500:]])
    truth = np.sort(np.concatenate([y for _, y in chosen]))
    row = {
        "model": name,
        "setting": setting.name,
        "examples": observed.examples,
        "protections": list(observed.protections),
        "psnr": float(found.psnr.mean()),
        "best_psnr": float(found.psnr.max()),
        "ssim": float(found.ssim.mean()),
        "above_20_db": int((found.psnr > 20).sum()),
        "chance_mean": float(found.chance_mean.mean()),
        "chance_other": float(found.chance_other.mean()),
        "labels_right": float((labels_of(observed) == truth).mean()),
    }
    return row, found


def sums(data: Any, seeds: int) -> Iterator[dict[str, Any]]:
    """How many examples secure sums give back, and the sums with noise, by devices and examples of each."""
    images, labels = data
    trainer = Trainer(dense(), optimizer=optax.adam(1e-3), seed=0)
    trainer.fit((images[:10_000].reshape(-1, 784), labels[:10_000]), 3, 64)
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("untrained", dense()), ("trained", trainer.export())):
            path = Path(folder) / f"{name}.mslite"
            convert(model, output=path, trainable="*")
            function = trained_function(path)
            for devices, batch in product((10, 30, 100), (1, 4, 16)):
                found = [summed(path, function, data, seed, devices, batch) for seed in range(seeds)]
                back = {key: sum(one[key] for one in found) for key in found[0]}
                yield {"model": name, "devices": devices, "examples": batch, "of": seeds * devices * batch, **back}


def summed(path: Path, function: Loss, data: Any, seed: int, devices: int, batch: int) -> dict[str, int]:
    """How many examples one round gives back."""
    images, labels = data
    count = devices * batch
    order = 10_000 + np.random.default_rng(seed).permutation(len(images) - 10_000)
    x, y = images[order[:count]].reshape(-1, 784), labels[order[:count]]
    shares = {f"device-{i:03d}": (x[i * batch : (i + 1) * batch], y[i * batch : (i + 1) * batch])
              for i in range(devices)}  # fmt: skip
    back = {}
    for multiplier in NOISE:
        words = {
            "algorithm": {"name": "fedavg", "rate": 0.1}, "local": {"steps": 1, "batch": batch},
            "privacy": {"clip": 1.0, "secure": True, "noise": "central", "multiplier": multiplier},
        }  # fmt: skip
        found = record(path, shares, words, seed=seed)
        message = found.taps["device-000"].trained[0][0]
        for name, mean in (("sum", found.means[0]), (f"noise {multiplier}", found.published[0])):
            if name in back:
                continue
            rebuilt = invert(observe_mean(function, message, mean, devices))
            near = compare(rebuilt, x, images[order[-2000:]].reshape(-1, 784))
            back[name] = int(near.given_back.sum())
            back[f"{name}, apart"] = int(near.told_apart.sum())
    return back


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mnist.npz")
    parser.add_argument("--out", type=Path, help=".npz with the pictures, and the table as JSON in `table`")
    parser.add_argument("--models", nargs="+", choices=("dense", "cnn"), default=("dense", "cnn"))
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 4))
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sums", action="store_true", help="secure sums alone, of 10 to 100 devices")
    args = parser.parse_args()
    with np.load(args.data / "mnist.npz") as file:
        data = np.float32(file["x_train"] / 255), file["y_train"].astype(np.int64)
    if args.sums:
        for row in sums(data, 3):
            print(json.dumps(row), flush=True)
        return
    rows, pictures = [], {}
    for name in args.models:
        for batch in args.batches if name == "dense" else (1,):
            for setting in SETTINGS:
                row, found = attacked(name, setting, batch, data, args.seed, args.devices)
                rows.append(row)
                pictures[f"{name} {batch} {setting.name}"] = np.stack([found.originals, found.images])
                print(json.dumps(row), flush=True)
    if args.out:
        file = io.BytesIO()
        np.savez_compressed(file, table=json.dumps(rows), **pictures)  # type: ignore[arg-type]
        write_atomically(args.out, file.getvalue())


if __name__ == "__main__":
    main()
