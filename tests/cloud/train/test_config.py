"""Training configurations: every key checked, each error with its key; data is converted to the right shape."""

from __future__ import annotations

import dataclasses
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import numpy as np
import pytest

from cloud.data import write_records
from cloud.errors import DataError, TrainError
from cloud.track import Store
from cloud.track.tracked import Tracked
from cloud.train import Swa
from cloud.train.jobs import config as words
from cloud.train.jobs.config import Config, Train, parse, read, read_size
from cloud.train.jobs.job import job_of
from cloud.train.jobs.made import OPTIMIZERS, Rates, optimizer_of, rate_of
from cloud.train.jobs.sections import overridden
from cloud.train.jobs.settings import Group, Head, Schedule
from cloud.train.jobs.sources import examples_of, model_of
from cloud.train.jobs.template import TEMPLATE
from cloud.train.jobs.varied import AdversarialKeys, DistillKeys, LoraKeys, PruneKeys
from cloud.train.stepping.schedules import SCHEDULES, WARMUPS, Shape

TABLES = {("train", "lora"): LoraKeys, ("train", "distill"): DistillKeys, ("train", "prune"): PruneKeys,
          ("train", "adversarial"): AdversarialKeys}  # fmt: skip
LEAST: dict[str, Any] = {"model": {"zoo": "mlp", "options": {"features": 4, "outputs": 3}}, "data": {"npz": "d.npz"}}


def test_the_template_names_the_keys_of_tables_in_tables() -> None:
    for table in (Group, Head):
        for field in msgspec.structs.fields(table):
            assert re.search(rf"\b{field.name}\b", TEMPLATE.partition("groups = []")[2]), field.name


def test_every_schedule_and_warm_up_has_its_name() -> None:
    hints = get_type_hints(Train)
    assert set(get_args(hints["schedule"])) == {*SCHEDULES} and set(get_args(hints["rises"])) == {*WARMUPS}
    assert {f.name for f in msgspec.structs.fields(Schedule)} == {f.name for f in dataclasses.fields(Shape)}
    for field in dataclasses.fields(Shape):
        assert getattr(Schedule(), field.name) == field.default


def test_the_template_is_a_run_and_shows_every_default() -> None:
    assert isinstance(parse(tomllib.loads(TEMPLATE)), Config)
    lines = [re.sub(r"^# (?=[a-z_]+ = |\[train\.|\[tune\])", "", line) for line in TEMPLATE.splitlines()]
    shown = tomllib.loads("\n".join(lines))
    for section in msgspec.structs.fields(words._File):
        kind = next(iter(get_args(section.type)), section.type)
        name, fields = section.name, {f.name: f for f in msgspec.structs.fields(kind)}
        keys = set(shown[name])
        if name == "data":
            keys |= {"options"}  # described in words: its table would need a function
        assert keys == set(fields)
        for key, value in shown[name].items():
            field = fields[key]
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            if (name, key) not in {
                ("model", "zoo"),
                ("model", "options"),
                ("data", "builtin"),
                ("train", "epochs"),
                ("parallel", "compiled"),  # by default none, which TOML has no word for
                *TABLES,
            }:
                assert value == (list(default) if isinstance(default, tuple) else default), (name, key)


@pytest.mark.parametrize("where", TABLES)
def test_the_template_shows_tables_within_train(where: tuple[str, str]) -> None:
    lines = [re.sub(r"^# (?=[a-z_]+ = |\[train\.)", "", line) for line in TEMPLATE.splitlines()]
    shown = tomllib.loads("\n".join(lines))[where[0]][where[1]]
    fields = {field.name: field for field in msgspec.structs.fields(TABLES[where])}
    apart = {"function", "options"} if where[1] == "distill" else set()  # described in words
    assert set(shown) == set(fields) - apart
    for name, value in shown.items():
        field = fields[name]
        if not field.required and name != "onnx":
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            assert value == (list(default) if isinstance(default, tuple) else default), name


