"""An explanation as text for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from cloud.parallel.explaining.explanation import Explanation
from cloud.parallel.explaining.words import duration, rows_text
from converter.report.html import size_text

__all__ = ["told"]

MOST = 16
"""The most collectives listed: those that take longest."""


def told(made: Explanation) -> str:
    """The whole explanation, without colours."""
    return "\n\n".join(part for section in _SECTIONS if (part := section(made)))


def _head(made: Explanation) -> str:
    hidden = made.collective_seconds - made.exposed_seconds
    also = f" ({duration(hidden)} more are hidden)" if hidden > 0 else ""
    used = [f"{size_text(size)} {kind}" for kind, size in made.memory.items() if size]
    return "\n".join(
        (
            made.strategy,
            f"mesh     {made.mesh}; {made.topology}",
            f"step     {duration(made.step_seconds)}: {duration(made.compute_seconds)} computing, "
            f"{duration(made.exposed_seconds)} of collectives{also}; {_proven(made)}",
            f"memory   at most {size_text(made.peak_bytes)} per device, in {made.peak_at}:",
            f"         {', '.join(used)}",
        )
    )


def _proven(made: Explanation) -> str:
    if made.gap >= 1:
        return "not proven to be the best"
    proven = "proven best on this mesh" if made.gap < 1e-3 else f"proven within {made.gap:.1%} of the best on this mesh"
    but = f", but {made.unsearched:.0%} of the FLOPs were not searched" if made.unsearched >= 0.005 else ""
    return f"{proven}, by the search's cost model{but}"


def _tensors(made: Explanation) -> str:
    rows = [
        (one.name, one.dtype, one.split, _times(one.times), f"{size_text(one.local_bytes)} of {size_text(one.bytes)}")
        for one in made.tensors
        if one.kind != "other state"
    ]
    rest = [one for one in made.tensors if one.kind == "other state"]
    note = ""
    if rest:
        sizes = size_text(sum(one.local_bytes for one in rest)), size_text(sum(one.bytes for one in rest))
        split = sum(one.times for one in rest if "/m" in one.split)
        note = f"\n  and {sum(one.times for one in rest)} of the optimiser, {split} of them split: {' of '.join(sizes)}"
    return "inputs of the step and their sharding (bytes on a device, of all)\n" + rows_text(rows) + note


def _workers(made: Explanation) -> str:
    rows = []
    for one in made.workers:
        idle = f"{one.idle:.0%} repeated" if one.idle > 0.005 else ""
        rows.append((one.name, one.split, _times(one.times), f"{one.share:.0%}", idle))
    return "operators with the most FLOPs\n" + rows_text(rows) if rows else ""


def _moves(made: Explanation) -> str:
    rows = [
        (duration(one.seconds), f"{one.hidden / one.seconds:.0%} hidden" if one.hidden > 0 else "", one.kind,
         one.axes, _times(one.times), size_text(one.bytes), one.why)
        for one in made.moves[:MOST]
    ]  # fmt: skip
    if not rows:
        return "no collectives: the devices exchange no data"
    rest = made.moves[MOST:]
    note = f"\n  and {len(rest)} more kinds: {duration(sum(one.seconds for one in rest))}" if rest else ""
    return "collectives\n" + rows_text(rows) + note


def _rivals(made: Explanation) -> str:
    rows = []
    for one in made.rivals:
        if one.step_seconds is None:
            rows.append((one.name, "–", "", one.loses))
        else:
            times = f"{duration(one.step_seconds)} ({one.step_seconds / made.step_seconds:.2f}×)"
            rows.append((one.name, times, one.strategy, one.loses))
    return "costs of other plans\n" + rows_text(rows) if rows else ""


def _times(count: int) -> str:
    return f"×{count}" if count > 1 else ""


_SECTIONS: tuple[Callable[[Explanation], str], ...] = (_head, _tensors, _workers, _moves, _rivals)
