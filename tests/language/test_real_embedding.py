"""MiniLM: vectors of sentences against ONNX Runtime and `tokenizers` in float32, by the runtime and over HTTP."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import openai
import pytest

from converter import Embedding, convert
from lite_runtime.graph import Array
from lite_runtime.language import EmbeddingModel
from tests.edge.gateway.live import live
from tests.language.encoders import theirs
from tests.language.minilm import minilm
from tests.language.models import model

TOKENS = 256


@cache
def bundle() -> bytes:
    return convert(minilm(), embedding=Embedding(model("minilm tokenizer"), tokens=TOKENS)).bundle


@pytest.fixture(scope="module")
def sentences(shared_data: Path) -> list[str]:
    corpus = (shared_data / "tinyshakespeare.txt").read_text(encoding="utf-8")
    lines = [part.replace("\n", " ") for part in corpus.split("\n\n")]
    return [*lines[:48], "", "¿Qué tal? 日本語 ✓", corpus[:4000]]


@pytest.fixture(scope="module")
def wanted(sentences: list[str]) -> Array:
    return theirs(minilm(), model("minilm tokenizer").read_bytes(), sentences, tokens=TOKENS)


def test_vectors_are_those_of_onnx_runtime(sentences: list[str], wanted: Array) -> None:
    found = EmbeddingModel.load(bundle()).embed(sentences)
    cosines = (found * wanted).sum(1)
    assert cosines.min() > 1 - 1e-6 and np.abs(found - wanted).max() < 2e-6


def test_what_means_the_same_is_near() -> None:
    vectors = EmbeddingModel.load(bundle()).embed(["How warm is it?", "What is the temperature?", "He bought a horse."])
    near, far, other = vectors[0] @ vectors[1], vectors[0] @ vectors[2], vectors[1] @ vectors[2]
    assert near > 0.6 > 0.3 > max(far, other)


def test_vectors_over_http(sentences: list[str], wanted: Array, tmp_path: Path) -> None:
    (tmp_path / "minilm.mslite").write_bytes(bundle())
    with (
        live({"minilm": tmp_path / "minilm.mslite"}) as served,
        openai.OpenAI(base_url=f"{served.address}/v1", api_key="none") as client,
    ):
        found = client.embeddings.create(model="minilm", input=sentences)
    vectors = np.array([one.embedding for one in found.data])
    assert (vectors * wanted).sum(1).min() > 1 - 1e-6
