"""`msedge explain`: what it prints, its page, its file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import converter
from cloud import zoo
from edge.cli.app import app
from edge.cli.heat import drawn
from lite_runtime.explaining import layout_of
from tests.cloud.models import parsed, tiny_net


def run(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["explain", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image classifier as ONNX, as a float and as an int8 bundle; a table's and a text's models; samples."""
    there = tmp_path_factory.mktemp("explain")
    random = np.random.default_rng(0)
    images = random.random((16, 1, 8, 8), np.float32)
    ir.save(tiny_net(), there / "net.onnx")
    converter.convert(tiny_net(), output=there / "net.mslite")
    converter.convert(tiny_net(), output=there / "int8.mslite", quantize="int8", calibration={"x": images})
    np.save(there / "images.npy", images)
    converter.convert(zoo.mlp(5, 3, [8]), output=there / "table.mslite")
    np.save(there / "table.npy", random.standard_normal((2, 5)).astype(np.float32))
    (there / "names.txt").write_text("width\nheight\n<depth>\nage\nmass\n")
    text = parsed(
        "a (int64[n, 4] ids, float[n, 2] bias) => (float[n, 2] y) <float[9, 2] w = "
        "{0, 0, 1, 0, 0, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> "
        "{ e = Gather(w, ids) axes = Constant<value_ints = [1]>() s = ReduceSum<keepdims = 0>(e, axes) "
        "y = Add(s, bias) }"
    )
    converter.convert(text, output=there / "text.mslite")
    np.savez(there / "text.npz", ids=np.array([[1, 3, 2, 4]]), bias=np.zeros((1, 2), np.float32))
    return there


def test_a_page_compares_the_methods(folder: Path) -> None:
    page = folder / "page.html"
    said = run(
        folder / "net.mslite", "-i", folder / "images.npy", "-m", "saliency", "-m", "occlusion", "-m", "lrp",
        "--compare", "-o", page, "--target", 3,
    )  # fmt: skip
    assert "output 3" in said and "infidelity" in said
    assert "lrp: logit, of its graph by JAX" in said and "occlusion: output logits, the model as deployed" in said
    text = page.read_text()
    assert text.count("data:image/png;base64,") == 4 and "<h2>How faithful</h2>" in text and "<script" not in text


def test_json_and_a_file_have_the_attributions(folder: Path) -> None:
    saved = folder / "out.npz"
    words = ("-i", folder / "table.npy", "--row", 1, "-m", "kernel_shap", "--save", saved)
    found = CliRunner().invoke(app, ["explain", str(folder / "table.mslite"), *map(str, words), "--json"])
    told = json.loads(found.stdout)
    (made,) = told["methods"].values()
    with np.load(saved) as file:
        np.testing.assert_allclose(file["kernel_shap"], made["attributions"])
    assert made["sum"] == pytest.approx(made["score"] - made["base"]) and abs(made["completeness_error"]) < 1e-6
    assert told["kind"] == "table" and made["settings"]["exact"] and told["target"] == int(np.argmax(told["scores"]))


def test_names_are_shown_and_escaped(folder: Path) -> None:
    page = folder / "table.html"
    said = run(
        folder / "table.mslite",
        "-i",
        folder / "table.npy",
        "-m",
        "occlusion",
        "--names",
        folder / "names.txt",
        "-o",
        page,
    )
    assert "height" in said and "&lt;depth&gt;" in page.read_text() and "<depth>" not in page.read_text()


def test_an_integer_bundle_is_explained_itself_or_through_its_float_twin(folder: Path) -> None:
    given = (folder / "int8.mslite", "-i", folder / "images.npy")
    assert "kernel_shap: output logits, the model as deployed" in run(*given)
    said = run(*given, "-m", "saliency", code=3)
    assert "occlusion, rise, kernel_shap remain, or give that model with --float" in said
    said = run(*given, "-m", "saliency", "-m", "occlusion", "--float", folder / "net.onnx")
    assert "saliency: logit, of the float twin net.onnx" in said and "occlusion: output logits, the model as" in said
    said = run(*given, "-m", "saliency", "--float", folder / "table.mslite", code=3)
    assert "expected a model from [1, 8, 8] to 10 scores" in said


def test_tokens_of_a_text_with_another_input_that_stays(folder: Path) -> None:
    given = (folder / "text.mslite", "-i", folder / "text.npz", "--explain", "ids", "-m", "occlusion")
    assert json.loads(run(*given, "--json").partition("\n")[2])["methods"]["occlusion"]["attributions"] == [1, 5, 0, 0]
    assert "expected --explain with one of" in run(*given[:3], code=3)
    assert "expected one of bias, ids" in run(*given[:3], "--explain", "y", code=3).replace("ids, bias", "bias, ids")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--row", 99), "expected a row of the sample [16, 1, 8, 8], got 99"),
        (("--target", 10), "expected an output from 0 to 9, got 10"),
        (("-m", "magic"), "expected all or some of saliency"),
        (("--rows", 20), "needs 1002 rows of the model, and the limit leaves 20"),
        (("--baseline", "nothing"), "expected a number or one of zero"),
        (("--kind", "text"), "expected token ids"),
        (("-m", "grad_cam", "--layer", "x"), "expected one of"),
        (("--scores", "x"), "expected an output of logits, got 'x'"),
    ],
)
def test_what_does_not_fit_is_said(folder: Path, words: tuple[object, ...], said: str) -> None:
    model = "net.mslite" if "grad_cam" in words else "int8.mslite"
    assert said in run(folder / model, "-i", folder / "images.npy", *words, code=3)


