"""Augmentation policies on real data: accuracy with and without them, and images a second beside torchvision's.

    python -m benchmarks.augmentation accuracy --data ../shared/data --json accuracy.json    # continued
    python -m benchmarks.augmentation speed --python PYTHON --json speed.json

Three tasks: 1,000 of MNIST's training images (others for every seed), tested on its 10,000; spoken digits of four
speakers, tested on two never heard; six activities from a phone's inertial signals of twenty people, tested on ten
never seen. All runs of a task have the same network, steps and rates, and differ in the data pipeline alone (and in the
random numbers of the seed); nothing was tuned on the test. `speed` measures CPU seconds of one thread, in alternating
turns; `PYTHON` is an interpreter with torch and torchvision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import optax

import msedge
from benchmarks.accuracy.examples import spoken_digits, untangled
from cloud import data
from cloud.data import Apply, Pipeline, Policy
from cloud.train import random_affine
from cloud.zoo import lenet5, window_cnn
from lite_runtime._files import write_atomically
from lite_runtime.graph import Array

SEEDS, STEPS, BATCH, RATE = 3, 1000, 64, 2e-3

Change = Callable[[Pipeline], Pipeline]


class Task(NamedTuple):
    """x (n, …) and y to learn, the test's, and the network by the seed."""

    x: Array
    y: Array
    test_x: Array
    test_y: Array
    network: Callable[[int], ir.Model]


