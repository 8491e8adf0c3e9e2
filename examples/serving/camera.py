"""Send images to a model whose bundle declares processing (docs/processing.md) and print the labels.

msedge convert mobilenet.onnx -o mobilenet.mslite --processing processing.toml
msedge serve mobilenet.mslite
python examples/serving/camera.py http://127.0.0.1:8000 mobilenet cat.jpg [MORE.png ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import msedge


def main(url: str, model: str, *files: str) -> None:
    """Send unchanged files, several in one request: the gateway decodes and resizes them."""
    with msedge.Client(url) as client:
        (entrance,) = (one["name"] for one in client.metadata(model)["inputs"])
        pictures = np.array([Path(file).read_bytes() for file in files], object)
        answers = client.infer(model, {entrance: pictures})
        for row, file in enumerate(files):
            print(file)
            for name, array in answers.items():
                words = [x.decode() if isinstance(x, bytes) else f"{x:.3f}" for x in array[row].ravel()]
                print(f"  {name}: {', '.join(words)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
