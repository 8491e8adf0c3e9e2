"""`msedge label`: from a bundle and a pool to a page, and from answers to labelled examples."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import msedge
from benchmarks.browser.chromium import Chromium, found
from cloud.zoo import window_cnn
from converter.errors import ConvertError
from converter.ir.dropout import dropout_inputs
from edge.cli.app import app
from edge.pages.pictures import pictured
from lite_runtime import load
from lite_runtime.active import answers
from lite_runtime.active.predicting import look
from lite_runtime.errors import InputError
from tests.waiting import until

RNG = np.random.default_rng(5)
POOL = RNG.standard_normal((40, 3, 1, 32)).astype(np.float32)


def invoke(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with dropout and features as a bundle, and a pool."""
    place = tmp_path_factory.mktemp("label")
    model = window_cnn((3, 1, 32), 4, filters=(4, 8), kernel=3, hidden=12, dropout=0.5)
    dropped = next(node for node in model.graph if node.op_type == "Dropout")
    assert dropped.inputs[0] is not None
    model.graph.outputs.append(dropped.inputs[0])
    msedge.convert(dropout_inputs(model), output=place / "m.mslite")
    np.savez(place / "pool.npz", x=POOL)
    return place


@pytest.mark.parametrize("strategy", ["margin", "bald", "coreset", "badge"])
def test_from_a_pool_to_labelled_examples(folder: Path, tmp_path: Path, strategy: str) -> None:
    features = load(folder / "m.mslite").outputs()[1].name
    request = tmp_path / "request"
    words = ["label", "ask", folder / "m.mslite", "--data", folder / "pool.npz", "-n", 6, "-o", request,
             "--strategy", strategy, "--features", features, "--classes", "sit,walk,run,lie", "--json"]  # fmt: skip
    code, out, err = invoke(*words, "--labelled", folder / "pool.npz")
    assert code == 0, err
    ids = json.loads(out)["ids"]
    assert len(set(ids)) == 6 and json.loads(out)["pool"] == 40
    page = (request / "index.html").read_text(encoding="utf-8")
    assert page.count("<section") == 6 and "sit" in page and page.count("<polyline") == 18
    (request / "answers.json").write_text(json.dumps({ids[0]: "run", ids[1]: None}))
    code, out, err = invoke("label", "collect", request, "-o", tmp_path / "new.npz", "--json")
    assert code == 1 and json.loads(out) == {
        "output": str(tmp_path / "new.npz"),
        "labelled": 1,
        "unknown": 1,
        "left": 4,
    }
    with np.load(tmp_path / "new.npz") as made:
        assert made["y"].tolist() == [2] and any(np.array_equal(made["x"][0], row) for row in POOL)
    code, _, err = invoke(*words)
    assert code == 3 and "has a request already" in err


def test_masks_of_ones_are_the_network_itself(folder: Path) -> None:
    """And draws differ from it, on the device's runtime."""
    model = load(folder / "m.mslite")
    plain = window_cnn((3, 1, 32), 4, filters=(4, 8), kernel=3, hidden=12, dropout=0.5)
    msedge.convert(plain, output=folder / "plain.mslite")
    seen, guesses = look(model, {"x": POOL}, "bald", features=model.outputs()[1].name)
    logits = load(folder / "plain.mslite").run({"x": POOL})["logits"]
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert seen.probabilities is not None and seen.draws is not None
    assert np.allclose(seen.probabilities, expected, atol=1e-5) and (guesses == logits.argmax(1)).all()
    assert seen.draws.shape == (20, 40, 4) and seen.draws.std(0).max() > 1e-3
    assert np.allclose(seen.draws.mean(0), expected, atol=0.15)
    with pytest.raises(InputError, match="dropout masks"):
        look(load(folder / "plain.mslite"), {"x": POOL}, "bald")
    with pytest.raises(ConvertError, match="with Dropout"):
        dropout_inputs(window_cnn((3, 1, 32), 4))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["--strategy", "best"], "expected a strategy of"),
        (["--strategy", "coreset"], "--features"),
        (["--features", "nothing"], "got 'nothing'"),
        (["--scores", "nothing"], "got 'nothing'"),
        ([], "--scores"),
        (["--data", "other.npz"], "missing x"),
        (["--data", "empty.npz"], "at least 1"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(folder: Path, tmp_path: Path, changes: list[str], said: str) -> None:
    np.savez(folder / "other.npz", y=POOL)
    np.savez(folder / "empty.npz", x=POOL[:0])
    given = [str(folder / word) if word.endswith(".npz") else word for word in changes]
    named = ["--features", load(folder / "m.mslite").outputs()[1].name]
    features = [] if not changes or "--features" in changes or "coreset" in changes else named
    data = [] if "--data" in changes else ["--data", folder / "pool.npz"]
    code, _, err = invoke("label", "ask", folder / "m.mslite", *data, "-n", 3, "-o", tmp_path / "r", *features, *given)
    assert code == 3 and said in err and "Traceback" not in err and not (tmp_path / "r").exists()


def test_examples_are_drawn_as_what_they_are() -> None:
    hostile = "<script>alert(1)</script>"
    assert "data:image/png" in pictured(RNG.random((1, 28, 28)), hostile) and hostile not in pictured(
        RNG.random((8, 8))
    )
    assert pictured(RNG.random((9, 1, 128))).count("<polyline") == 9
    assert pictured(np.array([1.5, np.nan])) == "<code>1.5  nan</code>"
    assert hostile not in pictured(RNG.random((3, 40)), hostile)


@pytest.mark.skipif(not found(), reason="no Chromium")
def test_a_browser_saves_the_answers(folder: Path, tmp_path: Path) -> None:
    features = load(folder / "m.mslite").outputs()[1].name
    code, out, _ = invoke("label", "ask", folder / "m.mslite", "--data", folder / "pool.npz", "-n", 3, "-o",
                          tmp_path / "r", "--features", features, "--json")  # fmt: skip
    assert code == 0
    ids = json.loads(out)["ids"]
    with Chromium() as browser, browser.page((tmp_path / "r" / "index.html").as_uri()) as shown:
        shown.ask("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        until(lambda: shown.evaluate("document.getElementById('count').textContent") == "0 of 3 done", 0.05)
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390
        shown.evaluate(
            "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text }); return '#' };"
            "document.querySelectorAll('section.card')[0].focus()"
        )
        for key in ("1", "?"):
            shown.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
        shown.evaluate("document.querySelectorAll('section.card')[2].querySelectorAll('button')[3].click()")
        assert shown.evaluate("document.getElementById('count').textContent") == "3 of 3 done"
        shown.evaluate("document.getElementById('save').click()")
        until(lambda: shown.evaluate("Boolean(window.saved)"), 0.05)
        (tmp_path / "r" / "answers.json").write_text(shown.evaluate("window.saved"))
    found = answers(tmp_path / "r")
    assert dict(zip(found.ids, found.labels.tolist(), strict=True)) == {ids[0]: 1, ids[2]: 3}
    assert found.unknown == (ids[1],)