def _mnist(folder: Path, seed: int) -> Task:
    with np.load(folder / "mnist.npz") as file:
        x, y, test_x, test_y = (file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
    rows = np.random.default_rng(seed).permutation(len(x))[:1000]
    small = [part[:, None].astype(np.float32) / np.float32(255) for part in (x[rows], test_x)]
    return Task(small[0], y[rows].astype(np.int32), small[1], test_y.astype(np.int32),
                lambda s: lenet5((1, 28, 28), 10, s, pads=2))  # fmt: skip


def _speech(folder: Path, seed: int) -> Task:
    (first, labels), (second, others) = spoken_digits(folder)
    with np.load(folder / "fsdd_spoken_digits.npz") as file:
        test, speaker = file["index"] < 10, file["speaker"]
    x, y = np.concatenate([first, second]).transpose(0, 2, 1, 3), np.concatenate([labels, others])
    who = np.concatenate([speaker[~test], speaker[test]])
    held = np.isin(who, np.random.default_rng(seed).permutation(np.unique(who))[:2])
    return Task(x[~held], y[~held], x[held], y[held], lambda s: window_cnn((32, 1, 48), 10, s, kernel=5, dropout=0.3))


def _motion(folder: Path, seed: int) -> Task:
    with np.load(folder / "har_30_subjects.npz") as file:  # its own division has every person in both parts
        x, y, who = untangled(file["x"]), file["y"].astype(np.int32), file["subject"]
    held = np.isin(who, np.random.default_rng(seed).permutation(np.unique(who))[:10])
    return Task(x[~held], y[~held], x[held], y[held], lambda s: window_cnn(seed=s, dropout=0.3))


TASKS: Mapping[str, Callable[[Path, int], Task]] = {"mnist": _mnist, "speech": _speech, "motion": _motion}


def _moved(p: Pipeline) -> Pipeline:
    kinds = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate", "zoom")
    return p.augment("x", Policy("image", kinds, axes="chw"))


def _shifted(p: Pipeline) -> Pipeline:
    return p.augment(
        "x", Apply("spectrum", "time_shift", 0.2, axes="f1t"), Apply("spectrum", "frequency_shift", 0.1, axes="f1t")
    )


def _masked(p: Pipeline) -> Pipeline:
    names = ("time_warp", "frequency_mask", "time_mask")
    return p.augment("x", Policy("spectrum", names, choose=0, magnitude=30, uniform=True, axes="f1t"))


def _varied(p: Pipeline) -> Pipeline:
    return p.augment("x", Policy("series", axes="c1t"))


CHANGES: Mapping[str, Mapping[str, Change]] = {
    "mnist": {
        "RandAugment": lambda p: p.augment("x", Policy("image", axes="chw")),
        "moves, 2 of 6": _moved,
        "mixup": lambda p: p.blend("x", 10, alpha=0.2),
        "moves, then mixup": lambda p: _moved(p).blend("x", 10, alpha=0.2),
    },
    "speech": {
        "SpecAugment": _masked,
        "shifts in time and frequency": _shifted,
        "mixup": lambda p: p.blend("x", 10, alpha=0.2),
        "shifts, then mixup": lambda p: _shifted(p).blend("x", 10, alpha=0.2),
    },
    "motion": {
        "policy of series": _varied,
        "rotate, up to 20 degrees": lambda p: p.augment("x", Apply("series", "rotate", 20.0, axes="c1t")),
        "mixup": lambda p: p.blend("x", 6, alpha=0.2),
        "policy, then mixup": lambda p: _varied(p).blend("x", 6, alpha=0.2),
    },
}
NONE, IN_STEP = "none", "`random_affine` in the step"


def accuracy(task: Task, name: str, change: Change | None, seed: int) -> float:
    """The test's accuracy after a run."""
    pipeline = data.arrays({"x": task.x, "labels": task.y}).shuffle()
    if change is not None:
        pipeline = change(pipeline)
    augment = random_affine(shift=2.0, zoom=0.1, shear=0.2) if name == IN_STEP else None
    rate = optax.cosine_decay_schedule(RATE, STEPS)
    trainer = msedge.Trainer(task.network(seed), seed=seed, optimizer=optax.adam(rate), augment=augment)
    trainer.fit(pipeline.batch(BATCH, "drop"), steps=STEPS)
    return float(trainer.evaluate((task.test_x, task.test_y)).metrics["accuracy"])


def runs(args: argparse.Namespace) -> None:
    """Every run that the file lacks, and the table."""
    made: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
    for name in args.tasks:
        extra = [IN_STEP] if name == "mnist" else []
        changes = {**dict.fromkeys([NONE, *extra]), **CHANGES[name]}
        for seed in range(args.seeds):
            task = TASKS[name](args.data, seed)
            for said, change in changes.items():
                if args.only and said not in args.only:
                    continue
                at = made.setdefault(name, {}).setdefault(said, {})
                if str(seed) not in at:
                    at[str(seed)] = accuracy(task, said, change, seed)
                    print(f"  {name}, {said}, seed {seed}: {at[str(seed)]:.4f}", flush=True)
                    write_atomically(args.json, json.dumps(made, indent=1).encode())
    print("| task | change | accuracy, mean | of each seed |\n|---|---|---|---|")
    for name, rows in made.items():
        for said, by_seed in rows.items():
            found = list(by_seed.values())
            each = ", ".join(f"{100 * value:.2f}" for value in found)
            print(f"| {name} | {said} | {100 * statistics.mean(found):.2f} % | {each} |")


# -- speed -------------------------------------------------------------------------------------------------------------

_PEER = Path(__file__).with_name("_augmentation_torchvision.py")
SIZES = {32: 128, 224: 32}
"""Height and width of images, and the batch."""
POLICIES: Mapping[str, Policy] = {
    "RandAugment": Policy("image"),
    "TrivialAugment": Policy("image", choose=1, magnitude=30, uniform=True, wide=True),
}


def speed(args: argparse.Namespace) -> None:
    """Images a second of ours and of torchvision's, in turns."""
    found: dict[str, Any] = {}
    with subprocess.Popen(
        [args.python, str(_PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as peer:
        assert peer.stdin is not None and peer.stdout is not None
        for size, batch in SIZES.items():
            images = np.random.default_rng(0).integers(0, 256, (batch * 4, size, size, 3)).astype(np.uint8)
            for name, policy in POLICIES.items():
                pipeline = data.arrays({"x": images}).augment("x", policy).batch(batch).prefetch(threads=0)
                rates: dict[str, list[float]] = {}
                for turn in range(args.turns + 1):
                    used = time.process_time()
                    for _ in pipeline.batches(epoch=turn):
                        pass
                    used = time.process_time() - used
                    peer.stdin.write(json.dumps({"policy": name, "size": size, "images": len(images)}) + "\n")
                    theirs = json.loads(peer.stdout.readline())
                    for key, seconds in ({"ours": used} | theirs).items():
                        if turn:  # the first warms up
                            rates.setdefault(key, []).append(len(images) / seconds)
                row = {key: statistics.median(values) for key, values in rates.items()}
                found[f"{name}, {size} x {size} x 3"] = row
                print(name, size, {key: round(value) for key, value in row.items()}, flush=True)
        peer.stdin.close()
    write_atomically(args.json, json.dumps(found, indent=1).encode())


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("accuracy")
    first.add_argument("--data", type=Path, required=True)
    first.add_argument("--json", type=Path, required=True, help="what was measured; it is continued")
    first.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    first.add_argument("--only", nargs="+", default=[], help="changes by their names in the table; all by default")
    first.add_argument("--seeds", type=int, default=SEEDS)
    first.set_defaults(run=runs)
    second = commands.add_parser("speed")
    second.add_argument("--python", required=True, help="an interpreter with torch and torchvision")
    second.add_argument("--json", type=Path, required=True)
    second.add_argument("--turns", type=int, default=9)
    second.set_defaults(run=speed)
    args = parser.parse_args(arguments)
    args.run(args)


if __name__ == "__main__":
    main()
