"""Opening sources: objects with `len`, `[number]` and, if they are faster, `__getitems__(numbers)`, which returns a
list of elements, and `take_rows(numbers)`, which returns columns. That name is chosen because users' sources may
already have `take`, as arrays and data frames do. One with a true `guards` hands out arrays that cannot be written to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.data.reading.archives import open_tar
from cloud.data.reading.memo import once
from cloud.data.reading.tables import open_parquet
from cloud.data.records import RecordFile
from cloud.errors import DataError
from lite_runtime.errors import MissingExtraError

__all__ = ["checked_arrays", "npz_arrays", "open_source"]

_IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def open_source(node: Any) -> Any:
    """The reader of a source node's elements; opened once per node. Raises DataError."""
    return once(node, lambda: _OPEN[type(node)](node))


def checked_arrays(arrays: Mapping[str, npt.ArrayLike], where: str) -> dict[str, npt.NDArray[Any]]:
    """Arrays with the same number of rows, at least one; else DataError."""
    if not isinstance(arrays, Mapping):
        raise DataError(f"expected {where} as a mapping of name to array, got {type(arrays).__name__}")
    found = {name: np.asarray(array) for name, array in arrays.items()}
    sizes = {name: len(a) if a.ndim else 0 for name, a in found.items()}
    if len(set(sizes.values())) != 1:
        raise DataError(f"expected the same number of examples in every array of {where}, got {sizes or 'no array'}")
    if not next(iter(sizes.values())):
        raise DataError(f"{where} is empty: expected at least one example")
    return found


@dataclass
class _Arrays:
    guards: ClassVar[bool] = True
    arrays: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: array[number] for name, array in self.arrays.items()}

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        columns = ([array[number] for number in numbers] for array in self.arrays.values())
        return [dict(zip(self.arrays, row, strict=True)) for row in zip(*columns, strict=True)]

    def take_rows(self, ids: npt.NDArray[np.intp]) -> dict[str, npt.NDArray[Any]]:
        # `take` is up to four times as fast as indexing, which also handles more than whole rows.
        return {name: array.take(ids, axis=0) for name, array in self.arrays.items()}


@dataclass
class _Npz(_Arrays):
    """Pickled as its node: a worker opens the file again."""

    node: ir.Npz

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _npz, (self.node,)


def npz_arrays(path: str | os.PathLike[str], keys: Collection[str] = ()) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a .npz file by name, those of `keys` or all. Raises DataError."""
    shown = os.fspath(path)
    try:
        with open(shown, "rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("expected arrays by name, as numpy.savez writes them, got one array")
            if missing := [key for key in keys if key not in file.files]:
                raise ValueError(f"expected {list(keys)}, got {sorted(file.files)}: no {missing}")
            return {key: file[key] for key in keys or file.files}
    except Exception as problem:  # library: zipfile's, zlib's and NumPy's errors have no common root
        raise DataError(f"cannot read {shown!r} as .npz: {problem}") from problem


def _npz(node: ir.Npz) -> _Npz:
    found = checked_arrays(npz_arrays(node.path, node.keys), node.path)
    return _Npz({name: _read_only(array) for name, array in found.items()}, node)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view whose rows cannot be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass
class _Folder:
    node: ir.Folder
    files: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> dict[str, Any]:
        try:
            from PIL import Image
        except ImportError as error:
            raise MissingExtraError("Pillow", "images", "folders of images are read with it") from error
        path, label = self.files[number]
        try:
            with Image.open(path) as file:
                image = file.convert("L" if self.node.channels == 1 else "RGB")
                if self.node.height:
                    image = image.resize((self.node.width, self.node.height), Image.Resampling.BILINEAR)
                pixels = np.asarray(image, np.uint8)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
            raise DataError(f"cannot read the image {path!r} (element {number}): {problem}") from problem
        return {"x": pixels.reshape(*pixels.shape[:2], self.node.channels), "labels": np.int64(label)}


def _folder(node: ir.Folder) -> _Folder:
    root = Path(node.path)
    classes = sorted(part for part in root.iterdir() if part.is_dir()) if root.is_dir() else []
    files = [
        (str(path), label)
        for label, folder in enumerate(classes)
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in _IMAGES
    ]
    if not files:
        raise DataError(f"no images in {node.path!r}: expected one folder per class with {', '.join(_IMAGES)} files")
    return _Folder(node, files)


@dataclass
class _Text:
    """Pickled as its node: a worker opens the file again."""

    node: ir.Text
    data: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return (len(self.data) - self.node.length - 1) // self.node.stride + 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = number * self.node.stride
        window = self.data[start : start + self.node.length + 1].astype(np.int32)
        return {"x": window[:-1], "labels": window[1:]}

    def take_rows(self, ids: npt.NDArray[np.intp]) -> dict[str, npt.NDArray[Any]]:
        windows = np.lib.stride_tricks.sliding_window_view(self.data, self.node.length + 1)
        found = windows[ids * self.node.stride].astype(np.int32)
        return {"x": found[:, :-1], "labels": found[:, 1:]}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _text, (self.node,)


def _text(node: ir.Text) -> _Text:
    try:
        size = os.path.getsize(node.path)
        if size <= node.length:
            raise ValueError(f"it has {size} bytes; expected more than one window of {node.length}")
        return _Text(node, np.memmap(node.path, np.uint8, "r"))
    except (OSError, ValueError) as problem:
        raise DataError(f"cannot read {node.path!r}: {problem}") from problem


def _items(node: ir.Items) -> Any:
    made = node.make.call()
    if not hasattr(made, "__len__") or not hasattr(made, "__getitem__"):
        raise DataError(f"expected a source with len(…) and […], got {type(made).__name__} from {node.make.shown}")
    return made


_OPEN: dict[type, Callable[[Any], Any]] = {
    ir.Arrays: lambda node: _Arrays({name: _read_only(array) for name, array in node.arrays.items()}),
    ir.Npz: _npz, ir.Folder: _folder, ir.Text: _text, ir.Items: _items,
    ir.Records: lambda node: RecordFile(node.path), ir.Parquet: open_parquet, ir.Tar: open_tar,
}  # fmt: skip
