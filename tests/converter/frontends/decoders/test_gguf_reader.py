"""Reading GGUF files: sound ones as the package `gguf` reads them, every other one refused by a clear error."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from converter import ConvertError, convert
from converter.frontends.gguf import matrix_of
from converter.frontends.gguf.blocks import TYPES
from converter.frontends.gguf.reader import Tensor, read
from lite_runtime.graph import Array
from lite_runtime.reference.blocked import Blocks, weights
from tests.converter.frontends.decoders.gguf_bytes import Stored, array, file, scalar, text

_SCALES = {8: (0,), 14: (208,)}
"""Where blocks have their float16 numbers; others at 0 and, with offsets, at 2."""


def random_blocks(number: int, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Any bytes, whose float16 numbers are finite."""
    kind = TYPES[number]
    n, k = shape
    raw = rng.integers(0, 256, (n, k // kind.elements * kind.size), dtype=np.uint8)
    if kind.blocks is not None:
        blocks = raw.reshape(-1, kind.size)
        for at in _SCALES.get(number, (0, 2) if kind.blocks.offsets else (0,)):
            numbers = rng.standard_normal(len(blocks)).astype("<f2")
            numbers[::7] = 0
            blocks[:, at : at + 2] = numbers.view(np.uint8).reshape(-1, 2)
    return raw


def wide(tensor: Tensor) -> Array:
    """The float32 matrix, by the reference of the operators that read it."""
    found = matrix_of(tensor)
    if TYPES[number_of(tensor)].blocks is None:
        return found.array()  # type: ignore[union-attr]
    offsets = found.offsets() if found.offsets is not None else None  # type: ignore[union-attr]
    blocks = Blocks(found.integers(), found.scales(), offsets)  # type: ignore[union-attr]
    return weights(blocks, len(found.integers()), found.bits, found.zero_point, "")  # type: ignore[union-attr]


def number_of(tensor: Tensor) -> int:
    return next(number for number, kind in TYPES.items() if kind is tensor.type)


@pytest.mark.parametrize("number", TYPES)
@pytest.mark.parametrize("seed", range(3))
def test_every_type_has_the_bits_of_the_second_reader(number: int, seed: int) -> None:
    rng, kind = np.random.default_rng(seed), TYPES[number]
    shape = (int(rng.integers(1, 40)), int(rng.integers(1, 6)) * kind.elements)
    raw = random_blocks(number, shape, rng)
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number)).astype(np.float32)
    found = wide(Tensor("x", shape, kind, memoryview(raw.tobytes())))
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_large_matrices_are_decoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converter.frontends.decoders.weights.AT_ONCE", 100)
    for number in TYPES:
        test_every_type_has_the_bits_of_the_second_reader(number, 5)


def test_what_the_second_writer_writes(tmp_path: Path) -> None:
    path, rng = tmp_path / "x.gguf", np.random.default_rng(0)
    out = gguf.GGUFWriter(path, "llama")
    values: dict[str, Any] = {"a": 7, "b": -3, "c": 0.5, "d": True, "e": "text ü\U0001f600"}
    for name, value in values.items():
        {int: out.add_int64, float: out.add_float64, bool: out.add_bool, str: out.add_string}[type(value)](name, value)
    out.add_array("texts", ["a", "", "bb"])
    out.add_array("numbers", [1, 2, 3])
    held = {f"t{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate([(5,), (2, 3), (4, 1, 6)])}
    for name, tensor in held.items():
        out.add_tensor(name, tensor)
    for step in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close):
        step()
    for source in (path, path.read_bytes()):
        found = read(source)
        assert {name: found.metadata[name] for name in values} == values
        assert found.metadata["texts"] == ["a", "", "bb"] and np.array_equal(found.metadata["numbers"], [1, 2, 3])
        for name, tensor in held.items():
            np.testing.assert_array_equal(matrix_of(found.tensors[name]).rows(0, 9), tensor)  # type: ignore[union-attr]


def test_versions_alignment_and_nested_arrays() -> None:
    inner = array(4, [1, 2])[4:]
    data = file(
        {"general.alignment": scalar(4, 64), "nested": array(9, [inner, inner]), "none": array(8, [])},
        [Stored("a", [3], 0, bytes(12)), Stored("b", [2, 5], 1, bytes(20))],
        version=2, alignment=64,
    )  # fmt: skip
    found = read(data)
    assert [list(row) for row in found.metadata["nested"]] == [[1, 2], [1, 2]] and found.metadata["none"] == []  # type: ignore[union-attr,arg-type]
    assert found.tensors["b"].shape == (5, 2) and len(found.tensors["b"].data) == 20


