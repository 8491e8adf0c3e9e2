"""Weights of tokens by float32, and what is certain despite their rounding: a fifth of the time of exact ones.

`sampling` defines which token follows by weights W = e^x of float64, with x = (value - greatest) * scale from -80 to 0.
Here the arguments are of float32 and the exponential is NumPy's. Whoever asks gets an answer only if no weights within
the bound below could give another one. The bound, of n tokens, with u = 2^-24:

argument      the difference, the scale and their product are rounded, each by a share of u: x is wrong by 3 u |x| and
              W by 3 u |x| W. With p = W / T, where T is the sum of all W, the sum of p |x| is the entropy of p less
              ln T, so at most ln n: all weights together are wrong by 3 u T ln n.
exponential   a share of 2^-20 of each. NumPy's vectors are wrong by 2.52 units in the last place at most, C libraries
              by 1 or 2; this is 8.
the rest      products of these errors, and the rounding of sums of float64, on both sides: less than a hundredth.

Any part of the weights, less a share of all of them from 0 to 1, is wrong by no more than the sum of all errors.
"""

from __future__ import annotations

import math

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array

__all__ = ["COLUMNS", "Estimate", "estimated"]

COLUMNS = 256
"""Weights are summed in so many columns side by side: one sum after another takes 0.14 ms for 50,000 weights."""
_ARGUMENT, _EXPONENTIAL, _REST = 3 * 2.0**-24, 2.0**-20, 1.01


class Estimate(NamedTuple):
    """weights: float32 [rows, COLUMNS], zeros behind the last. sums: of columns, each with those before it, float64
    [COLUMNS]. total: of all. error: the bound of all errors together."""

    weights: Array
    sums: Array
    total: float
    error: float

    def drawn(self, number: float) -> int | None:
        """The place of the token that a uniform number in [0, 1) selects, as `sampling.draw` does; None if that is not
        certain."""
        target = number * self.total
        column = int(self.sums.searchsorted(target, side="right"))
        if column == COLUMNS:
            return None
        before = self.sums[column - 1] if column else 0.0
        sums = before + self.weights[:, column].cumsum(dtype=np.float64)
        row = int(sums.searchsorted(target, side="right"))
        if row == len(sums) or sums[row] - target < self.error:
            return None
        below = target - (sums[row - 1] if row else before)
        return row * COLUMNS + column if below >= self.error or row == column == 0 else None


def estimated(values: Array, greatest: float, scale: float) -> Estimate:
    """The weights of values float32 [n], of which `greatest` is the greatest."""
    count = len(values)
    made = np.zeros(-(-count // COLUMNS) * COLUMNS, np.float32) if count % COLUMNS else np.empty(count, np.float32)
    weights = made[:count]
    np.subtract(values, np.float32(greatest), out=weights)
    weights *= np.float32(scale)
    np.exp(weights, out=weights)
    columns = made.reshape(-1, COLUMNS)
    sums = columns.sum(axis=0, dtype=np.float64).cumsum()
    total = float(sums[-1])
    return Estimate(columns, sums, total, _REST * total * (_ARGUMENT * math.log(count) + _EXPONENTIAL))
