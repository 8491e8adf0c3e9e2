"""The reader in JavaScript refuses flat files that are damaged, shortened or of another version, and those that name
memory outside their buffers although every digest is right. It never fails in another way than by its own error."""

from __future__ import annotations

import copy
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.ahead import build
from converter.ahead.flat import MAGIC, VERSION
from lite_runtime.native.target import host
from tests.converter.ahead import models, node

pytestmark = [
    pytest.mark.skipif(host() is None, reason="no native kernels on this processor"),
    node.needs_node,
]
HEADER, DIGEST, OWN = 64, 32, "MsedgeError: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("flat") / "built"
    build(models.several(), made)
    return made


@pytest.fixture(scope="module")
def flat(folder: Path) -> bytes:
    return (folder / "model.msflat").read_bytes()


def head_of(flat: bytes) -> dict[str, Any]:
    _, _, length, _ = struct.unpack_from("<8sIII", flat)
    found = json.loads(flat[HEADER : HEADER + length])
    assert isinstance(found, dict)
    return found


def with_head(flat: bytes, head: Any) -> bytes:
    """The file with another head of at most the same size, and right digests."""
    _, _, length, _ = struct.unpack_from("<8sIII", flat)
    text = compact(head)
    assert len(text) <= length
    return sealed(flat[:HEADER] + text.ljust(length) + flat[HEADER + length :])


def compact(head: Any) -> bytes:
    return json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()


def sealed(flat: bytes) -> bytes:
    content = flat[:-DIGEST]
    return content + hashlib.sha256(content).digest()


def with_words(flat: bytes, where: str, change: Callable[[np.ndarray], None]) -> bytes:
    """The file with other words in a block, and right digests."""
    row, dtype = head_of(flat)[where], np.dtype("<i8" if where == "program" else "<u4")
    words = np.frombuffer(flat, dtype, row["bytes"] // dtype.itemsize, row["at"]).copy()
    change(words)
    return sealed(flat[: row["at"]] + words.tobytes() + flat[row["at"] + row["bytes"] :])


def test_the_layout_is_the_documented_one(flat: bytes) -> None:
    magic, version, length, size = struct.unpack_from("<8sIII", flat)
    assert (magic, version, size) == (MAGIC, VERSION, len(flat)) and length % 64 == 0
    assert hashlib.sha256(flat[:-DIGEST]).digest() == flat[-DIGEST:]
    head = head_of(flat)
    assert [port["name"] for port in head["inputs"]] == ["x", "i", "c"]
    assert head["target"] == "wasm32" and len(head["outputs"]) == 3


def test_a_whole_file_is_read(folder: Path, flat: bytes, tmp_path: Path) -> None:
    assert node.load(folder, [flat, with_head(flat, head_of(flat))], tmp_path) == ["", ""]


def test_every_changed_byte_is_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    places = [*range(HEADER), *range(len(flat) - DIGEST, len(flat)), *rng.integers(HEADER, len(flat), 200).tolist()]
    changed = []
    for at in places:
        data = bytearray(flat)
        data[at] ^= 1 << int(rng.integers(8))
        changed.append(bytes(data))
    found = node.load(folder, changed, tmp_path)
    assert [(at, text) for at, text in zip(places, found, strict=True) if not text.startswith(OWN + "model: ")] == []


def test_shortened_and_lengthened_files_are_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    sizes = [0, 1, 7, 8, 20, 63, 64, 95, 96, 500, len(flat) // 2, len(flat) - 33, len(flat) - 32, len(flat) - 1]
    found = node.load(folder, [*(flat[:size] for size in sizes), flat + b"\0"], tmp_path)
    assert all(text.startswith("MsedgeError: model: the flat file is damaged") for text in found), found


def test_another_version_is_told(folder: Path, flat: bytes, tmp_path: Path) -> None:
    other = sealed(flat[:8] + struct.pack("<I", VERSION + 1) + flat[12:])
    [found] = node.load(folder, [other], tmp_path)
    assert found.startswith("MsedgeError: model: expected a flat file of version 1, got version 2") and "build" in found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key))


def test_heads_of_any_contents_are_read_or_refused(folder: Path, flat: bytes, tmp_path: Path) -> None:
    """Right digests, and every member of the head replaced by each of these, and left out."""
    files, what = [], []
    whole = head_of(flat)
    for path in leaves(whole):
        for other in (-1, 8, 2**40, 1.5, "", None, [], {}, True, "left out"):
            head: Any = {"root": copy.deepcopy(whole)}
            inner = head
            for key in ("root", *path)[:-1]:
                inner = inner[key]
            last = ("root", *path)[-1]
            if other == "left out":
                del inner[last]
            else:
                inner[last] = other
            if len(compact(head.get("root"))) <= len(compact(whole)):
                files.append(with_head(flat, head.get("root")))
                what.append((path, other))
    found = node.load(folder, files, tmp_path)
    assert len(found) > 500
    odd = [(w, text) for w, text in zip(what, found, strict=True) if text and not text.startswith("MsedgeError: ")]
    assert odd == []
    numbers = [w for w, text in zip(what, found, strict=True) if not text and w[1] in (-1, 8, 1.5, None)]
    # Read all the same: how far floats may differ, and another entry for an output that is a constant.
    assert {w[0][-1] for w in numbers} <= {"tolerance", "base"}


def test_operands_outside_their_buffers_are_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    head = head_of(flat)
    count = head["program"]["bytes"] // 8
    program = np.frombuffer(flat, "<i8", count, head["program"]["at"])
    at, row, files, what = 0, 0, [], []
    rows = np.frombuffer(flat, "<u4", head["operands"]["bytes"] // 4, head["operands"]["at"])
    written = {head["constants"][0]["base"], head["inputs"][0]["base"]}

    def change(where: str, place: int, value: int, told: str) -> None:
        files.append(with_words(flat, where, lambda words: words.__setitem__(place, value)))
        what.append(told)

    while at < count:
        operands = int(rows[row])
        change("program", at, len(head["kernels"]), "its kernel")
        change("program", at, -1, "its kernel")
        change("program", at + 1, count + 1, "its length")
        change("program", at + 1, 0, "its length")
        change("program", at + 2, int(program[at + 2]) | 4, "no jump")
        change("operands", row, 1000, "its operands")
        for i in range(operands):
            base = at + 3 + 2 * i
            if program[base] == 0:
                continue
            for value in (-1, 1, head["bases"], 2**40):
                change("program", base, value, "in a buffer")
            for value in (-1, 2**31, 2**62):
                change("program", base + 1, value, "its offset")
            change("operands", row + 1 + 2 * i, 2**32 - 1, "its offset")
            change("operands", row + 2 + 2 * i, 4, "its role")
            if program[base] in written:
                change("operands", row + 2 + 2 * i, 1, "to be read")
        at, row = at + int(program[at + 1]), row + 1 + 2 * operands
    found = node.load(folder, files, tmp_path)
    assert len(found) > 60
    told = zip(what, found, strict=True)
    assert [(w, text) for w, text in told if not text.startswith(OWN) or w not in text] == []


def test_other_kernels_are_refused(folder: Path, flat: bytes, tmp_path: Path) -> None:
    build(models.dense(), tmp_path / "other")
    (found,) = node.load(folder, [(tmp_path / "other/model.msflat").read_bytes()], tmp_path)
    assert "use the kernels.wasm that was built together with the model" in found
    head = head_of(flat)
    head["kernels"][0] = "x"
    (found,) = node.load(folder, [with_head(flat, head)], tmp_path)
    assert found.startswith("MsedgeError: kernels: expected a module with x, got one of ")
