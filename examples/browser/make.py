"""A page that reads handwritten digits and learns somebody's hand: `python examples/browser/make.py FOLDER`.

Trains a small network on scikit-learn's digits, makes a bundle of it that trains on a device, builds that for browsers,
and copies the page beside it. A second file has digits of a writer whose hand leans by 40 degrees; the network has not
seen such digits. Then `python examples/browser/serve.py FOLDER` serves the page; nothing leaves it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
from scipy.ndimage import rotate

from cloud.train import Trainer, load_digits_split
from cloud.zoo import mlp
from converter import Training, build, convert

HERE = Path(__file__).parent
PAGE = ("index.html", "page.mjs", "style.css")
LEAN, SHOWN, EPOCHS, BATCH = 40, 240, 40, 16
"""Degrees; digits of the writer, half of which are learned from; epochs of training here; digits of a step there."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    split = load_digits_split(size=8)
    trainer = Trainer(mlp(64, 10, (64,)), seed=0)
    trainer.fit((split.x.reshape(-1, 64), split.y), EPOCHS)
    settings = Training("*", optimizer="adam", learning_rate=0.002)
    convert(trainer.export(), output=folder / "digits.mslite", trainable=settings)
    shapes = {"predict/x": (1, 64), "train_step/x": (BATCH, 64)}
    build(folder / "digits.mslite", folder / "model", signatures=["predict", "train_step"], shapes=shapes)
    (folder / "writer.json").write_text(json.dumps(_writer(split.held_out_x[:SHOWN, 0], split.held_out_y[:SHOWN])))
    for name in PAGE:
        shutil.copyfile(HERE / name, folder / name)
    print(f"next: python {HERE / 'serve.py'} {folder}")


def _writer(images: np.ndarray, labels: np.ndarray) -> dict[str, list[object]]:
    """Leaning digits [digits, 8, 8] with ink of 0 to 16, and what they are."""
    ink = rotate((images + 1) * 8, LEAN, axes=(1, 2), reshape=False, order=1)
    return {"ink": np.rint(ink).clip(0, 16).astype(int).reshape(-1, 64).tolist(), "labels": labels.tolist()}


if __name__ == "__main__":
    main()
