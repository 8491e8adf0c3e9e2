"""Peers take part, are absent with a reason, or run another form of the model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from edge.measuring.contest import OURS, Absent, contest, forms_of, peers_of
from edge.peers.openvino import OpenVINO
from edge.peers.oracle import OracleError
from lite_runtime.errors import InputError
from tests.edge.conftest import Small

QUICK = {"rounds": 3, "seconds": 0.1, "backend": "reference"}


def test_every_peer_of_a_format_runs_and_agrees(small: Small) -> None:
    result = contest(small.source, against=peers_of(small.source), **QUICK)  # type: ignore[arg-type]
    assert [entry.name for entry in result.entries] == [OURS, "onnxruntime", "openvino"]
    assert result.absent == ()
    for entry in result.entries[1:]:
        assert entry.difference is not None and entry.difference < 1e-4
        assert entry.first > 0 and entry.load > 0 and entry.form == ""
    best = result.best
    assert best is not None and best.ratio is not None
    assert all(e.ratio and best.ratio.median <= e.ratio.median for e in result.entries[1:])


def test_a_peer_that_cannot_run_the_model_is_reported_separately(small: Small) -> None:
    result = contest(small.source, against=["litert", "onnxruntime"], **QUICK)  # type: ignore[arg-type]
    assert [entry.name for entry in result.entries] == [OURS, "onnxruntime"]
    (absent,) = result.absent
    assert isinstance(absent, Absent) and absent.name == "litert" and "LiteRT cannot load" in absent.reason
    assert result.as_dict()["absent"] == [{"name": "litert", "reason": absent.reason}]


def test_alone_there_is_no_best(small: Small) -> None:
    assert contest(small.source, **QUICK).best is None  # type: ignore[arg-type]


def test_a_form_for_peers_counts_where_it_is_faster(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, other = tmp_path / "m.onnx", tmp_path / "m.peers.onnx"
    shutil.copy(small.source, source)
    assert forms_of(source) == (source,)
    shutil.copy(small.source, other)
    assert forms_of(source) == (source, other)
    times = iter([2.0, 1.0])
    monkeypatch.setattr("edge.measuring.contest._trial", lambda run, inputs: next(times))
    result = contest(source, against=["onnxruntime"], **QUICK)  # type: ignore[arg-type]
    entry = result.entries[1]
    assert entry.form == "m.peers.onnx" and entry.difference is None


def test_a_form_that_does_not_load_leaves_the_model_itself(small: Small, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    shutil.copy(small.source, source)
    (tmp_path / "m.peers.onnx").write_bytes(b"no model")
    result = contest(source, against=["onnxruntime"], **QUICK)  # type: ignore[arg-type]
    assert result.entries[1].form == ""


def test_a_bundle_needs_its_source(small: Small) -> None:
    with pytest.raises(InputError, match="--source"):
        contest(small.bundle, against=["openvino"])


def test_reals_that_become_indices_are_valid_ones(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20]>
    lookup (float[4, 2] x) => (float[4, 2, 3] y) {
      at = Cast <to = 7> (x)
      y = Gather (table, at)
    }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), "table"))
    path = tmp_path / "lookup.onnx"
    onnx.save(model, path)
    result = contest(path, against=["onnxruntime"], **QUICK)  # type: ignore[arg-type]
    assert result.inputs["x"].min() >= 0 and result.entries[1].difference == 0


def test_openvino_names_what_the_source_names(small: Small) -> None:
    outputs = OpenVINO(small.source).run({"x": np.zeros((2, 3, 8, 8), np.float32)})
    assert {name: value.shape for name, value in outputs.items()} == {"scores": (2, 5)}


def test_openvino_says_why_it_does_not_load(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(OracleError, match="OpenVINO cannot load"):
        OpenVINO(path)
