"""Calibration data: from files, folders, dicts or any iterable to single rows that fit the model, in a fixed order.

A *row* is one run of the model: every input by name, with the shape that the model takes. Rows are sorted by the digest
of their contents, so that the order of the data does not matter; duplicates stay.

How an array becomes rows, for an input of rank r:

- rank r: the leading axis counts samples. Each becomes a batch of one, or is repeated if the model's batch size is
  fixed at more. Exceptions, which are one row: an array of exactly the input's shape if the leading size is fixed at
  more than one, and vectors for an input of rank 1 that is not a vector of samples.
- rank r + 1: the leading axis counts samples, each of the input's full shape.
- rank 0, for an input of rank 0: the value for all rows.
- rank r - 1, in iterables, lists of rows and files of a folder only: one sample without its batch axis.

Floating inputs take any real numbers; integer inputs take integers only. Pixels of images stay 0..255 unless `mean`
and `std` are given: value = (pixel - mean) / std, each one number or one per channel.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.quantize.record import Finding
from lite_runtime.errors import MissingExtraError
from lite_runtime.graph import Array

__all__ = ["IMAGES", "Row", "Samples", "Source", "arrays_of", "collected", "load", "rows_in_order"]

Row: TypeAlias = dict[str, Array]
Source: TypeAlias = "str | os.PathLike[str] | Array | Mapping[str, Any] | Iterable[Any]"
Number: TypeAlias = float | Sequence[float]
IMAGES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"))
_ARRAYS = frozenset((".npy", ".npz"))
_DAMAGE = (OSError, ValueError, EOFError, KeyError, SyntaxError, zipfile.BadZipFile, zlib.error)
"""Exceptions that NumPy raises for files that are damaged or contain Python objects."""


@dataclass(frozen=True)
class Samples:
    """Rows in their fixed order."""

    rows: tuple[Row, ...]
    digest: str
    """The digest of all rows: 64 hexadecimal digits."""
    findings: tuple[Finding, ...] = ()
    """Findings: constant inputs and all-zero channels."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def first(self, count: int) -> Samples:
        """The first `count` rows, in the same order."""
        return Samples(self.rows[:count], self.digest, self.findings)

    def part(self, index: int, parts: int) -> Samples:
        """Every `parts`th row from `index` on; all rows if that would be none."""
        return Samples(self.rows[index::parts] or self.rows, self.digest, self.findings)


def load(source: Source, model: ir.Model, *, mean: Number = 0.0, std: Number = 1.0) -> Samples:
    """Calibration rows of `model` from a .npz or .npy file, a folder of those or of images, a dict of arrays, an array
    or an iterable of dicts or arrays.

    `mean` and `std` apply to images only. Raises QuantizeError for data that does not fit the model's inputs, is
    empty, or contains NaN or infinities; MissingExtraError if images need Pillow.
    """
    inputs = [v for v in model.graph.inputs if v.name]
    if not inputs:
        raise QuantizeError("the model has no inputs, so there is nothing to calibrate; use mode w8, w4 or dynamic")
    return collected(_rows(source, inputs, _pixels(mean, std)), inputs, _title(source))


def collected(given: Iterable[Row], inputs: Sequence[ir.Value], title: str) -> Samples:
    """Rows in their fixed order. title: what they come from. Raises QuantizeError if there are none."""
    rows = list(given)
    if not rows:
        raise QuantizeError(f"the calibration data {title} is empty; give it at least one sample")
    keyed = sorted(((_digest(row), row) for row in rows), key=lambda pair: pair[0])
    whole = blake2b(b"".join(key for key, _ in keyed), digest_size=32).hexdigest()
    ordered = tuple(row for _, row in keyed)
    return Samples(ordered, whole, tuple(_findings(ordered, inputs)))


def rows_in_order(
    source: Source, model: ir.Model, *, mean: Number = 0.0, std: Number = 1.0, without: Collection[str] = ()
) -> tuple[Row, ...]:
    """Rows of data that `load` accepts, in their given order, for data with labels and streams. Raises QuantizeError.

    without: inputs that the data do not have.
    """
    inputs = [v for v in model.graph.inputs if v.name and v.name not in without]
    return tuple(_rows(source, inputs, _pixels(mean, std)))


