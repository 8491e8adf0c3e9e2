"""Windows that slide over one dimension: into how many parts it splits, and which edges devices then exchange.

A device that computes a part of the results needs its own part of the operand and, of its neighbours' parts, the edges
that its windows reach into. If results times stride are as many as elements times their gaps, every device needs the
same edges (XLA's `spmd_partitioner` then exchanges just these).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Cut", "Slide", "slide_of"]


@dataclass(frozen=True, slots=True)
class Cut:
    """The elements can be split into `parts` parts or any divisor: with the results (`within`), or with the window,
    whose parts then give partial results. `edges`: the elements before and after its own that a part needs."""

    parts: int
    within: bool
    edges: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Slide:
    """A window of `window` elements, `apart` elements from one to the next, that moves `stride` elements for each of
    `made` results over `size` elements, with `gaps` - 1 holes between them and `low` holes before the first."""

    size: int
    window: int
    made: int
    stride: int
    gaps: int
    apart: int
    low: int
    high: int

    @property
    def still(self) -> bool:
        """Whether each result is made of the element at its place."""
        return self.window == self.stride == self.gaps == 1 and self.low == self.high == 0

    def cuts(self) -> Iterator[Cut]:
        """Those into at least two parts, with the results first."""
        if self.made * self.stride == self.size * self.gaps:
            after = ((self.window - 1) * self.apart - self.stride - self.low) // self.gaps + 1
            yield from _cut(self.size, self.made, True, self.low // self.gaps, after)
        if self.gaps == 1 and self.window * self.apart == self.size:
            after = (self.made - 1) * self.stride - self.low - self.apart + 1
            yield from _cut(self.size, self.window, False, self.low, after)

    def padding(self, cut: Cut, parts: int) -> tuple[int, int]:
        """The padding before and after one of `parts` parts that is joined with its edges."""
        window, made = (self.window, self.made // parts) if cut.within else (self.window // parts, self.made)
        low = self.low - cut.edges[0] * self.gaps
        wide = (self.size // parts + sum(cut.edges) - 1) * self.gaps + 1
        return low, (made - 1) * self.stride + (window - 1) * self.apart + 1 - low - wide


def _cut(size: int, other: int, within: bool, before: int, after: int) -> Iterator[Cut]:
    """The cut into the most parts that divide both and leave at least an edge to a part."""
    both, edges = math.gcd(size, other), (max(0, before), max(0, after))
    parts = max((n for n in range(2, both + 1) if both % n == 0 and size // n >= max(edges)), default=0)
    if parts:
        yield Cut(parts, within, edges)


_GAPS, _APART = ("lhs_dilation", "base_dilation"), ("rhs_dilation", "window_dilation")
"""Of convolutions, and of reductions over windows."""


def slide_of(params: Mapping[str, Any], i: int, size: int, window: int, made: int) -> Slide:
    """The slide over dimension `i` of those that the parameters of an equation tell of."""
    gaps, apart = (next((params[name][i] for name in names if name in params), 1) for names in (_GAPS, _APART))
    low, high = params["padding"][i]
    return Slide(size, window, made, params["window_strides"][i], gaps, apart, low, high)
