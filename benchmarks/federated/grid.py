"""`python -m benchmarks.federated.grid [OUT.json]`: devices per second and memory of a complete run in one process.

The ServerApp and ClientApp of a real run over `LocalGrid`: every device gets one initial message; then in each round it
draws 4 batches of 50 from its 200 examples, trains on them with `lite_runtime` and encodes its update, and the server
checks, decodes and averages it. Each case is a process of its own, which reads a bundle that another one has converted,
so that its peak memory is that of the run. All examples are 9,200 rows, whatever the number of devices: a device has a
slice of them, as devices that share a machine would have slices of one file.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from federated.config import parse
from federated.learner import Batch
from federated.run import Fleet, simulate, start_of

__all__ = ["CASES", "Case", "convert", "measure", "peak_mib"]


class Case(NamedTuple):
    """A network of `cloud.zoo`, the shape of an example, the number of devices."""

    network: str
    shape: tuple[int, ...]
    devices: int


CASES: Mapping[str, Case] = {
    "softmax regression 561-6": Case("softmax", (561,), 1000),
    "softmax regression 561-6, 5,000 devices": Case("softmax", (561,), 5000),
    "network over inertial windows": Case("windows", (9, 1, 128), 100),
}
EXAMPLES, STEPS, BATCH, POOL = 200, 4, 50, 9200


def measure(bundle: Path, case: Case, rounds: int = 3) -> dict[str, Any]:
    """A run's figures: `devices_a_second` by wall-clock time, `by_cpu` by this process's CPU time; MiB of this process
    before the run and at most. Flower is imported before it."""
    import_module("federated.transport.local")
    rng = np.random.default_rng(0)
    pool = rng.standard_normal((POOL, *case.shape), dtype=np.float32)
    labels = rng.integers(0, 6, len(pool))
    learner, start = start_of(bundle)
    begins = [9 * at % (POOL - EXAMPLES + 1) for at in range(case.devices)]
    shards = {
        f"device-{at:05}": Batch({"x": pool[begin : begin + EXAMPLES]}, labels[begin : begin + EXAMPLES])
        for at, begin in enumerate(begins)
    }
    words = {"model": {"bundle": "model.mslite"}, "rounds": {"count": rounds}, "data": {"test": 0.0},
             "local": {"steps": STEPS, "batch": BATCH}, "evaluation": {"every": 0}}  # fmt: skip
    before = peak_mib()
    wall, used = time.perf_counter(), time.process_time()
    simulate(parse(words), Fleet(learner, start, shards))
    wall, used = time.perf_counter() - wall, time.process_time() - used
    return {
        "devices": case.devices,
        "devices_a_second": round(case.devices * rounds / wall),
        "by_cpu": round(case.devices * rounds / used),
        "mib_before": before,
        "peak_mib": peak_mib(),
    }


def peak_mib() -> int:
    """The most memory that this process has had."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def convert(network: str, bundle: Path) -> None:
    """Write a network of CASES as a trainable bundle."""
    import converter
    from cloud.zoo import mlp, window_cnn

    converter.convert(mlp(561, 6) if network == "softmax" else window_cnn(), output=bundle, trainable="*")


def _apart(*words: object) -> str:
    """What this program prints when another process runs it with these arguments."""
    command = [sys.executable, "-m", "benchmarks.federated.grid", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=CASES, help="one case, in this process, with --bundle")
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--convert", metavar="NETWORK", help="write the network to --bundle, and end")
    words = parser.parse_args()
    if words.convert:
        convert(words.convert, words.bundle)
        return
    if words.only:
        print(json.dumps(measure(words.bundle, CASES[words.only], words.rounds)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            bundle = Path(folder) / f"{case.network}.mslite"
            if not bundle.exists():
                _apart("--convert", case.network, "--bundle", bundle)
            found[name] = json.loads(_apart("--only", name, "--bundle", bundle, "--rounds", words.rounds))
    text = json.dumps(found, indent=2)
    print(text)
    if words.out is not None:
        words.out.write_text(text)


if __name__ == "__main__":
    main()
