"""Tokenizers of public models, on generated texts and on a corpus, against the libraries that define them.

MSEDGE_TEXTS=100000 tries as many texts with each.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import gguf
import pytest
import sentencepiece
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import decoders, models, pre_tokenizers

from converter.frontends.language import from_gguf, from_sentencepiece, from_tokenizer_json
from lite_runtime.language import ChatTemplate, Tokenizer
from lite_runtime.language.tokenizers import Description, pack
from tests.language.models import model
from tests.language.strings import generated

TEXTS = int(os.environ.get("MSEDGE_TEXTS", "500"))
CORPUS = 300 * TEXTS
"""Characters of the corpus that are used."""
FILES = ("minilm tokenizer", "llama 2 tokenizer", "llama 3 tokenizer", "qwen 3 tokenizer")


@cache
def smollm2() -> dict[str, Any]:
    """The metadata, by the reader of GGUF's authors."""
    fields = gguf.GGUFReader(model("smollm2")).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer")}


def smollm2_oracle() -> tokenizers.Tokenizer:
    """`tokenizers` with the tables of the GGUF file, and the steps that SmolLM2's own file names."""
    held = smollm2()
    names = held["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in held["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(names)}, merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    kinds = held["tokenizer.ggml.token_type"]
    made.add_special_tokens([token for token, kind in zip(names, kinds, strict=True) if kind == 3])
    return made


def pair(name: str) -> tuple[Description, tokenizers.Tokenizer]:
    """The description that is tested, and the oracle."""
    if name == "smollm2":
        return from_gguf(smollm2()), smollm2_oracle()
    data = model(name).read_bytes()
    theirs = tokenizers.Tokenizer.from_buffer(data)
    theirs.no_truncation()
    theirs.no_padding()
    return from_tokenizer_json(data), theirs


@pytest.mark.parametrize("name", ["smollm2", *FILES])
def test_ids_and_texts_are_those_of_tokenizers(name: str, shared_data: Path) -> None:
    description, theirs = pair(name)
    mine, rng = Tokenizer.from_bytes(pack(description)), Random(name)
    special = [token.content for token in description.added][:40]
    for _ in range(TEXTS):
        text = generated(rng, special)
        ids = mine.encode(text)
        assert ids == theirs.encode(text).ids, text
        assert mine.decode(ids) == theirs.decode(ids), text
    corpus = (shared_data / "tinyshakespeare.txt").read_text(encoding="utf-8")[:CORPUS]
    ids = mine.encode(corpus)
    assert ids == theirs.encode(corpus).ids
    assert mine.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("name", ["mistral pieces", "japanese unigram"])
def test_ids_are_those_of_sentencepiece(name: str, shared_data: Path) -> None:
    data = model(name).read_bytes()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    description = from_sentencepiece(data, begin=False)
    mine, rng = Tokenizer.from_bytes(pack(description)), Random(name)
    for _ in range(TEXTS):
        text = generated(rng)
        ids, found = theirs.encode(text), mine.encode(text, special=False)
        if found != ids:  # of equal scores, sums in float32 may prefer the other
            sums = [sum(float(description.scores[i]) for i in each) for each in (found, ids)]
            assert description.model["type"] == "Unigram" and abs(sums[0] - sums[1]) < 1e-3, text
    corpus = (shared_data / "tinyshakespeare.txt").read_text(encoding="utf-8")[:CORPUS]
    assert mine.encode(corpus) == theirs.encode(corpus)


CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi <b>&"}],
    [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "\xe9"},
     {"role": "user", "content": "c"}],
    [{"role": "user", "content": "w?"},
     {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": [1, None]}}}]},
     {"role": "tool", "content": '{"a": 1}'}, {"role": "assistant", "content": "<think>\nhm\n</think>\nok"},
     {"role": "user", "content": "z"}],
]  # fmt: skip


@pytest.mark.parametrize("name", ["smollm2", "qwen 3 settings"])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]], ids=["", "tools"])
def test_templates_of_public_models(name: str, tools: Any) -> None:
    source = (
        smollm2()["tokenizer.chat_template"]
        if name == "smollm2"
        else json.loads(model(name).read_bytes())["chat_template"]
    )
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    for chat in CHATS:
        for prompt in (True, False):
            values = {"messages": chat, "tools": tools, "add_generation_prompt": prompt}
            assert ChatTemplate(source).render(**values) == plain.from_string(source).render(values)