def test_a_sample_of_another_shape_leaves_no_page(folder: Path) -> None:
    page = folder / "none.html"
    said = run(folder / "net.mslite", "-i", folder / "table.npy", "-o", page, code=3)
    assert "expected a sample of shape [1, 8, 8], got [5]" in said and not page.exists()


@pytest.fixture(scope="module")
def texts(folder: Path) -> Path:
    """A classifier of token ids, BERT's, and a language model, both as bundles; the tokens; ids."""
    bert = zoo.bert(8, 3, vocabulary=6, positions=8, width=8, layers=1, heads=2, seed=1)
    converter.convert(bert, output=folder / "bert.mslite")
    converter.convert(zoo.gpt(8, 6, width=8, layers=1, heads=2), output=folder / "gpt.mslite")
    (folder / "tokens.txt").write_text("[PAD]\n[UNK]\nspeak\n<citizen>\nrome\n \n")
    np.save(folder / "ids.npy", np.array([[2, 3, 4, 0, 0, 0, 0, 0]], np.int32))
    return folder


def test_a_text_is_shown_as_words(texts: Path) -> None:
    page, words = texts / "text.html", ("--tokenizer", texts / "tokens.txt")
    said = run(
        texts / "bert.mslite", *words, "--text", "Speak <citizen> rome hail", "-m", "input_x_gradient",
        "-m", "occlusion", "-o", page,
    )  # fmt: skip
    assert (
        "input_x_gradient: logit, of its graph by JAX, with respect to the tokens' vectors" in said
        and "<citizen>" in said
    )
    text = page.read_text()
    assert text.count("&lt;citizen&gt;</mark>") == 2 and ">[UNK]</mark>" in text and "<citizen>" not in text
    assert text.count("then 4 times token 0") == 2


def test_words_have_their_colours_in_a_terminal() -> None:
    layout = layout_of((5,), np.dtype(np.int64))
    lines = drawn(np.array([7, 3, 0, 0, 0]), np.array([1.0, -1, 0, 0, 0]), layout, ["king", "\x1b[31m"], colour=True)
    assert [line.plain for line in lines] == [" king   \\x1b[31m  ", "then 3 times token 0: +0"]
    assert [str(span.style) for span in lines[0].spans] == ["white on rgb(178,24,43)", "white on rgb(33,102,172)"]


def test_a_text_is_its_ids(texts: Path) -> None:
    words = ("-m", "occlusion", "--json", "--tokenizer", texts / "tokens.txt")
    rows = []
    for given in (("-i", texts / "ids.npy"), ("--text", "speak <citizen> rome")):
        told = json.loads(run(texts / "bert.mslite", *given, *words).partition("\n")[2])
        rows.append(told["methods"]["occlusion"]["attributions"])
        assert told["tokens"][:4] == ["speak", "<citizen>", "rome", "[PAD]"]
    assert rows[0] == rows[1] and rows[0][3:] == [0] * 5 and all(rows[0][:3])


def test_a_language_models_next_token_is_explained_at_the_end_of_the_text(texts: Path) -> None:
    words = ("--tokenizer", texts / "tokens.txt", "-m", "occlusion", "--json", "--baseline", 1)
    told = json.loads(run(texts / "gpt.mslite", "--text", "rome speak", *words).partition("\n")[2])
    found = told["methods"]["occlusion"]["attributions"]
    assert all(found[:2]) and found[2:] == [0] * 6 and len(told["scores"]) == 6
    said = run(texts / "gpt.mslite", "-i", texts / "ids.npy", "--position", 8, code=3)
    assert "expected a position from -8 to 7, got 8" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bert.mslite", "--text", "rome"), "--text needs a tokenizer, and the model has none"),
        (("bert.mslite", "--tokenizer", "tokens.txt", "--text", 9 * "rome "), "expected 8 tokens at most, got 9"),
        (
            ("table.mslite", "--tokenizer", "tokens.txt", "--text", "rome"),
            "expected a model of token ids [rows, length]",
        ),
    ],
)
def test_texts_that_do_not_fit_are_refused(texts: Path, words: tuple[str, ...], said: str) -> None:
    assert said in run(*(texts / word if (texts / word).is_file() else word for word in words), code=3)
