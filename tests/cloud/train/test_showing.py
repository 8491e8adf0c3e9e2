"""What notebooks show, and the example notebook from top to bottom."""

from __future__ import annotations

import ast
import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cloud.train import NotebookView, Trainer
from cloud.train.notebook import Reports
from cloud.train.reports import EpochReport, Evaluation
from cloud.zoo import mlp

NOTEBOOK = Path(__file__).parents[3] / "examples" / "training" / "digits.ipynb"
ALONE = {"br", "polyline"}


class Balanced(HTMLParser):
    """Fails for a tag that is not closed; keeps the cells of tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.cells, self._in = [], [], False  # type: ignore[var-annotated]
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert tag not in ("script", "img")
        if tag not in ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ALONE:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def report(epoch: int, loss: float, validation: float | None = None) -> EpochReport:
    tested = None if validation is None else Evaluation(validation, {"<b>acc": 0.5}, 10)
    return EpochReport(epoch, 3, Evaluation(loss, {"<b>acc": 0.25}, 10), tested, 1.5)


def test_reports_are_a_table_with_curves() -> None:
    made = Reports([report(1, 2.0, 2.5), report(2, 1.0, float("nan")), report(3, 0.5, 1.5)])
    text = made._repr_html_()
    found = Balanced(text)
    assert {"epoch", "<b>acc", "validation loss", "3/3", "0.5000", "0.2500", "nan"} <= set(found.cells)
    assert text.count("<polyline") == 2
    assert Reports([report(1, 2.0)])._repr_html_().count("<polyline") == 0
    assert "No epoch" in Reports()._repr_html_() and "2.0000" in report(1, 2.0)._repr_html_()
    assert made == list(made) and isinstance(made, list)


def test_a_view_updates_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for IPython that keeps what is displayed."""
    shown: list[str] = []

    class Handle:
        def update(self, value: Any) -> None:
            shown.append(value._repr_html_())

    def display(value: Any, display_id: bool) -> Handle:
        assert display_id
        shown.append(value._repr_html_())
        return Handle()

    view = NotebookView()
    trainer = Trainer(mlp(4, 3, (5,)), callbacks=[view])
    x, y = np.ones((20, 4), np.float32), np.arange(20) % 3
    trainer.fit((x, y), epochs=1, batch_size=10)  # without IPython
    assert shown == [] and len(view.reports) == 1
    module = ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    trainer.fit((x, y), epochs=3, batch_size=10)
    assert len(shown) == 3 and "4/4" in shown[-1] and len(view.reports) == 3
    cells = Balanced(trainer._repr_html_()).cells
    assert "4 epochs, 8 steps" in cells and "43 numbers in 4 arrays" in cells


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in order, made shorter; the last expression of each is shown."""
    monkeypatch.chdir(tmp_path)
    held = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert held["nbformat"] == 4 and len({cell["id"] for cell in held["cells"]}) == len(held["cells"])
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for cell in held["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [] and cell["execution_count"] is None
        text = "".join(cell["source"]).replace("EPOCHS = 8", "EPOCHS = 2").replace("(8, 16, 32)", "(4, 8)")
        body = ast.parse(text)
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    for value in shown:
        if hasattr(value, "_repr_html_"):
            Balanced(value._repr_html_())
    np.testing.assert_allclose(names["logits"], names["smaller"].predict(names["test"][0]), atol=1e-4)
    assert names["accuracy"] == pytest.approx(names["smaller"].evaluate(names["test"]).accuracy, abs=1e-6)
    assert names["smaller"].export().graph.initializers["stem.conv.weight"].const_value.shape[0] == 2
