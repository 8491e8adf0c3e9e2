"""Images: JPEG and PNG to uint8 [height, width, channels], resizing and cropping."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.processing.payload import raw
from edge.gateway.processing.steps import Kind, Payload, Single, Source, need
from lite_runtime.errors import MissingExtraError
from lite_runtime.graph import Array

__all__ = ["Crop", "Image", "Resize"]

SCANS = 100
"""Most scans of a JPEG: files of a few kB can ask for thousands of passes over all their pixels."""
PIXELS = 1 << 24
"""Most pixels that `resize` makes on its way."""
_ORIENTATION = 0x0112
_TURNS: Mapping[int, Callable[[Array], Array]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}
"""By EXIF's orientation, what makes a picture stand upright."""


@dataclass(frozen=True)
class Image(Source):
    """JPEG or PNG. Transparency is dropped, 16 bits become 8 (the upper ones), of moving pictures the first counts."""

    mode: str
    max_pixels: int
    orientation: bool
    base64: bool
    unit = "pixels"

    @property
    def limit(self) -> float:
        """Pixels of all pictures of a request."""
        return self.max_pixels

    def outer(self) -> Kind:
        """See `Source`."""
        return Kind("string", ())

    def kind(self) -> Kind:
        """See `Source`."""
        return Kind("uint8", (None, None, 1 if self.mode == "gray" else 3))

    def prepare(self) -> None:
        """See `Source`."""
        _pillow()
        # Damaged files make Pillow warn in ever new words, each of which Python would keep.
        warnings.filterwarnings("ignore", module=r"PIL\.")

    def open(self, item: Any) -> Payload:
        """See `Source`."""
        data = raw(item, self.base64, "a JPEG or PNG image")
        # Pillow's readers raise whatever a damaged file makes their code meet.
        pillow = _pillow()
        try:
            opened = pillow.open(io.BytesIO(data), formats=("JPEG", "PNG"))
        except pillow.UnidentifiedImageError:
            raise GatewayError(400, f"expected a JPEG or PNG image, got {len(data)} bytes that are neither") from None
        except pillow.DecompressionBombError as error:
            raise GatewayError(413, f"expected at most {self.max_pixels} pixels: {error}") from error
        except Exception as error:  # library: Pillow raises whatever a damaged file makes it meet
            raise _unreadable(error) from error
        scans = data.count(b"\xff\xda") if opened.format != "PNG" else 0
        if scans > SCANS:
            raise GatewayError(400, f"expected a JPEG of at most {SCANS} scans, got {scans}; save it again as baseline")
        return Payload(opened.width * opened.height, opened)

    def decode(self, payload: Payload) -> Array:
        """See `Source`."""
        try:
            turn = payload.data.getexif().get(_ORIENTATION, 1) if self.orientation else 1
            pixels = _pixels(payload.data, "L" if self.mode == "gray" else "RGB")
        except Exception as error:  # library: as above
            raise _unreadable(error) from error
        pixels = _TURNS[turn](pixels) if isinstance(turn, int) and turn in _TURNS else pixels
        return pixels[..., ::-1] if self.mode == "bgr" else pixels


def _pillow() -> ModuleType:
    try:
        from PIL import Image as pillow
    except ImportError as error:
        raise MissingExtraError("Pillow", "images", "it decodes images in requests") from error
    return pillow


def _unreadable(error: Exception) -> GatewayError:
    return GatewayError(400, f"expected a JPEG or PNG image, got one that cannot be read: {str(error)[:200]}")


def _pixels(image: Any, mode: str) -> Array:
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow's own conversion would clip at 255
        grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)[..., None]
        return grey if mode == "L" else np.repeat(grey, 3, axis=2)
    pixels = np.asarray(image.convert(mode), np.uint8)
    return pixels[..., None] if mode == "L" else pixels


