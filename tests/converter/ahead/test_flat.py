"""The reader in JavaScript refuses flat files that are damaged, shortened or of another version, and those that name
memory outside their buffers although every digest is right. It never fails in another way than by its own error."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from converter.ahead import build
from converter.ahead.flat import DIGEST, HEADER, MAGIC, VERSION
from lite_runtime.native.target import host
from tests.converter.ahead import models, node, tables

pytestmark = [
    pytest.mark.skipif(host() is None, reason="no native kernels on this processor"),
    node.needs_node,
]
OWN = "MsedgeError: model: the flat file is damaged: expected "


@pytest.fixture(scope="module", params=["several", "stream"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("flat") / "built"
    build(getattr(models, request.param)(), made)
    return made


@pytest.fixture(scope="module")
def flat(folder: Path) -> bytes:
    return (folder / "model.msflat").read_bytes()


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    build(models.trainable(), tmp_path / "built")
    flat = (tmp_path / "built/model.msflat").read_bytes()
    magic, version, size, arena, made_by, _, target = struct.unpack_from("<8s6I", flat)
    assert (magic, version, size) == (MAGIC, VERSION, len(flat)) and arena > 0
    assert hashlib.sha256(flat[:-DIGEST]).digest() == flat[-DIGEST:]
    assert hashlib.sha256((tmp_path / "built/kernels.json").read_bytes()).digest() == flat[32:64]
    assert tables.text(flat, made_by).startswith("msedge ") and tables.text(flat, target) == "wasm32"
    signatures = [tables.text(flat, row["text"]) for row in tables.table(flat, "signatures").rows]
    assert signatures == ["predict", "evaluate", "gradients", "train_step"]
    blocks = [row["block"] for row in tables.table(flat, "states").rows]
    assert len(blocks) == 14 and len(set(blocks)) == 4 + 3 + 2  # parameters, zeros of three sizes, rate and step
    ports = [tables.text(flat, row["text"]) for row in tables.table(flat, "ports").rows]
    assert ports.count("x") == 4 and ports.count("next/optimizer/step") == 1


def test_a_whole_file_is_read(folder: Path, flat: bytes, tmp_path: Path) -> None:
    assert node.load(folder, [flat, tables.sealed(flat)], tmp_path) == ["", ""]


def test_every_changed_byte_is_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    places = [*range(HEADER), *range(len(flat) - DIGEST, len(flat)), *rng.integers(HEADER, len(flat), 200).tolist()]
    changed = []
    for at in places:
        data = bytearray(flat)
        data[at] ^= 1 << int(rng.integers(8))
        changed.append(bytes(data))
    found = node.load(folder, changed, tmp_path)
    assert [(at, text) for at, text in zip(places, found, strict=True) if not text.startswith("MsedgeError: ")] == []


def test_shortened_and_lengthened_files_are_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    sizes = [0, 1, 7, 8, 20, 63, 64, 191, 192, 224, 500, len(flat) // 2, len(flat) - 33, len(flat) - 32, len(flat) - 1]
    found = node.load(folder, [*(flat[:size] for size in sizes), flat + b"\0"], tmp_path)
    assert all(text.startswith(OWN) for text in found), found


def test_another_version_is_told(folder: Path, flat: bytes, tmp_path: Path) -> None:
    [found] = node.load(folder, [tables.with_word(flat, 8, VERSION + 1)], tmp_path)
    assert found.startswith("MsedgeError: model: expected a flat file of version 2, got version 3") and "build" in found


ALIKE = {
    # Names; the sample, and how it is compared.
    *("made_by", "bundle", "target", "kernels.text", "nodes.text", "ports.text", "states.text", "signatures.text"),
    *("ports.sample", "signatures.nodes", "signatures.runs", "signatures.tolerance"),
    # More memory than is needed; rows that nothing names.
    *("arena", "buffers.bytes", "constants.bytes"),
    *(f"{name} count" for name in ("texts", "sizes", "buffers", "ports", "nodes")),
    # Tables without rows, or of names, elsewhere.
    *(f"{name} at" for name in ("kernels", "constants", "states", "nodes")),
    # Another type or shape of the same size or a smaller one, and another place or state for a result.
    *("ports.dtype", "ports.rank", "ports.sizes", "sizes.size", "states.sizes", "ports.base", "ports.state"),
    *("signatures.inputs", "signatures.outputs"),
}
"""Words that may have another value in a file that is whole."""


def test_tables_of_any_contents_are_read_or_refused(folder: Path, flat: bytes, tmp_path: Path) -> None:
    """Right digests, and every word of the header and the tables replaced."""
    files, what = [], []
    for name, at in tables.words(flat):
        (now,) = struct.unpack_from("<I", flat, at)
        large = set() if name in ("arena", "buffers.bytes") else {2**31, 2**32 - 1}  # gigabytes that Node would take
        for value in {0, 1, 2, 3, 8, 192, now + 1, max(now, 1) - 1, now + 4, *large} - {now}:
            files.append(tables.with_word(flat, at, value))
            what.append((name, now, value))
    found = node.load(folder, files, tmp_path)
    assert len(found) > 1000
    assert [
        (w, text) for w, text in zip(what, found, strict=True) if text and not text.startswith("MsedgeError: ")
    ] == []
    assert {w[0] for w, text in zip(what, found, strict=True) if not text} <= ALIKE


def test_a_model_of_more_than_4_gib_is_refused(folder: Path, flat: bytes, tmp_path: Path) -> None:
    """An arena that ends beyond what WebAssembly addresses."""
    [found] = node.load(folder, [tables.with_word(flat, 16, 2**32 - 1)], tmp_path)
    assert found == "MsedgeError: the model needs 4097 MiB of memory, which this engine refuses"


def test_operands_outside_their_buffers_are_found(folder: Path, flat: bytes, tmp_path: Path) -> None:
    wrong = tables.wrong_words(flat)
    found = node.load(folder, [file for file, _ in wrong], tmp_path)
    assert len(found) > 60
    told = zip(wrong, found, strict=True)
    assert [(part, text) for (_, part), text in told if not text.startswith(OWN) or part not in text] == []


def test_other_kernels_are_refused(folder: Path, flat: bytes, tmp_path: Path) -> None:
    build(models.dense(), tmp_path / "other")
    (found,) = node.load(folder, [(tmp_path / "other/model.msflat").read_bytes()], tmp_path)
    assert "use the files that were built together with the model" in found
    kernels = tables.table(flat, "kernels")
    (found,) = node.load(folder, [tables.with_word(flat, kernels.at, kernels.rows[0]["text"] + 1)], tmp_path)
    name = tables.text(flat, kernels.rows[0]["text"])
    assert found.startswith(f"MsedgeError: kernels: expected a module with {name[1:]}, got one of {name}")
