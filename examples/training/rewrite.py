"""Rewrites a text with the bundle of a T5 over bytes, such as the one that restores capitals and punctuation:

    PYTHONPATH=. msedge train benchmarks/recipes/t5.toml --set data.options.folder=/path/to/data \\
        --set export.bundle=cases.mslite
    python examples/training/rewrite.py benchmarks/recipes/cases.mslite "my lord what do you say"
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import lite_runtime
from lite_runtime.language import write

START = 1
"""What `target` begins with."""


def rewritten(model: lite_runtime.Model, text: bytes) -> bytes:
    """As many bytes as the model's target has, the likeliest each time."""
    sizes = {value.name: int(value.shape[1]) for value in model.inputs()}
    x = np.zeros((1, sizes["x"]), np.int32)
    x[0, : len(text)] = np.frombuffer(text, np.uint8)
    made = write(
        lambda source, target: model.run({"x": source, "target": target})["logits"], x, sizes["target"], start=START,
        end=-1,
    )  # fmt: skip
    return bytes(made[0].tolist())


def main() -> int:
    """Prints the text."""
    parser = argparse.ArgumentParser(description="Rewrites a text.")
    parser.add_argument("bundle")
    parser.add_argument("text")
    args = parser.parse_args()
    model = lite_runtime.load(args.bundle)
    most = int(next(value.shape[1] for value in model.inputs() if value.name == "x"))
    if len(args.text.encode()) > most:
        print(f"error: expected at most {most} bytes of text, got {len(args.text.encode())}", file=sys.stderr)
        return 3
    print(rewritten(model, args.text.encode()).decode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
