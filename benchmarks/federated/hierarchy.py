"""`python -m benchmarks.federated.hierarchy [OUT.json]`: a round of 100,000 devices below aggregators, and the costs of
each part, from which the costs of up to a million devices follow.

Softmax regression 561-6 (3,372 numbers), 4 batches of 50 per device and round, as in `benchmarks.federated.grid`. The
round is simulated in one process with the messages of a deployment: aggregators one after another, each with its
devices. With `--limits` updates are held to the medians of all devices, the default of a run. Then all aggregators keep
their updates until the last one has measured its own: in a deployment each in its own memory, here all in one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.federated.grid import BATCH, EXAMPLES, POOL, STEPS, peak_mib
from federated.client.device import Device
from federated.client.state import StateStore
from federated.config import Config, parse
from federated.hierarchy.aggregator import Aggregator
from federated.hierarchy.branch import Branch
from federated.hierarchy.leaf import Leaf
from federated.hierarchy.orders import order
from federated.learner import Batch
from federated.run import Fleet, simulate, start_of
from federated.server.federation import Federation
from federated.server.influence import Bounds
from federated.transport.local import exchange_here

__all__ = ["on_paper", "parts", "run"]

FLEETS = (1_000, 10_000, 100_000, 1_000_000)
GROUP = 1000
"""Devices of an aggregator on paper."""


def words(aggregators: int, limits: bool) -> Config:
    """The run."""
    held = {} if limits else {"limits": {"outlier": 0.0, "influence": 0.0}}
    return parse(
        {"model": {"bundle": "model.mslite"}, "rounds": {"count": 1}, "data": {"test": 0.0}, **held,
         "local": {"steps": STEPS, "batch": BATCH}, "evaluation": {"every": 0},
         "hierarchy": {"aggregators": [aggregators]}}
    )  # fmt: skip


def fleet(bundle: Path, devices: int) -> Fleet:
    """Every device has a slice of one pool of examples."""
    rng = np.random.default_rng(0)
    pool, labels = rng.standard_normal((POOL, 561), dtype=np.float32), rng.integers(0, 6, POOL)
    learner, start = start_of(bundle)
    shards = {}
    for at in range(devices):
        begin = 9 * at % (POOL - EXAMPLES + 1)
        shards[f"device-{at:07}"] = Batch({"x": pool[begin : begin + EXAMPLES]}, labels[begin : begin + EXAMPLES])
    return Fleet(learner, start, shards)


def run(bundle: Path, devices: int, aggregators: int, limits: bool) -> dict[str, Any]:
    """One round: seconds by the wall clock and of CPU time, MiB of this process, bytes on all links."""
    import_module("federated.transport.local")
    made = fleet(bundle, devices)
    before = peak_mib()
    wall, used = time.perf_counter(), time.process_time()
    (row,) = simulate(words(aggregators, limits), made).rows
    wall, used = time.perf_counter() - wall, time.process_time() - used
    return {
        "devices": devices, "aggregators": aggregators, "limits": limits, "answered": row["answered"],
        "wall_seconds": round(wall, 1), "cpu_seconds": round(used, 1), "devices_a_second_of_cpu": round(devices / used),
        "mib_before": before, "peak_mib": peak_mib(), "bytes_up": row["bytes_up"], "bytes_down": row["bytes_down"],
    }  # fmt: skip


def parts(bundle: Path, devices: int = 200, aggregators: int = 50) -> dict[str, float]:
    """Bytes of each message, and microseconds of CPU time of each party's work: of a device; of an aggregator for each
    of its devices; of the root for each aggregator."""
    made, config, store = fleet(bundle, devices), words(aggregators, True), StateStore()
    nodes = {name: Device(name, made.learner, data, store, made.start.bundle) for name, data in made.shards.items()}
    root = Federation.begin(config, made.start)
    aggregator = Aggregator("aggregator-000", config, made.start, exchange_here(nodes))
    root.welcome(1, aggregator.answer(root.hello()), [1])
    gather = order(root, "gather", 1)
    measured = aggregator.answer(gather)
    bounds = order(root, "sum", 1, {"allowed": [1e9, 1e9, 1e9]})
    partial = aggregator.answer(bounds)

    below = aggregator._federation
    if below is None:
        raise RuntimeError("expected an aggregator that was greeted")
    letter = below.work(1)
    updates = {node: device.answer(letter) for node, device in enumerate(nodes.values(), 2)}
    device = _timed(lambda: [each.answer(letter) for each in nodes.values()]) / devices

    def take() -> None:
        below.round = 0
        leaf = Leaf.open(below, list(updates))
        for node, reply in updates.items():
            leaf.round.take(node, reply)
        if len(leaf.measured) != devices:
            raise RuntimeError("expected an update of every device")
        leaf.sum(aggregator.exchange, Bounds(1e9, 1e9, 1e9))
        part, _ = leaf.result()
        if part is None:
            raise RuntimeError("expected a sum")
        part.packed()

    def merge() -> None:
        branch = Branch(root, 1, {1: "aggregator-000"}, 1)
        for _ in range(aggregators):
            branch.rows.clear()
            branch.parts.clear()
            branch._take("gather", 1, measured)
            branch._take("sum", 1, partial)
            branch.result()

    return {
        "elements": sum(int(np.size(leaf)) for leaf in made.start.params.values()),
        "letter_bytes": len(letter), "update_bytes": len(updates[2]), "order_bytes": len(gather),
        "measured_bytes_a_device": 16, "bounds_bytes": len(bounds), "partial_bytes": len(partial),
        "device_us": round(device), "aggregator_us_a_device": round(_timed(take) / devices),
        "root_us_an_aggregator": round(_timed(merge) / aggregators),
    }  # fmt: skip


def _timed(work: Callable[[], Any], times: int = 5) -> float:
    """The least of several, in microseconds of CPU time."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found) * 1e6


