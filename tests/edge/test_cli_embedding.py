"""The command line makes embedding models, says what their vectors are, and refuses options without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from lite_runtime.language import EmbeddingModel
from tests.edge.test_cli import as_json, msedge
from tests.language.encoders import encoder, folder, tokenizer_json


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The small encoder, and its tokenizer."""
    place = tmp_path_factory.mktemp("encoder")
    onnx.save(encoder(), place / "encoder.onnx")
    (place / "tokenizer.json").write_bytes(tokenizer_json())
    return place / "encoder.onnx", place / "tokenizer.json"


def test_an_encoder_and_its_tokenizer(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, tokenizer = files
    out = tmp_path / "tiny.mslite"
    said, _ = msedge("convert", source, "-o", out, "--tokenizer", tokenizer)
    assert "32 numbers for texts of up to 64 tokens: mean of last_hidden_state, of length 1" in " ".join(said.split())
    assert "next: msedge verify" in said
    assert EmbeddingModel.load(out, threads=1).embed(["the cat"]).shape == (1, 32)
    assert "pooling mean" in " ".join(msedge("inspect", out)[0].split())
    assert "equal within" in msedge("verify", source, out)[0]
    assert "golden sample of predict" in msedge("verify", out)[0]


def test_options_and_facts_as_json(files: tuple[Path, Path], tmp_path: Path) -> None:
    source, tokenizer = files
    options = ("--tokenizer", tokenizer, "--pooling", "cls", "--no-normalize", "--context", "9", "--quantize", "w8")
    told = as_json("convert", source, "-o", tmp_path / "tiny.mslite", *options)["embedding"]
    assert (told["pooling"], told["normalize"], told["tokens"], told["dimensions"]) == ("cls", False, 9, 32)


def test_a_folder(tmp_path: Path) -> None:
    said, _ = msedge("convert", folder(tmp_path / "folder"), "-o", tmp_path / "tiny.mslite")
    assert "up to 16 tokens" in " ".join(said.split()) and "next: msedge inspect" in said


def test_options_without_a_tokenizer(files: tuple[Path, Path], tmp_path: Path) -> None:
    for option in (("--pooling", "cls"), ("--no-normalize",)):
        _, error = msedge("convert", files[0], "-o", tmp_path / "tiny.mslite", *option, code=3)
        assert "an embedding model needs one; give its tokenizer.json" in error
    assert not (tmp_path / "tiny.mslite").exists()
