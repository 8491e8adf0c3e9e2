"""Answers of a real model, SmolLM2, if `make models` fetched it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from converter import convert
from lite_runtime.language import LanguageModel
from tests.language.models import model
from tests.language.test_generation import text_of, tokens_of

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
LLAMA_CPP = [60, 23, 39614, 1141, 552, 28, 2618, 2828, 313, 7712, 769, 28, 2618, 2849, 1558]
"""The first greedy tokens of llama.cpp (node-llama-cpp 3.22) for the same prompt. Then it takes the other one of two
tokens that are nearly equally likely: logarithms of their probabilities are -2.04 and -2.18 here."""
CODE = """def area(width, height):
    return width * height

def volume(width, height, depth):
    return width * height"""


@pytest.fixture(scope="module")
def smollm() -> LanguageModel:
    return LanguageModel.load(convert(model("smollm2")).bundle, threads=2, positions=2048)


def test_greedy_tokens_are_those_of_llama_cpp(smollm: LanguageModel) -> None:
    assert tokens_of(list(smollm.generate(messages=FRANCE, max_tokens=len(LLAMA_CPP)))) == LLAMA_CPP


def test_looking_up_repeats_code_in_fewer_runs(smollm: LanguageModel) -> None:
    plain = list(smollm.generate(CODE, max_tokens=60))
    looked = list(smollm.generate(CODE, max_tokens=60, speculate="lookup"))
    assert tokens_of(looked) == tokens_of(plain) and text_of(looked) == text_of(plain)
    found = looked[-1].statistics
    assert found is not None and found.runs < 40


def test_json_by_a_schema(smollm: LanguageModel) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 30}}, "required": ["city"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    text = text_of(list(smollm.generate(messages=FRANCE, max_tokens=60, response_format=form)))
    assert isinstance(json.loads(text)["city"], str)


def test_a_session_of_a_thousand_tokens(smollm: LanguageModel, tmp_path: Path) -> None:
    tokens = [int(i * 7919 % 40000) + 100 for i in range(1000)]
    session = smollm.session()
    list(session.generate(tokens=tokens, max_tokens=1))
    session.save(tmp_path / "a.mssession")
    assert (tmp_path / "a.mssession").stat().st_size < 24_000_000
    restored = smollm.restore(tmp_path / "a.mssession")
    more = [*tokens, 5, 6, 7]
    want, got = (list(one.generate(tokens=more, max_tokens=10)) for one in (session, restored))
    assert tokens_of(got) == tokens_of(want)
    assert got[-1].statistics is not None and got[-1].statistics.reused == 1000
