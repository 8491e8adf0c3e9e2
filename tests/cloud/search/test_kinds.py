"""Tables and forecasts: their data, networks and figures; boosted trees and the linear forecast beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score
from typer.testing import CliRunner

import converter
import lite_runtime
from cloud.engine import lower
from cloud.errors import SearchError
from cloud.search import Choice, Elastic, Space, Stage, graph, search
from cloud.search.data import Data, data_of
from cloud.search.finish import answers, figure_of, finished
from cloud.search.goal import CLASSES, Columns, Forecast, Values, told
from cloud.search.linear import linear
from cloud.search.networks import reference_of, space_of
from cloud.search.supernet import Supernet
from cloud.search.task import TEMPLATE, TrainTable, read
from cloud.search.trees import trees
from cloud.track import Store, lineage
from edge.cli.app import app
from edge.pages.front_page import front_page
from lite_runtime.graph import Array

DEVICE = "aarch64-dotprod"


def rows(count: int, seed: int) -> Array:
    """Columns of very different units."""
    draw = np.random.default_rng(seed)
    return (draw.standard_normal((count, 4)) * [1, 1000, 1e-3, 5] + [0, 5000, 0.5, 0]).astype(np.float32)


def table(value: bool, count: int = 300) -> Data:
    """Labels by steps in columns, which no linear model finds."""
    made = []
    for seed in range(3):
        x = rows(count, seed)
        corner = (x[:, 0] > 0) & (x[:, 1] > 5000)
        made.append((x, (100 * corner + 20 * (x[:, 3] > 0)).astype(np.float32) if value else corner.astype(np.int32)))
    x, y = made[0]
    goal = Values(float(y.mean()), float(y.std())) if value else CLASSES
    columns = Columns(tuple(map(float, x.mean(0))), tuple(map(float, x.std(0))))
    return Data(made[0], made[1], made[2], 1 if value else 2, "", goal, columns)


# -- what tables and forecasts are made of ----------------------------------------------------------------------------


def written(folder: Path, text: str, **arrays: Any) -> Path:
    np.savez(folder / "d.npz", **arrays)
    (folder / "t.toml").write_text(text)
    return folder / "t.toml"


FORECAST = '[task]\nkind = "forecast"\ndata = "d.npz"\nwindow = 8\nhorizon = 3\n'


def test_windows_are_in_one_part_and_one_recording_each(tmp_path: Path) -> None:
    x = np.stack([np.arange(400), 1000 + np.arange(400) % 7], axis=1)
    data = data_of(read(written(tmp_path, FORECAST + 'offsets = "o"\n', x=x, o=[0, 150, 390])))
    steps = {}
    for name in ("train", "validation", "test"):
        seen, after = getattr(data, name)
        assert seen.shape[1:] == (2, 1, 8) and after.shape[1:] == (2, 3)
        whole = np.concatenate([seen[:, :, 0], after], axis=2)[:, 0].astype(int)
        assert (np.diff(whole, axis=1) == 1).all(), "one step after another"
        assert not ((whole[:, 0] < 150) & (whole[:, -1] >= 150)).any(), "a window across two recordings"
        steps[name] = set(whole.ravel())
    assert max(steps["train"]) < min(steps["validation"]) and max(steps["validation"]) < min(steps["test"])
    assert max(steps["test"]) == 389 and data.outputs == 2 * 3
    grouped = data_of(read(written(
        tmp_path, FORECAST + 'offsets = "o"\ngroup = "who"\n', x=x, o=np.arange(0, 401, 40), who=np.arange(10) // 2
    )))  # fmt: skip
    people = [
        set((part[0][:, 0, 0, 0] // 80).astype(int)) for part in (grouped.train, grouped.validation, grouped.test)
    ]
    assert sum(map(len, people)) == len(set.union(*people)) == 5


def test_the_better_naive_forecast_is_the_measure(tmp_path: Path) -> None:
    wave = np.tile([0.0, 3, 5, 1], 100) + np.random.default_rng(0).normal(0, 0.1, 400)
    data = data_of(read(written(tmp_path, FORECAST + "season = 4\n", x=wave)))
    goal = data.goal
    assert isinstance(goal, Forecast) and goal.repeated == 4
    assert data.naive["last season"] < 0.2 < data.naive["last value"]
    assert goal.value(goal.naive(data.test[0], 4), data.test) == pytest.approx(0)
    assert goal.value(data.test[1], data.test) == 1
    assert told("skill", 0.75) == "RMSE 0.5000 of naive"


def test_the_figure_of_numbers_is_r2() -> None:
    goal, draw = Values(3.0, 2.0), np.random.default_rng(0)
    y = draw.normal(3, 2, 50).astype(np.float32)
    guess = y + draw.normal(0, 1, 50).astype(np.float32)
    value = goal.value(guess, (y, y))
    assert value == pytest.approx(r2_score(y, guess), abs=1e-6)
    assert goal.facts(value, (y, y))["rmse"] == pytest.approx(np.sqrt(((guess - y) ** 2).mean()), rel=1e-5)


TABLE = '[task]\nkind = "table"\ndata = "d.npz"\n'


@pytest.mark.parametrize(
    ("text", "change", "words"),
    [
        (TABLE + "window = 8\n", {}, "task.window: is for task.kind forecast, got 'table'"),
        (TABLE + "scale = 2.0\n", {}, "task.scale"),
        (TABLE + "[space]\nshrinks = [1]\n", {}, "space.shrinks"),
        (TABLE + "[space]\nstages = [{ widths = [4], kernels = [3] }]\n", {}, "neither kernels nor shrinks"),
        (TABLE + "[reference]\nnetwork = 'resnet8'\n", {}, "expected largest or an .onnx"),
        (TABLE, {"x": np.zeros((200, 1, 2))}, r"\(examples, columns\), got float64\[200, 1, 2\]"),
        (TABLE, {"x": np.full((200, 2), np.nan)}, "example 0 is not finite"),
        (TABLE, {"y": np.full(200, np.inf)}, "number 0 is not finite"),
        (TABLE, {"y": np.ones(200)}, "the same"),
        (TABLE, {"y": np.full(200, -1)}, "from -1"),
        (FORECAST + 'y = "y"\n', {}, "task.y: is for"),
        (FORECAST + "[train]\naugment = true\n", {}, "train.augment"),
        (FORECAST + "season = 9\n", {}, "task.season"),
        (FORECAST + 'offsets = "y"\n', {}, "rising places"),
        (FORECAST, {"x": np.zeros((2, 2, 200))}, r"\(steps,\) or \(steps, channels\)"),
        (FORECAST, {"x": np.zeros(30)}, "expected at least 20 examples"),
        (FORECAST, {"x": np.r_[np.zeros(300), np.nan]}, "step 300 is not finite"),
        ('[task]\nkind = "image"\ndata = "d.npz"\n[search]\nplain = true\n', {}, "search.plain"),
    ],
)
def test_what_does_not_fit_a_kind_is_refused(tmp_path: Path, text: str, change: dict[str, Any], words: str) -> None:
    arrays = {"x": np.random.default_rng(0).random((200, 2)), "y": np.arange(200) % 2, **change}
    file = read_or_none(written(tmp_path, text, **arrays), words)
    if file is not None:
        with pytest.raises(SearchError, match=words):
            reference_of(file, data_of(file))


def read_or_none(path: Path, words: str) -> Any:
    try:
        return read(path)
    except SearchError as error:
        assert words in str(error), error
        return None


def test_the_template_reads(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text(TEMPLATE)
    assert read(tmp_path / "t.toml").words.search.plain
    (tmp_path / "t.toml").write_text(
        TEMPLATE.replace("series", "forecast").replace("# window", "window").replace("\ny =", "\n# y =")
    )
    assert read(tmp_path / "t.toml").words.task.kind == "forecast"


# -- networks ---------------------------------------------------------------------------------------------------------

DENSE = (Elastic((4, 8), (1,), (1,)), Elastic((4, 8), (1, 2), (1,)))


@pytest.mark.parametrize("kind", ["table", "forecast"])
def test_a_network_of_a_supernet_computes_what_it_does(kind: str) -> None:
    if kind == "table":
        data = table(value=True, count=60)
        space = Space((4,), 1, DENSE, (1,), (1, 2), data.goal, data.columns)
        choice = Choice(1, (Stage(4, 1, 1), Stage(8, 2, 1)))
    else:
        data = forecast_data()
        space = Space((2, 1, 8), 6, (Elastic((4, 8), (1,), (3, 5)),) * 2, (1, 2), (1, 2), data.goal)
        choice = Choice(2, (Stage(4, 1, 3), Stage(8, 1, 5)))
    net = Supernet(space, data, steps=0, batch=16, rate=1e-2, seed=0, augment=None)
    for one in (choice, space.smallest):
        alone = lower(net.network(one))
        made = np.asarray(alone.apply(alone.params, alone.state, {"x": data.validation[0]})[0][space.goal.output])
        assert made.shape == data.validation[1].shape
        assert data.goal.value(made, data.validation) == pytest.approx(net.accuracy(one), rel=1e-3), one.text
    assert choice.text == ("4 8x2" if kind == "table" else "/2 4k3 8k5")


def test_columns_of_different_units_survive_quantising() -> None:
    data = table(value=True)
    space = Space((4,), 1, DENSE, (1,), (2,), data.goal, data.columns)
    choice = space.largest
    source, given = finished(graph(space, choice), data, choice, TrainTable(), 0)
    plain = answers(converter.convert(graph(space, choice)).bundle, data.test[0])
    made = answers(converter.convert(source, **given).bundle, data.test[0])
    assert np.abs(made - plain).max() < 0.05 * (plain.max() - plain.min())
    assert given["quantize"].mode == "int8"


# -- plain models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "limit", "least"), [(False, 1600, 0.95), (True, 3000, 0.85)])
def test_trees_find_what_no_line_does(value: bool, limit: int, least: float) -> None:
    data = table(value, count=200)
    asked: list[int] = []

    def fits(model: Any) -> bool:
        asked.append(len(converter.convert(model.clone()).bundle))
        return asked[-1] < limit

    found = dict(trees(data, fits, lambda: False))
    assert [name.split(",")[0][-1] for name in found] == ["1", "2", "3", "4", "6"]
    bundles = [converter.convert(model).bundle for model in found.values()]
    assert max(map(len, bundles)) < limit <= max(asked), "fewer rounds where the best number does not fit"
    assert max(figure_of(bundle, data, data.test) for bundle in bundles) > least


def test_trees_of_series_read_the_series_itself() -> None:
    draw, parts = np.random.default_rng(0), []
    for _ in range(3):
        y = (np.arange(90) % 3).astype(np.int32)
        parts.append(((draw.standard_normal((90, 2, 1, 16)) * (1 + y[:, None, None, None])).astype(np.float32), y))
    data = Data(parts[0], parts[1], parts[2], 3, "")
    name, model = next(trees(data, lambda _: True, lambda: True))
    loaded = lite_runtime.load(converter.convert(model).bundle)
    assert loaded.run({"x": parts[2][0][:5]})["logits"].shape == (5, 3)
    assert figure_of(converter.convert(model).bundle, data, data.test) > 0.6 and "depth 1" in name


def forecast_data() -> Data:
    """Two channels of a second-order recursion, at levels that differ from part to part."""
    x = np.zeros((900, 2))
    for t in range(2, 900):
        x[t] = 1.8 * x[t - 1] - 0.95 * x[t - 2] + np.random.default_rng(t).normal(0, 0.01, 2)
    x = x * [1, 50] + np.repeat([[0.0], [5], [9]], 300, axis=0)
    parts = []
    for begin in (0, 300, 600):
        at = np.arange(begin, begin + 280)[:, None] + np.arange(11)
        both = x[at].transpose(0, 2, 1).astype(np.float32)
        parts.append((both[:, :, None, :8], both[:, :, 8:]))
    return Data(parts[0], parts[1], parts[2], 6, "", Forecast(3, tuple(map(float, x[:300].std(0)))))


def test_the_linear_forecast_finds_a_recursion() -> None:
    data = forecast_data()
    name, model = linear(data)
    assert name.startswith("linear") and figure_of(converter.convert(model).bundle, data, data.test) > 0.8
    x, y = data.test
    least = np.linalg.lstsq(
        *[(part - x[:, :, 0, -1:]).reshape(-1, part.shape[-1]) for part in (x[:, :, 0], y)], rcond=None
    )
    best = (x[:, :, 0] - x[:, :, 0, -1:]) @ least[0] + x[:, :, 0, -1:]
    assert figure_of(converter.convert(model).bundle, data, data.test) > data.goal.value(best, data.test) - 0.02


# -- whole searches ---------------------------------------------------------------------------------------------------

SHORT = """
[search]
steps = 6
batch = 16
population = 4
generations = 1
finalists = 1
[train]
epochs = 1
"""


def test_trees_are_the_result_where_no_network_meets_the_budget(tmp_path: Path) -> None:
    data = table(value=True, count=100)
    x, y = (np.concatenate([part[i] for part in (data.train, data.validation, data.test)]) for i in (0, 1))
    space = "[space]\nstages = [{ widths = [512] }]\n[budget]\nfile_bytes = 4000\n"
    path = written(tmp_path, TABLE + space + SHORT, x=x, y=y)
    told = CliRunner().invoke(
        app, ["search", str(path), "--device", DEVICE, "--json", "--runs", str(tmp_path / "r.sqlite")]
    )
    assert told.exit_code == 0, told.output
    body = json.loads(told.stdout)
    assert body["found"]["text"].startswith("boosted trees") and body["candidates"] == 0
    assert "no network meets the budget" in body["verdict"] and body["figure"] == "R²"
    with Store(tmp_path / "r.sqlite") as store:
        assert [link.kind for link in lineage(store, body["bundle"])] == ["data", "run", "onnx", "bundle"]
    held = lite_runtime.load(body["bundle"]).run({"x": x[:7]})["prediction"]
    assert held.shape == (7,)
    assert "plain model wins" in Path(body["page"]).read_text("utf-8")
    off = path.read_text().replace("[search]", "[search]\nplain = false\nfolder = 'off'")
    path.write_text(off)
    with pytest.raises(SearchError, match="no network of this space meets it"):
        search(path, DEVICE)


def test_a_forecast_is_searched_and_the_linear_one_said_openly(tmp_path: Path) -> None:
    wave = np.sin(np.arange(600) * 0.4) + np.random.default_rng(0).normal(0, 0.05, 600)
    space = "hop = 2\n[space]\nshrinks = [1]\nstages = [{ widths = [4, 8] }]\n"
    path = written(tmp_path, FORECAST + space + SHORT, x=wave)
    found = search(path, DEVICE)
    body = found.body
    assert body["found"]["text"].startswith("linear forecast") and len(body["finalists"]) == 1
    assert body["verdict"].startswith("a plain model wins") and body["naive"]["last value"] > 0
    assert body["found"]["facts"]["relative_rmse"] < 0.5
    data = data_of(read(path))
    assert figure_of(Path(found.bundle).read_bytes(), data, data.test) == pytest.approx(body["found"]["test"])
    assert space_of(read(path), data).goal == data.goal
    assert "naive forecasts" in front_page(body, "forecast")
