"""Steps that scan over layers, positions or microbatches: our plans and shardings written by hand, as compiled.

python -m benchmarks.parallel.scans [--backend gpu|cpu] [--small] [--run] [MODEL:TOPOLOGY ...]

Hand-written shardings are those of a user of `jax.jit`: the arguments are sharded, activations at the start of a trip
are constrained, and the compiler propagates both. `dp`: rows of the batch over all devices, state whole. `zero1`: as
dp, but an optimiser's slots split over all. `fsdp`: parameters split as well. `hsdp`: parameters and slots split over
the devices of one machine only. `tp`: heads and hidden columns split inside a machine, rows between machines. No
dimension of layers is ever split. `--run` measures the CPU seconds of a step instead (small models on the host's
virtual devices: set XLA_FLAGS=--xla_force_host_platform_device_count=8).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.parallel.models.model import Model, Tree
from benchmarks.parallel.models.scanned import SCANNED, by_rows
from cloud._jax import split_over
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.graph import Split
from cloud.parallel.plan import Mesh
from cloud.parallel.running.apply import mesh_of
from cloud.parallel.running.prepare import prepare
from cloud.parallel.searching.choose import choose
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import variants

__all__ = ["HAND", "by_hand"]

_lie_as: Any = jax.lax.with_sharding_constraint
_waits: Any = jax.block_until_ready

TOPOLOGIES = "h100x8", "2x4-slow", "4-small"

Path = tuple[Any, ...]
Spread = Callable[[str, tuple[int, ...], Mesh], Split]
"""(path of a leaf of the state, its shape, mesh) -> its split."""


def _whole(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
    return ((),) * len(shape)


def _widest(axes: tuple[int, ...]) -> Spread:
    """Split along the largest dimension that divides, without the layers'."""

    def spread(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
        used = axes or tuple(range(len(mesh.sizes)))
        parts, first = int(np.prod([mesh.sizes[a] for a in used])), int("blocks" in path)
        at = max((d for d in range(first, len(shape)) if shape[d] % parts == 0), key=lambda d: shape[d], default=-1)
        return tuple(used if d == at else () for d in range(len(shape)))

    return spread


def _slots(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
    return _whole(path, shape, mesh) if "params" in path else _widest(())(path, shape, mesh)


_COLUMNS = {"q": -2, "k": -2, "v": -2, "out": -3, "up.w": -1, "up.b": -1, "down.w": -2, "in": -1, "again": -1,
            "bias": -1, "words": 0, "gate": -1, "steps": -1, "decay": 0, "head": -1}  # fmt: skip


def _tensor(path: str, shape: tuple[int, ...], mesh: Mesh) -> Split:
    last = len(mesh.sizes) - 1
    name = next((key for key in _COLUMNS if path.endswith(f".{key}")), "")
    if not name or len(shape) < -_COLUMNS[name] or shape[_COLUMNS[name]] % mesh.sizes[last]:
        return _whole(path, shape, mesh)
    return tuple((last,) if d == _COLUMNS[name] % len(shape) else () for d in range(len(shape)))


HAND: Mapping[str, tuple[Spread, tuple[int, ...]]] = {
    "dp": (_whole, ()), "zero1": (_slots, ()), "fsdp": (_widest(()), ()), "hsdp": (_widest((1,)), ()),
    "tp": (_tensor, (0,)),
}  # fmt: skip
"""Name to (split of the state, axes of the rows; () for all)."""


def by_hand(model: Model, name: str, mesh: Mesh, devices: Any) -> tuple[Any, Any, Any]:
    """The jitted step, and the shardings of its state and batch. Raises `PlanError` if the mesh has too few axes."""
    if len(mesh.sizes) < 2 and name in ("hsdp", "tp"):
        raise PlanError(f"{name} needs a mesh of two axes")
    spread, axes = HAND[name]
    named = mesh_of(mesh, devices)

    def lies(path: Path, leaf: Any) -> Any:
        return split_over(named, spread(jax.tree_util.keystr(path, simple=True, separator="."), leaf.shape, mesh))

    over = axes or tuple(range(len(mesh.sizes)))
    state = jax.tree_util.tree_map_with_path(lies, model.state)
    batch = jax.tree.map(lambda leaf: split_over(named, (over, *((),) * (len(leaf.shape) - 1))), model.batch)
    metrics = {"loss": split_over(named, ())}

    def constrained(*about: Any) -> Any:
        with by_rows(lambda x: _lie_as(x, split_over(named, (over, *((),) * (x.ndim - 1))))):
            return model.step(*about)

    step = jax.jit(constrained, in_shardings=(state, batch), out_shardings=(state, metrics), donate_argnums=0)
    return step, state, batch


def _meshes(topology: Topology) -> list[Mesh]:
    last = len(topology.levels) - 1
    if last:
        return [Mesh(tuple(level.size for level in topology.levels), tuple(range(last + 1)))]
    size = topology.size
    return [Mesh((size,), (0,)), Mesh((2, size // 2), (0, 0))]


def _told(name: str, mesh: Mesh, read: Any, said: Any = None) -> str:
    moved = sum(read.bytes.values())
    line = f"  {name:9}{'x'.join(map(str, mesh.sizes)):>5}{read.step_seconds * 1e3:10.2f} ms"
    line += f"{read.compute_seconds * 1e3:10.2f}{read.exposed_seconds * 1e3:10.2f}{read.peak_bytes / 2**30:9.2f} GiB"
    line += f"{moved / 2**20:11.1f} MiB"
    if said is not None:
        told = sum(one.bytes * one.times for one in said.collectives)
        line += (
            f"   predicted {said.step_seconds * 1e3:.2f} ms, {said.peak_bytes / 2**30:.2f} GiB, {told / 2**20:.1f} MiB"
        )
    return line


def compared(
    model: Model, topology: Topology, compiler: Compiler, seconds: float, compiled: int | None, hand: bool
) -> None:
    """Prints a line for every contender."""
    for name in HAND if hand else ():
        for mesh in _meshes(topology):
            try:
                step, *_ = by_hand(model, name, mesh, compiler.devices)
                compiled = compiler.compile(step.lower(model.state, model.batch))
                print(_told(name, mesh, measure(compiled, mesh, topology)), flush=True)
            except PlanError as error:
                print(f"  {name:9}{error}", flush=True)
    start, about = time.monotonic(), (model.state, model.batch)
    graphs, results = variants(model.step, *about, sizes=topology.shares), jax.eval_shape(model.step, *about)
    try:
        choice = choose(graphs, topology, about, results, compiler, compiled=compiled, seconds=seconds)
    except PlanError as error:
        print(f"  {error}", flush=True)
        return
    for one in choice.compiled:
        name = "ours" if one is choice.compiled[0] else f"({one.plan.name})"
        print(f"{_told(name, one.plan.mesh, one.measured, one.plan.estimate)}, {one.plan.parts} parts", flush=True)
    print(f"  {choice.said}", flush=True)
    print(f"  {time.monotonic() - start:.0f} s", flush=True)


def ran(model: Model, topology: Topology, devices: Any, steps: int = 20) -> None:
    """Prints the CPU seconds of one step of every contender: the least of `steps` runs."""
    state, batch = model.make()

    def shown(name: str, step: Any, at: Tree, rows: Tree) -> None:
        at, times, lost = jax.device_put(jax.tree.map(lambda x: x.copy(), state), at), [], 0.0
        rows = jax.device_put(batch, rows)
        for _ in range(steps):
            start = time.process_time()
            at, metrics = step(at, rows)
            lost = float(metrics["loss"])
            _waits(at)
            times.append(time.process_time() - start)
        middle, least = np.median(times[2:]) * 1e3, min(times) * 1e3
        print(f"  {name:9}{middle:10.1f} ms of CPU a step, least {least:.1f}, loss {lost:.6f}", flush=True)

    for name in HAND:
        for mesh in _meshes(topology):
            try:
                step, *about = by_hand(model, name, mesh, devices)
            except PlanError:
                continue
            shown(f"{name} {'x'.join(map(str, mesh.sizes))}", step, *about)
    applied = prepare(model.step, model.state, model.batch, topology=topology, devices=devices)
    shown(f"ours {'x'.join(map(str, applied.plan.mesh.sizes))}", applied.step, *applied.shardings)


def main() -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--backend", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--compiled", type=int, help="plans to compile; default: what `choose` does by itself")
    parser.add_argument("--ours", action="store_true", help="only our plans")
    said = parser.parse_args()
    for case in said.cases or [f"{name}:{place}" for name in SCANNED for place in TOPOLOGIES]:
        name, _, place = case.partition(":")
        topology, model = Topology.named(place or "h100x8"), SCANNED[name](small=said.small or said.run)
        print(f"{name} on {topology.name}", flush=True)
        if said.run:
            ran(model, Topology.of_devices(jax.devices()), jax.devices())
            continue
        compiler = compilers.cpu(topology.size) if said.backend == "cpu" else compilers.gpu(topology)
        compared(model, topology, compiler, said.seconds, said.compiled, not said.ours)
    return 0


if __name__ == "__main__":
    sys.exit(main())
