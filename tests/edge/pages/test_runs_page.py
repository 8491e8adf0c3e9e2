"""The page of runs shows the store's contents, also if parts are missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.track import Artifact, Histogram, Store
from edge.pages.charts import densities, shares
from edge.pages.runs_page import runs_page


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "runs.sqlite", create=True) as made:
        yield made


def filled(store: Store, name: str, **more: object) -> str:
    config = {"data": {"npz": "d.npz"}, "train": {"rate": 0.1, **more}}
    run = store.start(name=name, config=config, data="d" * 64, environment={"packages": {"numpy": "2.0"}}, seed=7)
    steps = [("step/loss", i, 0.0, 2.0 / i) for i in range(1, 1001)]
    epochs = [(n, 500 * e, 0.0, v * e) for e in (1, 2) for n, v in
              {"train/loss": 0.5, "validation/loss": 0.4375, "epoch": 1.0, "rate": 0.125, "time/step": 0.25,
               "time/data": 0.125, "time/other": 0.0625}.items()]  # fmt: skip
    store.add_scalars(run, steps + epochs)
    for step in (500, 1000):
        store.add_histogram(run, "weights/w", Histogram(step, (-1.0, 0.0, 1.0), (3, step), 0.0, step / 10))
    store.add_artifact(run, Artifact("onnx", "/m.onnx", "ab" * 32, 2048, 5.0))
    return run


def test_a_page_of_one_run(store: Store) -> None:
    run = filled(store, "one")
    store.add_event(run, "checkpoint", "step 500")
    store.describe(run, plan={"mesh": {"sizes": [2, 4]}, "ops": list(range(100))})
    page = runs_page(store, [store.run(run)])
    for words in (
        "Loss of each step", "Training loss", "Validation loss", "Learning rate", "0.875", "1000 steps", "500 ms",
        "w: norm 50 → 100", "step 500", "from outside", "made from 2", "/m.onnx", "2.0 KiB", "mesh.sizes", "2 4",
        "train.rate", "packages.numpy", "checkpoint",
    ):  # fmt: skip
        assert words in page, words
    assert "99" not in page.partition("<h2>Plan")[2].partition("<h2>")[0]
    first = page.partition('class="c0" points="')[2].partition('"')[0]
    assert len(first.split()) <= 250


def test_a_page_of_two_runs_tells_them_apart(store: Store) -> None:
    runs = [store.run(filled(store, "a")), store.run(filled(store, "b", batch=7))]
    page = runs_page(store, runs)
    assert "2 runs" in page and "Different settings" in page and "train.batch" in page and "common settings" in page
    assert page.count('class="c1" points') >= 4
    alike = runs_page(store, [runs[0], runs[0]])
    assert runs[0].id in alike


def test_names_are_escaped_and_little_is_enough(store: Store) -> None:
    run = store.start(name="<script>x</script>")
    store.end(run, "failed", "<b>bad</b>")
    page = runs_page(store, [store.run(run)])
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;bad" in page
    for absent in ("Curves", "Weights", "Lineage", "Where the time goes", "Plan"):
        assert f"<h2>{absent}" not in page


def test_no_page_reaches_for_the_network(store: Store) -> None:
    page = runs_page(store, [store.run(filled(store, "one"))])
    for word in ("http://", "https://", "<script", "src=", "@import", "url("):
        assert word not in page


def test_charts_without_data_are_empty() -> None:
    assert densities("t", {"a": ((0.0, 1.0), (0,))}) == "" == shares("t", {}) == shares("t", {"a": {"x": 0.0}})


def test_parts_of_a_bar_follow_each_other() -> None:
    drawn = shares("t", {"run": {"x": 1.0, "y": 3.0}})
    widths = [float(part.partition('"')[0]) for part in drawn.split('width="')[1:]]
    assert widths[1] == pytest.approx(3 * widths[0], rel=1e-2)