def test_every_optimizer_has_its_row_and_trains() -> None:
    assert set(OPTIMIZERS) == set(get_args(get_type_hints(Train)["optimizer"]))
    params = {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}
    for name in OPTIMIZERS:
        said = Train(optimizer=name, rate=0.1, weight_decay=0.1)  # type: ignore[arg-type]
        optimizer = optimizer_of(said, rate_of(said, 10))
        updates, _ = optimizer.update({"w": params["w"], "b": params["b"] * 0}, optimizer.init(params), params)
        assert np.asarray(updates["w"]).sum() < 0 and not np.asarray(updates["b"]).any()  # down the slope of 1


@pytest.mark.parametrize("schedule, end", [("constant", 0.5), ("cosine", 0.0), ("linear", 0.0)])
def test_the_learning_rate_rises_and_ends(schedule: str, end: float) -> None:
    rate = rate_of(Train(rate=0.5, schedule=schedule, warmup=0.2), 100)  # type: ignore[arg-type]
    values = [float(rate(step)) for step in range(101)]
    assert values[0] == 0 and values[20] == pytest.approx(0.5) and values[10] == pytest.approx(0.25)
    assert max(values) <= 0.5 + 1e-6 and values[100] == pytest.approx(end, abs=1e-6)
    with pytest.raises(TrainError, match=r"train\.schedule"):
        rate_of(Train(warmup=0.1), 0)


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"trian": {}}, r"\[trian\]: no such section; did you mean 'train'"),
        ({"train": 3}, r"train: expected a section"),
        ({"train": {"epoch": 3}}, r"train\.epoch: no such key; did you mean 'epochs'"),
        ({"train": {"epochs": "3"}}, r"train\.epochs: expected a whole number of at least 0, got '3'"),
        ({"train": {"epochs": True}}, r"train\.epochs: expected a whole number"),
        ({"train": {"epochs": 0}}, r"train\.epochs: expected at least 1, or 0 together with train\.steps"),
        ({"train": {"steps": -1}}, r"train\.steps: expected a whole number of at least 0, got -1"),
        ({"train": {"rate": "fast"}}, r"train\.rate: expected a number"),
        ({"train": {"rate": float("inf")}}, r"train\.rate"),
        ({"train": {"rate": float("nan")}}, r"train\.rate"),
        ({"train": {"optimizer": "adma"}}, r"train\.optimizer: expected 'adam' or"),
        ({"train": {"metrics": "accuracy"}}, r"train\.metrics: expected a list of texts"),
        ({"train": {"smoothing": 0.1, "loss": "mean_squared_error"}}, r"train\.smoothing"),
        ({"model": {}}, r"\[model\]: expected one of the keys zoo, onnx, function, got 'none of them'"),
        ({"model": {"zoo": "mlp", "onnx": "m.onnx"}}, r"\[model\].*'zoo, onnx'"),
        ({"data": {"npz": "a", "text": "b"}}, r"\[data\]"),
        ({"data": {"npz": "a", "validation": 1.0}}, r"data\.validation"),
        ({"data": {"npz": "a", "inputs": {"x": 3}}}, r"data\.inputs"),
        ({"data": {"npz": "a", "validation_labels": "y"}}, r"data\.validation_labels"),
        ({"data": {"records": "a", "validation_labels": "y"}}, r"none without data\.npz"),
        ({"train": {"class_weights": "even"}}, r"train\.class_weights: expected a list, .* or 'balanced', got 'even'"),
        ({"train": {"focus": 2, "loss": "huber"}}, r"focus: expected none but with a cross-entropy, got 'huber'"),
        ({"train": {"heads": {"a": {}}, "smoothing": 0.1}}, r"train\.smoothing: expected 0.0 with heads, got 0\.1"),
        ({"train": {"heads": {"a": {"wieght": 1}}}}, r"train\.heads\.a\.wieght: no such key; did you mean 'weight'"),
        ({"train": {"groups": [{"match": []}]}}, r"train\.groups\.match: expected at least one pattern"),
        ({"train": {"groups": [{"rate": 2.0}]}}, r"train\.groups\[0\]\.match: expected a list of texts, got none"),
        ({"train": {"layers": ["a"]}}, r"train\.layers: expected none without train\.layer_decay"),
        ({"train": {"swa_every": 3}}, r"train\.swa_every and swa_batches: expected 0 without train\.swa"),
        ({"train": {"swa": 0.5, "average": 0.9}}, r"train\.swa: expected 0 together with train\.average"),
        ({"train": {"rises": "cosine"}}, r"train\.rises: expected linear without train\.warmup"),
        ({"train": {"evaluate_steps": 5, "evaluate_share": 0.5}}, r"train\.evaluate_share: expected 0 together"),
        ({"schedule": {"power": 3.0}}, r"schedule\.power: expected 2\.0 with train\.schedule = 'constant', which"),
        ({"stopping": {"metric": "loss", "min_delta": 0.1}}, r"stopping\.min_delta: expected 0\.0 without patience"),
        ({"plateau": {"factor": 0.0}}, r"plateau\.factor: expected a share above 0"),
        ({"freezing": {"kind": "gradual", "share": 0.5}}, r"freezing\.share: expected 0\.33 with kind = 'gradual'"),
        ({"data": {"function": "a:b", "weights": "w"}}, r"data\.weights and labels .*: expected none without npz"),
        ({"track": {"keep": False, "wandb": "p"}}, r"track\.keep: expected true"),
        ({"track": {"experiment": "e"}}, r"track\.experiment: expected none without track\.mlflow"),
        ({"track": {"profile": -1}}, r"track\.profile"),
        ({"parallel": {"memory": "much"}}, r"parallel\.memory: expected bytes"),
        ({"parallel": {"mode": "magic"}}, r"parallel\.mode"),
        ({"parallel": {"compress": "int8"}}, r"parallel\.compress: expected \"\", or mode = \"data\""),
        ({"parallel": {"mode": "data", "compress": "zip"}}, r"int8:BLOCK, powersgd"),
        ({"parallel": {"mode": "data", "compiled": 4}}, r"parallel\.compiled: expected 0, or mode = \"auto\""),
    ],
)
def test_mistakes_are_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(TrainError, match=expected):
        parse({**LEAST, **changes})


