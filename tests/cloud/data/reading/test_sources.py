"""Sources of elements: files, folders, records, text; and errors for incomplete ones."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cloud import data
from cloud.data import _grain
from cloud.data.records import decode, encode
from cloud.errors import DataError


def first(pipeline: data.Pipeline) -> Any:
    return next(pipeline.batches())


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(6.0), y=np.arange(6), z=np.zeros(3))
    assert first(data.npz(path, "x", "y").batch(6))["y"].tolist() == list(range(6))
    with pytest.raises(DataError, match=r"same number of examples in every array of .*a\.npz.*'z': 3"):
        first(data.npz(path).batch(2))
    with pytest.raises(DataError, match=r"expected \['w'\], got \['x', 'y', 'z'\]"):
        first(data.npz(path, "w").batch(2))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"cannot read .*a\.npz"):
        first(data.npz(path, "x").batch(2))
    np.savez(path, x=np.array([{}], object))
    with pytest.raises(DataError, match="cannot read"):
        first(data.npz(path).batch(1))


def test_one_folder_per_class(tmp_path: Path) -> None:
    from PIL import Image

    for label, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for k in range(2):
            Image.new("RGB", (4 + k, 3), (10 * label + k, 0, 0)).save(tmp_path / name / f"{k}.png")
    batch = first(data.folder(tmp_path, size=(2, 2)).batch(4))
    assert batch["x"].shape == (4, 2, 2, 3) and batch["x"].dtype == np.uint8
    assert batch["labels"].tolist() == [0, 0, 1, 1]
    assert batch["x"][:, 0, 0, 0].tolist() == [0, 1, 10, 11]
    assert first(data.folder(tmp_path, size=(2, 2), channels=1).batch(4))["x"].shape == (4, 2, 2, 1)
    with pytest.raises(DataError, match=r"ragged elements: value\['x'\] is uint8\[3, 4, 3\] in row 0 and .* in row 1"):
        first(data.folder(tmp_path).batch(4))
    (tmp_path / "dog" / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"cannot read the image .*1\.png' \(element 3\)"):
        first(data.folder(tmp_path, size=(2, 2)).batch(4))
    with pytest.raises(DataError, match="no images in"):
        first(data.folder(tmp_path / "cat").batch(1))


def test_windows_of_text(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(bytes(range(20)))
    batch = first(data.text(path, 4, 3).batch(6))
    assert batch["x"].shape == (6, 4) and batch["x"].dtype == np.int32 and batch["mask"].all()
    np.testing.assert_array_equal(batch["labels"], batch["x"] + 1)
    assert batch["x"][:, 0].tolist() == [0, 3, 6, 9, 12, 15]
    one = first(data.text(path, 4, 3).map(lambda e: e).batch(6))  # element by element
    np.testing.assert_array_equal(one["x"], batch["x"])
    with pytest.raises(DataError, match="more than one window of 20"):
        first(data.text(path, 20).batch(1))
    with pytest.raises(DataError, match="cannot read"):
        first(data.text(tmp_path / "none", 2).batch(1))


def elements(count: int) -> list[dict[str, Any]]:
    return [{"x": np.full((2, 3), k, np.float32), "y": k} for k in range(count)]


def test_records(tmp_path: Path) -> None:
    path = tmp_path / "r.records"
    assert data.write_records(path, elements(50)) == 50
    batches = list(data.records(path).shuffle().batch(10).batches(1))
    assert sorted(np.concatenate([b["y"] for b in batches]).tolist()) == list(range(50))
    assert all((b["x"][:, 0, 0] == b["y"]).all() for b in batches)
    assert [p.name for p in tmp_path.iterdir()] == ["r.records"]


def test_records_that_cannot_be_written_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "r.records"
    data.write_records(path, elements(3))
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"records hold numbers, strings .* got dtype <U3 for 'name'"):
        data.write_records(path, [*elements(2), {"name": np.array(["cat"])}])
    with pytest.raises(DataError, match="dicts of arrays, got int"):
        data.write_records(path, [7])  # type: ignore[list-item]
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["r.records"]
    with pytest.raises(DataError, match="cannot write"):
        data.write_records(tmp_path / "none" / "r", elements(1))


def test_corrupt_records(tmp_path: Path) -> None:
    path = tmp_path / "r.records"
    data.write_records(path, elements(50))
    whole = path.read_bytes()
    # Where the checksums no longer fit.
    spoilt = bytearray(whole)
    spoilt[150] ^= 0xFF
    path.write_bytes(spoilt)
    with pytest.raises(DataError, match=r"record \d+ of .*r\.records' is corrupt"):
        list(data.records(path).batch(10).batches())
    path.write_bytes(whole[:1000])
    with pytest.raises(DataError, match="not a complete file of records"):
        first(data.records(path).batch(10))
    with pytest.raises(DataError, match="no file"):
        first(data.records(tmp_path / "none").batch(10))


def test_records_of_other_types(tmp_path: Path) -> None:
    path, wide = tmp_path / "r.records", np.dtype(ml_dtypes.bfloat16)
    written = [{"x": np.full(3, k, wide), "text": "é" * k, "raw": b"ab", "n": np.float32(k)} for k in range(5)]
    data.write_records(path, written)
    batch = first(data.records(path).batch(5))
    assert batch["x"].dtype == wide and batch["x"][:, 0].astype(int).tolist() == list(range(5))
    assert batch["text"].tolist() == ["é" * k for k in range(5)] and batch["raw"].tolist() == [b"ab"] * 5
    assert first(data.records(path).map(len, on="text").batch(5))["text"].tolist() == list(range(5))
    data.write_records(path, [{"x": np.zeros(k + 1)} for k in range(5)])
    with pytest.raises(DataError, match=r"ragged records: value\['x'\] is float64\[1\] in row 0"):
        first(data.records(path).batch(5))


def test_a_batch_of_records_is_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading costs time in proportion to the file, however little it reads."""
    path, calls = tmp_path / "r.records", list[int]()
    data.write_records(path, elements(300))
    reader = _grain.record_reader(str(path))

    class Counting:
        num_records = staticmethod(reader.num_records)

        @staticmethod
        def read(numbers: list[int]) -> list[bytes]:
            calls.append(len(numbers))
            return reader.read(numbers)  # type: ignore[no-any-return]

    monkeypatch.setattr(_grain, "record_reader", lambda _: Counting)
    pipeline = data.records(path).shuffle()
    other = data.records(path).map(lambda e: {"z": e["y"]}).shuffle()
    for steps in (
        pipeline.map(lambda e: {"y": e["y"]}).batch(100),
        pipeline.batch(100),
        pipeline.repeat(2).map(lambda e: e).batch(100),
        pipeline.zip(other).map(lambda e: e).batch(100),
        data.mix((pipeline, 1), (other.map(lambda e: {"x": e["z"]}), 1))
        .map(lambda e: {})
        .map(lambda e: {"a": 1})
        .batch(100),
    ):
        calls.clear()
        next(steps.prefetch(threads=0).batches())
        assert 1 <= len(calls) <= 2 and sum(calls) in (100, 200), calls


