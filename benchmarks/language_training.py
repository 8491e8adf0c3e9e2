"""Steps that train adapters (LoRA) of a language model: msedge with blocks of 4 bits, beside PyTorch with peft.

    python -m benchmarks.language_training model.gguf text.txt [--threads 1 2] [--steps 12] [--python PYTHON] [--json]

Queries and values of all layers have adapters of rank 8; a step is one text of 128 tokens and Adam. Both begin with the
same numbers, run in processes of their own, and take turns, so that a ratio is that of neighbours in time. PyTorch
computes in float32 on the same weights, which transformers reads from the same file; `--python` is the interpreter that
has torch, transformers, peft and gguf.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from converter import convert
from converter.training import Lora, Training
from lite_runtime.language import LanguageModel

__all__ = ["main"]

RANK, RATE, TOKENS = 8, 1e-3, 128
_WARM = 2
"""Steps that are not counted."""
_MSEDGE, _TORCH = (Path(__file__).with_name(f"_lora_{name}.py") for name in ("msedge", "torch"))


def main(args: list[str] | None = None) -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as work:
        bundle, data = Path(work) / "model.mslite", Path(work) / "data.npz"
        training = Training(adapters=Lora(RANK, targets=("query", "value")), optimizer="adam", learning_rate=RATE)
        convert(given.model, output=bundle, trainable=training)
        np.savez(data, **_data(bundle, given.text))
        found = [_compared(bundle, data, given, threads) for threads in given.threads]
    if given.json:
        print(json.dumps(found, indent=2))
        return
    print("| threads | msedge, s a step | torch + peft, s | ratio (middle half) | msedge, MB | torch, MB | losses |")
    print("| ---: | ---: | ---: | --- | ---: | ---: | --- |")
    for row in found:
        low, middle, high = row["ratio"]
        ours, theirs = row["msedge"], row["torch"]
        seconds, sizes = ([one[key] for one in (ours, theirs)] for key in ("seconds", "memory"))
        first, *_, last = ours["losses"]
        print(
            f"| {row['threads']} | {seconds[0]:.3f} | {seconds[1]:.3f} | {middle:.2f} ({low:.2f}-{high:.2f}) "
            f"| {sizes[0] / 1e6:.0f} | {sizes[1] / 1e6:.0f} "
            f"| {first:.3f} to {last:.3f}, at most {row['apart']:.1%} apart |"
        )


def _data(bundle: Path, text: Path) -> dict[str, Any]:
    """Tokens, labels, and what A begins with."""
    model = LanguageModel.load(bundle, positions=TOKENS)
    ids = model.words().encode(text.read_text(encoding="utf-8")[: 16 * TOKENS])[: TOKENS + 1]
    state = model.engine.model.state_dict()
    first = {}
    for name, value in state.items():
        if name.endswith(".lora_a") and "/" not in name:
            _, layer, role, _ = name.split(".")
            first[f"{layer}.{role}"] = value
    return {"tokens": np.array([ids[:-1]], np.int32), "labels": np.array([ids[1:]], np.int64), **first}


def _compared(bundle: Path, data: Path, given: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Both in turns."""
    ours = _process([sys.executable, _MSEDGE, bundle, threads, data])
    theirs = _process([given.python, _TORCH, given.model.resolve(), threads, data, RANK, RATE])
    turns = [(_step(ours), _step(theirs)) for _ in range(_WARM + given.steps)]
    for process in (ours, theirs):
        process.communicate()
    ratios = sorted(b["seconds"] / a["seconds"] for a, b in turns[_WARM:])
    losses = [[one["loss"] for one in side] for side in zip(*turns, strict=True)]
    return {
        "threads": threads,
        "ratio": [float(np.quantile(ratios, q)) for q in (0.25, 0.5, 0.75)],
        "apart": max(abs(a - b) / b for a, b in zip(*losses, strict=True)),
        **{
            name: {
                "seconds": median(one["seconds"] for one in side[_WARM:]), "memory": side[-1]["memory"],
                "losses": [one["loss"] for one in side],
            }
            for name, side in zip(("msedge", "torch"), zip(*turns, strict=True), strict=True)
        },
    }  # fmt: skip


def _process(command: list[Any]) -> subprocess.Popen[str]:
    return subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _step(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("step\n")
    process.stdin.flush()
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


if __name__ == "__main__":
    main()
