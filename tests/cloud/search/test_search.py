"""Architecture search: spaces and their supernets, the cost of candidates, evolution, whole searches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import converter
import lite_runtime
from cloud.engine import lower
from cloud.errors import SearchError
from cloud.search import Choice, Cost, Elastic, Measured, Space, Stage, graph, oracle_of, search, space_for
from cloud.search.cost import program_of
from cloud.search.data import Data, data_of
from cloud.search.evolve import Candidate, beyond, evolve, front
from cloud.search.finish import finished
from cloud.search.study import Outcome
from cloud.search.supernet import Supernet
from cloud.search.task import TrainTable, read
from cloud.track import Store, lineage
from edge.cli.app import app
from edge.pages.front_page import front_page

SPACE = Space(
    (2, 1, 16), 3, (Elastic((4, 8), (1,), (3, 5)), Elastic((4, 8), (1, 2), (3, 5), (4, 8))), (1, 2), (1, 2)
)  # fmt: skip


def examples(count: int, seed: int) -> tuple[Any, Any]:
    """Waves of three frequencies in noise: [count, 2, 1, 16]."""
    draw = np.random.default_rng(seed)
    y = (np.arange(count) % 3).astype(np.int32)
    phase = draw.uniform(0, 6, (count, 2, 1, 1))
    x = np.sin(np.arange(16) * (0.4 + 0.7 * y[:, None, None, None]) + phase)
    x += 0.1 * draw.standard_normal(x.shape)
    return x.astype(np.float32), y


# -- spaces ------------------------------------------------------------------------------------------------------------


def test_choices_stay_in_their_space_and_survive_json() -> None:
    draw = np.random.default_rng(0)
    assert SPACE.size == 2 * (4 + 4 * 16)
    assert SPACE.has(SPACE.largest) and SPACE.has(SPACE.smallest)
    seen = set()
    for _ in range(200):
        one, other = SPACE.random(draw), SPACE.random(draw)
        for choice in (one, SPACE.mutated(one, draw), SPACE.crossed(one, other, draw)):
            assert SPACE.has(choice), choice
            assert Choice.of_data(json.loads(json.dumps(choice.as_data()))) == choice
            seen.add(choice)
        assert SPACE.mutated(one, draw) != one
    assert 0.8 * SPACE.size < len(seen) <= SPACE.size
    assert not SPACE.has(Choice(1, (Stage(5, 1, 3),)))


def test_a_space_that_contradicts_itself_is_refused() -> None:
    stage = Elastic((4,), (1,), (3,))
    for wrong, words in (
        ({"stages": (Elastic((8, 4), (1,), (3,)),)}, "rising values of width"),
        ({"stages": (Elastic((4,), (1,), (4,)),)}, "odd kernels"),
        ({"stages": (Elastic((4,), (1, 2), (3,)),)}, "stem"),
        ({"stages": (stage,) * 6}, "cannot be halved"),
        ({"stages": (stage,), "lengths": (2,)}, "lengths"),
        ({"stages": (Elastic((4,), (1,), (3,), (5,)),)}, "bits"),
    ):
        with pytest.raises(SearchError, match=words):
            Space((2, 1, 16), 3, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SearchError, match="image, sound, series, forecast, table"):
        space_for("video", (3, 32, 32), 10)


@pytest.fixture(scope="module")
def net() -> Supernet:
    train, held = examples(96, 0), examples(48, 1)
    made = Supernet(SPACE, Data(train, held, held, 3, ""), steps=24, batch=32, rate=1e-2, seed=0, augment=None)
    made.train()
    return made


def test_a_network_cut_from_the_supernet_computes_what_the_supernet_does(net: Supernet) -> None:
    x, y = net.data.validation
    for choice in (
        SPACE.largest,
        SPACE.smallest,
        Choice(1, (Stage(4, 1, 3), Stage(8, 1, 5))),
        Choice(2, (Stage(8, 1, 5), Stage(4, 2, 3))),
    ):
        alone = lower(net.network(choice))
        answers = np.asarray(alone.apply(alone.params, alone.state, {"x": x})[0]["logits"]).argmax(-1)
        assert (answers == y).mean() == pytest.approx(net.accuracy(choice), abs=1.5 / len(y)), choice.text
    with pytest.raises(SearchError, match="no choice of this space"):
        net.network(Choice(4, SPACE.smallest.stages))


def test_training_goes_on_from_what_was_saved(net: Supernet) -> None:
    fresh = Supernet(SPACE, net.data, steps=24, batch=32, rate=1e-2, seed=0, augment=None)
    fresh._gradients, fresh._apply = net._gradients, net._apply  # compiled already
    fresh.train(until=lambda: fresh.steps == 2)
    held = fresh.saved()
    fresh.train(until=lambda: fresh.steps == 4)
    again = Supernet(SPACE, net.data, steps=24, batch=32, rate=1e-2, seed=0, augment=None)
    again._gradients, again._apply = net._gradients, net._apply
    again.restore(held)
    again.train(until=lambda: again.steps == 4)
    assert {k: v.tobytes() for k, v in again.saved().items()} == {k: v.tobytes() for k, v in fresh.saved().items()}
    with pytest.raises(SearchError, match="another space"):
        again.restore({"steps": held["steps"]})


# -- cost --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Measured:
    try:
        return Measured(path=tmp_path / "steps.json")
    except SearchError as error:
        pytest.skip(str(error))


def test_the_table_adds_up_its_steps_and_interpolates_between_them(table: Measured) -> None:
    assert table.predicted([("gemm", 100, 10, 5)]) is None
    table.besides, table.steps = [1.0, 3.0, 2.0], {("gemm", 100, 10, 5): [4.0, 8.0, 6.0], ("gemm", 300, 10, 5): [18.0]}
    assert table.predicted([("gemm", 100, 10, 5), ("gemm", 300, 10, 5)]) == 2 + 6 + 18
    assert table.unknown == 0
    assert table.predicted([("gemm", 200, 10, 5)]) == pytest.approx(2 + 12, rel=0.1), "a power of the operations"
    assert table.unknown == 1
    assert table.predicted([("gemm", 400, 10, 5)]) is None, "nothing beyond what was measured"
    assert table.predicted([("pool", 200, 10, 5)]) is None


def test_interpolation_heeds_all_numbers_of_a_step_and_what_nearby_ones_differ(table: Measured) -> None:
    """Of a hundred products whose time has a part for their rows, small products with few weights are slow."""
    random = np.random.default_rng(0)

    def product() -> tuple[tuple[str, int, int, int], float]:
        rows, inner, columns = (int(2**x) for x in random.uniform([3, 3, 3], [9, 9, 7]))
        operations, weights = 2 * rows * inner * columns, inner * columns
        seconds = 1e-11 * operations + 5e-9 * rows + 3e-8
        return ("gemm", operations, rows * (inner + columns) + weights, weights), seconds

    table.besides, held = [0.0], [product() for _ in range(100)]
    table.steps = {step: [seconds * random.uniform(1, 1.1)] for step, seconds in held}
    asked = [(table.predicted([step]), seconds) for step, seconds in (product() for _ in range(60))]
    errors = [abs(found / seconds - 1) for found, seconds in asked if found is not None]
    assert len(errors) > 50
    assert np.median(errors) < 0.15 and max(errors) < 1


def test_a_network_is_measured_once_and_the_table_kept(table: Measured, monkeypatch: pytest.MonkeyPatch) -> None:
    first = table.cost(SPACE, SPACE.smallest)
    _, _, steps = program_of(_bundle(SPACE.smallest))
    assert 0 < first.seconds < 1 and set(steps) <= set(table.steps)
    table.save()
    again = Measured(path=table.path)
    monkeypatch.setattr(Measured, "learn", lambda *_: pytest.fail("measured again"))
    assert again.cost(SPACE, SPACE.smallest) == first
    assert table.path is not None
    table.path.write_text(table.path.read_text().replace('"kernels": "', '"kernels": "other '))
    assert Measured(path=table.path).steps == {}


@pytest.mark.parametrize(
    "row", [["gemm", 1, 2, 3.0], ["gemm", 1], ["gemm", 1, 2, "x", 1.0], 3, ["gemm", 1, 2, 3], ["gemm", -5, 2, 3, 1.0],
            ["gemm", 1, 2, 3, -1.0]]
)  # fmt: skip
def test_a_table_with_rows_of_another_form_is_measured_anew(table: Measured, row: object) -> None:
    assert table.path is not None
    table.steps, table.besides = {("gemm", 1, 2, 3): [1e-6]}, [1e-6]
    table.save()
    held = json.loads(table.path.read_bytes())
    assert Measured(path=table.path).steps == table.steps
    table.path.write_text(json.dumps({**held, "steps": [*held["steps"], row]}))
    assert Measured(path=table.path).steps == {}


def _bundle(choice: Choice) -> bytes:
    from cloud.search.cost import bundle_of, floats_of

    return bundle_of(graph(SPACE, choice), floats_of(choice))


def test_targets_are_estimated_by_their_instructions() -> None:
    dots, plain = oracle_of("aarch64-dotprod"), oracle_of("aarch64")
    wide = Choice(1, (Stage(8, 1, 5), Stage(8, 2, 5)))
    assert dots.cost(SPACE, wide).seconds < plain.cost(SPACE, wide).seconds
    assert dots.cost(SPACE, SPACE.smallest).seconds < dots.cost(SPACE, wide).seconds
    narrow = Choice(1, (Stage(8, 1, 5), Stage(8, 2, 5, 4)))
    assert dots.cost(SPACE, wide).file_bytes - dots.cost(SPACE, narrow).file_bytes == 2 * 8 * 8 * 5 // 2
    with pytest.raises(SearchError, match="aarch64-dotprod"):
        oracle_of("pentium")


# -- evolution ---------------------------------------------------------------------------------------------------------


def _pretended(choice: Choice) -> Candidate:
    """Wider is better and slower, a kernel of 5 in the stem is better and free."""
    widths = sum(s.width * s.depth for s in choice.stages)
    return Candidate(choice, widths / 100 + (choice.stages[0].kernel == 5) / 10, Cost(widths * 1e-6, widths, 1))


def test_evolution_finds_the_front_within_the_limits() -> None:
    limits = {"seconds": 12e-6}
    asked: list[Choice] = []

    def evaluate(choice: Choice) -> Candidate:
        asked.append(choice)
        return _pretended(choice)

    found = evolve(SPACE, evaluate, limits, population=8, generations=6, seed=0)
    assert len(set(asked)) == len(asked) == len(found)
    best = max((c for c in found if not beyond(c.cost, limits)), key=lambda c: c.accuracy)
    assert best.accuracy == pytest.approx(0.22) and best in front(found, limits)
    assert evolve(SPACE, _pretended, limits, population=8, generations=6, seed=0) == found
    assert len(evolve(SPACE, _pretended, limits, population=8, generations=6, seed=0, stop=lambda: len(asked) > 0)) == 0
    assert beyond(Cost(24e-6, 1, 1), limits) == {"seconds": pytest.approx(2.0)}


def test_stages_get_the_bits_of_their_choice(net: Supernet) -> None:
    space = Space((2, 1, 16), 3, (Elastic((8,), (1,), (5,), (8, 32)), Elastic((8,), (1,), (5,), (4, 8, 32))), (1,))
    said, sizes, kernels = TrainTable(epochs=1), {}, {}
    for stem, other in ((8, 8), (8, 4), (32, 8), (32, 32)):
        choice = Choice(1, (Stage(8, 1, 5, stem), Stage(8, 1, 5, other)))
        source, given = finished(graph(space, choice), net.data, choice, said, 0)
        bundle = converter.convert(source, **given).bundle
        sizes[stem, other] = len(bundle)
        kernels[stem, other] = [node.op for node in lite_runtime.load(bundle).bundle.at_first("predict").nodes]
    assert kernels[8, 8].count("QLinearConv") == kernels[8, 4].count("QLinearConv") == 2
    assert kernels[32, 8].count("QLinearConv") == 1 and kernels[32, 8].count("Conv") == 1
    assert kernels[32, 32].count("QLinearConv") == 0 and kernels[32, 32].count("Conv") == 2
    assert sizes[8, 4] < sizes[8, 8]


# -- whole searches ----------------------------------------------------------------------------------------------------

FILE = """
[task]
kind = "series"
data = "d.npz"
group = "who"
validation_share = 0.3
[reference]
network = "window_cnn"
[budget]
share = {share}
[space]
shrinks = [1]
stages = [{{ widths = [4, 8], kernels = [3, 5] }}, {{ widths = [8] }}]
[search]
steps = 30
batch = 16
population = 4
generations = 1
finalists = 1
bits = [8]
{more}
[train]
epochs = 2
batch = 64
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("search")
    x, y = examples(200, 3)
    np.savez(made / "d.npz", x=x, y=y, who=np.arange(200) // 20)
    (made / "t.toml").write_text(FILE.format(share=0.9, more=""))
    return made


def test_groups_are_in_one_part_each(folder: Path) -> None:
    data = data_of(read(folder / "t.toml"))
    assert [len(part[1]) for part in (data.train, data.validation, data.test)] == [120, 40, 40]
    assert data.outputs == 3 and data.shape == (2, 1, 16)
    assert abs(data.train[0].mean()) < 1e-3


DEVICE = "aarch64-dotprod"


@pytest.fixture(scope="module")
def searched(folder: Path) -> Outcome:
    """A search to its end, in `folder / "search"`, and as it was when evolution began in `folder / "half"`."""

    def keep_a_copy(text: str) -> None:
        if text.startswith("evolution"):
            shutil.copytree(folder / "search", folder / "half", ignore=shutil.ignore_patterns("*.lock"))

    return search(folder / "t.toml", DEVICE, say=keep_a_copy)


def test_an_interrupted_search_ends_with_the_same_bundle(folder: Path, searched: Outcome) -> None:
    device, other = DEVICE, searched
    with pytest.raises(SearchError, match="--resume"):
        search(folder / "t.toml", device)
    with pytest.raises(SearchError, match="another device"):
        search(folder / "t.toml", "aarch64", resume=True)
    (folder / "u.toml").write_text(FILE.format(share=0.9, more='folder = "half"'))
    ran = CliRunner().invoke(
        app, ["search", str(folder / "u.toml"), "--device", device, "--resume", "--json", "--runs",
              str(folder / "r.sqlite")]
    )  # fmt: skip
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert Path(told["bundle"]).read_bytes() == Path(other.bundle).read_bytes()
    assert told["found"]["cost"]["seconds"] <= 0.9 * told["reference"]["cost"]["seconds"]
    with Store(folder / "r.sqlite") as store:
        assert [link.kind for link in lineage(store, told["bundle"])] == ["data", "run", "onnx", "bundle"]
    x, _ = examples(3, 4)
    assert lite_runtime.load(told["bundle"]).run({"x": x})["logits"].shape == (3, 3)
    page = Path(told["page"]).read_text("utf-8")
    assert page.count("<circle") >= 3 * told["candidates"] and "budget" in page and "window_cnn" in page
    assert front_page(other.body, "a <b>").count("a &lt;b&gt;") >= 1


@pytest.mark.usefixtures("searched")
def test_budgets_that_nothing_meets_say_how_near_and_what_binds(folder: Path) -> None:
    held = json.loads((folder / "search" / "search.json").read_bytes())
    tight = folder / "tight"
    tight.mkdir()
    source = {**held["file"], "budget": {"share": 0.05}}
    kept = {key: held[key] for key in ("device", "data", "reference")}
    (tight / "search.json").write_text(json.dumps({**kept, "file": source, "seconds": 0.0}))
    (tight / "reference.onnx").write_bytes((folder / "search" / "reference.onnx").read_bytes())
    (folder / "v.toml").write_text(FILE.format(share=0.05, more='folder = "tight"'))
    with pytest.raises(SearchError, match=r"the nearest, /1 4k3 8k3, has .* µs of latency, .* times the budget"):
        search(folder / "v.toml", held["device"], resume=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[task]", "[task]\ncolour = 1"), "colour"),
        (('"d.npz"', '"none.npz"'), "none.npz"),
        (('group = "who"', 'group = "whom"'), "whom"),
        (('group = "who"', 'group = "x"'), "task.group"),
        (('"window_cnn"', '"alexnet"'), "ds_cnn"),
        (("share = 0.9", "share = 2.0"), "share"),
        (("validation_share = 0.3", 'y_test = "y"\nvalidation_share = 0.3'), "task.x_test"),
        (('data = "d.npz"', 'data = "d.npz"\nx = "y"'), "task.x"),
        (('data = "d.npz"', 'data = "d.npz"\ny = "x"'), "task.y"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(folder: Path, change: tuple[str, str], words: str) -> None:
    text = FILE.format(share=0.9, more='folder = "wrong"')
    assert change[0] in text
    (folder / "w.toml").write_text(text.replace(*change))
    with pytest.raises(SearchError, match=words):
        search(folder / "w.toml", "aarch64")
