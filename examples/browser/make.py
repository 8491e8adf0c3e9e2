"""A page that reads digits and hears sounds, and learns both from its user: `python examples/browser/make.py FOLDER`.

Trains a network on scikit-learn's digits and one on sounds that sounds.py makes, each on what the processing that its
bundle declares makes of pictures and recordings; builds both for browsers, and copies the page beside them. Further
files: digits of a writer whose hand leans by 40 degrees, which the network has not seen; a sound of each kind; and a
federated run in which pages take part. Then `python examples/browser/serve.py FOLDER` serves the page.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import sounds
from PIL import Image
from scipy.ndimage import rotate

import lite_runtime
from cloud.train import Trainer, load_digits_split
from cloud.zoo import Builder, window_cnn
from converter import Training, convert
from edge import prepared

HERE = Path(__file__).parent
MODULES = ("page", "network", "answers", "digits", "sounds", "rounds")
PAGE = ("index.html", "style.css", *(f"{name}.mjs" for name in MODULES))
LEAN, SHOWN, BATCH, ROWS = 40, 240, 16, 500
"""Degrees; digits of the writer, half of which are learned from; examples of a step there; rows prepared at once."""
PICTURE: list[dict[str, Any]] = [
    {"step": "image", "mode": "gray"},
    {"step": "resize", "size": 8, "fit": "cover"},
    {"step": "normalize", "scale": -2 / 255, "mean": -1},  # paper becomes -1, ink 1
]
DEVICE = {"predict": 1, "train_step": BATCH}
"""Signatures of a page, and their examples."""
IN_ROUNDS = {**DEVICE, "gradients": BATCH, "evaluate": 1}
"""With those of a device of a federated run."""
RUN = f"""# For `msedge listen`: every page with the example can take part, and one is enough.
[model]
bundle = "digits.mslite"
[algorithm]
name = "fedavg"
rate = 0.1
momentum = 0.0
[local]
steps = 8
batch = {BATCH}
[rounds]
count = 3
minimum = 1
[evaluation]
every = 0
"""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    split = load_digits_split(size=8)
    pictures = [_png(ink) for ink in (split.x[:, 0] + 1) * 8]
    made = _trained(_reader(), PICTURE, pictures, split.y, epochs=40)
    _write(made, folder / "digits", IN_ROUNDS, (8, 8, 1), "--federated")
    recorded, kinds = sounds.examples()
    made = _trained(window_cnn(sounds.SHAPE, len(sounds.KINDS), kernel=5), sounds.STEPS, recorded, kinds, epochs=12)
    _write(made, folder / "sounds", DEVICE, sounds.SHAPE)
    (folder / "samples").mkdir(exist_ok=True)
    for name, data in sounds.samples().items():
        (folder / "samples" / name).write_bytes(data)
    (folder / "writer.json").write_text(json.dumps(_writer(split.held_out_x[:SHOWN, 0], split.held_out_y[:SHOWN])))
    (folder / "run.toml").write_text(RUN)
    for name in PAGE:
        shutil.copyfile(HERE / name, folder / name)
    print(f"next: python {HERE / 'serve.py'} {folder}")


def _reader() -> ir.Model:
    """Pictures `x` [batch, 8, 8, 1] to `logits` [batch, 10]."""
    b = Builder("reader")
    y = b.op("Flatten", b.input("x", ("batch", 8, 8, 1)), shape=("batch", 64), axis=1)
    return b.model(logits=b.dense(b.relu(b.dense(y, 64, name="hidden")), 10, name="head"))


def _trained(
    network: ir.Model, steps: list[dict[str, Any]], files: Sequence[bytes], labels: np.ndarray, epochs: int
) -> bytes:
    """A bundle that declares these steps for its input `file`, is trained on what they make, and trains on a device."""
    document = {"version": 1, "inputs": [{"name": "file", "feeds": "x", "steps": steps}]}
    untrained = lite_runtime.load(convert(network, processing=document).bundle)
    rows = [prepared(untrained, {"file": files[at : at + ROWS]})["x"] for at in range(0, len(files), ROWS)]
    trainer = Trainer(network, seed=0)
    trainer.fit((np.concatenate(rows), labels), epochs)
    settings = Training("*", optimizer="adam", learning_rate=0.002)
    return convert(trainer.export(), processing=document, trainable=settings).bundle


def _write(bundle: bytes, folder: Path, signatures: Mapping[str, int], shape: Sequence[int], *options: str) -> None:
    """The bundle, and what a page needs of it, by `msedge build`; options: further ones."""
    path = folder.with_suffix(".mslite")
    path.write_bytes(bundle)
    command = [sys.executable, "-m", "edge.cli", "build", str(path), "--target", "wasm32", "-o", str(folder), *options]
    for name, size in signatures.items():
        command += ["--signature", name, "--input-shape", f"{name}/x={','.join(map(str, (size, *shape)))}"]
    subprocess.run(command, check=True)


def _png(ink: np.ndarray) -> bytes:
    """A digit [8, 8] with ink of 0 to 16 as a picture of 32 x 32, black on white."""
    out = io.BytesIO()
    paper = np.rint(255 - ink * (255 / 16)).astype(np.uint8)
    Image.fromarray(paper.repeat(4, 0).repeat(4, 1)).save(out, "PNG")
    return out.getvalue()


def _writer(images: np.ndarray, labels: np.ndarray) -> dict[str, list[object]]:
    """Leaning digits [digits, 8, 8] with ink of 0 to 16, and what they are."""
    ink = rotate((images + 1) * 8, LEAN, axes=(1, 2), reshape=False, order=1)
    return {"ink": np.rint(ink).clip(0, 16).astype(int).reshape(-1, 64).tolist(), "labels": labels.tolist()}


if __name__ == "__main__":
    main()