@pytest.mark.parametrize("missing", ["model", "data"])
def test_needed_sections(missing: str) -> None:
    with pytest.raises(TrainError, match=rf"\[{missing}\]: expected this section"):
        parse({name: table for name, table in LEAST.items() if name != missing})


@pytest.mark.parametrize(
    "train, epochs", [({}, 10), ({"steps": 7}, 0), ({"steps": 7, "epochs": 3}, 3), ({"steps": 0, "epochs": 3}, 3)]
)
def test_steps_stand_alone_or_beside_epochs(train: dict[str, int], epochs: int) -> None:
    assert parse({**LEAST, "train": train}).train.epochs == epochs


def test_changes_from_the_command_line() -> None:
    made = overridden(LEAST, ["train.rate=0.5", "train.optimizer=sgd", "model.options.outputs=7", "train.metrics=[]"])
    assert made["train"] == {"rate": 0.5, "optimizer": "sgd", "metrics": []}
    assert made["model"]["options"] == {"features": 4, "outputs": 7}
    assert LEAST["model"]["options"]["outputs"] == 3
    for wrong in ("train", "train=3", "rate", ".rate=1", "train.=1"):
        with pytest.raises(TrainError, match=r"SECTION\.KEY=VALUE"):
            overridden(LEAST, [wrong])
    with pytest.raises(TrainError, match=r"model\.zoo: expected a table for 'model.zoo.x=1' to change, got 'mlp'"):
        overridden(LEAST, ["model.zoo.x=1"])


@pytest.mark.parametrize(
    "text, size", [("16GiB", 2.0**34), ("512 MB", 2.0**29), ("1e9", 1e9), ("1.5K", 1536), ("7", 7)]
)
def test_sizes(text: str, size: float) -> None:
    assert read_size(text, "key") == size


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1.2.3M", "0", "1e99", "16 XB"])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(TrainError, match="key: expected bytes"):
        read_size(text, "key")


