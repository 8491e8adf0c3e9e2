"""`msedge verify` of language models: against the source in float32, by the golden sample; what differs is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter.golden_text import TEXT
from edge.gateway.errors import GatewayError
from edge.gateway.models.selftest import self_test
from edge.measuring.logits import compared
from lite_runtime import bundle, load
from lite_runtime.bundle import Bundle
from lite_runtime.errors import InputError
from lite_runtime.running.golden import tolerance_of
from tests.converter.frontends.decoders.checkpoints import VOCABULARY, config, folder, gguf_file, tensors
from tests.edge.test_cli import as_json, msedge
from tests.language.talking import talking_bundle

WAYS = {
    "float32": ("--activations", "float32", "--cache", "float32"),
    "int8": (),
    "cache": ("--cache", "int8"),
    "w4": ("--quantize", "w4"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of one model of the llama family, its bundles, and a file of another model."""
    place, settings = tmp_path_factory.mktemp("verify"), config("llama", num_hidden_layers=2)
    found = {
        "gguf": gguf_file(place / "one.gguf", settings, tensors(settings), "Q8_0"),
        "folder": folder(place / "folder", settings, tensors(settings)),
        "other": gguf_file(place / "other.gguf", settings, tensors(settings, seed=1), "Q8_0"),
    }
    for way, options in WAYS.items():
        found[way] = place / f"{way}.mslite"
        msedge("convert", found["folder" if way == "w4" else "gguf"], "-o", found[way], *options)
    return found


def changed(held: Bundle, logits: Any) -> bytes:
    """The bundle, whose golden sample has other logits."""
    inputs, _ = held.golden["predict"]
    return bundle.write(
        None, held.signatures, golden={"predict": (inputs, {"logits": logits})}, provenance=held.provenance,
        metadata=held.metadata,
    )  # fmt: skip


def test_a_conversion_stores_a_golden_sample(made: dict[str, Path]) -> None:
    """Two pages, the first of which is not the text's first; every cache empty and stored once."""
    held = bundle.read(made["int8"])
    inputs, outputs = held.golden["predict"]
    assert inputs["input_ids"].shape == (24,) and inputs["block_table"].tolist() == [[1, 0]]
    assert inputs["logits_rows"].tolist() == [23] and outputs["logits"].shape == (1, VOCABULARY)
    caches = [array for name, array in inputs.items() if "cache" in name]
    assert len(caches) == 4 and not any(array.any() for array in caches)
    assert held.sections["golden"].size < 2000


@pytest.mark.parametrize("way", WAYS)
def test_a_bundle_is_checked_by_its_sample(made: dict[str, Path], way: str, tmp_path: Path) -> None:
    found = as_json("verify", made[way])
    assert found["same"] and [row["backend"] for row in found["outputs"]] == ["native", "reference"]
    assert found["outputs"][1]["largest"] == 0
    if way == "float32":
        assert found["tolerance"] == 1e-3 and found["outputs"][0]["relative"] < 1e-4
    held = bundle.read(made[way])
    logits = held.golden["predict"][1]["logits"].copy()
    logits[0, 7] += 1.5 * tolerance_of(held) * max(np.ptp(logits), np.abs(logits).max())
    wrong = tmp_path / "wrong.mslite"
    wrong.write_bytes(changed(held, logits))
    assert not as_json("verify", wrong, code=1)["same"]
    assert "differs at [0, 7]" in msedge("verify", wrong, code=1)[0]
    assert as_json("verify", wrong, "--tolerance", "0.9", "--backend", "reference")["same"]


def test_the_gateway_runs_the_sample(made: dict[str, Path]) -> None:
    held = bundle.read(made["int8"])
    model = load(made["int8"])
    assert self_test(model, ["predict"]) == self_test(model, ["predict"]) == 1
    with pytest.raises(GatewayError, match="output 'logits' of 'predict' differs from the golden sample"):
        self_test(load(changed(held, -held.golden["predict"][1]["logits"])), ["predict"])