def _digest(row: Row) -> bytes:
    digest = blake2b(digest_size=32)
    for name, array in sorted(row.items()):
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def _title(source: Source) -> str:
    return repr(os.fspath(source)) if isinstance(source, str | os.PathLike) else f"({type(source).__name__})"


# where rows come from

Pixels: TypeAlias = Callable[[Array], Array]


def _rows(source: Source, inputs: Sequence[ir.Value], pixels: Pixels) -> Iterator[Row]:
    if isinstance(source, str | os.PathLike):
        yield from _from_path(Path(source), inputs, pixels)
    elif isinstance(source, Mapping):
        yield from _from_columns(source, inputs, "the calibration data")
    elif isinstance(source, np.ndarray):
        yield from _from_columns(_named(source, inputs, "the calibration array"), inputs, "the calibration array")
    elif isinstance(source, Iterable) and not isinstance(source, bytes | bytearray):
        for index, item in enumerate(source):
            yield from _from_item(item, inputs, f"calibration sample {index}")
    else:
        raise QuantizeError(
            "calibration data: expected a path, a dict of arrays, an array or an iterable of those, got "
            f"{type(source).__name__}"
        )


def _from_item(item: Any, inputs: Sequence[ir.Value], where: str) -> Iterator[Row]:
    if not isinstance(item, Mapping):
        item = _named(_as_array(item, where), inputs, where)
    columns = {name: _with_batch(_as_array(value, where), _input(name, inputs, where)) for name, value in item.items()}
    yield from _from_columns(columns, inputs, where)


def _with_batch(array: Array, value: ir.Value) -> Array:
    rank = build.rank(value)
    return array[None] if rank is not None and array.ndim == rank - 1 else array


def _from_path(path: Path, inputs: Sequence[ir.Value], pixels: Pixels) -> Iterator[Row]:
    if path.is_dir():
        yield from _from_folder(path, inputs, pixels)
    elif path.suffix.lower() in _ARRAYS:
        yield from _from_columns(_read(path, inputs), inputs, str(path))
    elif path.suffix.lower() in IMAGES:
        yield from _from_image(path, inputs, pixels)
    elif not path.exists():
        raise QuantizeError(f"calibration data {str(path)!r}: there is no such file or folder")
    else:
        raise QuantizeError(
            f"calibration data {str(path)!r}: expected .npz, .npy, an image, or a folder of those, got "
            f"{path.suffix or 'a file without an ending'!r}"
        )


def _from_folder(folder: Path, inputs: Sequence[ir.Value], pixels: Pixels) -> Iterator[Row]:
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in _ARRAYS | IMAGES and p.is_file())
    if not files:
        raise QuantizeError(f"calibration folder {str(folder)!r} holds no .npy, .npz or image file")
    for path in files:
        if path.suffix.lower() in IMAGES:
            yield from _from_image(path, inputs, pixels)
        else:
            yield from _from_item(_read(path, inputs), inputs, str(path))


