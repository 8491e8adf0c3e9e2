"""Calibration data: every source gives the same rows, in one order, and data that does not fit is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from converter.errors import QuantizeError
from converter.pass_lists import to_ir
from converter.quantize.calibration.data import load
from tests.converter.support import Builder


def model(*inputs, dtypes=()):
    b = Builder()
    outputs = []
    for index, shape in enumerate(inputs):
        dtype = dtypes[index] if index < len(dtypes) else np.float32
        x = b.input(f"x{index}", shape, dtype)
        outputs.append(b("Neg", x) if np.dtype(dtype).kind in "fi" else b("Not", x))
    return to_ir(b.model(*outputs))


@pytest.fixture
def data():
    return np.random.default_rng(3).standard_normal((5, 3, 4, 4)).astype(np.float32)


def same(a, b):
    assert a.digest == b.digest and len(a) == len(b)
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


def test_every_source_gives_the_same_rows(tmp_path, data):
    one = model([1, 3, 4, 4])
    wanted = load({"x0": data}, one)
    assert len(wanted) == 5 and wanted.rows[0]["x0"].shape == (1, 3, 4, 4)
    np.savez(tmp_path / "a.npz", x0=data)
    np.savez(tmp_path / "other_name.npz", whatever=data)
    np.save(tmp_path / "a.npy", data)
    folder = tmp_path / "rows"
    folder.mkdir()
    for index, row in enumerate(data):
        if index % 2:
            np.save(folder / f"{index}.npy", row)
        else:
            np.savez(folder / f"{index}.npz", x0=row[None])
    sources = (
        data,
        data[:, None],
        [*data],
        iter([{"x0": row} for row in data]),
        ({"x0": row[None].astype(np.float64)} for row in data),
        *(tmp_path / n for n in ("a.npz", "other_name.npz", "a.npy", "rows")),
        str(tmp_path / "a.npz"),
    )
    for source in sources:
        same(load(source, one), wanted)


def test_order_does_not_matter_and_duplicates_stay(data):
    one = model(["N", 3, 4, 4])
    shuffled = data[np.random.default_rng(0).permutation(5)]
    same(load(shuffled, one), load(data, one))
    assert len(load(np.concatenate([data, data[:2]]), one)) == 7
    assert load(data[:4], one).digest != load(data, one).digest


def test_parts_of_samples(data):
    samples = load(data, model([1, 3, 4, 4]))
    assert len(samples.first(2)) == 2 and len(samples.part(0, 2)) == 3 and len(samples.part(1, 2)) == 2
    assert len(samples.first(1).part(1, 2)) == 1


def test_several_inputs_share_a_source_that_is_read_once():
    two = model([1, 3], [1, 2])
    x, y = np.arange(12.0).reshape(4, 3), np.ones((1, 2))
    samples = load({"x0": x, "x1": y}, two)
    assert len(samples) == 4 and all(row["x1"].tolist() == [[1, 1]] for row in samples)
    with pytest.raises(QuantizeError, match="numbers of samples: x0 4, x1 3"):
        load({"x0": x, "x1": np.ones((3, 2))}, two)
    with pytest.raises(QuantizeError, match="by name"):
        load(x, two)


def test_batches():
    assert load(np.ones((3, 2)), model([4, 2])).rows[0]["x0"].shape == (4, 2)
    assert len(load(np.ones((4, 2)), model([4, 2]))) == 1
    assert len(load(np.ones((6, 4, 2)), model([4, 2]))) == 6
    assert len(load(np.ones(7), model([7]))) == 1
    assert len(load(np.ones((3, 7)), model([7]))) == 3
    assert len(load(np.arange(3.0), model([]))) == 3


def test_element_types(data):
    assert load((data * 50).astype(np.uint8), model([1, 3, 4, 4])).rows[0]["x0"].dtype == np.float32
    tokens = model([1, 3], dtypes=[np.int64])
    assert load(np.ones((2, 3), np.int32), tokens).rows[0]["x0"].dtype == np.int64
    with pytest.raises(QuantizeError, match="expected int64 values, got float64"):
        load(np.ones((2, 3)), tokens)
    with pytest.raises(QuantizeError, match="do not fit int8"):
        load(np.full((2, 3), 300), model([1, 3], dtypes=[np.int8]))


@pytest.mark.parametrize(
    "source, text",
    [
        ({"y": np.ones((2, 3))}, "'y' is not an input of the model, which has x0"),
        ({}, "no data for input x0"),
        ({"x0": np.ones((2, 4))}, r"\[samples, 3\] for an input of \[1, 3\], got an array of shape \[2, 4\]"),
        ({"x0": np.ones((2, 3, 3, 1))}, "expected"),
        ({"x0": np.zeros((0, 3))}, "empty"),
        ({"x0": np.array([[1, np.nan, 2]])}, "1 of 3 values are NaN"),
        ({"x0": np.array([[1, np.inf, 2]])}, "NaN or infinite"),
        ({"x0": np.array([[1e300, 1, 2]])}, "beyond the range of float32"),
        ({"x0": np.array([["a", "b", "c"]])}, "expected float32 values"),
        ([], "empty"),
        ([{"x0": [[1.0], [2.0, 3.0]]}], "expected an array"),
        (3, "expected a path"),
        ("/no/such/file.npz", "no such file"),
        ("/no/such/file.csv", "no such file"),
    ],
)
def test_what_does_not_fit_is_refused(source, text):
    with pytest.raises(QuantizeError, match=text):
        load(source, model([1, 3]))


def test_files_that_are_not_samples(tmp_path):
    for name, content in (("a.npz", b"PK\3\4broken"), ("b.npy", b"\x93NUMPY\1\0"), ("c.txt", b"1 2 3")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(QuantizeError, match=name):
            load(tmp_path / name, model([1, 3]))
    empty = tmp_path / "folder"
    empty.mkdir()
    with pytest.raises(QuantizeError, match="holds no"):
        load(empty, model([1, 3]))
    pickled = tmp_path / "d.npy"
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    with pytest.raises(QuantizeError, match=r"d\.npy"):
        load(pickled, model([1, 3]))


def test_a_model_without_inputs():
    b = Builder()
    with pytest.raises(QuantizeError, match="no inputs"):
        load([], to_ir(b.model(b("Neg", b.const([1.0], np.float32)))))


def test_constant_data_and_dead_channels_are_findings(data):
    data[:, 1] = 0
    (found,) = load(data, model([1, 3, 4, 4])).findings
    assert found.kind == "dead channels" and found.where == "x0" and "1 of 3 channels: 1" in found.text
    (found,) = load(np.full((3, 3), 2.5), model([1, 3])).findings
    assert found.kind == "constant" and "2.5 throughout" in found.text


def test_images(tmp_path, data):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    raw = load(tmp_path, model([1, 3, 4, 6])).rows[0]["x0"]
    np.testing.assert_array_equal(raw, pixels.transpose(2, 0, 1)[None].astype(np.float32))
    last = load(tmp_path / "a.png", model([1, 4, 6, 3]), mean=(1, 2, 3), std=2).rows[0]["x0"]
    np.testing.assert_allclose(last, (pixels[None] - np.float32([1, 2, 3])) / 2)
    assert load(tmp_path, model([1, 1, 8, 8])).rows[0]["x0"].shape == (1, 1, 8, 8)
    assert load(tmp_path, model(["N", 3, "H", "W"])).rows[0]["x0"].shape == (1, 3, 4, 6)
    with pytest.raises(QuantizeError, match="give arrays instead"):
        load(tmp_path, model([1, 12]))
    with pytest.raises(QuantizeError, match="mean and std"):
        load(tmp_path, model([1, 3, 4, 6]), mean=(1, 2))
    with pytest.raises(QuantizeError, match="std positive"):
        load(tmp_path, model([1, 3, 4, 6]), std=0)
    (tmp_path / "b.jpg").write_bytes(b"no image")
    with pytest.raises(QuantizeError, match=r"b\.jpg"):
        load(tmp_path, model([1, 3, 4, 6]))