def test_functions_cannot_change_a_source() -> None:
    x = np.arange(12.0).reshape(6, 2)

    def spoiling(row: Any) -> Any:
        row *= 2
        return row

    for pipeline in (
        data.arrays({"x": x}).map(spoiling, on="x"),
        data.arrays({"x": x}).filter(lambda r: spoiling(r)[0] > 0, on="x").shuffle(),
        data.source([{"x": row} for row in x]).shuffle().map(spoiling, on="x"),
    ):
        with pytest.raises(DataError, match=r"read-only; elements must not be changed in place: copy\(\) it first"):
            first(pipeline.batch(2))
    first(data.arrays({"x": x}).map(spoiling, on="x", rows=True).batch(2))  # columns are copies
    np.testing.assert_array_equal(x, np.arange(12.0).reshape(6, 2))
    x += 1  # the owner may


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3), hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_side=3))))
def test_elements_become_bytes_and_back(element: dict[str, Any]) -> None:
    numbers = {n: a for n, a in element.items() if a.dtype.kind in "biufc"}
    found = decode(encode(numbers))
    assert found.keys() == numbers.keys()
    for name, array in numbers.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(st.binary(max_size=60) | st.builds(lambda cut, at, bit: mutated(cut, at, bit), *[st.integers(0, 200)] * 3))
def test_other_bytes_are_no_element(record: bytes) -> None:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        encode(decode(record))  # a changed number is still an element


@pytest.mark.parametrize("code", ["a1", ",,", "f4,f4", "(2,)f4", "O", "|S4", "", "float32", "<m8[s]"])
def test_types_that_are_not_numeric_are_refused(code: str) -> None:
    """NumPy would parse them, warn of them or fail in its own way."""
    head = json.dumps([["x", code, []]]).encode()
    with pytest.raises(ValueError, match="no such array"):
        decode(len(head).to_bytes(4, "little") + head + bytes(4))


def mutated(cut: int, at: int, bit: int) -> bytes:
    record = bytearray(encode(elements(1)[0]))
    record[at % len(record)] ^= 1 << bit % 8
    return bytes(record[: cut or None])


class Pair(NamedTuple):
    x: int
    labels: list[int]


def test_invalid_items_and_arrays_are_refused() -> None:
    assert first(data.source([{"x": 1}, {"x": 2}]).batch(2))["x"].tolist() == [1, 2]
    pairs = [Pair(1, [2, 3]), Pair(4, [5, 6])]
    assert first(data.source(pairs).batch(2, "drop")).labels[1].tolist() == [3, 6]
    for nothing in (None, {1, 2}):
        with pytest.raises(DataError, match=r"expected value\['x'\] to be an array, .* the function of a \.map\("):
            first(data.source([{"x": nothing}] * 2).map(dict).batch(2))
    with pytest.raises(DataError, match="as a mapping of name to array, got list"):
        data.arrays([1, 2])  # type: ignore[arg-type]
    rows = np.arange(6).reshape(3, 2)  # whose own `take` is another thing
    assert first(data.source(rows).batch(3, "drop")).tolist() == rows.tolist()
    with pytest.raises(DataError, match=r"expected a source with len\(…\) and \[…\], got float"):
        first(data.source(lambda: 3.0).batch(1))
    with pytest.raises(DataError, match="same number of examples"):
        data.arrays({"x": np.zeros(3), "y": np.zeros(2)})
    with pytest.raises(DataError, match="is empty"):
        data.arrays({"x": np.zeros((0, 2))})