ONE = [Stored("a", [3], 0, bytes(12))]
NESTED = array(9, [array(9, [array(9, [array(9, [array(4, [])[4:]])[4:]])[4:]])[4:]])
HOSTILE: dict[str, tuple[bytes, str]] = {
    "another magic": (file(magic=b"GGML"), "begins with b'GGUF'"),
    "version 1": (file(version=1), "version 2 or 3.*got 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "got a big-endian file"),
    "many tensors": (file(counts=(1 << 60, None)), "tensor count: expected at most"),
    "most tensors": (file(counts=((1 << 64) - 1, None)), "tensor count: expected at most"),
    "many values": (file({"a": scalar(4, 1)}, counts=(None, 1 << 60)), "metadata count: expected at most"),
    "a long key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60) + bytes(20), "at most 1024 bytes of text"),
    "a long text": (file({"a": struct.pack("<I", 8) + text("x", 1 << 40)}), "at most .* bytes of text"),
    "a text past the end": (file({"a": struct.pack("<I", 8) + text("x", 1 << 20)}), "expected 1048576 bytes at byte"),
    "a long array": (file({"a": array(4, [], 1 << 60)}), "bytes at byte"),
    "a long array of texts": (file({"a": array(8, [], 1 << 60)}), "expected at most"),
    "a long array of arrays": (file({"a": array(9, [], 1 << 60)}), "expected at most"),
    "deep arrays": (file({"a": NESTED}), "nested at most 4"),
    "an unknown value type": (file({"a": struct.pack("<I", 13) + bytes(8)}), "type from 0 to 12, got 13"),
    "a bool of 2": (file({"a": struct.pack("<IB", 7, 2)}), "0 or 1 for a bool"),
    "a key that is not UTF-8": (file([(b"\xff\xfe", scalar(4, 1))]), "expected UTF-8"),
    "a text that is not UTF-8": (file({"a": scalar(8, b"\xc3\x28")}), "expected UTF-8"),
    "a key twice": (file([("a", scalar(4, 1)), ("a", scalar(4, 1))]), "expected 'a' once"),
    "alignment 0": (file({"general.alignment": scalar(4, 0)}), "power of two"),
    "alignment 24": (file({"general.alignment": scalar(4, 24)}), "power of two"),
    "alignment text": (file({"general.alignment": scalar(8, "32")}), "power of two"),
    "no sizes": (file((), [Stored("a", [], 0, b"")]), "1 to 4 sizes, got 0"),
    "many sizes": (file((), [Stored("a", [1] * 5, 0, bytes(4))]), "1 to 4 sizes, got 5"),
    "size 0": (file((), [Stored("a", [0, 4], 0, b"")]), "elements"),
    "sizes that overflow": (file((), [Stored("a", [1 << 62, 1 << 62], 0, b"")]), "elements"),
    "sizes past the end": (file((), [Stored("a", [1 << 30], 0, bytes(4))]), "but the file has"),
    "an unknown type": (file((), [Stored("a", [256], 10, bytes(84))]), "expected a type of F32, .*got number 10"),
    "half a block": (file((), [Stored("a", [40], 2, bytes(36))]), "blocks of 32"),
    "an offset past the end": (file((), [ONE[0]._replace(offset=1 << 62)]), "but the file has"),
    "an offset of odd bytes": (file((), [ONE[0]._replace(offset=4)]), "in steps of 32"),
    "overlapping tensors": (file((), [*ONE, Stored("b", [3], 0, bytes(12), 0)]), "inside another tensor"),
    "a tensor's name twice": (file((), [*ONE, *ONE]), "one tensor of that name"),
    "a long tensor's name": (file((), [ONE[0]._replace(name="n" * 5000)]), "bytes of text"),
    "nothing": (b"", "expected 4 bytes"),
    "the magic alone": (b"GGUF", "expected 4 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    data, match = HOSTILE[name]
    with pytest.raises(ConvertError, match=match):
        read(data)
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ConvertError):
        read(path)


def test_every_truncation_is_refused() -> None:
    data = file({"a": scalar(8, "text"), "b": array(8, ["x", "yy"])}, [*ONE, Stored("b", [32], 8, bytes(34))])
    read(data)
    last = len(data) - (-34 % 32)
    for size in range(last):
        with pytest.raises(ConvertError):
            read(data[:size])


def test_scales_that_are_not_finite(tmp_path: Path) -> None:
    from tests.converter.frontends.decoders.checkpoints import config, gguf_file, tensors

    settings = config("llama", num_hidden_layers=1)
    path = gguf_file(tmp_path / "x.gguf", settings, tensors(settings), "Q8_0")
    tensor = read(path).tensors["blk.0.attn_q.weight"]
    data = bytearray(path.read_bytes())
    at = bytes(data).index(bytes(tensor.data))
    del tensor
    data[at : at + 2] = np.float16(np.inf).tobytes()
    with pytest.raises(ConvertError, match=r"'blk\.0.attn_q.weight': expected finite numbers"):
        convert(bytes(data))


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    for path, match in ((tmp_path / "none.gguf", "no file"), (tmp_path, "directory")):
        with pytest.raises(ConvertError, match=match):
            read(path)
