"""Windows over channels-last images with two spatial axes, in the form that kernels take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Geometry", "flat"]


def flat(values: tuple[int, ...], filler: int) -> tuple[int, int]:
    """Values of one or two spatial axes extended to two."""
    return (filler, values[0]) if len(values) == 1 else (values[0], values[1])


@dataclass(frozen=True)
class Geometry:
    """A 2-D window and image, including the image's border."""

    images: int
    height: int
    width: int
    channels: int
    out: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begins: tuple[int, int]

    @property
    def padded(self) -> tuple[int, int]:
        """Height and width covered by all windows together."""
        sizes = zip(self.out, self.kernel, self.strides, self.dilations, strict=True)
        high, wide = ((o - 1) * s + (k - 1) * d + 1 for o, k, s, d in sizes)
        return high, wide
