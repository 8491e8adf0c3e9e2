"""Our plans and shardings written by hand (`benchmarks.parallel.hand`), both as compiled.

python -m benchmarks.parallel.hand_contest [--backend gpu|cpu] [--small] [--run] [--json FILE] [--only hand|ours]
                                           [--seconds 120] [--compiled N] [--page] [MODEL:TOPOLOGY ...]

With --json each row is saved when it is done, and rows already in FILE are not repeated; --page prints FILE as
Markdown. `--run` measures the CPU seconds of a step instead (small models on the host's virtual devices: set
XLA_FLAGS=--xla_force_host_platform_device_count=8).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.parallel.hand import by_hand, experts, meshes
from benchmarks.parallel.hand_page import page
from benchmarks.parallel.models import BY_HAND
from benchmarks.parallel.models.model import Model, Tree
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.plan import Mesh
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.choose import choose
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import variants
from lite_runtime._files import write_atomically

__all__ = ["TOPOLOGIES", "main"]

_waits: Any = jax.block_until_ready

TOPOLOGIES = "h100x8", "2x4-slow", "4-small", "h100x2x8"


def _figures(mesh: Mesh, read: Measured, topology: Topology) -> dict[str, Any]:
    """Seconds and bytes of one device."""
    return {
        "mesh": mesh.sizes, "step": read.step_seconds, "compute": read.compute_seconds,
        "exposed": read.exposed_seconds, "peak": read.peak_bytes, "moved": sum(read.bytes.values()),
        "fits": read.peak_bytes <= topology.memory,
    }  # fmt: skip


def hand_rows(name: str, model: Model, topology: Topology, compiler: Compiler) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every expert on every mesh that it is for: its label and its figures, or an "error"."""
    for expert, how in experts(name).items():
        for mesh in meshes(how, topology):
            start, label = time.monotonic(), f"{expert} {'x'.join(map(str, mesh.sizes))}"
            try:
                step, *_ = by_hand(model, how, mesh, compiler.devices)
                read = measure(compiler.compile(step.lower(model.state, model.batch)), mesh, topology)
            except (PlanError, ValueError, jax.errors.JaxRuntimeError) as error:
                yield label, {"error": str(error).splitlines()[0][:200]}
                continue
            yield label, _figures(mesh, read, topology) | {"seconds": time.monotonic() - start}


def our_row(
    model: Model, topology: Topology, compiler: Compiler, seconds: float, compiled: int | None
) -> dict[str, Any]:
    """All compiled plans, the chosen one first, each with its predictions (`said_*`)."""
    start, about = time.monotonic(), (model.state, model.batch)
    graphs, results = variants(model.step, *about, sizes=topology.shares), jax.eval_shape(model.step, *about)
    try:
        choice = choose(graphs, topology, about, results, compiler, compiled=compiled, seconds=seconds)
    except PlanError as error:
        return {"plans": [], "said": str(error), "seconds": time.monotonic() - start}
    found = []
    for one in choice.compiled:
        said = one.plan.estimate
        found.append({
            "name": one.plan.name or "searched", "parts": one.plan.parts,
            **_figures(one.plan.mesh, one.measured, topology), "said_step": said.step_seconds,
            "said_compute": said.compute_seconds, "said_peak": said.peak_bytes,
            "said_moved": sum(each.bytes * each.times for each in said.collectives), "seconds": one.seconds,
        })  # fmt: skip
    others = [(one.name, one.parts, one.estimate.step_seconds, one.estimate.peak_bytes) for one in choice.others]
    return {"plans": found, "others": others, "said": choice.said, "seconds": time.monotonic() - start}


