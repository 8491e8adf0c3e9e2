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
from benchmarks.page import Run, excerpt, headline, page, read_run, summary
from benchmarks.products import PRODUCTS, Measured
from edge.cli.output import plain
from tests.edge.test_comparison import row

ROWS = [
    row("small.onnx", 4.0, seconds=2e-6),
    row("net.onnx", 2.0, 3.0), row("net.onnx", 1.5, threads=2),
    row("net_int8.onnx", 0.8, integers=True, weights="random"),
    row("<odd>&|.onnx", 40.0, 0.01), Row("broken.onnx", 1, error="why | not"),
    Row("lone.onnx", 1, seconds=0.5, peers=(Peer("litert", 1.0, 2.0, 1.9, 2.1, None, "lone.peers.onnx"),),
        absent={"openvino": "it cannot"}),
]  # fmt: skip
RUN = Run(
    "2026-01-01", {"CPU": "Some 9000 | x"}, {1: "what it can"}, {"numpy": "2.0", "openvino": "2026.4"}, ROWS,
    [Measured(ROWS[0], 10, 20, 0.5)],
)  # fmt: skip


def tables(text: str) -> list[list[str]]:
    """Consecutive lines that are rows of a table."""
    return [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]


def test_every_table_lines_up() -> None:
    made = page(RUN)
    assert len(tables(made)) == 9
    for lines in tables(made):
        assert len({line.count("|") for line in lines}) == 1
    for text in ("broken.onnx did not run: why | not", "lone.onnx: it cannot", "500000 |", "1000000 †", "what it can"):
        assert text in made


def test_the_page_names_machine_versions_and_weights() -> None:
    made = page(RUN)
    assert "| CPU | Some 9000 / x |" in made and "| openvino | 2026.4 |" in made
    (line,) = (line for line in made.splitlines() if line.startswith("| net_int8.onnx | random |"))
    assert line and "| net.onnx | trained |" in made and "| lone.onnx | unknown |" in made


def test_long_and_short_models_have_means_of_their_own() -> None:
    made = headline(RUN)
    assert "Models that take 100 µs or more: 0.34 for 3 float32 models with 1 thread" in made  # 2, 0.01 and 2
    assert "Models that take less than 100 µs: 4.00 for 1 float32 model with 1 thread" in made
    assert "A peer is faster in 2 of 6 rows: <odd>&|.onnx 0.01 (1 thread), net_int8.onnx 0.80 (1 thread)." in made


def test_the_summary_counts_models_and_names_the_lowest() -> None:
    lines = tables(summary(RUN))[0]
    assert lines[2].startswith("| float32, 100 µs or more | 1 | 3 | 0 | 0.34 | 1 |") and "<odd>" in lines[2]
    assert lines[3].startswith("| quantised, 100 µs or more | 1 | 1 | 1 | 0.80 | 1 |")
    assert lines[-1].startswith("| float32, less than 100 µs | 1 | 1 | 0 | 4.00 | 0 | small.onnx 4.00")


def test_what_is_slower_is_counted_and_not_claimed() -> None:
    slow = [*ROWS, row("net_int8.onnx", 1.0, threads=2, integers=True, seconds=0.002)]
    made = page(Run("2026-01-01", {}, {}, {}, slow))
    assert "Two threads are slower on 1 of 2 models: net_int8.onnx 0.50." in made
    fine = headline(Run("2026-01-01", {}, {}, {}, [row("a.onnx", 2.0)]))
    assert fine.endswith("A peer is faster in 0 of 1 rows.")


def test_the_readme_shows_machine_means_and_the_way_to_all_rows() -> None:
    made = excerpt(RUN)
    assert "fastest of openvino 2026.4 on Some 9000" in made and "(docs/performance.md)" in made
    assert summary(RUN) in made and "A peer is faster in 2 of 6 rows" in made


def test_the_headline_names_the_lowest_rows() -> None:
    made = headline(Run("2026-01-01", {}, {}, {}, [row(f"{i}.onnx", 0.1 + i / 10) for i in range(8)]))
    assert "A peer is faster in 8 of 8 rows: 0.onnx 0.10 (1 thread), 1.onnx 0.20" in made
    assert made.endswith("3.onnx 0.40 (1 thread) and 4 more.")


def test_rows_kept_before_weights_were_named_are_read() -> None:
    kept = json.loads(json.dumps(plain(RUN.as_dict())))
    kept["machine"] = "an old machine"
    for old in kept["rows"]:
        del old["weights"]
    again = read_run(kept)
    assert again.machine == {"CPU": "an old machine"} and {r.weights for r in again.rows} == {"unknown"}


def test_figures_that_were_kept_give_the_same_page() -> None:
    again = read_run(json.loads(json.dumps(plain(RUN.as_dict()))))
    assert page(again) == page(RUN) and chart(again.rows) == chart(RUN.rows)


def test_the_command_makes_page_and_chart_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(plain(RUN.as_dict())))
    readme = tmp_path / "front.md"
    readme.write_text("before\n<!-- speed: begin -->\nold\n<!-- speed: end -->\nafter\n")
    monkeypatch.setattr(sys, "argv", ["benchmarks", f"--again={kept}", f"--docs={tmp_path}", f"--readme={readme}"])
    assert command.main() == 1, "a model did not run"
    assert (tmp_path / "performance.md").read_text() == page(RUN)
    assert (tmp_path / "performance.svg").read_text() == chart(ROWS)
    assert json.loads((tmp_path / "performance.json").read_text()) == plain(RUN.as_dict())
    assert "broken.onnx" in capsys.readouterr().err
    assert readme.read_text() == (
        f"before\n<!-- speed: begin -->\n{excerpt(RUN, tmp_path.name)}\n<!-- speed: end -->\nafter\n"
    )


def test_a_readme_without_marks_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("no marks")
    monkeypatch.setattr(sys, "argv", ["benchmarks", f"--models={tmp_path / 'none'}", f"--docs={tmp_path / 'docs'}"])
    assert command.main() == 3
    assert "<!-- speed: begin -->" in capsys.readouterr().err and (tmp_path / "README.md").read_text() == "no marks"


def test_the_chart_is_xml_and_stays_in_its_frame() -> None:
    made = ET.fromstring(chart(ROWS))
    space = "{http://www.w3.org/2000/svg}"
    bars = [r for r in made.iter(f"{space}rect") if float(r.get("y", "0")) > 50]
    assert len(bars) == 6
    for bar in bars:
        x, width = float(bar.get("x", "0")), float(bar.get("width", "0"))
        assert x >= LEFT - 1 and x + width <= WIDTH - RIGHT + 1 and width >= 1
    words = [text.text for text in made.iter(f"{space}text")]
    assert "net_int8.onnx (random weights)" in words
    assert "quantised, 100 µs or more. Geometric mean: 0.80 (1 thread)" in words
    assert "<odd>&|.onnx" in words and "0.01 openvino" in words and "broken.onnx" not in words


def test_products_hold_what_they_say() -> None:
    first = PRODUCTS[0]
    assert (first.operations, first.nbytes) == (2 * 512**3, 12 * 512**2)
    assert {product.integers for product in PRODUCTS} == {True, False}
