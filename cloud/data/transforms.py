"""Transforms of elements that are data themselves: a pipeline with them is saved by their settings, without functions.

Each is a frozen dataclass that is called like a function of a `Map`; `on`, `rows` and `seeded` of its step are those of
the class. `TRANSFORMS` has them by name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cloud.errors import DataError
from lite_runtime.errors import MsedgeError

__all__ = ["TRANSFORMS", "Cast", "Crop", "Flip", "Pad", "Scale", "Tokenize", "Transform"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Transform:
    """A function with settings. `rows`: of columns; `seeded`: it takes random numbers too; `whole`: of whole
    elements."""

    rows: ClassVar[bool] = False
    seeded: ClassVar[bool] = False
    whole: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Its name in files."""
        return type(self).__name__.lower()

    @property
    def shown(self) -> str:
        """Its name in messages and profiles."""
        return self.name


@dataclass(frozen=True)
class Scale(Transform):
    """value * scale + offset, in float32: bytes of images become numbers about 0 to 1."""

    scale: float
    offset: float
    rows: ClassVar[bool] = True

    def __call__(self, value: Array) -> Array:
        """Columns of numbers of any dtype -> float32."""
        wide = np.asarray(value).astype(np.float32)
        wide *= np.float32(self.scale)
        if self.offset:
            wide += np.float32(self.offset)
        return wide


@dataclass(frozen=True)
class Cast(Transform):
    """Numbers in another dtype, by NumPy's name or one of ml_dtypes ("bfloat16")."""

    dtype: str
    rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _dtype(self.dtype)

    def __call__(self, value: Array) -> Array:
        """Columns of numbers."""
        return np.asarray(value).astype(_dtype(self.dtype))


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    known = {np.dtype(code).name for code in "?bBhHiIqQefd"}
    if name in known:
        return np.dtype(name)
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        made: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return made
    raise DataError(f"expected a dtype of {', '.join(sorted(known))}, bfloat16 or float8, got {name!r}")


@dataclass(frozen=True)
class Pad(Transform):
    """A value of varying length along its first axis, cut or filled up with `value` to `length`, and with `mask` one
    more value of that name, float32 [length]: 1 for what was there."""

    on: str
    length: int
    value: float
    mask: str
    whole: ClassVar[bool] = True

    def __call__(self, element: Mapping[str, Any]) -> dict[str, Any]:
        """An element with that value."""
        found = np.asarray(element[self.on])
        if not found.ndim:
            raise ValueError(f"expected {self.on!r} to be an array, got one {found.dtype}")
        kept = found[: self.length]
        made = np.full((self.length, *found.shape[1:]), self.value, found.dtype)
        made[: len(kept)] = kept
        more = {self.mask: (np.arange(self.length) < len(kept)).astype(np.float32)} if self.mask else {}
        return {**element, self.on: made, **more}


@dataclass(frozen=True)
class Flip(Transform):
    """An array mirrored along an axis in half of the cases."""

    axis: int
    seeded: ClassVar[bool] = True

    def __call__(self, value: Array, rng: np.random.Generator) -> Array:
        """An array with that axis."""
        return np.flip(value, self.axis) if rng.random() < 0.5 else value


@dataclass(frozen=True)
class Crop(Transform):
    """A window of `height` x `width` at a random place of an image [rows, columns, …], which gets `padding` rows and
    columns of zeros on every side first."""

    height: int
    width: int
    padding: int
    seeded: ClassVar[bool] = True

    def __call__(self, value: Array, rng: np.random.Generator) -> Array:
        """An image, channels last."""
        rows, columns = (size + 2 * self.padding for size in value.shape[:2])
        if rows < self.height or columns < self.width:
            raise ValueError(f"expected an image of at least {self.height} x {self.width} with its padding, got "
                             f"{rows} x {columns}")  # fmt: skip
        if self.padding:
            value = np.pad(value, ((self.padding,) * 2,) * 2 + ((0, 0),) * (value.ndim - 2))
        top, left = int(rng.integers(rows - self.height + 1)), int(rng.integers(columns - self.width + 1))
        return value[top : top + self.height, left : left + self.width]


@dataclass(frozen=True)
class Tokenize(Transform):
    """A string as the ids of its tokens, int32 [count], by a `tokenizer.json`, a folder with one, or a bundle. `ends`:
    with the tokens that begin and end a text. Special tokens in a text are ordinary text."""

    path: str
    ends: bool

    @property
    def file(self) -> Path:
        """The file that holds the tokenizer."""
        return Path(self.path) / "tokenizer.json" if os.path.isdir(self.path) else Path(self.path)

    def __call__(self, value: Any) -> Array:
        """A string, or bytes of UTF-8."""
        text = value.decode() if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise TypeError(f"expected a string, got {type(value).__name__}")
        return np.asarray(tokenizer_of(os.fspath(self.file)).encode(str(text), special=False, add=self.ends), np.int32)


@lru_cache(maxsize=8)
def tokenizer_of(path: str) -> Any:
    """The tokenizer of a file, read once. Raises DataError."""
    from lite_runtime.bundle import read
    from lite_runtime.language.tokenizers import SECTION, Tokenizer, pack

    try:
        if path.endswith(".mslite"):
            return Tokenizer.from_bytes(read(path).section(SECTION))
        from converter.frontends.language import from_tokenizer_json

        return Tokenizer.from_bytes(pack(from_tokenizer_json(path)))
    except MsedgeError as problem:
        raise DataError(f"{path!r} has no tokenizer that can be read: {problem}") from problem


TRANSFORMS: Mapping[str, type[Transform]] = {
    kind.__name__.lower(): kind for kind in (Cast, Crop, Flip, Pad, Scale, Tokenize)
}
