"""What second order may cost: which weights are turned, and in which blocks.

Costs are FLOPs of matrix products as large as a model's own, so that they can be compared with those of the rest of a
step without a clock: the same model and batch give the same choice on every machine, and a state keeps its shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cloud.errors import TrainError
from cloud.train.optim.blocks import Blocks

__all__ = ["EVERY", "GATHER", "LEAST", "SHARE", "Choice", "adams", "cost", "sides_within", "work_of"]

SHARE = 0.2
"""The most that second order takes of a step, if the work of the rest is known."""

LEAST = 16
"""The smallest block: below it, passes over memory cost more than products."""

EVERY = 10
"""Steps within which every basis is renewed once."""

GATHER = 4
"""Steps between two gradients that factors are made of."""

_ADAM = 80.0
"""FLOPs that take as long as Adam's update of one number. Fitted, as the constants below, to one core of an x86 server
(AVX-512, 80 GFLOP/s in a product of 64 x 1152 x 256, 1 MiB of cache for itself). What turning adds to Adam's step of a
weight, both sides, in nanoseconds per number, where other work kept the other core and the memory busy:

    numbers    blocks of 16     32     64
     32,768             7.6    8.5   11.0
    131,072            13.4   15.2   24.3
    294,912            11.5   13.5   20.9

On a GPU, where memory is slower in relation, they are too small."""

_PASSES, _CACHED = (60.0, 235.0), 1 << 16
"""The passes over memory that turning one number on one side adds: for weights of fewer numbers than `_CACHED`, whose
gradient, moments and direction stay in the cache of a core, and for larger ones."""

_SLOWER, _SMALLEST = (1.2, 2.6), 24
"""How much slower the products of the left and the right side are than a model's, for being small; pieces below
`_SMALLEST` take as long as those."""

_RENEW = 60.0, 1500.0
"""A renewal of a basis of s x s, divided by s³ and by s²: 0.25 ms for s = 64, 0.04 ms for s = 32."""

Choice = tuple[int, int]
"""The largest piece of the rows and of the columns; (0, 0): the weight is left to Adam."""


def work_of(function: Callable[..., Any], *arguments: Any) -> float:
    """FLOPs of one call, where trips of loops count. Arguments are trees of arrays or `jax.ShapeDtypeStruct`s; nothing
    is computed. For `thor` it is the gradient of the loss: `work_of(jax.grad(loss), params, batch)`."""
    from cloud.parallel.tracing.trace import trace

    return float(sum(op.flops * op.times for op in trace(function, *arguments, state_argument=None).ops))


def adams(shape: Sequence[int]) -> float:
    """Adam's update of a weight, in FLOPs."""
    return _ADAM * math.prod(shape)


def cost(blocks: Blocks, sides: Choice, every: int) -> float:
    """What turning a weight adds to a step of Adam's on average, in FLOPs."""
    size = math.prod(blocks.tiles)
    passes = _PASSES[size >= _CACHED]
    rows = ((blocks.height, blocks.down, _SLOWER[0]), (blocks.width, blocks.across, _SLOWER[1]))
    total = 0.0
    for (s, pieces, slower), side in zip(rows, sides, strict=True):
        if side:
            products = max(s, _SMALLEST) * (4 + 2 / GATHER + 4 / every)
            total += size * (passes + slower * products) + pieces * (_RENEW[0] * s**3 + _RENEW[1] * s**2) / every
    return total


def sides_within(
    work: float | None, share: float, shapes: Sequence[tuple[int, ...]], block: int, every: int
) -> list[Choice]:
    """A choice for every weight, so that second order costs at most `share` of a step whose rest costs `work` FLOPs and
    Adam's update. Blocks grow from `LEAST`, doubling, to `block`, at each size for the weights that it costs least
    first: small weights are turned before large ones, all of them before any gets larger blocks. `work` None: all in
    blocks of `block`. Raises TrainError for a options out of range."""
    if not 0 <= share < 1:
        raise TrainError(f"thor: expected a share from 0 to below 1, got {share}")
    if every < 1:
        raise TrainError(f"thor: expected every of at least 1 step, got {every}")
    if block < 2:
        raise TrainError(f"thor: expected blocks of at least 2, got {block}")
    if work is not None and not (math.isfinite(work) and work >= 0):
        raise TrainError(f"thor: expected the FLOPs of a step as work, got {work}")
    cut = [Blocks.of(shape, block, block) is not None for shape in shapes]
    if work is None:
        return [(block, block) if can else (0, 0) for can in cut]
    left = share / (1 - share) * (work + sum(adams(shape) for shape in shapes))
    chosen, spent = [0] * len(shapes), [0.0] * len(shapes)
    for size in _sizes(block):
        prices = [_price(shape, size, every) if can else math.inf for shape, can in zip(shapes, cut, strict=True)]
        for k in sorted(range(len(shapes)), key=lambda k: (prices[k] - spent[k], k)):
            if prices[k] - spent[k] <= left:
                left, spent[k], chosen[k] = left - (prices[k] - spent[k]), prices[k], size
    return [(size, size) for size in chosen]


def _price(shape: tuple[int, ...], size: int, every: int) -> float:
    blocks = Blocks.of(shape, size, size)
    assert blocks is not None
    return cost(blocks, (size, size), every)


def _sizes(block: int) -> list[int]:
    sizes = [min(LEAST, block)]
    while sizes[-1] < block:
        sizes.append(min(2 * sizes[-1], block))
    return sizes