def arrays_of(path: Path, what: str = "calibration data") -> Array | dict[str, Array]:
    """The array of a .npy, the arrays of a .npz by name. `what`: the file's purpose, for errors. Raises
    QuantizeError."""
    try:
        with open(path, "rb") as file:
            loaded = np.load(file, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except FileNotFoundError:
        raise QuantizeError(f"{what} {str(path)!r}: there is no such file") from None
    except _DAMAGE as error:
        raise QuantizeError(f"{what} {str(path)!r} is not a readable NumPy file: {error}") from error


def _read(path: Path, inputs: Sequence[ir.Value]) -> dict[str, Array]:
    """The arrays of a file by input name."""
    arrays = arrays_of(path)
    if isinstance(arrays, np.ndarray):
        return _named(arrays, inputs, str(path))
    if len(arrays) == len(inputs) == 1 and inputs[0].name not in arrays:
        return {inputs[0].name or "": next(iter(arrays.values()))}
    return arrays


def _named(array: Array, inputs: Sequence[ir.Value], where: str) -> dict[str, Array]:
    if len(inputs) != 1:
        names = ", ".join(str(v.name) for v in inputs)
        raise QuantizeError(f"{where}: the model has {len(inputs)} inputs ({names}); give their arrays by name")
    return {inputs[0].name or "": array}


# what fits an input


def _input(name: str, inputs: Sequence[ir.Value], where: str) -> ir.Value:
    for value in inputs:
        if value.name == name:
            return value
    names = ", ".join(str(v.name) for v in inputs)
    raise QuantizeError(f"{where}: {name!r} is not an input of the model, which has {names}")


def _as_array(value: Any, where: str) -> Array:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise QuantizeError(f"{where}: expected an array, got {type(value).__name__} ({error})") from error
    return array


def _from_columns(columns: Mapping[str, Any], inputs: Sequence[ir.Value], where: str) -> Iterator[Row]:
    """Rows of arrays by input name; an array of one sample is used for all rows."""
    for name in columns:
        _input(name, inputs, where)
    missing = [str(v.name) for v in inputs if v.name not in columns]
    if missing:
        raise QuantizeError(f"{where}: no data for input {', '.join(missing)}; it has {', '.join(columns) or 'none'}")
    split = {
        v.name or "": _split(_as_array(columns[v.name or ""], where), v, f"{where}, input {v.name!r}") for v in inputs
    }
    counts = {name: len(parts) for name, parts in split.items()}
    count = max(counts.values())
    if any(n not in (1, count) for n in counts.values()):
        text = ", ".join(f"{name} {n}" for name, n in counts.items())
        raise QuantizeError(f"{where}: inputs differ in their numbers of samples: {text}")
    for index in range(count):
        yield {name: parts[index if len(parts) > 1 else 0] for name, parts in split.items()}


def _split(array: Array, value: ir.Value, where: str) -> list[Array]:
    """The rows in an array, each checked, of the input's element type and shape."""
    array = _typed(array, value, where)
    shape = build.dims(value)
    if shape is None:
        return list(array[:, None]) if array.ndim else [array]
    rank = len(shape)
    if array.ndim == rank + 1:
        rows = list(array)
    elif array.ndim == rank:
        rows = _batches(array, shape) if rank else [array]
    else:
        raise QuantizeError(f"{where}: expected {_expected(shape)}, got an array of shape {list(array.shape)}")
    for row in rows[:1]:
        if not all(not isinstance(d, int) or d == n for d, n in zip(shape, row.shape, strict=True)):
            raise QuantizeError(f"{where}: expected {_expected(shape)}, got an array of shape {list(array.shape)}")
    return [np.array(row, order="C", copy=None) for row in rows]  # keeps rank 0, unlike ascontiguousarray


def _batches(array: Array, shape: Sequence[int | str | None]) -> list[Array]:
    batch = shape[0]
    if len(shape) == 1 or (isinstance(batch, int) and batch > 1 and array.shape == tuple(shape)):
        scalar_rows = len(shape) == 1 and batch in (1, None) and len(array) != batch
        return list(array[:, None]) if scalar_rows else [array]
    times = batch if isinstance(batch, int) else 1
    return [np.broadcast_to(row[None], (times, *row.shape)) for row in array]


def _expected(shape: Sequence[int | str | None]) -> str:
    if not shape:
        return "[samples] or one number for an input of rank 0"
    sizes = [str(d) if d is not None else "?" for d in shape]
    return f"[samples, {', '.join(sizes[1:])}] for an input of [{', '.join(sizes)}]"


def _typed(array: Array, value: ir.Value, where: str) -> Array:
    wanted = value.dtype.numpy() if value.dtype is not None else np.dtype(np.float32)
    kind = "f" if wanted.kind not in "iubc" else wanted.kind
    if not array.size:
        raise QuantizeError(f"{where}: the array of shape {list(array.shape)} is empty; give at least one sample")
    allowed = {"f": "fiub", "i": "iub", "u": "iub", "b": "b", "c": "fiubc"}[kind]
    if array.dtype.kind not in allowed:
        raise QuantizeError(f"{where}: expected {wanted.name} values, got {array.dtype.name}")
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        bad = int(np.count_nonzero(~np.isfinite(array)))
        raise QuantizeError(f"{where}: {bad} of {array.size} values are NaN or infinite; remove those samples")
    if kind in "iu":
        limits = np.iinfo(wanted.name)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise QuantizeError(f"{where}: values {array.min()}..{array.max()} do not fit {wanted.name}")
    with np.errstate(over="ignore"):
        result = array.astype(wanted, copy=False)
    if kind == "f" and not np.isfinite(result.astype(np.float32, copy=False)).all():
        raise QuantizeError(f"{where}: values beyond the range of {wanted.name}")
    return result


# images


def _pixels(mean: Number, std: Number) -> Pixels:
    shift, factor = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    if shift.ndim > 1 or factor.ndim > 1 or not np.isfinite(shift).all() or not (factor > 0).all():
        raise QuantizeError(f"expected mean to be finite and std positive, a number or one per channel: {mean}, {std}")
    if not shift.any() and (factor == 1).all():
        return lambda image: image
    return lambda image: (image.astype(np.float32) - shift) / factor


def _from_image(path: Path, inputs: Sequence[ir.Value], pixels: Pixels) -> Iterator[Row]:
    if len(inputs) != 1:
        raise QuantizeError(f"{path}: images need a model with one input; this has {len(inputs)}: give .npz files")
    value = inputs[0]
    height, width, channels, last = _image_shape(value, path)
    image = _open(path, channels, (width, height))
    if channels == 1:
        image = image[..., None]
    try:
        image = pixels(image)
    except ValueError as error:
        raise QuantizeError(f"mean and std: expected one number or {channels} (one per channel): {error}") from error
    yield from _from_columns({value.name or "": (image if last else image.transpose(2, 0, 1))[None]}, inputs, str(path))


def _image_shape(value: ir.Value, path: Path) -> tuple[int | None, int | None, int, bool]:
    """(height, width, channels, channels last) of an image input; None: as the file has it."""
    shape = build.dims(value) or ()
    for axis, (high, wide) in ((1, (2, 3)), (3, (1, 2))):
        channels = shape[axis] if len(shape) == 4 else None
        if channels == 1 or channels == 3:
            sizes = [d if isinstance(d, int) else None for d in (shape[high], shape[wide])]
            return sizes[0], sizes[1], channels, axis == 3
    raise QuantizeError(
        f"{path}: images need an input of [N, C, H, W] or [N, H, W, C] with 1 or 3 channels; {value.name!r} is "
        f"{list(shape)}: give arrays instead"
    )


def _open(path: Path, channels: int, size: tuple[int | None, int | None]) -> Array:
    """The pixels of a file, uint8 [H, W] or [H, W, 3], resized (bilinear) to (width, height) where given."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "images", "calibration images are read with it") from error
    try:
        with Image.open(path) as file:
            image = file.convert("L" if channels == 1 else "RGB")
            wanted = (size[0] or image.width, size[1] or image.height)
            if wanted != image.size:
                image = image.resize(wanted, Image.Resampling.BILINEAR)
            return np.asarray(image, np.uint8)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise QuantizeError(f"calibration image {str(path)!r} cannot be read: {error}") from error


# findings


def _findings(rows: Sequence[Row], inputs: Sequence[ir.Value]) -> Iterator[Finding]:
    for value in inputs:
        name = value.name or ""
        low = min(float(row[name].min()) for row in rows)
        high = max(float(row[name].max()) for row in rows)
        if low == high:
            yield Finding("constant", name, f"input {name!r} is {low:g} throughout the calibration data")
            continue
        axis = 1 if rows[0][name].ndim == 4 else -1
        if len({r[name].ndim for r in rows}) > 1 or rows[0][name].ndim < 2:
            continue
        if any(r[name].shape[axis] != rows[0][name].shape[axis] for r in rows):
            continue
        alive = np.zeros(rows[0][name].shape[axis], bool)
        for row in rows:
            alive |= np.moveaxis(row[name], axis, -1).reshape(-1, alive.size).any(axis=0)
        dead = np.flatnonzero(~alive)
        if dead.size:
            shown = ", ".join(map(str, dead[:8])) + (", …" if dead.size > 8 else "")
            yield Finding(
                "dead channels", name, f"input {name!r} is zero in {dead.size} of {alive.size} channels: {shown}"
            )