def test_files_that_are_not_configurations(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="msedge train --template"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[model\n")
    with pytest.raises(TrainError, match="expected TOML"):
        read(tmp_path / "bad.toml")


def made(folder: Path, model: dict[str, Any], data: dict[str, Any], **train: Any) -> tuple[Any, Any]:
    config = parse({"model": model, "data": data, "train": train}, folder)
    model_, _ = model_of(config)
    return model_, examples_of(config, model_)


RESNET = {"zoo": "resnet8", "options": {"input_shape": [1, 8, 8]}}


def test_arrays_come_in_the_models_shape_and_type(tmp_path: Path) -> None:
    x = np.arange(20 * 64, dtype=np.uint8).reshape(20, 8, 8)
    np.savez(tmp_path / "d.npz", img=x, y=np.arange(20, dtype=np.uint8) % 8, xt=x[:4], yt=np.arange(4))
    said = {"npz": "d.npz", "inputs": {"x": "img"}, "labels": "y", "scale": 2.0, "offset": -1.0}
    _, found = made(tmp_path, RESNET, {**said, "validation": 0.25})
    (inputs, labels), (held, held_labels) = found.train, found.validation
    assert inputs["x"].shape == (15, 1, 8, 8) and inputs["x"].dtype == np.float32 and labels.dtype == np.int32
    assert found.count == 15 and len(held["x"]) == len(held_labels) == 5 and len(found.digest) == 64
    for array, label in ((inputs["x"], labels), (held["x"], held_labels)):
        first = (array[:, 0, 0, 0] + 1) / 2 / 64 % 4  # identifies the example, in groups of four
        np.testing.assert_array_equal(first, label % 4)
    _, again = made(tmp_path, RESNET, {**said, "validation": 0.25})
    np.testing.assert_array_equal(again.train[1], labels)
    _, apart = made(tmp_path, RESNET, {**said, "validation_inputs": {"x": "xt"}, "validation_labels": "yt", "limit": 7})
    assert apart.count == 7 and apart.validation[0]["x"].shape == (4, 1, 8, 8)


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"labels": "yy"}, "has no array 'yy'; did you mean 'y'"),
        ({"inputs": {"x": "words"}}, "takes float32 for 'x', got <U1"),
        ({"inputs": {"x": "wide"}}, r"takes examples of 1×8×8 for 'x', got \(9, 9\)"),
        ({"npz": "none.npz"}, "cannot read"),
        ({"npz": "text.npz"}, r"cannot read .* as \.npz"),
        ({"npz": "half.npz"}, r"cannot read .* as \.npz"),
        ({"npz": "one.npy"}, r"as \.npz: expected arrays by name"),
        ({"labels": "more"}, "same number of examples in every array, at least one, got {'x': 4, 'labels': 5}"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    words, wide = np.array(list("abcd")), np.ones((4, 9, 9))
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 8, 8)), y=np.zeros(4), words=words, wide=wide, more=np.zeros(5))
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "half.npz").write_bytes((tmp_path / "d.npz").read_bytes()[:600])
    np.save(tmp_path / "one.npy", wide)
    with pytest.raises(Exception, match=expected):
        made(tmp_path, RESNET, {"npz": "d.npz", "labels": "y", **change})


def test_a_limit_draws_examples_from_the_whole_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((400, 4), np.float32), labels=np.repeat(np.arange(4), 100))
    _, found = made(tmp_path, LEAST["model"], {"npz": "d.npz", "limit": 80, "validation": 0.25})
    labels = np.concatenate([found.train[1], found.validation[1]])
    assert found.count == 60 and len(labels) == 80 and np.bincount(labels).min() > 8
    _, again = made(tmp_path, LEAST["model"], {"npz": "d.npz", "limit": 80, "validation": 0.25})
    np.testing.assert_array_equal(again.train[1], found.train[1])


