"""Data parallelism with compressed gradients, predicted and as compiled, beside exact sums.

    python -m benchmarks.parallel.compressed --model gpt resnet50 --topology 2x4-slow

Needs the GPU's compiler (`install_compiler`), no GPU. One line of JSON for each program.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.parallel.models import MODELS
from benchmarks.parallel.models.model import Model
from cloud._jax import everywhere, rows_over, shaped
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Measured, measure
from cloud.parallel.checking.compilers import Compiler
from cloud.parallel.compressed.across import Across, arrays_of
from cloud.parallel.compressed.method import Compress
from cloud.parallel.compressed.price import plain, priced
from cloud.parallel.plan import Estimate
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.search import plans
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace

__all__ = ["compressed", "main"]


def compressed(model: Model, how: Compress, topology: Topology, compiler: Compiler) -> Any:
    """The model's step with compressed gradients, lowered for the compiler's devices."""
    given = model.state
    across = Across(how, how.mesh(topology), given["params"], compiler.devices)

    def local(known: Any, batch: Any, key: Any, examples: Any) -> Any:
        def loss(params: Any) -> Any:
            sums, extra = model.loss_sums(params, known["extra"], batch, key)
            return sums["loss"] / (sums["count"] * across.groups), (sums, extra)

        gradient, (sums, extra) = jax.grad(loss, has_aux=True)(known["params"])
        return gradient, {"loss": sums["loss"], "count": sums["count"]}, extra

    def step(state: Any, batch: Any) -> Any:
        key = jax.random.key(0)
        known = {name: state[name] for name in ("params", "extra")}
        gradient, sums, extra, memory = across.gradient(local, known, batch, key, state["memory"])
        change, slots = model.optimizer.update(gradient, state["slots"], state["params"])
        params = optax.apply_updates(state["params"], change)
        after = {"params": params, "slots": slots, "extra": extra, "memory": memory}
        return after, {"loss": sums["loss"] / sums["count"]}

    whole, rows = everywhere(across.mesh), rows_over(across.mesh)
    state = given | {"memory": jax.eval_shape(across.memory)}
    places = jax.tree.map(lambda _: whole, given) | {"memory": across.shardings()}
    state = jax.tree.map(lambda a, at: shaped(a.shape, a.dtype, at), state, places)
    batch = dict(model.batch)
    batch["mask"] = jax.eval_shape(lambda: jnp.ones(next(iter(batch.values())).shape[0]))
    batch = jax.tree.map(lambda a: shaped(a.shape, a.dtype, rows), batch)
    return jax.jit(step, donate_argnums=0, out_shardings=(places, whole)).lower(state, batch)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", nargs="+", default=["gpt", "resnet50"], choices=sorted(MODELS))
    parser.add_argument("--topology", default="2x4-slow")
    parser.add_argument("--method", nargs="+", default=["int8", "powersgd:4"])
    parser.add_argument("--exact", action="store_true", help="compile data parallelism with exact sums too")
    asked = parser.parse_args()
    topology = Topology.named(asked.topology)
    compiler = compilers.gpu(topology)
    for name in asked.model:
        model = MODELS[name]()
        graph, about = trace(model.step, model.state, model.batch), (model.state, model.batch)
        first = Compress.named(asked.method[0])
        exact = plain(graph, topology, first)
        if asked.exact:
            start = time.monotonic()
            plan = plans(graph, topology, expert="dp", meshes=[first.mesh(topology)])[0]
            applied = apply(graph, plan, topology, about, jax.eval_shape(model.step, *about), compiler.devices)
            found = measure(compiler.compile(applied.lower()), plan.mesh, topology)
            _print(name, "exact", plan.estimate, found, time.monotonic() - start)
        for method in asked.method:
            start, how = time.monotonic(), Compress.named(method)
            means = [a for a in jax.tree.leaves(model.state["extra"]) if np.issubdtype(a.dtype, np.inexact)]
            price = priced(graph, topology, how, exact, trained=arrays_of(model.state["params"]), state=means)
            program = compiler.compile(compressed(model, how, topology, compiler))
            found = measure(program, price.mesh, topology)
            _print(name, method, price.estimate, found, time.monotonic() - start)


def _print(model: str, method: str, said: Estimate, found: Measured, seconds: float) -> None:
    kinds: dict[str, list[int]] = {}
    for place, collectives in enumerate((said.collectives, found.collectives)):
        for one in collectives:
            kinds.setdefault(f"{one.kind} {one.axes}", [0, 0])[place] += one.bytes * one.times
    figures = {
        "step_ms": (said.step_seconds, found.step_seconds), "compute_ms": (said.compute_seconds, found.compute_seconds),
    }  # fmt: skip
    rows = {what: [round(1e3 * value, 2) for value in pair] for what, pair in figures.items()}
    rows |= {"peak_gib": [round(bytes / 2**30, 2) for bytes in (said.peak_bytes, found.peak_bytes)]}
    print(json.dumps({"model": model, "gradients": method, **rows, "bytes": kinds, "seconds": round(seconds)}))


if __name__ == "__main__":
    main()
