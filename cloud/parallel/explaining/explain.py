"""Why a plan costs what it costs: how tensors are sharded, what is moved and why, what memory is used for, and what
other plans would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import TypeAlias, TypeVar

from cloud.errors import PlanError
from cloud.parallel.cost import local_bytes
from cloud.parallel.explaining.explanation import Explanation, Moving, Rival, Tensor, Worker
from cloud.parallel.explaining.ledger import KINDS, Ledger
from cloud.parallel.explaining.notes import unsearched
from cloud.parallel.explaining.strategy import strategy
from cloud.parallel.explaining.words import alike, axes_text, duration, link_text, mesh_text, place, split_text
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Plan
from cloud.parallel.searching.predict import Moved
from cloud.parallel.searching.walk import lying
from cloud.parallel.staged.staging import Staging
from cloud.parallel.topology import Topology
from converter.report.html import size_text

__all__ = ["Other", "explain"]

BIGGEST = 8
"""The most operators listed: those with the most FLOPs."""

Item = TypeVar("Item")
Key = TypeVar("Key")


Other: TypeAlias = Plan | Staging | PlanError
"""A plan, a pipeline-parallel plan, or the reason why there is none."""


def explain(graph: Graph, plan: Plan, topology: Topology, rivals: Mapping[str, Other] | None = None, *,
            memory: float | None = None, reduce_scatter: bool = True) -> Explanation:  # fmt: skip
    """`rivals`: other plans of the same step, or why there is none, by name. `memory`: bytes per device, by default the
    topology's. `reduce_scatter`: whether the compiler emits reduce-scatters, as in `predict`."""
    ledger = Ledger(graph, plan, topology, reduce_scatter)
    estimate, peak = plan.estimate, ledger.peak
    at = min(range(len(graph.ops)), key=lambda k: abs(ledger.lives.at[k] - peak), default=0)
    return Explanation(
        name=plan.name,
        strategy=strategy(graph, plan),
        mesh=mesh_text(plan.mesh, topology),
        topology=f"{topology.size} devices of {topology.name}, {size_text(memory or topology.memory)} each",
        limit=memory or topology.memory,
        step_seconds=estimate.step_seconds,
        compute_seconds=estimate.compute_seconds,
        collective_seconds=estimate.collective_seconds,
        exposed_seconds=estimate.exposed_seconds,
        gap=estimate.gap,
        peak_bytes=estimate.peak_bytes,
        peak_at=f"{graph.ops[at].primitive} at {graph.ops[at].where}" if graph.ops else "the start",
        memory={kind: int(ledger.memory[kind][peak]) for kind in KINDS},
        tensors=tuple(_entering(ledger)),
        workers=tuple(_working(ledger)),
        moves=tuple(_moving(ledger)),
        rivals=tuple(_rival(ledger, name, other) for name, other in (rivals or {}).items()),
        unsearched=unsearched(graph),
    )


def _grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> Mapping[Key, list[Item]]:
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def _entering(ledger: Ledger) -> Iterable[Tensor]:
    graph, plan = ledger.graph, ledger.plan

    def described(pair: tuple[int, Split]) -> tuple[str, str, str, str]:
        value = graph.values[pair[0]]
        return alike(value.name), ledger.kind(pair[0]), str(value.dtype), split_text(value.shape, pair[1])

    for key, pairs in _grouped(zip(graph.entering, plan.entering, strict=True), described).items():
        whole = sum(graph.values[v].bytes for v, _ in pairs)
        yield Tensor(*key, len(pairs), whole, sum(_local(ledger, v, split) for v, split in pairs))


def _working(ledger: Ledger) -> list[Worker]:
    graph, plan = ledger.graph, ledger.plan
    lies = lying(graph, plan)
    total = sum(op.flops * op.times for op in graph.ops) or 1.0

    def described(k: int) -> tuple[str, str]:
        op, v = graph.ops[k], graph.ops[k].outputs[0]
        return f"{op.primitive} at {place(op.where)}", split_text(graph.values[v].shape, lies[v])

    found = []
    for key, ops in _grouped((k for k, op in enumerate(graph.ops) if op.flops and not op.follows), described).items():
        flops = [graph.ops[k].flops * graph.ops[k].times for k in ops]
        used = sum(f * _parts(plan, k) for f, k in zip(flops, ops, strict=True))
        found.append(Worker(*key, len(ops), sum(flops) / total, 1 - used / (sum(flops) * ledger.topology.size)))
    return sorted(found, key=lambda one: -one.share)[:BIGGEST]


