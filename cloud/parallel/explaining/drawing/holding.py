"""Memory use of a device over a step, as stacked areas; part of `picture`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cloud.parallel.explaining.ledger import KINDS, Ledger
from cloud.parallel.searching.walk import late
from converter.report.html import size_text

__all__ = ["busy", "holding"]

POINTS = 160
"""Points of the curve; for a longer step, the fullest moment of each interval."""

Numbers = npt.NDArray[np.float64]


def busy(ledger: Ledger) -> int:
    """Moments worth drawing: the optimiser's operators are last in the step but run as soon as gradients are known."""
    after = late(ledger.graph)
    return max((ledger.lives.at[k] for k, last in enumerate(after) if not last), default=0) + 1


def holding(ledger: Ledger, limit: float) -> str:
    """SVG with HTML labels on top, which keep their size on narrow pages. The limit is drawn if it is not far above."""
    curves = np.stack([ledger.memory[kind] for kind in KINDS])[:, : busy(ledger)]
    total = curves.sum(0)
    stretches = np.array_split(np.arange(total.size), min(POINTS, total.size))
    picked = [int(part[np.argmax(total[part])]) for part in stretches]
    near = limit <= 2 * total.max()
    top = 1.06 * max(total.max(), limit if near else 0.0, 1.0)
    layers: list[str] = []
    below = np.zeros(len(picked))
    for n, one in enumerate(curves[:, picked]):
        above = below + one
        if one.max() > 0:
            layers.append(f'<polygon style="fill:var(--k{n})" points="{_outline(below, above, top)}"/>')
        below = above
    line, tags = "", f'<b style="top:{100 - 100 * total.max() / top:.1f}%">{size_text(total.max())}</b>'
    if near:
        y = 100 - 100 * limit / top
        line = f'<line class="limit" x1="0" x2="100" y1="{y:.2f}" y2="{y:.2f}" vector-effect="non-scaling-stroke"/>'
        tags += f'<b style="top:{y:.1f}%" class="right">device memory {size_text(limit)}</b>'
    return (
        '<div class="memory"><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="memory over the step">{"".join(layers)}{line}</svg>{tags}</div>'
    )


def _outline(below: Numbers, above: Numbers, top: float) -> str:
    """The outline of one layer: along its top and back along its bottom."""
    last = max(len(above) - 1, 1)
    upper = [(100 * i / last, 100 - 100 * y / top) for i, y in enumerate(above)]
    lower = [(100 * i / last, 100 - 100 * y / top) for i, y in enumerate(below)]
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in (*upper, *reversed(lower)))
