"""Archives in the way of webdataset: tar files whose members of one name, up to the first dot, are one element.

Members are found by reading the headers once; an element is then read by its members' places. Nothing is unpacked to
disk, and no name of a member is used as a path.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.data import ir
from cloud.errors import DataError
from lite_runtime.errors import MissingExtraError

__all__ = ["open_tar"]

_LARGEST = 1 << 30
"""Bytes of a member."""


@dataclass
class _Tar:
    """Elements by number: of each value its name, and (file, offset, size) of its member. Pickled as its node."""

    node: ir.Tar
    names: list[str]
    members: list[dict[str, tuple[int, int, int]]]

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Iterable[int]) -> list[dict[str, Any]]:
        """Several elements."""
        with ExitStack() as stack:
            files: dict[int, Any] = {}
            return [self._element(number, files, stack) for number in numbers]

    def _element(self, number: int, files: dict[int, Any], stack: ExitStack) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for suffix, (which, offset, size) in self.members[number].items():
            path = self.node.paths[which]
            where = f"{self.names[number]}.{suffix} of {path!r} (element {number})"
            try:
                if which not in files:
                    files[which] = stack.enter_context(open(path, "rb"))  # noqa: SIM115  closed by the stack
                files[which].seek(offset)
                data = files[which].read(size)
                if len(data) != size:
                    raise ValueError(f"expected {size} bytes, got {len(data)}")
                found[suffix] = _READ.get(suffix.rpartition(".")[2].lower(), _raw)(data)
            except (OSError, ValueError, SyntaxError, RecursionError) as problem:
                raise DataError(f"cannot read {where}: {problem}") from problem
        return found

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return open_tar, (self.node,)


def open_tar(node: ir.Tar) -> _Tar:
    """The elements of a node. Raises DataError for files that are no whole tar archives, or without elements."""
    places: dict[tuple[int, str], dict[str, tuple[int, int, int]]] = {}
    for which, path in enumerate(node.paths):
        try:
            with tarfile.open(path, "r:") as archive:
                end = 0
                for member in archive:
                    end = max(end, member.offset_data + (member.size if member.isfile() else 0))
                    if not member.isfile():
                        continue
                    if member.size > _LARGEST or member.issparse():
                        raise DataError(f"{path!r}: expected members of at most {_LARGEST} bytes, got {member.name!r}")
                    folder, _, name = member.name.rpartition("/")
                    stem, _, suffix = name.partition(".")
                    there = places.setdefault((which, f"{folder}/{stem}" if folder else stem), {})
                    if suffix in there:
                        raise DataError(f"{path!r}: {member.name!r} is there twice")
                    there[suffix] = which, member.offset_data, member.size
            _check_end(path, end)
        except (OSError, tarfile.TarError, EOFError) as problem:
            raise DataError(
                f"{path!r} is no tar archive that can be read: {problem}; unpack a compressed one to .tar"
            ) from problem
    if not places:
        raise DataError(f"no files in {', '.join(map(repr, node.paths))}: expected members like 0001.jpg and 0001.cls")
    return _Tar(node, [name for _, name in places], list(places.values()))


def _check_end(path: str, end: int) -> None:
    """Raise DataError unless an empty block follows the last member: tarfile takes a cut one for the end."""
    with open(path, "rb") as file:
        file.seek(-(-end // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"{path!r} is cut off after byte {end}, or damaged there; download it again")


def _image(data: bytes) -> npt.NDArray[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", "images", "images in archives are read with it") from error
    try:
        with Image.open(io.BytesIO(data)) as file:
            return np.asarray(file.convert("L" if file.mode in ("1", "L", "I;16") else "RGB"), np.uint8)
    except Image.DecompressionBombError as problem:
        raise ValueError(str(problem)) from problem


def _number(data: bytes) -> np.int64:
    return np.int64(int(data.decode()))


def _array(data: bytes) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return found


def _raw(data: bytes) -> bytes:
    return data


_READ: Mapping[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "bmp"), _image),
    **dict.fromkeys(("cls", "cls2", "index", "count", "id"), _number),
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    "json": json.loads, "npy": _array,
}  # fmt: skip
"""How a member becomes a value, by the end of its name; others stay bytes."""
