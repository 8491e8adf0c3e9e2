"""The comparison table holds every model, including those that fail; figures survive saving."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.comparison import (
    MANIFEST,
    Peer,
    Row,
    by_duration,
    compare,
    geometric_mean,
    losses,
    models_in,
    read_rows,
    trouble,
    twins,
    weights_of,
    worst,
)
from lite_runtime.errors import InputError
from tests.edge.conftest import Small


def row(
    model: str, *ratios: float, threads: int = 1, integers: bool = False, seconds: float = 0.001,
    weights: str = "trained",
) -> Row:  # fmt: skip
    """A row whose peers take these multiples of our time."""
    names = ("onnxruntime", "openvino")
    peers = tuple(Peer(n, 0.001 * r, r, r * 0.9, r * 1.1, 0.0) for n, r in zip(names, ratios, strict=False))
    return Row(model, threads, integers, seconds, 0.01, 0.002, 2048, (), peers, {}, weights=weights)


def test_the_table_has_a_row_for_every_model(small: Small, tmp_path: Path) -> None:
    shutil.copy(small.source, tmp_path / "a.onnx")
    shutil.copy(small.source, tmp_path / "a.peers.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    models = models_in([tmp_path])
    assert [path.name for path in models] == ["a.onnx", "b.onnx"]
    fine, broken = compare(models, rounds=3, backend="reference")
    assert [peer.name for peer in fine.peers] == ["onnxruntime", "openvino"] and not fine.integers
    assert fine.best is not None and fine.best.ratio == min(peer.ratio for peer in fine.peers)
    assert trouble(fine) == "" and trouble(broken).startswith("b.onnx did not run: ")
    assert read_rows(json.loads(json.dumps([asdict(fine), asdict(broken)]))) == [fine, broken]


def test_weights_are_what_the_manifest_says(tmp_path: Path) -> None:
    assert weights_of(tmp_path / "a.onnx") == "unknown"
    (tmp_path / MANIFEST).write_text(
        "filename\tsource_repo\tweights\na.onnx\tsomeone/net\t\nb.onnx\t\trandom\nc.onnx\t\tgood\nd.onnx\t\t\n"
    )
    found = [weights_of(tmp_path / f"{name}.onnx") for name in ("a", "b", "d", "absent")]
    assert found == ["trained", "random", "unknown", "unknown"]
    with pytest.raises(InputError, match="'good'"):
        weights_of(tmp_path / "c.onnx")


def test_a_model_is_long_or_short_with_all_its_rows() -> None:
    rows = [
        row("a.onnx", 1.0, seconds=2e-4), row("a.onnx", 1.0, threads=2, seconds=9e-5),
        row("b.onnx", 1.0, threads=2, seconds=2e-4), row("b.onnx", 1.0, seconds=9e-5), Row("c.onnx", 1, error="no"),
    ]  # fmt: skip
    long, short = by_duration(rows)
    assert long == rows[:2] and short == rows[2:4]


def test_losses_are_the_rows_where_a_peer_is_faster() -> None:
    rows = [row("a.onnx", 2.0, 0.9), row("b.onnx", 1.5), row("c.onnx", 0.5), row("d.onnx", 1.0)]
    assert losses(rows) == [rows[2], rows[0]]


def test_means_and_the_worst_are_of_the_best_peer() -> None:
    rows = [row("a.onnx", 2.0, 1.0), row("b.onnx", 4.0), Row("c.onnx", 1, error="no")]
    assert geometric_mean(rows) == pytest.approx(2.0)
    assert geometric_mean(rows, "onnxruntime") == pytest.approx(math.sqrt(8))
    assert worst(rows) is rows[0] and worst(rows[2:]) is None


def test_an_answer_that_differs_from_its_own_runtime_is_trouble() -> None:
    far = Peer("onnxruntime", 1.0, 1.0, 1.0, 1.0, 0.5)
    assert "differs from onnxruntime" in trouble(Row("a.onnx", 1, peers=(far,)))
    assert trouble(Row("a.tflite", 1, peers=(far,))) == ""
    assert "differs" in trouble(Row("a.onnx", 1, peers=(Peer("onnxruntime", 1.0, 1.0, 1.0, 1.0, math.nan),)))


def test_float_and_quantised_versions_are_matched_by_name_and_threads() -> None:
    rows = [
        row("net.onnx", 1.0), row("net_int8.onnx", 1.0, integers=True), row("m_fp32.tflite", 1.0),
        row("m_int8.tflite", 1.0, integers=True), row("m_dynrange.tflite", 1.0, threads=2, integers=True),
        row("lone_int8.tflite", 1.0, integers=True),
    ]  # fmt: skip
    assert [(a.model, b.model) for a, b in twins(rows)] == [
        ("net.onnx", "net_int8.onnx"),
        ("m_fp32.tflite", "m_int8.tflite"),
    ]


def test_no_models_is_an_error_and_no_ratio_no_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--models"):
        models_in([tmp_path])
    assert math.isnan(geometric_mean([]))
