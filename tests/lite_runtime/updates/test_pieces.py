"""Pieces of files: they are the file, few enough, and versions share those whose tensors did not change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime import bundle
from lite_runtime.errors import BundleError
from lite_runtime.graph import Array, Graph, Value, dtype_name
from lite_runtime.updates import pieces
from lite_runtime.updates.pieces import LARGE, LONGEST, file_of, missing, pieces_of
from lite_runtime.updates.release import Piece, Release, read_release, written
from tests.fuzz.seeds import seed_bundles
from tests.fuzz.training_seeds import training_bundles


def constants(**arrays: Array) -> Graph:
    outputs = tuple(Value(name, dtype_name(a.dtype), a.shape) for name, a in arrays.items())
    return Graph((), outputs, (), arrays, "constants")


def tensors(*seeds: int, size: int = 100_001) -> dict[str, Array]:
    return {f"t{i}": np.random.default_rng(seed).integers(-128, 128, size, np.int8) for i, seed in enumerate(seeds)}


def are_the_file(data: bytes, found: tuple[Piece, ...]) -> bool:
    at = 0
    for piece in found:
        assert piece.size > 0
        assert hashlib.sha256(data[at : at + piece.size]).hexdigest() == piece.sha256
        at += piece.size
    return at == len(data)


def test_pieces_are_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (*seed_bundles(), *training_bundles(), b"", b"x", bytes(LONGEST), bytes(2 * LONGEST + 1)):
        path.write_bytes(data)
        assert are_the_file(data, pieces_of(path))


@given(st.integers(0, 400), st.integers(1, 7), st.integers(1, 9))
def test_any_size_any_thresholds(size: int, longest: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "LONGEST", longest)
        patch.setattr(pieces, "MAX_PIECES", most)
        data = memoryview(bytes(range(256)) * 2)[:size]
        found = pieces._pieces(data, None)
    assert are_the_file(bytes(data), found)
    assert len(found) <= most


def test_a_changed_tensor_is_one_piece(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    bundle.write(old, {"run": constants(**tensors(1, 2, 3, 4, 5))}, extra={"words": bytes(range(256)) * 500})
    longer = {f"name {i}": i for i in range(1000)}
    extra = {"words": bytes(range(256)) * 500}
    bundle.write(new, {"run": constants(**tensors(1, 2, 9, 4, 5))}, extra=extra, metadata=longer)
    needed = missing(pieces_of(new), pieces_of(old))
    large = [piece.size for piece in needed if piece.size > LARGE]
    assert large == [100_032]
    assert len(needed) <= 4
    assert len(pieces_of(new)) <= 10


def test_a_long_tensor_is_cut_and_many_are_not(tmp_path: Path) -> None:
    path = tmp_path / "file"
    bundle.write(path, {"run": constants(**tensors(1, size=2 * LONGEST + 64), **{"b": np.zeros(5)})})
    assert [piece.size for piece in pieces_of(path) if piece.size > LARGE] == [LONGEST, LONGEST]
    small = {f"t{i}": np.full(200, i, np.int32) for i in range(500)}
    bundle.write(path, {"run": constants(**small)})
    assert len(pieces_of(path)) <= 3


def test_a_release_may_list_them(tmp_path: Path) -> None:
    path = tmp_path / "file"
    data = seed_bundles()[-1]
    path.write_bytes(data)
    file = file_of(path)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert file.digest == bundle.read(data).digest
    release = Release("a", "1", {"model": file})
    assert read_release(written(release)).files == {"model": file}


def test_what_is_missing_comes_once() -> None:
    a, b, c = Piece(1, "a"), Piece(1, "b"), Piece(2, "c")
    assert missing((a, b, a, c, b), (c,)) == (a, b)


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(BundleError, match="cannot read"):
        pieces_of(path)
    with pytest.raises(BundleError, match="Is a directory"):
        pieces_of(tmp_path)
    data = bytearray(seed_bundles()[0])
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"section 'weights'.*other contents"):
        pieces_of(path)
    path.write_bytes(b"text")
    with pytest.raises(BundleError, match="expected a bundle"):
        file_of(path)
