"""OpenAI's own client against a gateway with a small embedding model."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from converter import Embedding, convert
from edge.gateway.job import Job
from edge.gateway.language.embedder import VECTORS, Embedder, packed
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.language import EmbeddingModel
from tests.edge.gateway.live import Live, live, scaled
from tests.language.encoders import TEXTS, bundle_of, encoder, tokenizer_json
from tests.language.talking import talking_bundle
from tests.waiting import until

MODEL = EmbeddingModel.load(bundle_of(), threads=1)
WANTED = MODEL.embed(TEXTS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("embedding")
    (folder / "tiny.mslite").write_bytes(bundle_of())
    (folder / "talking.mslite").write_bytes(talking_bundle())
    scaled(folder / "plain.mslite", 2.0)
    with live({name: folder / f"{name}.mslite" for name in ("tiny", "talking", "plain")}) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def vectors_of(found: Any) -> Array:
    assert [one.index for one in found.data] == list(range(len(found.data)))
    return np.array([one.embedding for one in found.data], np.float32)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"tiny", "talking"}
    assert client.models.retrieve("tiny").object == "model"


def test_texts_and_token_ids(client: openai.OpenAI) -> None:
    ids = [MODEL.tokens(text) for text in TEXTS]
    count = sum(map(len, ids))
    for given, want in ((TEXTS, WANTED), (ids, WANTED), (TEXTS[0], WANTED[:1]), (ids[0], WANTED[:1])):
        found = client.embeddings.create(model="tiny", input=given)
        assert np.abs(vectors_of(found) - want).max() < 1e-6
        assert found.object == "list" and found.model == "tiny"
        tokens = count if len(want) > 1 else len(ids[0])
        assert (found.usage.prompt_tokens, found.usage.total_tokens) == (tokens, tokens)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_forms_and_dimensions(client: openai.OpenAI, form: Any) -> None:
    found = client.embeddings.create(model="tiny", input=TEXTS, encoding_format=form, dimensions=5, user="me")
    rows = [np.frombuffer(b64decode(one.embedding), "<f4") if form == "base64" else one.embedding for one in found.data]
    assert np.abs(np.array(rows) - MODEL.embed(TEXTS, dimensions=5)).max() < 1e-6


def test_many_clients_share_batches(client: openai.OpenAI, served: Live) -> None:
    (version,) = (s for s in served.gateway.repository.served() if s.name == "tiny")
    embedder: Embedder = version.embedder
    plain, turn, batches = embedder.embedding.vectors, Event(), list[int]()

    def slow(tokens: Any) -> Array:
        batches.append(len(tokens))
        turn.wait(10)
        return plain(tokens)

    def ask(number: int) -> Array:
        text = TEXTS[number % len(TEXTS)]
        return vectors_of(client.embeddings.create(model="tiny", input=text))[0]

    embedder.embedding.vectors = slow  # type: ignore[method-assign]
    inline, served.gateway.scheduler._inline = served.gateway.scheduler._inline, 0.0  # always on another thread
    try:
        with ThreadPoolExecutor(12) as pool:
            found = [pool.submit(ask, i) for i in range(12)]
            until(lambda: served.gateway.under_way == 12 and batches)
            turn.set()
            answers = [one.result(30) for one in found]
    finally:
        turn.set()
        served.gateway.scheduler._inline = inline
        embedder.embedding.vectors = plain  # type: ignore[method-assign]
    assert max(batches) > 1 and sum(batches) == 12
    for number, answer in enumerate(answers):
        assert np.abs(answer - WANTED[number % len(TEXTS)]).max() < 1e-6


@pytest.mark.parametrize(
    ("given", "parameter", "words"),
    [
        ({}, "input", "expected a text, a list of texts"),
        ({"input": []}, "input", "expected a text, a list of texts"),
        ({"input": ["a", 5]}, "input", "expected a text, a list of texts"),
        ({"input": [[]]}, "input", "expected a text, a list of texts"),
        ({"input": [True]}, "input", "expected a text, a list of texts"),
        ({"input": ["a"] * 2049}, "input", "at most 2048 texts, got 2049"),
        ({"input": [20]}, "input", "token ids from 0 to 19"),
        ({"input": [[2], [-1]]}, "input", "token ids from 0 to 19"),
        ({"input": "a", "dimensions": 33}, "dimensions", "at most 32"),
        ({"input": "a", "dimensions": 0}, "dimensions", "a whole number from 1"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "stream": True}, "stream", "unknown parameter 'stream'"),
        ({"input": "\ud800"}, "", ""),
    ],
)
def test_what_is_refused(served: Live, given: dict[str, Any], parameter: str, words: str) -> None:
    body = json.dumps({"model": "tiny", **given})
    reply = httpx.post(f"{served.address}/v1/embeddings", content=body, headers={"Content-Type": "application/json"})
    error = reply.json()["error"]
    assert reply.status_code == 400, error
    if words:  # JSON itself is refused otherwise
        assert error["param"] == parameter and words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_token_ids_are_not_cut_but_texts_are(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="1 to 64 tokens, got 65") as caught:
        client.embeddings.create(model="tiny", input=[2] * 65)
    assert caught.value.code == "context_length_exceeded"
    long = client.embeddings.create(model="tiny", input="the cat " * 100)
    assert long.usage.prompt_tokens == 64


def test_models_of_other_kinds(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not an embedding model; ask it at /v1/chat/completions"):
        client.embeddings.create(model="talking", input="a")
    with pytest.raises(openai.BadRequestError, match="not an embedding model; ask it at /v2/models/plain/infer"):
        client.embeddings.create(model="plain", input="a")
    with pytest.raises(openai.BadRequestError, match="not a language model; ask it at /v1/embeddings"):
        client.completions.create(model="tiny", prompt="a")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="nothing", input="a")


def test_metrics_and_statistics(client: openai.OpenAI, served: Live) -> None:
    def figures() -> dict[str, float]:
        lines = httpx.get(f"{served.address}/metrics").text.splitlines()
        names = ("msedge_embedding_tokens_total", "nv_inference_count", "nv_inference_request_success")
        return {n: float(x.split()[-1]) for n in names for x in lines if x.startswith(n + '{model="tiny"')}

    before = figures()
    found = client.embeddings.create(model="tiny", input=TEXTS)
    gained = {name: value - before[name] for name, value in figures().items()}
    assert gained == {
        "msedge_embedding_tokens_total": found.usage.prompt_tokens, "nv_inference_count": len(TEXTS),
        "nv_inference_request_success": 1,
    }  # fmt: skip


def test_tensors_of_an_embedding_model_are_served_too(served: Live) -> None:
    ids = MODEL.tokens(TEXTS[0])
    inputs = [{"name": name, "datatype": "INT64", "shape": [1, len(ids)], "data": data} for name, data in
              (("input_ids", ids), ("attention_mask", [1] * len(ids)), ("token_type_ids", [0] * len(ids)))]  # fmt: skip
    reply = httpx.post(f"{served.address}/v2/models/tiny/infer", json={"inputs": inputs}).json()
    states = np.array(reply["outputs"][0]["data"], np.float32).reshape(len(ids), 32)
    vector = states.mean(0)
    assert np.abs(vector / np.linalg.norm(vector) - WANTED[0]).max() < 1e-5


def test_a_job_that_fails_fails_alone() -> None:
    embedder = Embedder(EmbeddingModel.load(bundle_of(), threads=1), name="tiny", version="1", limit=8)
    embedder.warm(0.0)
    good, bad = (Job(packed(texts), len(texts), arrived=0.0) for texts in ([[2, 4, 3], [2, 3]], [[99]]))
    embedder.run((good, bad))
    assert good.outputs is not None and bad.outputs is None and bad.error is not None
    assert np.abs(good.outputs[VECTORS] - MODEL.embed([[2, 4, 3], [2, 3]])).max() < 1e-6
    assert embedder.tokens == 5 and embedder.cost.sizes[0] == 1


def test_a_damaged_recipe_is_a_model_that_is_not_loaded(tmp_path: Path) -> None:
    held = bundle.read(bundle_of())
    data = bundle.write(None, held.signatures, metadata={"embedding": {}})
    (tmp_path / "tiny.mslite").write_bytes(data)
    with live({"tiny": tmp_path / "tiny.mslite"}) as there:
        (row,) = there.gateway.repository.index()
    assert row["state"] == "UNAVAILABLE" and "embedding: expected an object with the keys" in row["reason"]


def test_quantised_models_are_served(tmp_path: Path) -> None:
    made = convert(encoder(), embedding=Embedding(tokenizer_json()), quantize="dynamic").bundle
    (tmp_path / "tiny.mslite").write_bytes(made)
    with (
        live({"tiny": tmp_path / "tiny.mslite"}) as there,
        openai.OpenAI(base_url=f"{there.address}/v1", api_key="none") as client,
    ):
        found = vectors_of(client.embeddings.create(model="tiny", input=TEXTS))
    assert np.array_equal(found, EmbeddingModel.load(made, threads=1).embed(TEXTS))