@dataclass(frozen=True)
class Resize(Single):
    """Another size, uint8 to uint8.

    `fit`: "stretch" to `size` [height, width]; "cover": the smallest of the same proportions that covers it, its centre
    cut out; "contain": the largest that it contains, centred, the rest `pad` (letterbox); "shorter": the shorter side
    becomes `size`, the longer follows, rounded down (torchvision's Resize).
    `antialias`: Pillow's filters, which widen when a picture shrinks; else samples at (i + 0.5) * from / to - 0.5 of 2
    points a side (bilinear) or 4 (bicubic, a = -0.75), as torch's interpolate and OpenCV, rounded half to even.
    """

    size: list[int]
    fit: str
    method: str
    antialias: bool
    pad: int

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        _need_picture("resize", kind)
        if self.fit == "shorter":
            need(len(self.size) == 1, f"resize: fit 'shorter' takes one size, got {self.size}")
            return kind._replace(shape=(None, None, kind.shape[2]))
        return kind._replace(shape=(*_both(self.size), kind.shape[2]))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        height, width = _both(self.size)
        high, wide = self._aim(array.shape[0], array.shape[1])
        if high * wide > PIXELS:
            raise GatewayError(
                400, f"an image of {array.shape[1]} x {array.shape[0]} would need {wide} x {high} intermediate pixels"
                f" for size {self.size}; expected at most {PIXELS}: send one with another aspect ratio"
            )  # fmt: skip
        made = _resized(array, high, wide, self.method, self.antialias)
        if self.fit == "cover":
            return _centre(made, height, width)
        if self.fit == "contain":
            framed = np.full((height, width, array.shape[2]), self.pad, np.uint8)
            _centre(framed, high, wide)[:] = made
            return framed
        return made

    def _aim(self, high: int, wide: int) -> tuple[int, int]:
        height, width = _both(self.size)
        if self.fit == "stretch":
            return height, width
        if self.fit == "shorter":
            return (height, height * wide // high) if high <= wide else (height * high // wide, height)
        # Whole numbers decide which side is the tight one: that side is met exactly, the other rounded.
        by_height = (height * wide >= width * high) == (self.fit == "cover")
        if by_height:
            return height, max(1, (2 * height * wide + high) // (2 * high))
        return max(1, (2 * width * high + wide) // (2 * wide)), width


@dataclass(frozen=True)
class Crop(Single):
    """The centre, [height, width]; rounding leaves the odd row or column at the end."""

    size: list[int]

    def kind(self, kind: Kind) -> Kind:
        """See `Single`."""
        _need_picture("crop", kind)
        for have, want in zip(kind.shape, _both(self.size), strict=False):
            need(have is None or have >= want, f"crop: expected a picture of at least {self.size}, got {kind}")
        return kind._replace(shape=(*_both(self.size), kind.shape[2]))

    def apply(self, array: Array) -> Array:
        """See `Single`."""
        height, width = _both(self.size)
        if array.shape[0] < height or array.shape[1] < width:
            raise GatewayError(
                400, f"expected a picture of at least {width} x {height} to crop, got {array.shape[1]} x"
                f" {array.shape[0]}; send a larger one"
            )  # fmt: skip
        return _centre(array, height, width)


def _need_picture(what: str, kind: Kind) -> None:
    need(kind.dtype == "uint8" and len(kind.shape) == 3 and kind.shape[2] in (1, 3),
         f"{what} takes uint8 [height, width, 1 or 3], got {kind}; put it right after image")  # fmt: skip


def _both(size: list[int]) -> tuple[int, int]:
    return size[0], size[-1]


def _centre(array: Array, height: int, width: int) -> Array:
    top, left = (array.shape[0] - height) // 2, (array.shape[1] - width) // 2
    return array[top : top + height, left : left + width]


def _resized(array: Array, high: int, wide: int, method: str, antialias: bool) -> Array:
    if array.shape[:2] == (high, wide):
        return array
    if antialias or method == "nearest":
        pillow = _pillow()
        how = pillow.Resampling[method.upper()]
        image = pillow.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2] == 1 else array))
        # Rows, then columns: Pillow 13 goes along columns first for some sizes, and rounds other bytes in between.
        made = image.resize((wide, array.shape[0]), how).resize((wide, high), how)
        return np.asarray(made).reshape(high, wide, array.shape[2])
    weigh = _WEIGHTS[method]
    real: Array = _along(_along(array, 0, high, weigh), 1, wide, weigh)
    return np.asarray(np.rint(real).clip(0, 255), np.uint8)


def _along(array: Array, axis: int, size: int, weigh: Callable[[Array], Array]) -> Array:
    """One axis resampled to `size`, float32; points beyond an edge are the edge's."""
    have = array.shape[axis]
    at = (np.arange(size) + 0.5) * (have / size) - 0.5
    first = np.floor(at)
    weights = weigh(at - first).astype(np.float32)
    shape = [1, 1, 1]
    shape[axis] = size
    taps = len(weights)
    result: Array = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), np.float32)
    for i, weight in enumerate(weights):
        index = (first.astype(np.int64) + i - taps // 2 + 1).clip(0, have - 1)
        result += array.take(index, axis) * weight.reshape(shape)
    return result


def _linear(part: Array) -> Array:
    return np.stack([1 - part, part])


def _cubic(part: Array) -> Array:
    """Keys' kernel at distances 1 + t, t, 1 - t, 2 - t, a = -0.75 (IEEE TASSP 29(6), 1981)."""
    a = -0.75

    def near(x: Array) -> Array:
        return np.asarray(((a + 2) * x - (a + 3)) * x * x + 1)

    def far(x: Array) -> Array:
        return np.asarray(a * (((x - 5) * x + 8) * x - 4))

    return np.stack([far(1 + part), near(part), near(1 - part), far(2 - part)])


_WEIGHTS: Mapping[str, Callable[[Array], Array]] = {"bilinear": _linear, "bicubic": _cubic}
