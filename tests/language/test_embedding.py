"""Vectors of texts: against ONNX Runtime and `tokenizers`, whatever stands beside them, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import Embedding, convert
from lite_runtime import BundleError, InputError, bundle
from lite_runtime.graph import Array
from lite_runtime.language import EmbeddingModel
from lite_runtime.language.embedding.groups import RUN, Sizes, rounded
from lite_runtime.language.embedding.recipe import KEY
from tests.language.encoders import TEXTS, bundle_of, encoder, theirs, tokenizer_json


def close(found: Array, wanted: Array) -> bool:
    return found.dtype == np.float32 and found.shape == wanted.shape and bool(np.abs(found - wanted).max() < 2e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_are_those_of_onnx_runtime(pooling: Any, normalize: bool) -> None:
    model = EmbeddingModel.load(bundle_of(pooling=pooling, normalize=normalize), threads=1)
    wanted = theirs(encoder().SerializeToString(), tokenizer_json(), TEXTS, pooling=pooling, normalize=normalize)
    assert close(model.embed(TEXTS), wanted)


@pytest.mark.parametrize("backend", ["reference", "guard"])
def test_backends_agree(backend: Any) -> None:
    want = EmbeddingModel.load(bundle_of(), threads=1).embed(TEXTS)
    assert close(EmbeddingModel.load(bundle_of(), backend=backend).embed(TEXTS), want)


@pytest.mark.parametrize(
    ("graph", "pooling"),
    [
        (encoder(types=False), "mean"),
        (encoder(pooled=True, names=("sentence_embedding",)), "none"),
        (encoder(shape=("n", 64)), "mean"),
        (encoder(shape=(4, "t")), "mean"),
        (encoder(shape=(1, 64)), "cls"),
    ],
    ids=["two inputs", "the graph pools", "fixed length", "fixed batch", "all fixed"],
)
def test_graphs_of_other_forms(graph: Any, pooling: Any) -> None:
    made = convert(graph, embedding=Embedding(tokenizer_json(), pooling)).bundle
    shape = [d.dim_value for d in graph.graph.input[0].type.tensor_type.shape.dim]
    oracle = encoder(types=len(graph.graph.input) == 3, pooled=pooling == "none") if any(shape) else graph
    assert close(
        EmbeddingModel.load(made, threads=1).embed(TEXTS),
        theirs(oracle.SerializeToString(), tokenizer_json(), TEXTS, pooling=pooling),
    )


def test_a_vector_depends_on_its_text_alone() -> None:
    model = EmbeddingModel.load(bundle_of(), threads=2)
    together = model.embed(TEXTS)
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    again = model.embed(TEXTS[::-1] * 5)[::-1][: len(TEXTS)]
    assert np.abs(alone - together).max() < 1e-6 and np.abs(again - together).max() < 1e-6


def by_range(data: bytes, *, kept: bool) -> bytes:
    """A dynamically quantised bundle, with a range for each row or one for all texts of a run."""
    held = bundle.read(data)
    graph = held.signatures["predict"]
    measuring = [node.op == "DynamicQuantizeLinear" for node in graph.nodes]
    assert any(measuring) and all(node.attrs["kept"] == 2 for node in graph.nodes if node.op == "DynamicQuantizeLinear")
    attrs = {} if not kept else {"kept": 2}
    nodes = tuple(n.replace(attrs=attrs) if m else n for n, m in zip(graph.nodes, measuring, strict=True))
    return bundle.write(
        None, {"predict": graph.replace(nodes=nodes)}, metadata={KEY: held.metadata[KEY]},
        extra={"tokenizer": held.section("tokenizer")},
    )  # fmt: skip


@pytest.mark.parametrize("kept", [True, False], ids=["a range for each row", "one range for all texts"])
def test_ranges_of_texts_are_their_own(kept: bool) -> None:
    made = convert(encoder(), embedding=Embedding(tokenizer_json()), quantize="dynamic").bundle
    model = EmbeddingModel.load(by_range(made, kept=kept), threads=1)
    alone = np.concatenate([model.embed([text]) for text in TEXTS])
    assert np.array_equal(model.embed(TEXTS), alone)
    assert np.array_equal(model.embed(TEXTS[::-1])[::-1], alone)


def test_threads_do_not_change_vectors() -> None:
    one, two = (EmbeddingModel.load(bundle_of(), threads=threads).embed(TEXTS) for threads in (1, 2))
    assert np.array_equal(one, two)


def test_long_texts_are_cut_as_tokenizers_does() -> None:
    model = EmbeddingModel.load(bundle_of(tokens=10), threads=1)
    ids = model.tokens(TEXTS[6])
    assert len(ids) == 10 and ids[0] == 2 and ids[-1] == 3
    assert close(model.embed(TEXTS), theirs(encoder().SerializeToString(), tokenizer_json(), TEXTS, tokens=10))


def test_a_prompt_stands_before_texts_only() -> None:
    plain, prompted = (EmbeddingModel.load(bundle_of(prompt=prompt), threads=1) for prompt in ("", "the cat "))
    assert np.array_equal(prompted.embed(["sat on"]), plain.embed(["the cat sat on"]))
    ids = plain.tokens("sat on")
    assert np.array_equal(prompted.embed([ids]), plain.embed([ids]))


def test_token_ids_are_used_as_they_are() -> None:
    model = EmbeddingModel.load(bundle_of(), threads=1)
    ids = [model.tokens(text) for text in TEXTS]
    assert np.array_equal(model.embed(ids), model.embed(TEXTS))


def test_fewer_dimensions_have_length_one_again() -> None:
    model = EmbeddingModel.load(bundle_of(), threads=1)
    whole, short = model.embed(TEXTS), model.embed(TEXTS, dimensions=8)
    want = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    assert short.shape == (len(TEXTS), 8) and np.abs(short - want).max() < 1e-6
    raw = EmbeddingModel.load(bundle_of(normalize=False), threads=1)
    assert np.array_equal(raw.embed(TEXTS, dimensions=8), raw.embed(TEXTS)[:, :8])


def test_no_texts_have_no_vectors() -> None:
    assert EmbeddingModel.load(bundle_of(), threads=1).embed([]).shape == (0, 32)


def test_threads_of_a_program_may_share_a_model() -> None:
    model = EmbeddingModel.load(bundle_of(), threads=1)
    want = model.embed(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        assert all(np.abs(found - want).max() < 1e-6 for found in pool.map(model.embed, [TEXTS] * 24))


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        ("a text", {}, "put it into a list"),
        (b"text", {}, "put it into a list"),
        ([5], {}, "lists of token ids, got int"),
        ([[]], {}, "1 to 64 tokens, got 0"),
        ([[2] * 65], {}, "1 to 64 tokens, got 65"),
        ([[-1]], {}, "token ids from 0 to 19"),
        ([[20]], {}, "token ids from 0 to 19"),
        ([[True]], {}, "token ids from 0 to 19"),
        ([["the"]], {}, "token ids from 0 to 19"),
        (["\ud800"], {}, "surrogate"),
        (["cat"], {"dimensions": 0}, "from 1 to 32, got 0"),
        (["cat"], {"dimensions": 33}, "from 1 to 32, got 33"),
        (["cat"], {"dimensions": 8.0}, "from 1 to 32, got 8.0"),
    ],
)
def test_what_is_refused(texts: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        EmbeddingModel.load(bundle_of(), threads=1).embed(texts, **options)


def changed(**about: Any) -> bytes:
    """The bundle with another recipe; values that are None are left out."""
    held = bundle.read(bundle_of())
    recipe = {**held.metadata[KEY], **about}
    return bundle.write(
        None, held.signatures, metadata={KEY: {n: v for n, v in recipe.items() if v is not None}},
        extra={"tokenizer": held.section("tokenizer")},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"pooling": None}, "the keys pooling"),
        ({"more": 1}, "the keys pooling"),
        ({"pooling": "max"}, "one of mean, cls, last, none"),
        ({"pooling": ["mean"]}, "pooling: expected another type"),
        ({"normalize": 1}, "normalize: expected another type"),
        ({"tokens": True}, "tokens: expected another type"),
        ({"tokens": 0}, "tokens: expected a number from 1"),
        ({"tokens": 1 << 40}, "tokens: expected a number from 1"),
        ({"dimensions": 31}, "with 31 dimensions"),
        ({"pooling": "none"}, "rank 2"),
        ({"output": "other"}, "output: expected one of last_hidden_state"),
        ({"inputs": {"ids": "input_ids"}}, "inputs: expected the inputs"),
        ({"inputs": {"ids": "input_ids", "mask": "input_ids", "types": "token_type_ids"}}, "inputs: expected the"),
        (
            {"inputs": {"ids": "input_ids", "mask": ["attention_mask"], "types": "token_type_ids"}},
            "inputs: expected the",
        ),
        ({"inputs": {"ids": "input_ids", "mask": "attention_mask", "other": "token_type_ids"}}, "inputs: expected the"),
    ],
)
def test_recipes_that_do_not_fit(about: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError, match=words):
        EmbeddingModel.load(changed(**about))


def test_bundles_of_other_models() -> None:
    plain = convert(encoder()).bundle
    with pytest.raises(InputError, match="no embedding model"):
        EmbeddingModel.load(plain)
    held = bundle.read(bundle_of())
    with pytest.raises(InputError, match="no tokenizer"):
        EmbeddingModel.load(bundle.write(None, held.signatures, metadata={KEY: held.metadata[KEY]}))
    model = lite_runtime.load(bundle_of(), threads=1)  # an embedding model is also one that takes tensors
    ids = np.array([[2, 4, 3]])
    assert model.run({"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0})


@pytest.mark.parametrize("seed", range(20))
def test_every_text_is_in_one_group(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 200, seed * 7).tolist()
    made = Sizes(200).groups(lengths)
    assert sorted(i for group in made for i in group.members) == list(range(len(lengths)))
    for group in made:
        longest = max(lengths[i] for i in group.members)
        assert len(group.members) <= group.rows and group.length == min(rounded(longest), 200)


def test_groups_cost_the_least() -> None:
    lengths = [5, 6, 7, 8, 60, 61, 200]
    made = sorted(Sizes(256).groups(lengths), key=lambda group: group.length)
    assert [(len(group.members), group.rows, group.length) for group in made] == [(4, 4, 8), (2, 2, 64), (1, 1, 224)]
    assert 4 * 8 + RUN < 3 * 8 + 2 * RUN
    assert [group.rows for group in Sizes(256).groups([8] * 3)] == [4]
    assert sorted(group.rows for group in Sizes(256).groups([200] * 3)) == [1, 2]


@pytest.mark.parametrize(("length", "size"), [(1, 8), (8, 8), (9, 16), (64, 64), (65, 80), (129, 160), (512, 512)])
def test_lengths_are_rounded(length: int, size: int) -> None:
    assert rounded(length) == size