def all_of(pipeline: Any) -> tuple[Any, Any]:
    batches = [(b["x"][m], b["labels"][m]) for b in pipeline.batches(epoch=0) for m in [b["mask"] > 0]]
    x, labels = zip(*batches, strict=True)
    return np.concatenate(x), np.concatenate(labels)


def test_folders_of_images_are_read_while_training_goes_on(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for label in range(3):
        (tmp_path / "photos" / f"class{label}").mkdir(parents=True)
        for number in range(4):
            pixels = np.full((8, 10, 3), 60 * label + number, np.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / f"class{label}" / f"{number}.png")
    for shape in ([3, 4, 5], [1, 8, 10]):
        model = {"zoo": "resnet8", "options": {"input_shape": shape, "classes": 3, "filters": [2, 2]}}
        _, found = made(tmp_path, model, {"folder": "photos", "scale": 0.5, "validation": 0.25}, batch=2)
        (x, labels), (held, held_labels) = all_of(found.train), all_of(found.validation)
        assert x.shape == (9, *shape) and x.dtype == np.float32 and found.count == 9 and len(held) == 3
        both, names = np.concatenate([x, held]), np.concatenate([labels, held_labels])
        greys = [30 * label + number / 2 for label in range(3) for number in range(4)]
        np.testing.assert_array_equal(np.sort(both.mean((1, 2, 3))), greys)
        np.testing.assert_array_equal(both.mean((1, 2, 3)) // 30, names)
    with pytest.raises(TrainError, match=r"data\.folder: expected a model of images.*'x' takes \(4,\)"):
        made(tmp_path, LEAST["model"], {"folder": "photos"})
    with pytest.raises(DataError, match="no images in"):
        made(tmp_path, model, {"folder": "nowhere"})


def test_records_are_read_while_training_goes_on(tmp_path: Path) -> None:
    rows = [{"signal": np.full(4, n, np.int16), "y": n % 3} for n in range(20)]
    write_records(tmp_path / "d.records", rows)
    said = {"records": "d.records", "inputs": {"x": "signal"}, "labels": "y"}
    config = parse({"model": LEAST["model"], "data": said, "export": {"quantize": "int8"}}, tmp_path)
    found = examples_of(config, model_of(config)[0])
    (x, labels), (held, _) = all_of(found.train), all_of(found.validation)
    assert x.shape == (18, 4) and x.dtype == np.float32 and len(held) == 2
    assert found.sample is not None and found.sample["x"].shape == (18, 4)
    np.testing.assert_array_equal(x[:, 0] % 3, labels)
    assert not (x[:, 0] == np.sort(x[:, 0])).all() and len(found.digest) == 64
    with pytest.raises(TrainError, match=r"data\.inputs and data\.labels: 'd.records' has no 'labels'"):
        made(tmp_path, LEAST["model"], {"records": "d.records", "inputs": {"x": "signal"}})
    with pytest.raises(DataError, match="expected one written by write_records"):
        made(tmp_path, LEAST["model"], {"records": "none.records"})


def test_labels_outside_the_models_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4), np.float32), labels=np.arange(8))
    with pytest.raises(TrainError, match="expected labels from 0 to 2, as the model has 3 outputs; got 0 to 7"):
        job_of(parse({**LEAST, "data": {"npz": "d.npz", "validation": 0.0}}, tmp_path))


def test_text_is_windows_and_what_follows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(bytes(range(101)))
    model = {"zoo": "transformer", "options": {"length": 10, "width": 8, "layers": 1, "heads": 2}}
    _, found = made(tmp_path, model, {"text": "t.txt", "length": 10, "validation": 0.2})
    (inputs, labels), (held, _) = found.train, found.validation
    assert inputs["x"].shape == (8, 10) and inputs["x"].dtype == np.int32
    np.testing.assert_array_equal(labels, inputs["x"] + 1)
    assert held["x"].min() == 80
    with pytest.raises(TrainError, match="too few for windows of 200"):
        made(tmp_path, model, {"text": "t.txt", "length": 200})


