"""A script that `benchmarks/language_training.py` runs as a process: steps of LoRA by a bundle.

Arguments: the bundle, threads, a .npz file with tokens and labels. Each line on standard input asks for a step; the
answer is a line with a JSON object. It imports what a device imports, and nothing else.
"""

from __future__ import annotations

import json
import sys
from time import perf_counter

import numpy as np

import lite_runtime


def main(bundle: str, threads: str, data: str) -> None:
    """The process."""
    model = lite_runtime.load(bundle, threads=int(threads))
    held = np.load(data)
    batch = {"input_ids": held["tokens"], "labels": held["labels"]}
    for _ in sys.stdin:
        begin = perf_counter()
        loss = float(model.run(batch, "train_step")["loss"])
        seconds = perf_counter() - begin
        print(json.dumps({"loss": loss, "seconds": seconds, "memory": peak()}), flush=True)


def peak() -> int:
    """Peak bytes of resident memory of this program; getrusage has that of the one before exec too."""
    with open("/proc/self/status", encoding="ascii") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
