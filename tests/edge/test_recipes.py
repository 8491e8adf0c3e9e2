"""The zoo's recipes: every file is one that trains, figures and losses are what they say, the page is its data's."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from benchmarks.recipes import losses, sets
from benchmarks.recipes.__main__ import main
from benchmarks.recipes.figures import figure_of
from benchmarks.recipes.measuring import HERE, digest, unchanged
from benchmarks.recipes.page import ORDER, page, read
from cloud import zoo
from cloud.train.jobs.config import read as read_config
from cloud.train.jobs.job import job_of
from cloud.train.jobs.sources import model_of
from cloud.zoo.build import parameter_count
from converter import convert
from tests.cloud.models import run_onnx

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def test_every_file_is_listed() -> None:
    assert sorted(ORDER) == sorted(path.stem for path in HERE.glob("*.toml"))
    built = {read_config(HERE / f"{name}.toml").model.zoo for name in ORDER}
    assert built | {"transformer"} == {name for name in zoo.__all__ if name.islower()}  # gpt is a transformer


def test_the_page_is_that_of_its_data() -> None:
    saved = read(ROOT / "docs" / "zoo.json")
    assert (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8") == page(saved)
    assert set(saved) == set(ORDER)
    assert all(each.row.same for each in saved.values())


def test_the_results_are_of_the_recipes_as_they_are() -> None:
    for name, each in read(ROOT / "docs" / "zoo.json").items():
        config = read_config(HERE / f"{name}.toml")
        model, _ = model_of(config)
        assert each.digest == digest(name), name
        assert (parameter_count(model), each.row.data) == (each.row.parameters, config.data.function[5:]), name


@pytest.mark.parametrize("augment", ["[]", '[{kind = "image", operation = "rotate", amount = 15.0, axes = "chw"}]'])
def test_int8_is_calibrated_with_rows_as_they_are(augment: str) -> None:
    config = read_config(HERE / "mobilenet_v2.toml", [f"data.augment={augment}"])
    job = job_of(config)
    assert isinstance(job.examples.train, tuple) is (augment == "[]")
    (x, _), _ = sets.digits()
    found = unchanged(config, job, job.trainer.export())
    assert list(found) == ["x"] and np.array_equal(found["x"], x)


def test_a_recipe_runs_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "results.json"
    assert main(["--only", "mlp", "--json", str(kept), "--bundles", str(tmp_path / "made")]) == 0
    first = json.loads(kept.read_text("utf-8"))["mlp"]["row"]
    assert first["cloud"] == first["float32"] > 0.9 and first["int8"] > 0.9 and first["examples"] == [426, 143]
    assert first["sizes"] == [(tmp_path / "made" / f"mlp.{kind}.mslite").stat().st_size for kind in ("float32", "int8")]
    changed = json.loads(kept.read_text("utf-8"))
    changed["mlp"]["row"]["seconds"] = 12345.0
    kept.write_text(json.dumps(changed), "utf-8")
    assert main(["--only", "mlp", "--json", str(kept)]) == 0  # not measured again
    assert "12345" in capsys.readouterr().out
    kept.write_text("[1]", "utf-8")
    assert main(["--only", "mlp", "--json", str(kept)]) == 3
    assert "expected results that benchmarks.recipes wrote" in capsys.readouterr().err


def test_data_that_is_missing_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "lenet5", "--data", str(tmp_path), "--json", str(tmp_path / "results.json")]) == 3
    assert "mnist.npz" in capsys.readouterr().err


BOXES = np.array([[[8, 8, 24, 28], [40, 36, 60, 60]], [[0, 0, 16, 16], [0, 0, 0, 0]]], np.float32)
KINDS = np.array([[1, 2], [0, -1]], np.int32)
LABELS = {"boxes": jnp.asarray(BOXES), "classes": jnp.asarray(KINDS)}


def cells() -> dict[str, jax.Array]:
    """Outputs of a detector with 8 x 8 cells that finds every object."""
    logits, boxes = np.full((2, 64, 3), -9.0, np.float32), np.zeros((2, 64, 4), np.float32)
    boxes[..., 2:] = 8
    for image, k in ((0, 0), (0, 1), (1, 0)):
        x, y = (BOXES[image, k, :2] + BOXES[image, k, 2:]) / 16
        logits[image, int(y) * 8 + int(x), KINDS[image, k]] = 9
        boxes[image, int(y) * 8 + int(x)] = BOXES[image, k]
    return {"logits": jnp.asarray(logits), "boxes": jnp.asarray(boxes)}


def test_the_detectors_loss_is_least_for_the_objects() -> None:
    right, lost = cells(), jax.jit(losses.found_cells)
    best = lost(right, LABELS)
    assert best.shape == (2,) and (best < 0.02).all()
    moved = right | {"boxes": right["boxes"] + 4}
    assert (lost(moved, LABELS) > best + 0.5).all()
    other = right | {"logits": jnp.roll(right["logits"], 1, axis=2)}
    assert (lost(other, LABELS) > best + 5).all()
    slopes = jax.jit(jax.grad(lambda outputs: losses.found_cells(outputs, LABELS).sum()))(moved)
    assert all(np.isfinite(slope).all() and np.any(slope) for slope in slopes.values())


def test_matched_objects_may_come_in_any_order() -> None:
    logits = np.full((2, 4, 4), -9.0, np.float32)
    logits[..., 3] = 9  # none
    boxes = np.full((2, 4, 4), 5.0, np.float32)
    for image, k, token in ((0, 0, 2), (0, 1, 0), (1, 0, 3)):
        logits[image, token] = np.where(np.arange(4) == KINDS[image, k], 9, -9)
        boxes[image, token] = BOXES[image, k]
    right = {"logits": jnp.asarray(logits), "boxes": jnp.asarray(boxes)}
    lost = jax.jit(losses.matched)
    best = lost(right, LABELS)
    assert best.shape == (2,) and (best < 1e-4).all()
    order = jnp.array([3, 1, 0, 2])
    np.testing.assert_allclose(lost({n: v[:, order] for n, v in right.items()}, LABELS), best, atol=1e-6)
    assert (lost(right | {"boxes": right["boxes"] + 6}, LABELS) > 0.5).all()
    slope = jax.jit(jax.grad(lambda outputs: losses.matched(outputs, LABELS).sum()))
    slopes = slope(right | {"boxes": right["boxes"] + 6})
    assert all(np.isfinite(slope).all() and np.any(slope) for slope in slopes.values())


def test_patches_have_the_class_of_the_box_that_they_are_in() -> None:
    seen = np.full((2, 8, 8), 3)  # none
    seen[0, 1:3, 1:3], seen[0, 5:7, 5:7], seen[1, :2, :2] = 1, 2, 0  # middles at 4, 12, 20, ... pixels
    found = {"logits": jnp.zeros((2, 4, 4)), "boxes": jnp.full((2, 4, 4), 5.0)}
    alone = losses.matched(found, LABELS)
    right = 20.0 * jnp.eye(4)[seen.reshape(2, 64)]
    np.testing.assert_allclose(losses.matched(found | {"patch_logits": right}, LABELS), alone, atol=1e-4)
    even = losses.matched(found | {"patch_logits": jnp.zeros((2, 64, 4))}, LABELS)
    np.testing.assert_allclose(even, alone + np.log(4), atol=1e-4)
    nothing = losses.matched(found | {"patch_logits": jnp.zeros((2, 64, 4)).at[..., 3].set(20.0)}, LABELS)
    shares = np.array([8 / (8 + 5.6), 4 / (4 + 6.0)])  # "none" weighs a tenth
    np.testing.assert_allclose(nothing, alone + 20 * shares, rtol=1e-4)


def test_pairs_with_the_same_label_do_not_count_against_each_other() -> None:
    vectors = jnp.eye(3)[jnp.array([0, 0, 1])]
    outputs = {"query_vector": vectors, "item_vector": vectors}
    assert (losses.paired(outputs, jnp.array([5, 5, 7])) < 1e-3).all()
    assert losses.paired(outputs, jnp.array([5, 6, 7]))[0] == pytest.approx(np.log(2), abs=1e-3)


def test_figures() -> None:
    found = {"boxes": BOXES, "scores": np.array([[0.9, 0.8], [0.7, 0.0]]), "classes": np.abs(KINDS)}
    labels = {"boxes": BOXES, "classes": KINDS}
    assert figure_of("yolo").of(found, labels) == 1
    assert figure_of("yolos").of(found | {"boxes": BOXES + 30}, labels) == 0
    logits = np.array([[[[1.0, 1], [-1, -1]]]])
    assert figure_of("unet").of({"logits": logits}, np.array([[[[1, 0], [1, 0]]]])) == pytest.approx(1 / 3)
    x = np.zeros((4, 2), np.float32)
    clips = {"x": x, "odd": np.array([0, 0, 1, 1.0]), "clip": np.array([0, 0, 1, 1.0])}
    rebuilt = np.array([[1, 1], [0, 0], [0, 0], [2, 2]], np.float32)  # the second recording is worse on average
    assert figure_of("autoencoder").of({"reconstruction": rebuilt}, clips) == 1
    labels = np.arange(7)
    towers = {"query_vector": np.eye(7), "item_vector": np.roll(np.eye(7), 1, 0)}
    assert figure_of("two_tower").of(towers | {"item_vector": np.eye(7)}, labels) == 1
    assert figure_of("two_tower").of(towers, labels) < 1
    assert figure_of("lenet5").of({"logits": np.eye(4)}, np.array([0, 1, 2, 0])) == 0.75


@pytest.mark.skipif(not DATA.is_dir(), reason="the data sets are not here")
def test_data_with_structure() -> None:
    (x, y), (held, _) = sets.canvases(str(DATA), side=64, limit=20, tested=5)
    assert x.shape == (20, 1, 64, 64) and held.shape == (5, 1, 64, 64) and (y["classes"][:, 0] >= 0).all()
    for image, boxes, kinds in zip(x, y["boxes"], y["classes"], strict=True):
        ink = np.zeros((64, 64), bool)
        for left, top, right, bottom in boxes[kinds >= 0].astype(int):
            ink[top:bottom, left:right] = True
            assert image[0, top:bottom, left:right].any(1)[[0, -1]].all()
        assert not image[0][~ink].any()
    (graphs, labels), _ = sets.superpixels(str(DATA), 6, 2)
    adjacency = graphs["adjacency"]
    assert adjacency.shape == (6, 49, 49) and len(labels) == 6
    np.testing.assert_allclose(adjacency, adjacency.swapaxes(1, 2), atol=1e-6)
    assert (np.linalg.eigvalsh(adjacency).max(1) < 1.001).all() and ((adjacency > 0).sum(2) >= 9).all()
    (given, text), _ = sets.cases(str(DATA), limit=30, tested=3)
    assert (given["target"][:, 0] == 1).all() and (given["target"][:, 1:] == text[:, :-1]).all()
    for source, written in zip(given["x"], text, strict=True):
        letters, wanted = (bytes(row[row > 0].tolist()).decode() for row in (source, written))
        assert letters.replace(" ", "") == "".join(c for c in wanted.lower() if c.isalpha())


def example(name: str) -> ModuleType:
    """A program of examples/training."""
    place = importlib.util.spec_from_file_location(f"example_{name}", ROOT / f"examples/training/{name}.py")
    assert place is not None and place.loader is not None
    program = importlib.util.module_from_spec(place)
    place.loader.exec_module(program)
    return program


def test_a_text_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.gpt(16, 256, width=16, layers=1, heads=2)
    bundle = tmp_path / "text.mslite"
    convert(ir.to_proto(model), output=bundle)
    program = example("continue")
    loaded = lite_runtime.load(bundle)
    text = b"Speak, speak. The rest of it"  # longer than what the model sees
    likeliest = program.continued(loaded, text, 1, 0.0, 0)
    x = np.frombuffer(text[-16:], np.uint8).astype(np.int32)[None]
    assert likeliest == text + bytes([int(run_onnx(model, x=x)[0][0, -1].argmax())])
    short = program.continued(loaded, b"ab", 1, 0.0, 0)
    x = np.zeros((1, 16), np.int32)
    x[0, :2] = list(b"ab")
    assert short == b"ab" + bytes([int(run_onnx(model, x=x)[0][0, 1].argmax())])
    drawn = [program.continued(loaded, b"ab", 20, 1.0, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and {len(each) for each in drawn} == {22}
    monkeypatch.setattr("sys.argv", ["continue.py", str(bundle), "ab", "--length", "3", "--temperature", "0"])
    assert program.main() == 0 and capsys.readouterr().out.startswith("ab")


def test_a_text_is_rewritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.t5(8, 6, vocabulary=128, width=16, layers=1, heads=2, head_width=8, hidden=16)
    bundle = tmp_path / "cases.mslite"
    convert(ir.to_proto(model), output=bundle)
    monkeypatch.setattr("sys.argv", ["rewrite.py", str(bundle), "hear me"])
    assert example("rewrite").main() == 0
    written = capsys.readouterr().out.removesuffix("\n").encode()
    assert len(written) == 6
    x = np.zeros((1, 8), np.int32)
    x[0, :7] = list(b"hear me")
    target = np.array([[1, *written[:-1]]], np.int32)  # each byte is the likeliest behind those before it
    assert bytes(run_onnx(model, x=x, target=target)[0][0].argmax(-1).tolist()) == written
    monkeypatch.setattr("sys.argv", ["rewrite.py", str(bundle), "far too long a text"])
    assert example("rewrite").main() == 3 and "at most 8 bytes" in capsys.readouterr().err
