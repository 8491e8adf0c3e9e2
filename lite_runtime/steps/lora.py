"""Products with low-rank adapters that are chosen for each row."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Picks, Step, step

__all__ = ["Adapt"]


@step("lora.f32_adapt")
class Adapt(Step):
    """y = base + (x A) B, with A and B of the row's adapter; y may be base. A row of adapter -1 is copied."""

    x: In
    base: In
    adapters: In  # [slots][size], of which A^T [rank][depth] and B [rank][columns] begin at `offset`
    which: In  # int32, by row
    y: Out
    rows: int
    depth: int
    columns: int
    rank: int
    offset: int  # elements
    slots: int
    size: int

    picks = Picks("adapters")
