"""`python -m benchmarks.federated.grid [OUT.json]`: devices per second of a complete run in this process.

The ServerApp and ClientApp of a real run over `LocalGrid`: every device gets one initial message; then in each round it
draws 4 batches of 50 from its 200 examples, trains on them with `lite_runtime` and encodes its update, and the server
checks, decodes and averages it. Shards are slices of one array, so the memory use is that of the framework.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.zoo import mlp, window_cnn
from converter import convert
from federated.config import parse
from federated.learner import Batch
from federated.run import Fleet, simulate, start_of

__all__ = ["CASES", "measure"]

Case = tuple[Callable[[], ir.Model], tuple[int, ...], int]
CASES: Mapping[str, Case] = {
    "softmax regression 561-6": (lambda: mlp(561, 6), (561,), 1000),
    "network over inertial windows": (window_cnn, (9, 1, 128), 100),
}
EXAMPLES, STEPS, BATCH = 200, 4, 50


def measure(model: ir.Model, shape: tuple[int, ...], devices: int, rounds: int = 3) -> dict[str, Any]:
    """A run's figures: `devices_a_second` by wall-clock time, `by_cpu` by this process's CPU time, peak MiB."""
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((9 * devices + EXAMPLES, *shape), dtype=np.float32)
    labels = rng.integers(0, 6, len(pool))
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "model.mslite"
        convert(model, output=bundle, trainable="*")
        learner, start = start_of(bundle)
    rows = {f"device-{at:05}": slice(9 * at, 9 * at + EXAMPLES) for at in range(devices)}
    fleet = Fleet(learner, start, {name: Batch({"x": pool[at]}, labels[at]) for name, at in rows.items()})
    words = {"model": {"bundle": "model.mslite"}, "rounds": {"count": rounds}, "data": {"test": 0.0},
             "local": {"steps": STEPS, "batch": BATCH}, "evaluation": {"every": 0}}  # fmt: skip
    wall, used = time.perf_counter(), time.process_time()
    simulate(parse(words), fleet)
    wall, used = time.perf_counter() - wall, time.process_time() - used
    return {
        "devices": devices,
        "devices_a_second": round(devices * rounds / wall),
        "by_cpu": round(devices * rounds / used),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    found = {name: measure(model(), shape, count, words.rounds) for name, (model, shape, count) in CASES.items()}
    text = json.dumps(found, indent=2)
    print(text)
    if words.out is not None:
        words.out.write_text(text)


if __name__ == "__main__":
    main()
