"""Steps that run: our plans and shardings written by hand, in turns on virtual devices of the host.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m benchmarks.parallel.measured [MODEL ...]

Every contender takes one step of a small model, then the next one does, so that all see the same machine load; the
figure is the median of the process's CPU seconds of a step. `--journal FILE` keeps what was measured, and the same
command goes on from there; with `--minutes` it stops by itself (exit code 3).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.journal import Journal, TimeIsUp
from benchmarks.machine import code, facts, versions
from benchmarks.parallel.hand import TEXTS, by_hand, meshes
from benchmarks.parallel.models import MODELS
from benchmarks.parallel.models.model import Model, Tree
from benchmarks.parallel.models.scanned import SCANNED
from cloud._jax import everywhere, rows_over, shared_out, sums_of_all
from cloud.parallel.plan import Mesh
from cloud.parallel.running.apply import mesh_of
from cloud.parallel.running.prepare import prepare
from cloud.parallel.topology import Topology

CASES: Mapping[str, Callable[..., Model]] = {**SCANNED, **MODELS}
"""Name to `make(small=True)`."""

ROUNDS = 120

SAME = 1e-3
"""By how much losses may differ. Normalisation over the rows of one device, and experts that have room for a part of
its rows each, are other steps than those of the whole batch."""

_waits: Any = jax.block_until_ready


class _Runner:
    """A contender's step with its own state."""

    def __init__(self, step: Any, state: Any, batch: Any) -> None:
        self._step, self._state, self._batch = step, state, batch

    def __call__(self) -> tuple[float, float]:
        """CPU seconds of a step, and its loss."""
        start = time.process_time()
        self._state, metrics = _waits(self._step(self._state, self._batch))
        return time.process_time() - start, float(metrics["loss"])


def _data_parallel(model: Model, devices: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Data parallelism as written with `shard_map`: every device has some of the rows and adds up the gradient once.
    The jitted step, and the shardings of its state and batch."""
    mesh = mesh_of(Mesh((len(devices),), (0,)), devices)

    def part(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def loss(values: Tree) -> tuple[Any, Tree]:
            sums, extra = model.loss_sums(values, state["extra"], batch, None)
            return sums["loss"] / (sums["count"] * len(devices)), extra

        (lost, extra), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"])
        extra = jax.tree.map(lambda x: x / len(devices), extra)
        lost, gradient, extra = sums_of_all((lost, gradient, extra), mesh)
        change, slots = model.optimizer.update(gradient, state["slots"], state["params"])
        done = {"params": optax.apply_updates(state["params"], change), "slots": slots, "extra": extra}
        return (done, {"loss": lost}), ()

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        made: tuple[Tree, Tree] = shared_out(part, mesh)(state, batch)[0]
        return made

    places = everywhere(mesh), rows_over(mesh)
    jitted = jax.jit(step, in_shardings=places, out_shardings=everywhere(mesh), donate_argnums=0)
    return jitted, jax.tree.map(lambda _: places[0], model.state), jax.tree.map(lambda _: places[1], model.batch)


def measured(case: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Contender to the median and the quartiles of its CPU milliseconds of a step, and its loss after three steps, of
    those that compute the same; "ours", and "plan", the one that was taken."""
    model, devices = CASES[case](small=True), jax.devices()
    state, batch = model.make()

    def runner(step: Any, at: Any, rows: Any) -> _Runner:
        return _Runner(step, jax.device_put(jax.tree.map(lambda x: x.copy(), state), at), jax.device_put(batch, rows))

    runners = {} if case == "accumulated" else {"shard_map": runner(*_data_parallel(model, devices))}
    for name, expert in TEXTS.items():
        runners[name] = runner(*by_hand(model, expert, meshes(expert, Topology.of_devices(devices))[0], devices))
    applied = prepare(model.step, model.state, model.batch, devices=devices, seconds=seconds)
    runners["ours"] = runner(applied.step, *applied.shardings)
    losses = {name: [run()[1] for _ in range(3)][-1] for name, run in runners.items()}  # the first compiles
    runners = {name: run for name, run in runners.items() if abs(losses[name] / losses["ours"] - 1) < SAME}
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, run in runners.items():
            times[name].append(1e3 * run()[0])
    found: dict[str, Any] = {
        name: [*map(float, np.percentile(each, (50, 25, 75))), losses[name]] for name, each in times.items()
    }
    plan = applied.plan
    return {**found, "plan": f"{plan.name} {'x'.join(map(str, plan.mesh.sizes))}, {plan.parts} parts; {applied.said}"}


def main() -> int:
    """Prints a row of a table for every case. Exit code 3: the minutes ended before."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parallel.measured", description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=60.0, help="those of `prepare`")
    parser.add_argument("--journal", type=Path, help="keep all figures in this file, and go on from it")
    parser.add_argument("--minutes", type=float, help="begin nothing after this time")
    asked = parser.parse_args()
    conditions = {"machine": facts(), "versions": versions(("jax",)), "devices": len(jax.devices()),
                  "code": code(packages=("cloud/parallel", "benchmarks/parallel/models"))}  # fmt: skip
    print("| step | by hand, best | ms | ours, ms | ours / best | plan |\n|---|---|---:|---:|---:|---|")
    try:
        with Journal(asked.journal, conditions, minutes=asked.minutes) as journal:
            for case in asked.cases or CASES:
                measure = partial(measured, case, asked.rounds, asked.seconds)
                print(
                    _row(case, journal.get(case, "shard_map", *TEXTS, asked.rounds, asked.seconds, measure=measure)),
                    flush=True,
                )
    except TimeIsUp as error:
        print(error, file=sys.stderr)
        return 3
    return 0


def _row(case: str, found: Mapping[str, Any]) -> str:
    hand = {name: each[0] for name, each in found.items() if name not in ("ours", "plan")}
    best, ours = min(hand, key=lambda name: hand[name]), found["ours"][0]
    cells = case, best, f"{hand[best]:.2f}", f"{ours:.2f}", f"{ours / hand[best]:.3f}", found["plan"]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
