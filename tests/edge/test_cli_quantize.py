"""The command line quantises, explains and exports; wrong data and useless options are refused before anything is
written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.converter.frontends.tflite.builder import Builder as TFLite
from tests.edge.conftest import Small
from tests.edge.test_cli import as_json, msedge


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("samples") / "samples.npz"
    np.savez(path, x=np.random.default_rng(3).standard_normal((20, 3, 8, 8)).astype(np.float32))
    return path


class Int8(NamedTuple):
    """The small model in int8: what was written and said."""

    bundle: Path
    page: Path
    said: str


@pytest.fixture(scope="module")
def int8(small: Small, samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Int8:
    out, page = (tmp_path_factory.mktemp("int8") / name for name in ("int8.mslite", "report.html"))
    options = ("--quantize", "int8", "--calibration", samples)
    return Int8(out, page, msedge("convert", small.source, "-o", out, *options, "--report", page)[0])


def test_int8_with_a_page_and_its_facts_as_json(small: Small, int8: Int8, samples: Path, tmp_path: Path) -> None:
    assert "signal to noise" in int8.said and "quantised" in int8.said
    assert str(int8.page)[-11:] in "".join(int8.said.split())
    out, facts = tmp_path / "int8.mslite", tmp_path / "report.json"
    options = ("--quantize", "int8", "--calibration", samples)
    text = int8.page.read_text()
    assert text.startswith("<!doctype html>") and "Layer by layer" in text and "small.onnx" in text
    made = as_json("convert", small.source, "-o", out, *options, "--report", facts)
    written = json.loads(facts.read_text())
    assert made["ops_after"]["QLinearConv"] == 2 and made["quantization"]["samples"] == 20
    assert written["layers"] and written["outputs"][0]["snr"] > 20 and written["arena_bytes"] > 0
    assert int8.bundle.stat().st_size < 0.6 * small.bundle.stat().st_size


def test_a_budget_keeps_what_it_must(small: Small, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "budget.mslite"
    options = ("--quantize", "int8", "--calibration", samples, "--metric", "error")
    made = as_json("convert", small.source, "-o", out, *options, "--accuracy-budget", "1.5%")
    assert made["budget"]["drop"] <= made["budget"]["limit"] == pytest.approx(0.015)
    _, stderr = msedge("convert", small.source, "-o", tmp_path / "no", *options, "--accuracy-budget", "0%", code=3)
    assert "the best that keeps" in stderr and "Most expensive" in stderr and not (tmp_path / "no").exists()


def test_labels_belong_to_their_rows(small: Small, samples: Path, tmp_path: Path) -> None:
    rows = np.load(samples)["x"]
    session = onnxruntime.InferenceSession(small.source)
    labels = session.run(None, {"x": rows})[0].argmax(1)
    np.savez(tmp_path / "evaluation.npz", x=rows, labels=labels)
    options = ("--quantize", "int8", "--calibration", samples, "--accuracy-budget", "50%", "--metric", "top1")
    arguments = (*options, "--evaluation", tmp_path / "evaluation.npz")
    made = as_json("convert", small.source, "-o", tmp_path / "m.mslite", *arguments)
    assert made["budget"]["float"] == 1


def test_standard_onnx_out(small: Small, samples: Path, tmp_path: Path) -> None:
    out = tmp_path / "int8.onnx"
    msedge("convert", small.source, "-o", out, "--quantize", "int8", "--calibration", samples, "--to", "onnx")
    model = onnx.load(out)
    onnx.checker.check_model(model)
    assert {n.domain for n in model.graph.node} <= {"", "ai.onnx"}
    assert sum(n.op_type == "QuantizeLinear" for n in model.graph.node) >= 3
    onnxruntime.InferenceSession(out)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--quantize", "int8"), 3, "needs calibration data"),
        (("--quantize", "none", "--calibration", "{samples}"), 2, "uses no calibration data"),
        (("--quantize", "fp16", "--accuracy-budget", "1%"), 2, "uses one precision for all layers"),
        (("--quantize", "int8", "--calibration", "{samples}", "--evaluation", "{samples}"), 2, "--accuracy-budget"),
        (("--quantize", "int8", "--calibration", "nowhere.npz"), 3, "nowhere.npz"),
        (("--quantize", "int8", "--calibration", "{nan}"), 3, "NaN"),
        (("--quantize", "int8", "--calibration", "{named}"), 3, "not an input of the model"),
        (("--quantize", "int8", "--calibration", "{samples}", "--accuracy-budget", "lots"), 3, "0.5%"),
        (("--quantize", "int8", "--calibration", "{samples}", "--accuracy-budget", "1%", "--metric", "f1"), 3, "top1"),
        (("--quantize", "int4"), 2, "int8"),
    ],
)
def test_what_does_not_fit_is_refused(
    small: Small, samples: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    np.savez(tmp_path / "nan.npz", x=np.full((4, 3, 8, 8), np.nan, np.float32))
    np.savez(tmp_path / "named.npz", wrong=np.zeros((4, 3, 8, 8), np.float32), x=np.zeros((4, 3, 8, 8), np.float32))
    files = {"samples": samples, "nan": tmp_path / "nan.npz", "named": tmp_path / "named.npz"}
    out = tmp_path / "out.mslite"
    _, stderr = msedge("convert", small.source, "-o", out, *(a.format(**files) for a in arguments), code=code)
    assert says in " ".join(stderr.split()) and "Traceback" not in stderr
    assert not out.exists()


def test_verify_layer_by_layer(small: Small, int8: Int8, samples: Path) -> None:
    made = as_json("verify", small.source, int8.bundle, "--layers", "--data", samples, "--backend", "reference")
    assert made["same"] and len(made["layers"]) >= 3
    assert all(layer["snr"] > 15 for layer in made["layers"])
    stdout, _ = msedge("verify", small.source, small.wrong, "--layers", "--backend", "reference", code=1)
    assert "the quality drops at" in stdout


def test_a_bundle_verifies_against_a_bundle(small: Small) -> None:
    assert as_json("verify", small.bundle, small.bundle, "--backend", "reference")["same"]


def test_tensorflow_lite_in_and_held_against_litert(tmp_path: Path) -> None:
    b = TFLite()
    path, out = tmp_path / "m.tflite", tmp_path / "m.mslite"
    path.write_bytes(_small_tflite(b))
    stdout, _ = msedge("convert", path, "-o", out)
    assert "TensorFlow Lite" in stdout
    made = as_json("verify", path, out, "--layers", "--backend", "reference")
    assert made["same"] and made["layers"]
    bench = as_json("bench", path, "--against", "litert", "--rounds", "3", "--backend", "reference")
    assert [c["name"] for c in bench["runs"][0]["contenders"]] == ["msedge", "litert"]
    damaged = tmp_path / "damaged.tflite"
    damaged.write_bytes(path.read_bytes()[:200])
    _, stderr = msedge("convert", damaged, "-o", tmp_path / "x.mslite", code=3)
    assert "Traceback" not in stderr and not (tmp_path / "x.mslite").exists()


def _small_tflite(model: TFLite) -> bytes:
    rng = np.random.default_rng(5)
    x = model.input("image", (1, 6, 6, 3))
    weights = [
        model.const(rng.standard_normal(shape).astype(np.float32)) for shape in ((4, 3, 3, 3), (4,), (5, 144), (5,))
    ]
    y = model.op("CONV_2D", [x, *weights[:2]], (1, 6, 6, 4), padding="SAME", stride_w=1, stride_h=1)
    flat = model.op("RESHAPE", [y, model.const(np.array([1, 144], np.int32))], (1, 144))
    model.output(model.op("FULLY_CONNECTED", [flat, *weights[2:]], (1, 5)))
    return model.build()
