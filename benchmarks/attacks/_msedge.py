"""A script that `benchmarks.attacks` runs as a process: one of this project's attacks.

Arguments as of `_art.py`; a case may name a bundle, which is then attacked by its predictions, or by its own answers
and its float twin's gradients.
"""

from __future__ import annotations

import json
import os
import sys
from time import perf_counter, process_time


def main(given: str, told: str, processor: str, found: str) -> None:
    """The process."""
    os.sched_setaffinity(0, [int(processor)])  # before JAX counts processors
    import numpy as np

    from cloud.audit import attacks
    from cloud.audit.straight_through import StraightThrough
    from cloud.audit.victim import BLACK_BOX_ATTACKS, Victim, from_onnx, open_bundle

    data, case = np.load(given), json.loads(told)
    x, y = data["x"][: case["rows"]], data["y"][: case["rows"]]
    white = from_onnx(case["onnx"])
    victim: Victim = white
    if case["bundle"]:
        file = open_bundle(case["bundle"])
        victim = file if case["attack"] in BLACK_BOX_ATTACKS else StraightThrough(file, white)
    logits = white.logits(x)
    attack, settings = getattr(attacks, case["attack"]), dict(case["settings"])
    if case["attack"] != "hop_skip_jump":
        settings["batch"] = len(x)
    random = case["attack"] in ("pgd", "auto_pgd", "square", "hop_skip_jump")
    for line in sys.stdin:
        if random:
            settings["seed"] = int(line)
        wall, cpu = perf_counter(), process_time()
        result = attack(victim, x, y, clip=tuple(case["clip"]), **settings)
        cpu, wall = process_time() - cpu, perf_counter() - wall
        np.savez(found, inputs=result.inputs.reshape(len(x), -1), success=result.success, logits=logits)
        print(json.dumps({"cpu": cpu, "wall": wall}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
