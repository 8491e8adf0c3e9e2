"""Train on digits from a file of records, shifted at random, and profile the data pipeline.

    python examples/data/digits.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from cloud import data
from cloud.train import Trainer, load_digits_split
from cloud.zoo import mlp


def shifted(x: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """An image [channels, height, width] shifted by up to a pixel; seed, epoch and image determine the shift."""
    rows, columns = generator.integers(-1, 2, 2)
    return np.roll(x, (rows, columns), (1, 2))


def flat(x: np.ndarray) -> np.ndarray:
    """Images [rows, channels, height, width] as rows of pixels."""
    return x.reshape(len(x), -1)


def run(folder: Path, epochs: int = 2) -> dict[str, Any]:
    """Train on records written to `folder`; returns the loss of the last epoch and the profile of the data pipeline."""
    split = load_digits_split()
    path = folder / "digits.records"
    data.write_records(path, ({"x": x, "labels": y} for x, y in zip(split.x, split.y, strict=True)))
    pipeline = data.records(path).shuffle().map(shifted, on="x", seeded=True).map(flat, on="x", rows=True).batch(32)
    trainer = Trainer(mlp(split.x[0].size, 10, (64,)), seed=0)
    reports = trainer.fit(pipeline, epochs)
    return {"loss": reports[-1].loss, "profile": data.profile(pipeline, 0.2)}


if __name__ == "__main__":
    found = run(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
    print(found["profile"].table())
    print(f"loss {found['loss']:.3f}")
