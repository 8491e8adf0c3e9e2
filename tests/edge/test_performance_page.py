"""docs/performance.*: tables that line up, a chart that is XML, figures that give the same page again."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.chart import LEFT, RIGHT, WIDTH, chart
from benchmarks.comparison import Peer, Row
from benchmarks.page import Run, page, read_run, summary
from benchmarks.products import PRODUCTS, Measured
from edge.cli.output import plain
from tests.edge.test_comparison import row

ROWS = [
    row("net.onnx", 2.0, 3.0), row("net.onnx", 1.5, threads=2), row("net_int8.onnx", 0.8, integers=True),
    row("<odd>&|.onnx", 40.0, 0.01), Row("broken.onnx", 1, error="why | not"),
    Row("lone.onnx", 1, seconds=0.5, peers=(Peer("litert", 1.0, 2.0, 1.9, 2.1, None, "lone.peers.onnx"),),
        absent={"openvino": "it cannot"}),
]  # fmt: skip
RUN = Run("2026-01-01", "a machine", {1: "what it can"}, {"numpy": "2.0"}, ROWS, [Measured(ROWS[0], 10, 20, 0.5)])


def tables(text: str) -> list[list[str]]:
    """Consecutive lines that are rows of a table."""
    return [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]


def test_every_table_lines_up() -> None:
    made = page(RUN)
    assert len(tables(made)) == 7
    for lines in tables(made):
        assert len({line.count("|") for line in lines}) == 1
    for text in ("broken.onnx did not run: why | not", "lone.onnx: it cannot", "500000 |", "1000000 †", "what it can"):
        assert text in made


def test_the_summary_counts_models_and_names_the_lowest() -> None:
    lines = tables(summary(RUN))[0]
    assert lines[2].startswith("| float32 | 1 | 3 |") and "<odd>" in lines[2]
    assert lines[3].startswith("| quantised | 1 | 1 | 0.80 |")


def test_figures_that_were_kept_give_the_same_page() -> None:
    again = read_run(json.loads(json.dumps(plain(RUN.as_dict()))))
    assert page(again) == page(RUN) and chart(again.rows) == chart(RUN.rows)


def test_the_command_makes_page_and_chart_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(plain(RUN.as_dict())))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--again", str(kept), "--docs", str(tmp_path)])
    assert command.main() == 1, "a model did not run"
    assert (tmp_path / "performance.md").read_text() == page(RUN)
    assert (tmp_path / "performance.svg").read_text() == chart(ROWS)
    assert json.loads((tmp_path / "performance.json").read_text()) == plain(RUN.as_dict())
    assert "broken.onnx" in capsys.readouterr().err


def test_the_chart_is_xml_and_stays_in_its_frame() -> None:
    made = ET.fromstring(chart(ROWS))
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in made.iter(f"{space}rect") if float(r.get("y", "0")) > 50]
    assert len(bars) == 5
    for bar in bars:
        x, width = float(bar.get("x", "0")), float(bar.get("width", "0"))
        assert x >= LEFT - 1 and x + width <= WIDTH - RIGHT + 1 and width >= 1
    words = [text.text for text in made.iter(f"{space}text")]
    assert "<odd>&|.onnx" in words and "0.01 openvino" in words and "broken.onnx" not in words


def test_products_hold_what_they_say() -> None:
    first = PRODUCTS[0]
    assert (first.operations, first.nbytes) == (2 * 512**3, 12 * 512**2)
    assert {product.integers for product in PRODUCTS} == {True, False}
