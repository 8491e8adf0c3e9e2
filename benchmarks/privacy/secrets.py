"""Secrets in the text of a small GPT: exposure and extraction by how often each was in the text.

    python -m benchmarks.privacy.secrets --data DIR [--out OUT.json] [--steps 1500]

Characters of Shakespeare, with lines "SECRET n: " and six random digits put between others 1, 4, 16 and 64 times; two
secrets that were never there are the control.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import optax

import msedge
from cloud.audit.privacy.canaries import Speaker, exposure, extract
from cloud.zoo import transformer
from lite_runtime._files import write_atomically

LENGTH, DIGITS, CHARACTERS = 64, 6, 100_000
TIMES = (0, 0, 1, 4, 16, 64)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with tinyshakespeare.txt")
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    lines = (args.data / "tinyshakespeare.txt").read_text()[:CHARACTERS].split("\n")
    told = [(f"SECRET {chr(65 + i)}: ", "".join(map(str, rng.integers(0, 10, DIGITS)))) for i in range(len(TIMES))]
    for (prefix, secret), times in zip(told, TIMES, strict=True):
        for place in rng.integers(0, len(lines), times):
            lines.insert(int(place), prefix + secret)
    text = "\n".join(lines)
    letters = sorted({*text, *"0123456789"})
    number = {letter: i for i, letter in enumerate(letters)}
    ids = np.array([number[letter] for letter in text], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(ids, LENGTH + 1)[:: LENGTH // 4]
    model = transformer(LENGTH, len(letters), width=64, layers=2, heads=4)
    trainer = msedge.Trainer(model, optimizer=optax.adam(2e-3), seed=args.seed)
    reports = trainer.fit((windows[:, :-1], windows[:, 1:]), None, 32, steps=args.steps)
    speaker = Speaker(trainer.export())
    rows: list[dict[str, Any]] = []
    for (prefix, secret), times in zip(told, TIMES, strict=True):
        start, own = [number[letter] for letter in "\n" + prefix], [number[letter] for letter in secret]
        alphabet = [number[letter] for letter in "0123456789"]
        found = exposure(speaker, start, own, alphabet, samples=4096)
        said = "".join(letters[i] for i in extract(speaker, start, DIGITS, alphabet))
        rows.append({"times": times, **found.__dict__, "extracted": said == secret})
        print(json.dumps(rows[-1]), flush=True)
    if args.out:
        write_atomically(args.out, json.dumps({"loss": float(reports[-1].loss), "secrets": rows}, indent=1).encode())


if __name__ == "__main__":
    main()
