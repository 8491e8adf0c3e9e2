"""`python -m benchmarks.federated.throughput OUT.json`: devices per second of the vectorised simulator.

A round of FedAvg over all devices, one epoch of 200 examples per device: softmax regression 561 -> 6 in one batch of
200 and in 4 of 50, and a network over inertial windows (9 channels of 128 values, 25,000 parameters) in 4 of 50.
Batches are drawn again in every round, and that time counts. The results are medians over some rounds after the first
one, which compiles: devices per second of wall-clock time, and devices per second of CPU time, which is more reliable
on a machine with other work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
import onnx_ir as ir

from cloud.federated import JaxLearner, Simulator
from cloud.zoo import mlp, window_cnn
from federated.algorithms import FedAvg
from federated.learner import Batch

__all__ = ["CASES", "Case", "Speed", "measure"]

EXAMPLES = 200


class Case(NamedTuple):
    """A model, the shape of an example, and how devices batch their examples."""

    name: str
    model: Callable[[], ir.Model]
    shape: tuple[int, ...]
    steps: int
    devices: int


class Speed(NamedTuple):
    """Devices per second of wall-clock time, and of this process's CPU time."""

    a_second: float
    a_core_second: float


CASES = (
    Case("softmax regression 561-6, a batch of 200", lambda: mlp(561, 6), (561,), 1, 1000),
    Case("softmax regression 561-6, 4 batches of 50", lambda: mlp(561, 6), (561,), 4, 1000),
    Case("network over inertial windows, 4 batches of 50", window_cnn, (9, 1, 128), 4, 200),
)


def measure(case: Case, rounds: int, group: int = 1) -> Speed:
    """Medians over rounds."""
    rng, count = np.random.default_rng(0), case.devices * EXAMPLES
    pool = Batch(
        {"x": rng.standard_normal((count, *case.shape), dtype=np.float32)}, rng.integers(0, 6, count).astype(np.int32)
    )
    shards = {f"{i:05}": np.arange(i * EXAMPLES, (i + 1) * EXAMPLES) for i in range(case.devices)}
    size = EXAMPLES // case.steps
    run = Simulator(FedAvg(), JaxLearner(case.model()), pool, shards, steps=case.steps, size=size, group=group)
    run.round()
    walls, cores = [], []
    for _ in range(rounds):
        wall, core = time.perf_counter(), time.process_time()
        run.round()
        walls.append(time.perf_counter() - wall)
        cores.append(time.process_time() - core)
    return Speed(case.devices / median(walls), case.devices / median(cores))


def main() -> None:
    """Every case, one row each."""
    parser = argparse.ArgumentParser(description="Devices per second of the vectorised simulator.")
    parser.add_argument("out", type=Path, metavar="FILE.json")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    args = parser.parse_args()
    # One JAX device per thread: XLA's own threads would split each small product, which costs more than it saves.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    config: Any = jax.config
    config.update("jax_num_cpu_devices", args.threads)
    rows = []
    for case in CASES:
        rows.append({"case": case.name, "devices": case.devices} | measure(case, args.rounds)._asdict())
        print(rows[-1], file=sys.stderr, flush=True)
        args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
