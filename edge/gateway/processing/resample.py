"""Sound at another rate: band-limited interpolation (J. O. Smith, "Digital Audio Resampling", CCRMA).

With f = 0.99 * min(1, to / from) and six zero crossings a side, sample j of the result is

    sum over i of x[i] * f * sinc(f * d) * cos(pi * f * d / 12) ** 2,    d = i - j * from / to,  |f * d| < 6

with samples beyond either end taken as 0, ceil(count * to / from) of them: what `torchaudio.functional.resample` makes.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, gcd

import numpy as np

from lite_runtime.graph import Array

__all__ = ["resample"]

_CROSSINGS, _ROLL_OFF = 6, 0.99
_CHUNK = 1 << 20
"""Most products held at once."""


def resample(array: Array, have: int, want: int) -> Array:
    """float32 [samples] at `have` a second, at `want` a second; as they are where the two are one."""
    if have == want:
        return array
    common = gcd(have, want)
    have, want = have // common, want // common
    first, table = _filters(have, want)
    phases, taps = table.shape
    count = -(-len(array) * want // have)
    # [taps before, samples, taps after], so that every window lies within.
    padded = np.concatenate([np.zeros(taps, np.float32), array, np.zeros(2 * taps, np.float32)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps)
    result = np.empty(count, np.float32)
    step = max(1, _CHUNK // taps)
    for begin in range(0, count, step):
        at = np.arange(begin, min(begin + step, count))
        block, phase = np.divmod(at, phases)
        start = block * have + first[phase] + taps
        result[at] = np.einsum("ij,ij->i", windows[start], table[phase])
    return result


@lru_cache(maxsize=4)
def _filters(have: int, want: int) -> tuple[Array, Array]:
    """For each of the `want` places a result's sample may have between samples: the first sample it looks at, and the
    weights from there on, float32 [want, taps]."""
    factor = _ROLL_OFF * min(1.0, want / have)
    reach = _CROSSINGS / factor
    place = np.arange(want) * (have / want)
    first = np.ceil(place - reach).astype(np.int64)
    distance = factor * (first[:, None] + np.arange(ceil(2 * reach) + 1) - place[:, None])
    window = np.where(np.abs(distance) < _CROSSINGS, np.cos(np.pi * distance / (2 * _CROSSINGS)) ** 2, 0.0)
    table = (factor * np.sinc(distance) * window).astype(np.float32)
    first.flags.writeable = table.flags.writeable = False
    return first, table
