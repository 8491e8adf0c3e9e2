"""Continues a text, byte by byte, with the bundle of a GPT that `msedge train` made:

msedge train examples/training/text.toml --set data.text=/path/to/a.txt
python examples/training/continue.py examples/training/text.mslite "First Citizen:" --length 200
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import lite_runtime


def continued(model: lite_runtime.Model, text: bytes, length: int, temperature: float, seed: int) -> bytes:
    """`text` and `length` bytes behind it. `temperature`: 0 takes the likeliest byte each time, 1 draws from what the
    model expects. The model sees as many of the last bytes as it was trained with."""
    size, made, rng = int(model.inputs()[0].shape[1]), bytearray(text or b"\n"), np.random.default_rng(seed)
    for _ in range(length):
        seen = made[-size:]
        given = np.zeros((1, size), np.int32)
        given[0, : len(seen)] = np.frombuffer(bytes(seen), np.uint8)
        logits = model.run({"x": given})["logits"][0, len(seen) - 1].astype(np.float64)
        if temperature:
            chance = np.exp((logits - logits.max()) / temperature)
            made.append(int(rng.choice(len(chance), p=chance / chance.sum())))
        else:
            made.append(int(logits.argmax()))
    return bytes(made)


def main() -> int:
    """Prints the text."""
    parser = argparse.ArgumentParser(description="Continues a text.")
    parser.add_argument("bundle")
    parser.add_argument("text")
    parser.add_argument("--length", type=int, default=200, metavar="BYTES")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model = lite_runtime.load(args.bundle)
    made = continued(model, args.text.encode(), args.length, max(args.temperature, 0.0), args.seed)
    print(made.decode("utf-8", "replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
