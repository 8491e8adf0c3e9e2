"""Answers that must have a form: whatever the model's numbers are, the text has it."""

from __future__ import annotations

import json
import re
from typing import Any
from weakref import ref

import pytest

from lite_runtime.errors import InputError, MissingExtraError
from lite_runtime.language import LanguageModel
from tests.language.talking import talking, talking_bundle
from tests.language.test_generation import text_of
from tests.language.tiny import Sizes

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def answer(model: LanguageModel, response_format: dict[str, Any], **options: Any) -> tuple[str, str | None]:
    pieces = list(model.generate("Say:", max_tokens=300, response_format=response_format, **options))
    return text_of(pieces), pieces[-1].finish_reason


@pytest.mark.parametrize("speculate", [None, "lookup"])
@pytest.mark.parametrize("seed", range(4))
def test_a_schema(seed: int, speculate: str | None) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    text, reason = answer(talking(), form, temperature=1.5, seed=seed, speculate=speculate)
    found = json.loads(text)
    assert reason == "stop" and set(found) == {"name", "age"}
    assert isinstance(found["name"], str) and len(found["name"]) <= 8 and 0 <= found["age"] <= 150


@pytest.mark.parametrize("expression", [r"[0-9]{3}-[0-9]{4}", "(yes|no)", "a{0,200}b", "é+!{2}"])
def test_a_regular_expression(expression: str) -> None:
    model = LanguageModel.load(talking_bundle(seed=2))
    for seed in range(5):
        text, reason = answer(model, {"type": "regex", "regex": expression}, temperature=2.0, seed=seed)
        assert re.fullmatch(expression, text) if reason == "stop" else len(text) > 90


def test_a_grammar() -> None:
    form = {"type": "grammar", "grammar": 'start: "(" (start | /[a-c]/) ")"'}
    for seed in range(5):
        text, reason = answer(talking(), form, temperature=1.0, seed=seed)
        if reason == "stop":
            assert re.fullmatch(r"(\(+)[a-c](\)+)", text) and text.count("(") == text.count(")")


def test_any_object_and_plain_text() -> None:
    for seed in range(3):
        text, reason = answer(talking(), {"type": "json_object"}, temperature=0.8, seed=seed)
        assert text.startswith("{") and (reason == "length" or isinstance(json.loads(text), dict))
    plain = text_of(list(talking().generate("Say:", max_tokens=300)))
    assert answer(talking(), {"type": "text"})[0] == plain


def test_speculation_does_not_change_the_text() -> None:
    form = {"type": "regex", "regex": "(ab|cd|e)*f"}
    for seed in range(4):
        model = LanguageModel.load(talking_bundle(seed=seed))
        assert answer(model, form) == answer(model, form, speculate="lookup")


@pytest.mark.parametrize(
    "form",
    [
        {},
        [],
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
        {"type": "json_schema", "json_schema": {"schema": {"const": float("nan")}}},
        {"type": "regex", "regex": "(a"},
        {"type": "regex", "regex": 3},
        {"type": "grammar", "grammar": "no grammar"},
    ],
)
def test_wrong_formats(form: Any) -> None:
    with pytest.raises(InputError, match="response_format"):
        talking().generate("a", response_format=form)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return {"type": "json_schema", "json_schema": {"schema": schema}}


@pytest.mark.parametrize("depth", [400, 5000])
def test_deep_schemas(depth: int) -> None:
    with pytest.raises(InputError, match="response_format: expected a JSON schema"):
        talking().generate("a", response_format=nested(depth))


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "json_schema": {"schema": {"enum": [f"x{i}" for i in range(100_000)]}}},
        {"type": "regex", "regex": "a" * 300_000},
        {"type": "regex", "regex": ["a"] * 300_000},
        {"type": "regex", "regex": "\ud800"},
        {"type": "x" * 300_000},
    ],
)
def test_errors_of_long_formats_are_short(form: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="response_format") as error:
        talking().generate("a", response_format=form)
    assert len(str(error.value)) < 600


def test_two_answers_to_one_request_are_independent() -> None:
    model = talking()
    request = model.request(model.tokens("Say:"), response_format={"type": "regex", "regex": "[ab]{4}c"})
    assert request.constraint is not None
    first, second = (list(model._pieces(request, None)) for _ in range(2))
    assert text_of(first) == text_of(second) and re.fullmatch("[ab]{4}c", text_of(first))
    begun = model._pieces(request, None)
    next(begun)  # and left at that
    third = [model._pieces(request, None) for _ in range(2)]
    texts = ["", ""]
    for pieces in zip(*third, strict=True):  # in turns
        texts = [text + piece.text for text, piece in zip(texts, pieces, strict=True)]
    assert texts == [text_of(first)] * 2


def test_an_answer_that_has_ended_holds_no_grammar() -> None:
    model = talking()
    request = model.request(model.tokens("Say:"), response_format={"type": "regex", "regex": "[ab]{4}c"})
    answer = model.answer(request, model.begin(request.tokens))
    state = ref(answer._form)
    while answer.finished is None:
        assert state() is not None
        (logits,) = model.run([model.part(answer)])
        model.take(answer, logits)
    assert state() is None


def test_a_vocabulary_larger_than_the_tokenizers() -> None:
    """Ids without a token have no text, and no format allows them."""
    model = LanguageModel.load(talking_bundle(Sizes(vocabulary=400), seed=1))
    assert model.tokenizer is not None and len(model.tokenizer) == 300
    written: set[int] = set()
    for seed in range(4):
        plain = list(model.generate("Say:", temperature=3.0, seed=seed, max_tokens=60))
        ids = [token for piece in plain for token in piece.tokens]
        assert text_of(plain) == model.tokenizer.decode([number for number in ids if number < 300])
        written.update(ids)
    assert max(written) >= 300
    pieces = list(
        model.generate("Say:", temperature=3.0, max_tokens=60, response_format={"type": "regex", "regex": ".*"})
    )
    assert max(token for piece in pieces for token in piece.tokens) < 300
    with pytest.raises(InputError, match="may be larger"):
        model.tokenizer.decode([300])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match="llguidance is not installed"):
        talking().generate("a", response_format={"type": "json_object"})