HEADS = """
import jax.numpy as jnp
import numpy as np
from cloud.train import JaxTask
def heads():
    def apply(params, x):
        return {"kind": jnp.tanh(x @ params["front"]) @ params["kind"], "size": x @ params["size"]}
    sizes = {"front": 4, "kind": 3, "size": 1}
    return JaxTask(apply, {name: np.ones((4, n), np.float32) / 4 for name, n in sizes.items()})
"""

EVERYTHING = """
[model]
function = "MODULE:heads"

[data]
npz = "d.npz"
labels = { kind = "k", size = "s" }
weights = "w"
validation = 0.25

[train]
epochs = 12
batch = 16
rate = 0.05
schedule = "step"
optimizer = "adamw"
weight_decay = 0.1
decay = "all"
layer_decay = 0.5
layers = ["front", "kind"]
groups = [{ match = ["size"], rate = 0.1, optimizer = "sgd", weight_decay = 0.0 }]
swa = 0.5
evaluate_share = 0.5
accumulate = 2
precision = "bfloat16"

[train.heads.kind]
class_weights = "balanced"
smoothing = 0.1
metrics = ["f1_macro", "confusion"]

[train.heads.size]
loss = "huber"
weight = 0.5
metrics = ["r2"]

[schedule]
at = [0.5]

[stopping]
patience = 3
metric = "kind_f1_macro"
min_delta = 1.0

[plateau]
patience = 2
metric = "size_r2"
min_delta = 1.0

[freezing]
kind = "gradual"
layers = ["front", "kind"]

[checkpoint]
folder = "kept"
"""


