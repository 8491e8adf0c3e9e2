"""What a user should know before trusting a plan: work that devices repeat, and work that was not searched."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from cloud.parallel.explaining.words import place
from cloud.parallel.graph import Graph, Op
from cloud.parallel.plan import Plan
from cloud.parallel.searching.options import degree

__all__ = ["notes", "repeated", "unsearched"]

MOST = 0.5
"""Share of the FLOPs of all devices from which repeated work is worth a note."""

SOME = 0.01
"""Share of a step's FLOPs from which unsearched work is worth a note."""

_CLOSED = ("scan", "while", "cond")


def repeated(graph: Graph, plan: Plan) -> float:
    """The share of all devices' FLOPs that repeat what another device computes."""
    devices, done, useful = prod(plan.mesh.sizes), 0.0, 0.0
    for op, chosen in zip(graph.ops, plan.ops, strict=True):
        if op.flops and not op.follows:
            done += op.flops * op.times
            useful += op.flops * op.times * degree([axis for axes in chosen.loops for axis in axes], plan.mesh)
    return 1 - useful / (done * devices) if done else 0.0


def unsearched(graph: Graph) -> float:
    """The share of a step's FLOPs inside branches and loops with side effects, which are planned as one operator."""
    every = sum(op.flops * op.times for op in graph.ops) or 1.0
    return sum(op.flops * op.times for op in graph.ops if op.primitive in _CLOSED) / every


def notes(graph: Graph, plan: Plan) -> Iterator[str]:
    """One sentence for each thing to know."""
    again, closed = repeated(graph, plan), unsearched(graph)
    if again > MOST:
        yield (
            f"{again:.0%} of the FLOPs that devices compute repeat what another computes: moving data would take longer"
            " by the topology's figures, or the dimensions do not divide; a larger batch or fewer devices waste less"
        )
    if closed >= SOME:
        yield (
            f"{closed:.0%} of the FLOPs are in {_names(graph)}, which are planned as one operator each: what could be "
            "split inside was not searched"
        )
    for body in graph.bodies:
        if not body.bounded:
            where = place(graph.ops[body.start].where)
            yield f"the number of trips of the loop at {where} is not known: its work and communication count once"


def _names(graph: Graph) -> str:
    found: list[Op] = [op for op in graph.ops if op.primitive in _CLOSED and op.flops]
    shown = list(dict.fromkeys(f"{op.primitive} at {place(op.where)}" for op in found))
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")
