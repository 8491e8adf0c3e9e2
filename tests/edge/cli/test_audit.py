"""`msedge audit`: the page, JSON, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import converter
from cloud import zoo
from edge.cli.app import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained network on images, and its own answers as classes, so that it is always right."""
    import lite_runtime

    where = tmp_path_factory.mktemp("audit")
    made = converter.convert(zoo.resnet8((1, 8, 8), seed=2)).bundle
    (where / "m.mslite").write_bytes(made)
    x = np.random.default_rng(0).random((60, 1, 8, 8), np.float32)
    model = lite_runtime.load(made)
    y = model.run({model.inputs()[0].name: x})[model.outputs()[0].name].argmax(1)
    np.savez(where / "data.npz", x=x, y=y, room=np.where(np.arange(60) % 2, "<b>", "hall"))
    return where


def said(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["audit", *map(str, words)], prog_name="msedge")
    return done.exit_code, done.stdout, done.stderr


def test_a_page_and_json(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    code, out, err = said(
        folder / "m.mslite", "--data", folder / "data.npz", "-o", page, "--json", "--without", "attacks",
        "--limit", "accuracy.accuracy>=1", "--limit", "corruptions.rotation<=1",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0, err
    assert found["held"] and found["figures"]["accuracy.accuracy"] == 1 and "groups.room.worst" in found["figures"]
    assert [section["name"] for section in found["sections"]][-3:] == ["certified", "privacy", "federation"]
    text = page.read_text("utf-8")
    assert "All limits held" in text and "<td>&lt;b&gt;</td>" in text and "<td><b>" not in text
    assert text.count("data:image/png;base64,") >= 10 and "http" not in text.replace("http-equiv", "")
    assert "no float model was given" in text


def test_a_broken_limit_is_exit_code_1_and_the_page_is_written(folder: Path, tmp_path: Path) -> None:
    page, limits = tmp_path / "audit.html", tmp_path / "limits.toml"
    limits.write_text('[limits]\n"accuracy.examples" = {least = 61}\n')
    words = (folder / "m.mslite", "--data", folder / "data.npz", "--only", "accuracy")
    code, out, _ = said(*words, "-o", page, "--limits", limits)
    assert code == 1 and "BROKEN: accuracy.examples 60, limit at least 61" in out
    assert "1 of 1 limits broken" in page.read_text("utf-8")
    assert said(*words)[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--limit", "accuracy.acuracy>=1"), 3, "no such figure; near are accuracy.accuracy"),
        (("--limit", "accuracy.accuracy"), 3, "expected SECTION.FIGURE>=NUMBER"),
        (("--only", "atacks"), 3, "did you mean 'attacks'"),
        (("--range", "low,high"), 2, "expected LOW,HIGH"),
        (("--kind", "video"), 2, "video"),
        (("--budget", "0"), 3, "--budget: expected more than 0 seconds"),
        (("--x", "y"), 3, "expected shape"),
        (("--members", "none.npz"), 3, "cannot read 'none.npz'"),
        (("--federation", "none.toml"), 3, "cannot read 'none.toml'"),
        (
            ("--limit", "federation.plain.recovered<=0"),
            3,
            "needs a bundle that can be trained: convert with --trainable",
        ),
    ],
)
def test_mistakes_leave_no_page(folder: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    page = tmp_path / "audit.html"
    got, out, err = said(folder / "m.mslite", "--data", folder / "data.npz", "-o", page, *words)
    assert (got, out) == (code, "") and message in err and not page.exists()
    assert "Traceback" not in err


def test_a_pipeline_fails_on_a_protection_that_gives_examples_back(folder: Path, tmp_path: Path) -> None:
    b = zoo.Builder("dense", 0)
    flat = b.op("Flatten", b.input("x", ("batch", 1, 8, 8)), shape=("batch", 64), axis=1)
    model = b.model(logits=b.dense(b.relu(b.dense(flat, 48, name="hidden")), 10, name="head"))
    converter.convert(model, output=tmp_path / "m.mslite", trainable="*")
    run, page = tmp_path / "run.toml", tmp_path / "audit.html"
    words = (
        tmp_path / "m.mslite", "--data", folder / "data.npz", "--only", "federation", "--federation", run,
        "--limit", "federation.stated.recovered<=0", "-o", page,
    )  # fmt: skip
    begin = "[model]\nbundle = 'm.mslite'\n[local]\nsteps = 1\nbatch = 1\n[privacy]\nclip = 1.0\n"
    run.write_text(begin)
    code, out, _ = said(*words)
    assert code == 1 and "BROKEN: federation.stated.recovered 1, limit at most 0" in out
    assert page.read_text("utf-8").count("data:image/png;base64,") == 6
    run.write_text(begin + "noise = 'local'\nmultiplier = 0.5\n")
    code, out, err = said(*words)
    assert code == 0 and "held: federation.stated.recovered 0" in out, err
