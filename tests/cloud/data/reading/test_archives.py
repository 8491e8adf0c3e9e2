"""Archives and tables as sources: elements by number, in files of pipelines, in workers; damaged and hostile ones."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cloud import data
from cloud.errors import DataError


def first(pipeline: data.Pipeline) -> Any:
    return next(pipeline.batches())


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (value, 0, 0)).save(file, "png")
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as made:
        for name, contents in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            made.addfile(info, io.BytesIO(contents))
    return path


def shards(folder: Path) -> list[Path]:
    return [
        archive(folder / f"{shard}.tar", {
            f"set/{k:03}.{suffix}": contents
            for k in range(shard * 4, shard * 4 + 4)
            for suffix, contents in (("png", png(k)), ("cls", b"%d" % k), ("txt", "é".encode() * k),
                                     ("v.npy", npy(np.arange(k))), ("meta.json", json.dumps([k, k]).encode()))
        })
        for shard in range(2)
    ]  # fmt: skip


def test_tar_archives(tmp_path: Path) -> None:
    pipeline = data.tar(*shards(tmp_path)).pad("v.npy", 7)
    batch = first(pipeline.batch(8))
    assert batch["png"].shape == (8, 3, 4, 3) and batch["png"][:, 0, 0, 0].tolist() == list(range(8))
    assert batch["cls"].tolist() == list(range(8)) and batch["txt"].tolist() == ["é" * k for k in range(8)]
    assert list(zip(*batch["meta.json"], strict=True)) == [(k, k) for k in range(8)] and batch["v.npy"].sum() == 56
    mixed = pipeline.shuffle().batch(3)
    again = data.from_dict(json.loads(json.dumps(mixed.to_dict())))
    for one, other in zip(mixed.prefetch(workers=1).batches(5), again.batches(5), strict=True):
        np.testing.assert_array_equal(one["cls"], other["cls"])


def test_tar_archives_that_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    whole = archive(path, {"1.cls": b"1", "2.cls": b"two", "2.bin": b"x" * 4000}).read_bytes()
    with pytest.raises(DataError, match=r"cannot read 2\.cls of .*a\.tar' \(element 1\): invalid literal"):
        first(data.tar(path).batch(2))
    for contents, message in (
        (whole[:-9000], "is cut off|no tar archive"),
        (b"no archive" * 100, "no tar archive that can be read"),
        (b"", "no tar archive"),
    ):  # fmt: skip
        path.write_bytes(contents)
        with pytest.raises(DataError, match=message):
            first(data.tar(path).batch(1))
    for members, message in (({}, "no files in"), ({"1.npy": npy(np.array([{}], object))}, "cannot read 1.npy")):
        archive(path, members)
        with pytest.raises(DataError, match=message):
            first(data.tar(path).batch(1))
    with pytest.raises(DataError, match="no tar archive"):
        first(data.tar(tmp_path / "none.tar").batch(1))
    with pytest.raises(DataError, match="at least one file"):
        data.tar()


def table(path: Path, rows: int = 6, **changes: Any) -> Path:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x = np.arange(rows * 2, dtype=np.float32)
    columns = {
        "x": arrow.FixedSizeListArray.from_arrays(arrow.array(x), 2),
        "labels": arrow.array(np.arange(rows, dtype=np.int32)),
        "text": arrow.array([f"row {k}" for k in range(rows)]),
        "tokens": arrow.array([list(range(k)) for k in range(rows)], arrow.list_(arrow.int64())),
        **changes,
    }
    parquet.write_table(arrow.table({n: c for n, c in columns.items() if c is not None}), path, row_group_size=4)
    return path


def test_parquet_files(tmp_path: Path) -> None:
    paths = [table(tmp_path / "a.parquet"), table(tmp_path / "b.parquet")]
    pipeline = data.parquet(*paths, columns=["x", "labels", "text"])
    batch = first(pipeline.batch(12))
    assert batch["x"].dtype == np.float32 and batch["x"].shape == (12, 2) and batch["labels"].dtype == np.int32
    assert batch["labels"].tolist() == [*range(6)] * 2 and batch["text"].tolist() == [
        f"row {k}" for k in [*range(6)] * 2
    ]
    one = first(data.parquet(paths[0]).pad("tokens", 3).batch(6))
    assert one["tokens"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], *[[0, 1, 2]] * 3]
    np.testing.assert_array_equal(one["x"], batch["x"][:6])
    for a, b in zip(
        pipeline.shuffle().batch(4).prefetch(workers=1).batches(2), pipeline.shuffle().batch(4).batches(2), strict=True
    ):
        np.testing.assert_array_equal(a["x"], b["x"])


def test_parquet_files_that_are_refused(tmp_path: Path) -> None:
    arrow, path = pytest.importorskip("pyarrow"), tmp_path / "a.parquet"
    table(path)
    with pytest.raises(DataError, match=r"expected columns \['y'\], got \['x', .*no \['y'\]"):
        first(data.parquet(path, columns=["y"]).batch(1))
    for change, message in (
        ({"labels": arrow.array([1, None, 3, 4, 5, 6])}, "column 'labels': 1 of 6 rows have no value"),
        ({"when": arrow.array([0] * 6, arrow.timestamp("s"))}, r"column 'when': expected numbers, .* got timestamp"),
        ({"deep": arrow.array([{"a": 1}] * 6)}, "column 'deep': expected numbers"),
    ):
        table(path, **change)
        with pytest.raises(DataError, match=message):
            first(data.parquet(path).batch(1))
    other = table(tmp_path / "b.parquet", text=None)
    with pytest.raises(DataError, match="have different columns"):
        first(data.parquet(table(path), other).batch(1))
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"cannot read .* as Parquet"):
        first(data.parquet(path).batch(1))


@pytest.mark.filterwarnings("ignore::Warning:dill", "ignore:Cannot locate reference")
def test_data_sets_of_the_library_datasets() -> None:
    datasets = pytest.importorskip("datasets")
    held = datasets.Dataset.from_dict({"x": [[k, k + 1] for k in range(6)], "text": list("abcdef"), "y": range(6)})
    pipeline = data.hosted(held, "x", "text")
    batch = first(pipeline.batch(6))
    assert batch["x"].tolist() == [[k, k + 1] for k in range(6)] and batch["text"].tolist() == list("abcdef")
    assert set(batch) == {"x", "text", "mask"}
    assert sorted(first(pipeline.shuffle().batch(6))["text"].tolist()) == list("abcdef")
    streamed = data.hosted(held.to_iterable_dataset(), "y").batch(4)
    assert [b["y"][b["mask"] > 0].tolist() for b in streamed.batches()] == [[0, 1, 2, 3], [4, 5]]
    with pytest.raises(DataError, match=r"no \['z'\]"):
        data.hosted(held, "z")
    with pytest.raises(DataError, match="a Dataset or IterableDataset"):
        data.hosted([1])