def test_logits_beside_the_source(made: dict[str, Path]) -> None:
    found = as_json("verify", made["gguf"], made["float32"])
    assert found["same"] and found["limit"] == {"of": "range", "most": 1e-3}
    assert found["tokens"] == 128 and found["agreement"] == 1 and 0 < found["share_of_range"] < 1e-4
    assert abs(found["perplexity_rise"]) < 1e-3 and found["divergence"] < 1e-6
    found = as_json("verify", made["gguf"], made["int8"])
    assert found["same"] and found["limit"] == {"of": "nats", "most": 0.01}
    assert 1e-6 < found["divergence"] < 0.01 and found["agreement"] > 0.9
    assert as_json("verify", made["gguf"], made["cache"])["same"]
    found = as_json("verify", made["folder"], made["w4"])
    assert found["same"] and found["limit"]["most"] == 0.5 and found["divergence"] > 0.005
    assert "equal within 0.01 nats a token, over 128 tokens" in msedge("verify", made["gguf"], made["int8"])[0]


def test_another_model_or_stricter_bounds(made: dict[str, Path]) -> None:
    for way in WAYS:
        found = as_json("verify", made["other"], made[way], code=1)
        assert not found["same"] and found["divergence"] > 1 and found["agreement"] < 0.5, way
    assert not as_json("verify", made["gguf"], made["int8"], "--tolerance", "1e-5", code=1)["same"]
    assert (
        "DIFFERENT by more than 1e-05" in msedge("verify", made["gguf"], made["int8"], "--tolerance", "1e-5", code=1)[0]
    )


def test_a_bundle_as_source(made: dict[str, Path]) -> None:
    found = as_json("verify", made["float32"], made["int8"])
    assert found["same"] and found["divergence"] > 0
    assert as_json("verify", made["int8"], made["int8"])["share_of_range"] == 0


def test_a_text_is_cut_into_windows(tmp_path: Path) -> None:
    path, text = tmp_path / "talking.mslite", tmp_path / "text.txt"
    path.write_bytes(talking_bundle())
    text.write_text(TEXT * 8, "utf-8")
    found = as_json("verify", path, path, "--data", text, "--samples", "2")
    assert found["tokens"] == 1024 and found["perplexity"]["source"] == found["perplexity"]["bundle"] > 1
    assert as_json("verify", path, path, "--data", text)["tokens"] == 1536
    assert as_json("verify", path, path)["tokens"] < 500
    text.write_bytes(b"\xff")
    assert "expected a text in UTF-8, got byte 255 at 0" in msedge("verify", path, path, "--data", text, code=3)[1]
    text.write_text("a", "utf-8")
    assert "expected a text of at least 2 tokens" in msedge("verify", path, path, "--data", text, code=3)[1]


def test_what_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    _, said = msedge("verify", made["gguf"], made["int8"], "--data", tmp_path / "text.txt", code=3)
    assert "this bundle has no tokenizer for a text" in said
    for option in (("--layers",), ("--absolute", "1"), ("--input-shape", "x=1")):
        assert option[0] in msedge("verify", made["gguf"], made["int8"], *option, code=2)[1]
    for option in (("--layers",), ("--data", str(tmp_path)), ("--input-shape", "x=1")):
        assert option[0] in msedge("verify", made["int8"], *option, code=2)[1]
    held = bundle.read(made["int8"])
    plain = tmp_path / "plain.mslite"
    plain.write_bytes(bundle.write(None, held.signatures, metadata=held.metadata))
    assert "holds no golden sample; give its source" in msedge("verify", plain, code=3)[1]
    small = config("llama", num_hidden_layers=2, vocab_size=77)
    other = folder(tmp_path / "small", small, tensors(small))
    assert "is this its source?" in msedge("verify", other, made["int8"], code=3)[1]
    with pytest.raises(InputError, match="finite"):
        compared(np.zeros((1, 2), np.int32), [np.full((2, 3), np.nan)], [np.zeros((2, 3))])


def test_a_source_that_is_no_language_model(made: dict[str, Path], small: Any) -> None:
    assert "expected a language model, which the bundle is, got ONNX" in msedge(
        "verify", small.source, made["int8"], code=3
    )[1]  # fmt: skip
