"""Batches of many devices drawn at once: the same numbers as a generator of each device's own.

Half of the time of drawing 200 of 200 examples is the making of a generator. Here NumPy's own seeding (SeedSequence,
and that of PCG64) is computed for all devices as arrays, and one generator is set to each state in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np
import numpy.typing as npt

from federated.data import order
from federated.server.rounds import seeds_of

__all__ = ["drawn", "generators"]

_POOL = 4
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
"""Of PCG64's step (O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for Random
Number Generation", 2014)."""
_MASK = (1 << 128) - 1

Words = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.integer]


def drawn(shards: Sequence[Rows], names: Sequence[str], words: Sequence[str | int], steps: int, size: int) -> Rows:
    """Rows [devices, steps, size] of devices with these rows and names, as `federated.data.draw` draws them with a
    generator whose seed is `seed_of(*words, name)`."""
    made = np.empty((len(names), steps, size), np.int64)
    for at, rng in enumerate(generators(seeds_of(names, *words))):
        made[at] = shards[at][order(len(shards[at]), rng, steps, size)]
    return made


def generators(seeds: Sequence[int]) -> Iterator[np.random.Generator]:
    """`np.random.default_rng(seed)` for each seed below 2^64; each is valid until the next one."""
    bits = np.random.PCG64(0)
    rng = np.random.Generator(bits)
    numbers = np.array(seeds, np.uint64)
    words = _state([(numbers & 0xFFFFFFFF).astype(np.uint32), (numbers >> 32).astype(np.uint32)])
    halves = [(low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))).tolist() for low, high in
              zip(words[::2], words[1::2], strict=True)]  # fmt: skip
    for high, low, top, bottom in zip(*halves, strict=True):
        step = ((top << 64 | bottom) << 1 | 1) & _MASK
        state = ((step + (high << 64 | low)) * _MULTIPLIER + step) & _MASK
        bits.state = {
            "bit_generator": "PCG64", "state": {"state": state, "inc": step}, "has_uint32": 0, "uinteger": 0,
        }  # fmt: skip
        yield rng


def _state(entropy: Sequence[Words]) -> list[Words]:
    """`SeedSequence(...).generate_state(4, np.uint64)` as 8 words, for arrays of words of entropy."""
    with np.errstate(over="ignore"):
        mixed = _Hash(0x43B0D7E5, 0x931E8875)
        nothing = np.zeros_like(entropy[0])
        pool = [mixed(entropy[at] if at < len(entropy) else nothing) for at in range(_POOL)]
        for source in range(_POOL):
            for target in range(_POOL):
                if source != target:
                    found = np.uint32(0xCA01F9DD) * pool[target] - np.uint32(0x4973F715) * mixed(pool[source])
                    pool[target] = found ^ (found >> np.uint32(16))
        told = _Hash(0x8B51F9DD, 0x58F38DED)
        return [told(word) for word, _ in zip(cycle(pool), range(8), strict=False)]


class _Hash:
    """The hash of SeedSequence; its constant changes with every word."""

    def __init__(self, constant: int, multiplier: int) -> None:
        self._constant, self._multiplier = constant, multiplier

    def __call__(self, words: Words) -> Words:
        words = words ^ np.uint32(self._constant)
        self._constant = self._constant * self._multiplier & 0xFFFFFFFF
        words = words * np.uint32(self._constant)
        return words ^ (words >> np.uint32(16))