def on_paper(costs: dict[str, float], devices: int, group: int = GROUP) -> dict[str, Any]:
    """A round of so many devices with an aggregator for each `group` of them, from `parts`: per aggregator and at the
    root, messages, bytes, bytes of memory, seconds of CPU time; and of one server without aggregators."""
    count = -(-devices // group)
    letters, updates = costs["letter_bytes"], costs["update_bytes"]

    def level(nodes: float, messages: float, moved: float, memory: float, us: float) -> dict[str, float]:
        return {"nodes": nodes, "messages": messages, "bytes": moved, "memory": memory, "cpu_seconds": us / 1e6}

    flat = level(1, 2 * devices, devices * (letters + updates), devices * 4 * costs["elements"],
                 devices * costs["aggregator_us_a_device"])  # fmt: skip
    upward = costs["order_bytes"] + costs["bounds_bytes"] + costs["partial_bytes"]
    each = min(group, devices)
    edge = level(count, 2 * each + 4, each * (letters + updates + 16) + upward, each * 4 * costs["elements"],
                 each * costs["aggregator_us_a_device"])  # fmt: skip
    root = level(1, 4 * count, count * upward + 16 * devices, count * costs["partial_bytes"] + 16 * devices,
                 count * costs["root_us_an_aggregator"])  # fmt: skip
    return {"devices": devices, "one_server": flat, "aggregator": edge, "root": root}


def _apart(program: str, *words: object) -> str:
    """What another program of this package prints."""
    command = [sys.executable, "-m", f"benchmarks.federated.{program}", *map(str, words)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--aggregators", type=int, default=100)
    parser.add_argument("--limits", action="store_true", help="hold updates to the medians of all devices")
    parser.add_argument("--bundle", type=Path, help="the run alone, in this process, with this bundle")
    asked = parser.parse_args()
    if asked.bundle is not None:
        print(json.dumps(run(asked.bundle, asked.devices, asked.aggregators, asked.limits)))
        return
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "model.mslite"
        # Processes of their own, the heavy ones last: a child begins with the peak memory of its parent.
        _apart("grid", "--convert", "softmax", "--bundle", bundle)
        size = ["--bundle", bundle, "--devices", asked.devices, "--aggregators", asked.aggregators]
        simulated = json.loads(_apart("hierarchy", *size, *(["--limits"] if asked.limits else [])))
        costs = parts(bundle)
    found = {"parts": costs, "simulated": simulated, "on_paper": [on_paper(costs, devices) for devices in FLEETS]}
    text = json.dumps(found, indent=1)
    print(text)
    if asked.out is not None:
        asked.out.write_text(text)


if __name__ == "__main__":
    main()
