"""The page of the training benchmark: every contender's time, or why it has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import training
from benchmarks.training import TASKS, VARIANTS, Row, text


def _told(*rows: Row) -> dict[str, Any]:
    results = [{"task": "a net", "threads": 2, "rows": [list(row) for row in rows]}]
    return {"date": "2026-01-01", "machine": {"CPU": "Some 9000"}, "versions": {"torch": "2"}, "results": results}


def test_what_fails_is_a_row_that_says_why() -> None:
    eager, last, compiled, _ = VARIANTS
    made = text(_told(
        Row("msedge", 0.002, 1, 1, 1), Row(eager, 0.004, 2.0, 1.9, 2.1), Row(last, 0.003, 1.5, 1.4, 1.6),
        Row(compiled, error="RuntimeError: no C++ compiler"),
    ))  # fmt: skip
    assert "| a net | 2 | 2 | 4 | 3 | failed | – | torch eager, channels last 1.50 (1.40–1.60) |" in made
    assert "- a net, 2 thread(s), torch.compile: RuntimeError: no C++ compiler" in made
    assert "PyTorch is faster in 0 of 1 rows." in made and "| CPU | Some 9000 |" in made


def test_rows_where_pytorch_is_faster_are_listed() -> None:
    made = text(_told(Row("msedge", 0.002, 1, 1, 1), Row("torch.compile", 0.001, 0.5, 0.4, 0.6)))
    assert "PyTorch is faster in 1 of 1 rows: a net, 2 thread(s): 0.50." in made


def test_last_layers_are_compared_with_everything() -> None:
    tasks = {"net, everything, batch norms train": 0.008, "net, the last layer": 0.002}
    results = [{"task": task, "threads": 1, "rows": [list(Row("msedge", s, 1, 1, 1))]} for task, s in tasks.items()]
    made = text({**_told(), "results": results})
    assert "divided by those of everything, with msedge: net, 1 thread(s): 4.0." in made


def test_tables_line_up() -> None:
    made = text(_told(Row("msedge", 0.002, 1, 1, 1)))
    for part in made.split("\n\n"):
        if part.startswith("|"):
            assert len({line.count("|") for line in part.splitlines()}) == 1


def test_heads_alone_are_trained_too() -> None:
    assert sum(task.trainable == "head.*" for task in TASKS.values()) == 2 and "linear layer, 1280 features" in TASKS


def test_the_page_gets_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        training, "timed",
        lambda name, threads, seconds: [Row("msedge", 0.002, 1, 1, 1), Row("torch eager", 0.004, 2.0, 1.9, 2.1)],
    )  # fmt: skip
    page, kept = tmp_path / "training.md", tmp_path / "kept.jsonl"
    assert training.main([f"--docs={tmp_path}"]) == 3, "no page with marks"
    page.write_text("a\n<!-- speed: begin -->\n<!-- speed: end -->\nz\n")
    assert training.main([f"--docs={tmp_path}", f"--resume={kept}", "--threads", "1", "--minutes=-1"]) == 3
    assert kept.exists(), "what was measured is kept when the time is up"
    assert training.main([f"--docs={tmp_path}", f"--resume={kept}", "--threads", "1"]) == 0
    told = json.loads((tmp_path / "training.json").read_text())
    assert page.read_text() == f"a\n<!-- speed: begin -->\n{text(told)}\n<!-- speed: end -->\nz\n"
    assert {one["task"] for one in told["results"]} == set(TASKS) and not kept.exists()
