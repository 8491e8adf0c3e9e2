"""Studies on the page of their run: what is damaged is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud.track import Store
from edge.pages.runs_page import runs_page

ROW = {
    "number": 0,
    "state": "finished",
    "values": {"train.rate": 0.1, "a": True, "b": [1]},
    "value": 0.5,
    "curve": [0.5],
}


def section(folder: Path, trials: Any) -> str:
    with Store(folder / "runs.sqlite", create=True) as store:
        run = store.start(name="study")
        store.add_document(run, "study", {"metric": "<loss>", "lower": True, "trials": trials})
        page = runs_page(store, [store.run(run)])
    return page.partition("<h2>Trials</h2>")[2].partition("<h2>")[0]


def test_trials(tmp_path: Path) -> None:
    pruned = {**ROW, "number": 1, "state": "pruned", "value": None, "curve": [0.1, 0.7], "why": "<b>", "seconds": 2.0}
    empty = {**ROW, "number": 2, "state": "running", "value": None, "curve": []}
    found = section(tmp_path, [ROW, pruned, empty])
    assert "3 trials (1 finished, 1 pruned, 1 running) with 3 evaluations of &lt;loss&gt;" in found
    assert found.count("the best") == 1 and "&lt;b&gt;" in found and "<b>" not in found and "2 s" in found
    assert "by train.rate" in found and found.count("<figure>") == 4


def test_damaged_documents(tmp_path: Path) -> None:
    assert section(tmp_path, "x") == section(tmp_path, [1, {}, {**ROW, "curve": ["a"]}, {**ROW, "values": 3}]) == ""
    assert "1 trials" in section(tmp_path, [{**ROW, "value": float("nan"), "curve": []}])
