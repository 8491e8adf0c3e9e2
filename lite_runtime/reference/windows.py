"""Sliding windows: paddings, output sizes, and one strided view per position in the window ("tap").

A convolution or pooling is a loop over its few taps, each a whole-array operation; windows are never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.support import require

__all__ = ["MOST_TAPS", "Window", "resolve"]

MOST_TAPS = 1 << 18
"""Greatest number of taps that are processed one by one: a few seconds. With padding, a small file could request any
number."""


@dataclass(frozen=True)
class Window:
    """A window over `len(kernel)` spatial axes with all values resolved; `out` counts its positions along each."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    def pad(self, x: Array, value: float) -> Array:
        """`x` with its trailing axes padded by `value`, enough for every position of the window."""
        rank = len(self.kernel)
        reach = [
            (o - 1) * s + (k - 1) * d + 1
            for o, s, k, d in zip(self.out, self.strides, self.kernel, self.dilations, strict=True)
        ]
        sizes = [max(n + b + e, r) for n, b, e, r in zip(x.shape[-rank:], self.begin, self.end, reach, strict=True)]
        padded = np.full((*x.shape[:-rank], *sizes), value, x.dtype)
        inner = tuple(slice(b, b + n) for b, n in zip(self.begin, x.shape[-rank:], strict=True))
        where: Any = (..., *inner)
        padded[where] = x
        return padded

    def taps(self) -> Iterator[tuple[Any, Any]]:
        """(index of a tap in arrays that end in the kernel's axes, index of its elements at all positions in padded
        arrays). Raises ShapeError for more than MOST_TAPS taps."""
        require(prod(self.kernel) <= MOST_TAPS, f"expected a window of at most {MOST_TAPS} elements, got {self.kernel}")
        for place in np.ndindex(*self.kernel):
            cuts = (
                slice(p * d, p * d + (o - 1) * s + 1, s)
                for p, d, o, s in zip(place, self.dilations, self.out, self.strides, strict=True)
            )
            yield (..., *place), (..., *cuts)


def resolve(
    space: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Window:
    """Fill in defaults and compute paddings and output sizes as ONNX's Conv and pools define them."""
    rank = len(space)
    kernel = tuple(kernel)
    strides = tuple(strides or (1,) * rank)
    dilations = tuple(dilations or (1,) * rank)
    pads = tuple(pads or (0,) * (2 * rank))
    for name, given in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        require(len(given) == rank, f"expected {name} of {rank} numbers, got {given}")
        require(min(given, default=1) > 0, f"expected {name} above 0, got {given}")
    require(len(pads) == 2 * rank, f"expected pads of {2 * rank} numbers, got {pads}")
    extents = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = tuple(-(-n // s) for n, s in zip(space, strides, strict=True))
        total = [max(0, (o - 1) * s + e - n) for o, s, e, n in zip(out, strides, extents, space, strict=True)]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        if auto_pad == "SAME_LOWER":
            small, large = large, small
        return Window(kernel, strides, dilations, tuple(small), tuple(large), out)
    if auto_pad not in ("NOTSET", "VALID"):
        raise UnsupportedOpError(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got {auto_pad!r}")
    begin, end = (pads[:rank], pads[rank:]) if auto_pad == "NOTSET" else ((0,) * rank, (0,) * rank)
    out = tuple(
        _positions(n, b, n + b + e - extent, s, bool(ceil_mode))
        for n, b, e, extent, s in zip(space, begin, end, extents, strides, strict=True)
    )
    require(min(out, default=1) >= 0, f"expected a window within the padded input, got extents {extents} over {space}")
    return Window(kernel, strides, dilations, tuple(begin), tuple(end), out)


def _positions(size: int, begin: int, room: int, stride: int, up: bool) -> int:
    """Positions along an axis; rounded up, but none may start in the padding after the end."""
    if room < 0:
        return -1
    if not up:
        return room // stride + 1
    out = -(-room // stride) + 1
    return out - 1 if (out - 1) * stride >= size + begin else out