def _moving(ledger: Ledger) -> list[Moving]:
    def why(one: Moved) -> str:
        name = ledger.name(one.value)
        if one.adds:
            return f"partial sums of {name}"
        if one.op < 0:
            return f"{name} back to its sharding"
        reader = ledger.graph.ops[one.op]
        return f"{'edges of ' * one.edges}{name} for {reader.primitive} at {place(reader.where)}"

    def described(one: Moved) -> tuple[str, str, str]:
        return one.collective.kind, axes_text(one.collective.axes), why(one)

    found = []
    for (kind, axes, reason), group in _grouped(ledger.moved, described).items():
        times = sum(one.collective.times for one in group)
        bytes_ = sum(one.collective.bytes * one.collective.times for one in group)
        seconds, shown = sum(one.seconds for one in group), sum(map(ledger.exposed, group))
        found.append(Moving(kind, axes, times, bytes_, seconds, seconds - shown, reason))
    return sorted(found, key=lambda one: -one.seconds)


def _rival(ledger: Ledger, name: str, other: Other) -> Rival:
    if isinstance(other, PlanError):
        return Rival(name, "", None, None, str(other))
    if isinstance(other, Staging):
        cost = other.estimate
        return Rival(name, _of_stages(other), cost.step_seconds, cost.peak_bytes, _beside(ledger, other))
    more = Ledger(ledger.graph, other, ledger.topology, ledger.reduce_scatter)
    return Rival(name, strategy(ledger.graph, other), other.estimate.step_seconds, other.estimate.peak_bytes,
                 _loses(ledger, more))  # fmt: skip


def _of_stages(choice: Staging) -> str:
    copies = f" × {choice.replicas}" if choice.replicas > 1 else ""
    copies += f" of {choice.tensor} devices each" if choice.tensor > 1 else ""
    return f"{len(choice.stages) + 1} stages{copies}, {choice.microbatches} microbatches ({choice.schedule})"


def _beside(ledger: Ledger, choice: Staging) -> str:
    ours, theirs = ledger.plan.estimate, choice.estimate
    if theirs.step_seconds < ours.step_seconds:
        return "nothing: its predicted cost is lower; compiled pipelines take 0.98 to 1.15 times the predicted time"
    more = {
        "of ticks, each as long as the slowest stage takes": theirs.compute_seconds - ours.compute_seconds,
        "of collectives": theirs.exposed_seconds - ours.exposed_seconds,
    }
    return ", ".join(f"{duration(seconds)} more {what}" for what, seconds in more.items() if seconds > 0)


def _loses(ledger: Ledger, other: Ledger) -> str:
    if other.plan.estimate.step_seconds < ledger.plan.estimate.step_seconds:
        return "nothing: it costs less; select it with --expert"
    ours, theirs = _spent(ledger), _spent(other)
    more = {what: theirs.get(what, 0.0) - ours.get(what, 0.0) for what in {**ours, **theirs}}
    worth = [what for what in more if more[what] > 0.01 * ledger.plan.estimate.step_seconds]
    words = [f"{duration(more[what])} more {what}" for what in sorted(worth, key=lambda what: -more[what])[:2]]
    return ", ".join(words) or "no item above 1 % of the step"


def _spent(ledger: Ledger) -> Mapping[str, float]:
    """Seconds by their cause; collectives by the slowest links they cross."""
    found = {"of computing": ledger.plan.estimate.compute_seconds}
    for one in ledger.moved:
        level = min((ledger.plan.mesh.levels[axis] for axis in one.collective.axes), default=0)
        what = f"of {one.collective.kind} at {link_text(level, ledger.topology)}"
        found[what] = found.get(what, 0.0) + ledger.exposed(one)
    return found


def _local(ledger: Ledger, value: int, split: Split) -> int:
    about = ledger.graph.values[value]
    return local_bytes(about.shape, about.dtype.itemsize, split, ledger.plan.mesh)


def _parts(plan: Plan, k: int) -> int:
    return prod(plan.mesh.sizes[axis] for axes in plan.ops[k].loops for axis in axes)