def _told(label: str, one: dict[str, Any]) -> str:
    if "error" in one:
        return f"  {label:18}{one['error']}"
    line = f"  {label:18}{one['step'] * 1e3:10.2f} ms{one['compute'] * 1e3:10.2f}{one['exposed'] * 1e3:10.2f}"
    line += f"{one['peak'] / 2**30:9.2f} GiB{one['moved'] / 2**20:11.1f} MiB{one['seconds']:7.1f} s"
    if "said_step" in one:
        line += f"   predicted {one['said_step'] * 1e3:.2f} ms, {one['said_peak'] / 2**30:.2f} GiB"
        line += f", {one['said_moved'] / 2**20:.1f} MiB"
    return line + ("" if one["fits"] else " (does not fit)")


def ran(name: str, model: Model, topology: Topology, devices: Any, steps: int = 20) -> None:
    """Prints the CPU seconds of one step of every contender: the median and the least of `steps` runs."""
    state, batch = model.make()

    def shown(label: str, step: Any, at: Tree, rows: Tree) -> None:
        at, times, lost = jax.device_put(jax.tree.map(lambda x: x.copy(), state), at), [], 0.0
        rows = jax.device_put(batch, rows)
        for _ in range(steps):
            start = time.process_time()
            at, metrics = step(at, rows)
            lost = float(metrics["loss"])
            _waits(at)
            times.append(time.process_time() - start)
        middle, least = np.median(times[2:]) * 1e3, min(times) * 1e3
        print(f"  {label:18}{middle:10.1f} ms of CPU a step, least {least:.1f}, loss {lost:.6f}", flush=True)

    for expert, how in experts(name).items():
        for mesh in meshes(how, topology):
            shown(f"{expert} {'x'.join(map(str, mesh.sizes))}", *by_hand(model, how, mesh, devices))
    applied = prepare(model.step, model.state, model.batch, topology=topology, devices=devices)
    shown(f"ours {'x'.join(map(str, applied.plan.mesh.sizes))}", applied.step, *applied.shardings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 without a compiler for GPUs."""
    said = _parser().parse_args(arguments)
    found: dict[str, dict[str, Any]] = json.loads(said.json.read_text()) if said.json and said.json.exists() else {}
    if said.page:
        print(page(found))
        return 0
    if said.backend == "gpu" and not said.run and not compilers.has_gpu():
        print(f"no compiler for GPUs: run benchmarks.parallel.install_compiler FOLDER, set {compilers.FOLDER}=FOLDER")
        return 1
    for case in said.cases or [f"{name}:{place}" for place in TOPOLOGIES for name in BY_HAND]:
        name, _, place = case.partition(":")
        topology, model = Topology.named(place or "h100x8"), BY_HAND[name](small=said.small or said.run)
        print(f"{name} on {topology.name}", flush=True)
        if said.run:
            ran(name, model, Topology.of_devices(jax.devices()), jax.devices())
            continue
        compiler = compilers.cpu(topology.size) if said.backend == "cpu" else compilers.gpu(topology)
        row = found.setdefault(case, {"memory": topology.memory})
        if "hand" not in row and said.only != "ours":
            hand = {}
            for label, one in hand_rows(name, model, topology, compiler):
                hand[label] = one
                print(_told(label, one), flush=True)
            row["hand"] = hand
            _saved(said.json, case, row)
        if "ours" not in row and said.only != "hand":
            row["ours"] = our_row(model, topology, compiler, said.seconds, said.compiled)
            for one in row["ours"]["plans"]:
                print(_told(f"ours {one['name']} /{one['parts']}", one), flush=True)
            print(f"  {row['ours']['said']}; {row['ours']['seconds']:.0f} s", flush=True)
            _saved(said.json, case, row)
    return 0


def _saved(path: Path | None, case: str, row: dict[str, Any]) -> None:
    """Adds one row to the file, which another process may have changed since."""
    if path:
        found = json.loads(path.read_text()) if path.exists() else {}
        lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in (found | {case: row}).items()]
        write_atomically(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode(), PlanError)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--compiled", type=int, help="plans to compile; default: what `choose` does by itself")
    parser.add_argument("--only", choices=("hand", "ours"), help="only these contenders")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
