"""Answers that must have a form: whatever the model's numbers are, the text has it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from lite_runtime.errors import InputError, MissingExtraError
from lite_runtime.language import LanguageModel
from tests.language.talking import talking, talking_bundle
from tests.language.test_generation import text_of

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


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingExtraError, match="llguidance is not installed"):
        talking().generate("a", response_format={"type": "json_object"})
