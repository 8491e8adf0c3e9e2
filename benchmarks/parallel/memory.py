"""Predicted peak memory and collective bytes compared with those of the GPU's compiler, for plans of several models.

python -m benchmarks.parallel.memory [MODEL:TOPOLOGY:PLAN ...]

PLAN is one of the expert plans (dp, fsdp, megatron, ...) or "searched". Needs what
`benchmarks.parallel.install_compiler` installs, and no GPU.
"""

from __future__ import annotations

import sys
import time

import jax

from benchmarks.parallel.models import MODELS
from cloud.errors import PlanError
from cloud.parallel.checking import compilers
from cloud.parallel.checking.check import Report, check
from cloud.parallel.running.apply import apply
from cloud.parallel.searching.search import search
from cloud.parallel.topology import Topology
from cloud.parallel.tracing.trace import trace

__all__ = ["CASES", "report"]

CASES = (
    "mlp:h100x8:dp",
    "mlp:h100x8:fsdp",
    "gpt:h100x8:dp",
    "gpt:h100x8:fsdp",
    "gpt:h100x8:megatron",
    "gpt:2x4-slow:dp_tp",
    "gpt:4-small:searched",
    "moe:h100x8:ep",
    "moe:h100x8:searched",
    "dlrm:h100x8:searched",
    "resnet50:h100x8:dp",
    "unet:h100x8:dp",
)


def report(case: str) -> Report:
    """The figures of `model:topology:plan`. Raises `PlanError` if there is no such plan, or no compiler."""
    name, place, plan_name = case.split(":")
    model, topology = MODELS[name](), Topology.named(place)
    graph = trace(model.step, model.state, model.batch)
    plan = search(graph, topology, expert="" if plan_name == "searched" else plan_name)
    compiler = compilers.gpu(topology)
    results = jax.eval_shape(model.step, model.state, model.batch)
    applied = apply(graph, plan, topology, (model.state, model.batch), results, devices=compiler.devices)
    return check(applied, plan.estimate, plan.mesh, topology, compiler)


def main() -> int:
    """Exit code: 0 if every case could be planned and compiled, else 1."""
    if not compilers.has_gpu():
        print(f"no compiler for GPUs: run benchmarks.parallel.install_compiler FOLDER, set {compilers.FOLDER}=FOLDER")
        return 1
    both = f"{'compiled':>18}{'gap':>8}"
    print(f"{'case':24}{'peak predicted':>18}{both}{'bytes moved':>18}{both}{'s':>7}")
    failed = False
    for case in sys.argv[1:] or CASES:
        start = time.monotonic()
        try:
            moved, held = report(case).totals[:2]
        except PlanError as error:
            print(f"{case:24}{error}", flush=True)
            failed = True
            continue
        figures = "".join(f"{row.predicted:18,.0f}{row.compiled:18,.0f}{row.gap:8.1%}" for row in (held, moved))
        print(f"{case:24}{figures}{time.monotonic() - start:7.1f}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