def test_a_run_file_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it has the effect that it has in Python; and the record has the rate of every step."""
    monkeypatch.chdir(tmp_path)
    name = f"heads_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(HEADS)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype(np.float32)
    np.savez("d.npz", x=x, k=np.arange(64) % 8 % 3, s=x[:, :1], w=np.ones(64, np.float32))
    (tmp_path / "run.toml").write_text(EVERYTHING.replace("MODULE", name))
    job = job_of(read("run.toml"))
    run, said = job.trainer, job.trainer.objective.loss
    kinds = np.asarray(job.examples.train[1]["kind"])
    balanced = [len(kinds) / (3 * count) for count in np.bincount(kinds)]
    logits, size = np.zeros((2, 3), np.float32), np.zeros((2, 1), np.float32)
    labels = {"kind": np.array([0, 2]), "size": size + 3, "sample_weight": np.array([1.0, 2.0])}
    expected = (np.log(3) * np.array(balanced)[[0, 2]] + 0.5 * 2.5) * [1, 2]
    np.testing.assert_allclose(said({"kind": logits, "size": size}, labels), expected, rtol=1e-5)
    with Store("runs.sqlite", create=True):
        tracked = Tracked("runs.sqlite", rate=job.rate)
    run.watch(tracked)
    assert run.options.freeze == ("front",)
    reports = job.fit()
    with Store("runs.sqlite") as store:
        (recorded,) = store.runs()
        rates = store.scalars(recorded.id, "rate")
        assert rates.steps == tuple(range(1, run.steps_done + 1))
        assert rates.values[0] == pytest.approx(0.05) and min(rates.values) == pytest.approx(0.05 * run.pace)
        tested = store.scalars(recorded.id, "validation/size_r2")
        assert tested.steps[:3] == (2, 3, 5)
        text = " ".join(event.text for event in store.events(recorded.id))
    for part in (
        "0 of 2 layers are frozen now",
        "multiplied by 0.5",
        "stopped early: no better kind_f1_macro",
        "kind_conf",
    ):
        assert part in text
    assert run.pace < 1 and len(reports) < 12 and run.options.average == Swa(18, 3)
    assert run.checkpoints is not None and run.checkpoints.best == "kind_f1_macro"


def test_rates_of_many_steps_at_once() -> None:
    rate, steps = rate_of(Train(rate=0.5, schedule="linear"), 600), (0, 300, 255, 256, 599)
    rates = Rates(rate)
    assert [rates(step) for step in steps] == pytest.approx([float(rate(step)) for step in steps], rel=1e-4)


MODULE = """
import numpy as np
def model(): raise AssertionError("not asked for")
def pair(count=12): return np.ones((count, 4), np.float32), np.arange(count) % 3
def both(): return ({"x": np.ones((8, 4))}, np.zeros(8)), ({"x": np.ones((2, 4))}, np.zeros(2))
def wrong(): return 3
def fails(): raise KeyError("boo")
number = 3
"""


def test_functions_of_the_users(tmp_path: Path) -> None:
    name = f"users_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    mlp = LEAST["model"]
    _, found = made(tmp_path, mlp, {"function": f"{name}:pair", "options": {"count": 20}})
    assert found.count == 18 and found.train[0]["x"].shape == (18, 4) and found.validation[0]["x"].shape == (2, 4)
    _, found = made(tmp_path, mlp, {"function": f"{name}:both"})
    assert found.count == 8 and len(found.validation[1]) == 2
    for text, expected in {
        f"{name}:wrong": "got int",
        f"{name}:number": "expected a function 'number'",
        f"{name}:bot": "has no 'bot'; did you mean 'both'",
        f"{name}:fails": rf"data\.function: {name}:fails failed: KeyError: 'boo' \({name}\.py:7\)",
        "no_such_module_of_mine:f": "no module",
        "word": '"module:function"',
    }.items():
        with pytest.raises(TrainError, match=expected):
            made(tmp_path, mlp, {"function": text})
    with pytest.raises(TrainError, match=r"data\.options: .*pair takes count"):
        made(tmp_path, mlp, {"function": f"{name}:pair", "options": {"size": 1}})
    for wrong, expected in {"def f(:": "SyntaxError", "import not_there": "No module named 'not_there'"}.items():
        broken = f"broken_{len(wrong)}_{name}"
        (tmp_path / f"{broken}.py").write_text(wrong)
        with pytest.raises(TrainError, match=f"data.function: importing '{broken}' failed: .*{expected}"):
            made(tmp_path, mlp, {"function": f"{broken}:f"})
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    "tables, expected",
    [
        ({"export": {"onnx": "none/m.onnx"}}, r"export\.onnx: there is no folder"),
        ({"export": {"bundle": "."}}, r"export\.bundle: expected the name of a file"),
        ({"checkpoint": {"folder": "d.npz/kept"}}, r"checkpoint\.folder: expected a folder that can be written to"),
        ({"checkpoint": {"folder": "kept", "best": "f1"}}, r"checkpoint\.best: expected one of loss, accuracy, got"),
        ({"checkpoint": {"folder": "kept", "best": "loss"}}, r"checkpoint\.best: expected validation data"),
    ],
)
def test_errors_of_the_export_are_found_before_training(tmp_path: Path, tables: Any, expected: str) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((8, 4), np.float32), labels=np.arange(8) % 3)
    with pytest.raises(TrainError, match=expected):
        job_of(parse({**LEAST, "data": {"npz": "d.npz", "validation": 0.0}, **tables}, tmp_path))


@pytest.mark.parametrize(
    "model, expected",
    [
        ({"zoo": "resnet9"}, "no such model 'resnet9'; did you mean 'resnet8'"),
        ({"zoo": "mlp", "options": {"feature": 3}}, r"model\.options: .*mlp takes features"),
        ({"zoo": "mlp", "options": {"features": 4, "outputs": 3, "hidden": 5}}, r"options: mlp does not take these"),
        ({"zoo": "mlp", "options": {"features": 4, "outputs": 3, "hidden": [0]}}, r"options: mlp does not take these"),
        ({"onnx": "none.onnx"}, r"model\.onnx: cannot read"),
    ],
)
def test_invalid_models(tmp_path: Path, model: dict[str, Any], expected: str) -> None:
    with pytest.raises(TrainError, match=expected):
        model_of(parse({"model": model, "data": {"builtin": "digits"}}, tmp_path))
