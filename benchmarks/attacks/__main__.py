"""Attacks on the same float network beside the Adversarial Robustness Toolbox (ART), and on integer bundles.

    python -m benchmarks.attacks --data ../shared/data --python PYTHON_WITH_ART --json attacks.json

Trains a small convolutional network on MNIST and one on windows of inertial signals (the test has later ones of the
same people), rebuilds the same layers in PyTorch, and checks that scores agree to 1e-4. Every row of the table is two
processes on one processor with one thread, which take turns: the same examples, all classified right before, the same
epsilon, steps, restarts, searches and questions. Seconds are of the processor, from call to result, with inputs given
as arrays. Our first turn compiles; both figures are stated. Rows that the file has are not repeated.

A found example counts if the program's own network answers wrongly and it is within range and epsilon.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.attacks import cases, networks
from benchmarks.attacks.cases import Case
from benchmarks.attacks.networks import Network
from cloud.audit.attacks.results import distances
from lite_runtime._files import write_atomically
from lite_runtime.graph import Array

_FOLDER = Path(__file__).parent
_AGREE = 1e-4
"""The greatest difference of scores, in units of the largest."""
_ROUNDING = 1e-5
"""By which an example may leave the ball: both programs round."""


class Side:
    """One program's process, which waits for seeds."""

    def __init__(self, command: list[str], case: Case, network: Network, bundle: str, work: Path) -> None:
        told = {"attack": case.attack, "settings": case.settings, "rows": case.rows, "clip": network.clip,
                "onnx": str(network.onnx), "bundle": bundle}  # fmt: skip
        self.case, self.network, self.found = case, network, work / f"{Path(command[-1]).stem}.npz"
        self.process = subprocess.Popen(
            [*command, str(network.examples), json.dumps(told), "0", str(self.found)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.turns: list[dict[str, Any]] = []

    def turn(self, seed: int) -> Array:
        """Run the attack once; the scores of the examples."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"error: {self.case.name}: {self.process.args!r} ended with {self.process.wait()}")
        with np.load(self.found) as found:
            self.turns.append({**json.loads(line), **self._judged(found)})
            return np.asarray(found["logits"])

    def _judged(self, found: Any) -> dict[str, float]:
        """Rate of success, and the median distance with infinity where there was none."""
        with np.load(self.network.examples) as data:
            x = data["x"][: self.case.rows]
        norm = self.case.settings.get("norm", "L2")
        far = distances(x.reshape(len(x), -1), found["inputs"], norm)
        low, high = self.network.clip
        fine = (found["inputs"] >= low - _ROUNDING).all(1) & (found["inputs"] <= high + _ROUNDING).all(1)
        fine &= far <= self.case.settings.get("epsilon", np.inf) * (1 + _ROUNDING)
        won = found["success"] & fine
        return {"rate": float(won.mean()), "distance": float(np.median(np.where(won, far, np.inf)))}

    def close(self) -> dict[str, Any]:
        """The figures: of the first turn, and medians of the others."""
        self.process.communicate()
        first, *rest = self.turns
        return {
            "first": first["cpu"], "seconds": statistics.median(turn["cpu"] for turn in rest),
            "rate": statistics.mean(turn["rate"] for turn in self.turns),
            "distance": statistics.median(turn["distance"] for turn in self.turns),
        }  # fmt: skip


def row(network: Network, case: Case, python: str, turns: int, integers: bool) -> dict[str, Any]:
    """One attack by both programs; on the integer bundle by ours alone."""
    with tempfile.TemporaryDirectory() as folder:
        work, bundle = Path(folder), str(network.integers) if integers else ""
        ours = Side([sys.executable, "-m", "benchmarks.attacks._msedge"], case, network, bundle, work)
        sides = [ours] if integers else [ours, Side([python, str(_FOLDER / "_art.py")], case, network, "", work)]
        for seed in range(turns):
            scores = [side.turn(seed) for side in sides]
            apart = max(float(np.abs(s - scores[0]).max() / np.abs(scores[0]).max()) for s in scores)
            if apart > _AGREE:
                raise SystemExit(f"error: {network.name}: scores differ by {apart:.1e}: not the same network")
        found = dict(zip(("msedge", "art"), [side.close() for side in sides], strict=False))
    return {"task": network.name, "case": case.name, "integers": integers, "minimal": case.minimal, "rows": case.rows,
            "apart": apart, "settings": dict(case.settings), "turns": turns, **found}  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """Two tables: beside the other program, and of integer bundles."""
    print("| task | attack | examples | found, msedge | ART | seconds, msedge | with compiling | ART | times as fast | "
          "with compiling |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for one in (one for one in rows if not one["integers"]):
        a, b = one["msedge"], one["art"]
        print(
            f"| {one['task']} | {one['case']} | {one['rows']} | {_found(one, a)} | {_found(one, b)} "
            f"| {a['seconds']:.3f} | {a['first']:.2f} | {b['seconds']:.3f} | {b['seconds'] / a['seconds']:.1f} "
            f"| {b['first'] / a['first']:.1f} |"
        )
    print("\n| task | attack on the integer bundle | examples | by | found | seconds |\n|---|---|---|---|---|---|")
    for one in (one for one in rows if one["integers"]):
        how = "its own predictions" if one["case"].startswith(("Square", "Hop")) else "its float twin's gradients"
        a = one["msedge"]
        print(f"| {one['task']} | {one['case']} | {one['rows']} | {how} | {_found(one, a)} | {a['seconds']:.2f} |")


def _found(one: dict[str, Any], side: dict[str, Any]) -> str:
    return f"{side['distance']:.4f} ({side['rate']:.0%})" if one["minimal"] else f"{side['rate']:.1%}"


def main() -> None:
    """Measure the rows that are not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="mnist.npz, har_30_subjects.npz")
    parser.add_argument("--python", required=True, help="an interpreter with adversarial-robustness-toolbox, torch")
    parser.add_argument("--json", type=Path, default=Path("build/attacks/attacks.json"), help="networks lie beside it")
    parser.add_argument("--tasks", nargs="*", choices=list(cases.CASES), default=list(cases.CASES))
    parser.add_argument("--only", default="", help="only attacks whose names contain it")
    parser.add_argument("--turns", type=int, default=3, help="of each attack, at least 2; the first compiles")
    parser.add_argument("--most", type=int, default=1000, help="rows in this call")
    asked = parser.parse_args()
    rows = json.loads(asked.json.read_text()) if asked.json.exists() else []
    done = {(one["task"], one["case"], one["integers"]) for one in rows}
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    wanted = [(task, case, integers) for task in asked.tasks for integers in (False, True) for case in cases.CASES[task]
              if asked.only in case.name and (task, case.name, integers) not in done
              and (not integers or case.name in cases.INTEGERS)]  # fmt: skip
    for task, case, integers in wanted[: asked.most]:
        network = networks.made(task, asked.data, asked.json.parent)
        rows.append(row(network, case, asked.python, asked.turns, integers))
        print(json.dumps(rows[-1]), flush=True)
        write_atomically(asked.json, json.dumps(rows, indent=1).encode())
    report(rows)


if __name__ == "__main__":
    main()
