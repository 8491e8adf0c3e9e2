"""A pipeline-parallel schedule as a picture: one row per stage, one column per tick."""

from __future__ import annotations

from cloud.parallel.staged.schedule import Schedule

__all__ = ["gantt"]

WIDE, HIGH, LEFT = 22, 24, 52


def gantt(schedule: Schedule) -> str:
    """SVG in a box that scrolls; the numbers are microbatches. Needs the classes of `picture`."""
    cells = []
    for tick, (forward, backward) in enumerate(zip(schedule.forward, schedule.backward, strict=True)):
        for stage in range(schedule.stages):
            done = [(kind, at[stage]) for kind, at in (("f", forward), ("b", backward)) if at[stage] >= 0]
            cells += [_cell(kind, number, tick, stage, n, len(done)) for n, (kind, number) in enumerate(done)]
    names = "".join(f'<text x="0" y="{HIGH * s + 16}" class="big">stage {s}</text>' for s in range(schedule.stages))
    wide, high = LEFT + WIDE * schedule.ticks, HIGH * schedule.stages
    ones = [1.0] * schedule.stages
    waiting = schedule.bubble(ones, [2.0] * schedule.stages)
    return (
        f"<p>{schedule.name}: {schedule.stages} stages, {schedule.microbatches} microbatches, {schedule.ticks} ticks; "
        f"stages are idle {waiting:.0%} of the time, if a backward tick takes twice as long as a forward one. Forward "
        'is drawn in the first colour, backward in the second.</p><div class="scroll">'
        f'<svg style="width:{wide}px;height:{high}px" viewBox="0 0 {wide} {high}" role="img" aria-label="schedule">'
        f'{names}<g class="tick">{"".join(cells)}</g></svg></div>'
    )


def _cell(kind: str, number: int, tick: int, stage: int, part: int, parts: int) -> str:
    """One of `parts` computations of a stage in a tick, drawn one above the other."""
    high = HIGH / parts
    x, y = LEFT + WIDE * tick, HIGH * stage + high * part
    words = f'<text x="{x + WIDE / 2}" y="{y + high / 2 + 4:g}" text-anchor="middle">{number}</text>'
    return f'<rect class="{kind}" x="{x}" y="{y:g}" width="{WIDE}" height="{high:g}"/>{words}'
