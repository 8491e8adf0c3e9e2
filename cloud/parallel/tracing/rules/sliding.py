"""Windows that slide over one dimension: into how many parts it splits, and which edges devices then exchange.

A device that computes a part of the results needs its own part of the operand and, of its neighbours' parts, the edges
that its windows reach into. If results times stride are as many as elements times their gaps, every device needs the
same edges (XLA's `spmd_partitioner` then exchanges just these).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Slide", "slide_of"]


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

    def halo(self) -> tuple[int, int]:
        """The elements before and after its own that a part of the results needs."""
        after = ((self.window - 1) * self.apart - self.stride - self.low) // self.gaps + 1
        return max(0, self.low // self.gaps), max(0, after)

    def parts(self) -> int:
        """The most parts that results and elements can be split into; 0 if they cannot."""
        if self.made * self.stride != self.size * self.gaps:
            return 0
        return _parts_of(self.size, self.made, max(self.halo()))

    def alone(self, parts: int, halo: tuple[int, int]) -> tuple[int, int]:
        """The padding before and after one of `parts` parts of the elements, joined with the halo, for its results."""
        ends = self.size // parts, self.window, self.made // parts
        return self._padding(*ends, *halo)

    def alone_of_window(self, parts: int, halo: tuple[int, int]) -> tuple[int, int]:
        """The same for one of `parts` parts of the window."""
        return self._padding(self.size // parts, self.window // parts, self.made, *halo)

    def _padding(self, size: int, window: int, made: int, before: int, after: int) -> tuple[int, int]:
        low = self.low - before * self.gaps
        wide = (size + before + after - 1) * self.gaps + 1
        return low, (made - 1) * self.stride + (window - 1) * self.apart + 1 - low - wide

    def halo_of_window(self) -> tuple[int, int]:
        """The elements before and after its own that a part of the window needs for all results."""
        after = (self.made - 1) * self.stride - self.low - self.apart + 1
        return max(0, self.low), max(0, after)

    def parts_of_window(self) -> int:
        """The most parts that the window and the elements can be split into; 0 if they cannot."""
        if self.gaps != 1 or self.window * self.apart != self.size:
            return 0
        return _parts_of(self.size, self.window, max(self.halo_of_window()))


def _parts_of(size: int, made: int, edge: int) -> int:
    """The largest number that divides both and leaves at least `edge` elements to a part; 0 if there is none."""
    both = math.gcd(size, made)
    return max((n for n in range(2, both + 1) if both % n == 0 and size // n >= edge), default=0)


_GAPS, _APART = ("lhs_dilation", "base_dilation"), ("rhs_dilation", "window_dilation")
"""Of convolutions, and of reductions over windows."""


def slide_of(params: Mapping[str, Any], i: int, size: int, window: int, made: int) -> Slide:
    """The slide over dimension `i` of those that the parameters of an equation tell of."""
    gaps, apart = (next((params[name][i] for name in names if name in params), 1) for names in (_GAPS, _APART))
    low, high = params["padding"][i]
    return Slide(size, window, made, params["window_strides"][i], gaps, apart, low, high)
