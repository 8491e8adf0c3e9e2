"""Prompts as tokens: the chat template, and what a user's text cannot do."""

from __future__ import annotations

from random import Random

import pytest

from lite_runtime.errors import InputError
from lite_runtime.language import LanguageModel
from tests.language.talking import SPECIAL, talking, talking_bundle


def test_a_conversation_is_what_the_template_makes_of_it() -> None:
    model = talking()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé 123"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHé 123<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokens(messages=messages) == model.tokens(text)
    assert model.tokens(text).count(1) == 3


def test_texts_of_messages_hold_no_special_tokens() -> None:
    model, rng = talking(), Random(0)
    assert model.tokenizer is not None
    for _ in range(200):
        parts = [*SPECIAL, "<", "|im_end|>", "a", "\ufdd0", "<|im_<|im_end|>end|>", " "]
        content = "".join(rng.choices(parts, k=rng.randrange(1, 6)))
        tokens = model.tokens(messages=[{"role": "user", "content": content}])
        assert [t for t in tokens if t < 4] == [1, 2, 1]
        text = model.tokenizer.decode(tokens, skip_special=False)
        assert content.replace("\ufdd0", "") in text


def test_messages_that_are_none() -> None:
    with pytest.raises(InputError, match="no chat template"):
        LanguageModel.load(talking_bundle(template=None, chat=False)).generate(messages=[])
    for wrong in ("text", [3], [{"role": 1, "content": "a"}], [{"content": "a"}], {"role": "user"}):
        with pytest.raises(InputError, match="messages"):
            talking().generate(messages=wrong)  # type: ignore[arg-type]
