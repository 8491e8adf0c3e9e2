"""Answers: text, tokens, ends, speculation, what is kept in the caches."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime.errors import InputError
from lite_runtime.language import LanguageModel, Piece
from lite_runtime.language.engine import Part
from lite_runtime.language.pages import OutOfPages
from tests.language.talking import SPECIAL, talking, talking_bundle
from tests.language.tiny import Sizes

PROMPT = "Once upon a time there was a small model. Once upon a time there was"
FREE: dict[str, Any] = {"temperature": 1.2, "seed": 4}


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def tokens_of(pieces: list[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.tokens]


def answer(model: LanguageModel, prompt: str = PROMPT, **options: Any) -> list[Piece]:
    return list(model.generate(prompt, **{"max_tokens": 60, **options}))


def by_hand(model: LanguageModel, prompt: str, count: int) -> list[int]:
    """Greedy tokens, by one run over the whole text for each."""
    tokens = model.tokens(prompt)
    for _ in range(count):
        sequence = model.engine.start()
        (logits,) = model.engine.run([Part(sequence, tokens)])
        model.engine.end(sequence)
        tokens.append(int(logits[0].argmax()))
    return tokens[-count:]


def test_greedy_tokens_and_their_text() -> None:
    model = talking()
    pieces = answer(model, max_tokens=30)
    assert tokens_of(pieces) == by_hand(model, PROMPT, 30)
    assert model.tokenizer is not None
    assert text_of(pieces) == model.tokenizer.decode(tokens_of(pieces))
    assert [piece.finish_reason for piece in pieces] == [None] * 29 + ["length"]
    found = pieces[-1].statistics
    assert found is not None and (found.tokens, found.prompt_tokens, found.runs) == (30, len(model.tokens(PROMPT)), 30)
    assert found.seconds >= found.first > 0 and found.tokens_per_second > 0


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_seed_gives_the_same_text_on_any_number_of_threads(threads: int) -> None:
    text = text_of(answer(talking(threads=threads), **FREE))
    assert text == text_of(answer(talking(), **FREE))
    assert text != text_of(answer(talking(), temperature=1.2, seed=5))


def test_pieces_never_hold_half_a_character() -> None:
    model = talking()
    for seed in range(6):
        pieces = answer(model, temperature=3.0, seed=seed)
        assert model.tokenizer is not None
        assert text_of(pieces) == model.tokenizer.decode(tokens_of(pieces))


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it() -> None:
    model = talking()
    whole = text_of(answer(model, **FREE))
    for start in (0, 5, 17, 30):
        stop = whole[start : start + 3]
        pieces = answer(model, stop=[stop, "never met"], **FREE)
        assert text_of(pieces) == whole[: whole.index(stop)]
        assert pieces[-1].finish_reason == "stop"
    assert text_of(answer(model, stop=whole[4:6], **FREE)) == whole[: whole.index(whole[4:6])]


def test_an_end_token_ends_the_answer() -> None:
    tokens = tokens_of(answer(talking(), **FREE))
    model = LanguageModel.load(talking_bundle(stop=[tokens[9], 299]))
    pieces = answer(model, **FREE)
    assert tokens_of(pieces) == tokens[: tokens.index(tokens[9])]
    assert pieces[-1].finish_reason == "stop" and pieces[-1].tokens == ()


def test_the_answer_ends_where_the_context_does() -> None:
    model = LanguageModel.load(talking_bundle(Sizes(context=64), stop=[]))
    pieces = list(model.generate(tokens=[5] * 60))
    assert (len(tokens_of(pieces)), pieces[-1].finish_reason) == (4, "length")
    with pytest.raises(InputError, match="64 tokens, and this model's context has 64"):
        model.generate(tokens=[5] * 64)


def test_log_probabilities_are_the_models() -> None:
    model = talking()
    pieces = answer(model, max_tokens=5, logprobs=3, **FREE)
    tokens, given = model.tokens(PROMPT), tokens_of(pieces)
    (logits,) = model.engine.run([Part(model.engine.start(), [*tokens, *given[:-1]], 5)])
    values = logits.astype(float)
    values -= np.log(np.exp(values).sum(-1, keepdims=True))
    for row, piece in zip(values, pieces, strict=True):
        (found,) = piece.logprobs
        assert found.token == piece.tokens[0] and abs(found.value - row[found.token]) < 1e-6
        assert [token for token, _ in found.top] == np.argsort(-row)[:3].tolist()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.4, "seed": 3}, {"repetition_penalty": 1.3}])
def test_looking_up_does_not_change_the_text(seed: int, sampling: dict[str, Any]) -> None:
    model = LanguageModel.load(talking_bundle(seed=seed))
    tokens = np.random.default_rng(seed).integers(4, 260, 30).tolist() * 3
    options = {"tokens": tokens, "max_tokens": 150, "logprobs": 1, **sampling}
    plain, looked = list(model.generate(**options)), list(model.generate(speculate="lookup", **options))
    assert tokens_of(looked) == tokens_of(plain) and text_of(looked) == text_of(plain)
    assert [p for piece in looked for p in piece.logprobs] == [p for piece in plain for p in piece.logprobs]
    found = looked[-1].statistics
    assert found is not None and found.runs + found.accepted == found.tokens + (looked[-1].finish_reason == "stop")
    if not sampling:
        assert found.accepted > 0


@pytest.mark.parametrize("seed", range(3))
def test_a_draft_does_not_change_greedy_text(seed: int) -> None:
    sizes, file = Sizes(layers=1), talking_bundle(seed=seed)
    for other in (file, talking_bundle(sizes, seed=seed)):
        model = LanguageModel.load(file, draft=LanguageModel.load(other))
        plain, drafted = answer(model, max_tokens=100), answer(model, max_tokens=100, speculate="draft")
        assert tokens_of(drafted) == tokens_of(plain)
        found = drafted[-1].statistics
        assert found is not None and found.runs + found.accepted >= found.tokens
        if other is file:
            assert found.accepted == found.proposed and found.runs < 20
        assert model.draft is not None and model.draft.engine.pages.free == model.draft.engine.pages.count


def test_a_draft_does_not_change_the_distribution() -> None:
    """Texts of three tokens, the second of which a draft proposes: how often each is drawn."""
    draft = LanguageModel.load(talking_bundle(Sizes(layers=1), seed=1))
    model = LanguageModel.load(talking_bundle(seed=1), draft=draft)
    options: dict[str, Any] = {"tokens": [5, 9, 77], "max_tokens": 3, "temperature": 1.0, "top_k": 2}
    plain: Counter[tuple[int, ...]] = Counter()
    drafted: Counter[tuple[int, ...]] = Counter()
    for seed in range(1500):
        plain[tuple(tokens_of(list(model.generate(seed=seed, **options))))] += 1
        drafted[tuple(tokens_of(list(model.generate(seed=seed, speculate="draft", **options))))] += 1
    assert len(plain) > 4 and plain != drafted
    chi = sum((plain[k] - drafted[k]) ** 2 / (plain[k] + drafted[k]) for k in plain | drafted)
    assert chi < 40  # 8 degrees of freedom at most: beyond this by chance in none of 100,000 cases


def test_stop_texts_and_ends_within_speculated_tokens() -> None:
    model = LanguageModel.load(talking_bundle(stop=[]))
    whole = answer(model, max_tokens=120)
    text = text_of(whole)
    for at in (20, 50, 80):
        stop = text[at : at + 2]
        got = answer(model, max_tokens=120, stop=[stop], speculate="lookup")
        assert text_of(got) == text[: text.index(stop)]
    for limit in range(1, 20):
        got = answer(model, max_tokens=limit, speculate="lookup")
        assert tokens_of(got) == tokens_of(whole)[:limit] and got[-1].finish_reason == "length"


def test_a_prompt_continues_what_the_caches_hold() -> None:
    model = talking()
    first = answer(model, "A system text that all share. First question", **FREE)
    again = answer(model, "A system text that all share. First question", **FREE)
    other = answer(model, "A system text that all share. Second", **FREE)
    assert tokens_of(first) == tokens_of(again)
    reused = [pieces[-1].statistics.reused for pieces in (first, again, other)]  # type: ignore[union-attr]
    length = len(model.tokens("A system text that all share. First question"))
    assert reused[0] == 0 and reused[1] == length - 1 and 10 < reused[2] < length
    assert tokens_of(other) == tokens_of(answer(talking(), "A system text that all share. Second", **FREE))


def test_kept_texts_make_room() -> None:
    model = talking(positions=128)
    for i in range(12):
        assert len(tokens_of(list(model.generate(tokens=[4 + i] * 50, max_tokens=20)))) == 20
    with pytest.raises(OutOfPages, match="positions="):
        list(model.generate(tokens=[5] * 140, max_tokens=5))
    while model._kept.drop():
        pass
    assert model.engine.pages.free == model.engine.pages.count


def test_closing_the_iterator_frees_the_pages() -> None:
    model = talking()
    pieces = model.generate(PROMPT, max_tokens=50, speculate="lookup")
    next(pieces)
    next(pieces)
    pieces.close()
    model.generate(PROMPT, max_tokens=50)  # never begun
    assert len(model._kept) == 1
    model._kept.drop()
    assert model.engine.pages.free == model.engine.pages.count


def test_answers_that_take_turns_and_answers_of_several_threads() -> None:
    model, alone = talking(positions=2048), talking()
    prompts = [f"{PROMPT} number {i}" for i in range(4)]
    want = [text_of(answer(alone, prompt, max_tokens=25, **FREE)) for prompt in prompts]
    running = [model.generate(prompt, max_tokens=25, **FREE) for prompt in prompts]
    got = [""] * 4
    for _ in range(25):
        for i, pieces in enumerate(running):
            got[i] += next(pieces).text
    assert got == want
    found: dict[int, str] = {}

    def work(i: int) -> None:
        found[i] = text_of(answer(model, prompts[i], max_tokens=25, **FREE))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(4)] == want


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "one of prompt, messages and tokens"),
        ({"prompt": "a", "tokens": [1]}, "one of prompt"),
        ({"tokens": []}, "at least one token"),
        ({"tokens": [300]}, "from 0 to 299"),
        ({"tokens": [1.5]}, "from 0 to 299"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs: expected a number from 0 to 20"),
        ({"prompt": "a", "heat": 1.0}, "got heat"),
        ({"prompt": "a", "top_p": 7.0}, "top_p"),
        ({"prompt": "a", "speculate": "draft"}, "load the model with draft="),
        ({"prompt": "a", "speculate": "other"}, "lookup, draft"),
        ({"prompt": "a", "stop": [""]}, "expected up to 64 texts"),
        ({"prompt": "a", "response_format": {"type": "xml"}}, "response_format: expected a type of text"),
    ],
)
def test_wrong_options_are_errors_before_anything_runs(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        talking().generate(**options)


def test_a_draft_of_another_vocabulary() -> None:
    with pytest.raises(InputError, match="same vocabulary"):
        LanguageModel.load(talking_bundle(), draft=LanguageModel.load(talking_bundle(Sizes(vocabulary=320))))


def test_a_bundle_without_a_tokenizer() -> None:
    from tests.language.tiny import Tiny

    model = LanguageModel(lite_runtime.load(Tiny().bundle()))
    assert text_of(pieces := list(model.generate(tokens=[4, 5], max_tokens=5))) == "" and len(tokens_of(pieces)) == 5
    for options in ({"prompt": "a"}, {"messages": []}, {"tokens": [4], "stop": ["a"]}):
        with pytest.raises(InputError, match="no tokenizer"):
            model.generate(**options)  # type: ignore[arg-type]


def test_special_tokens() -> None:
    model = talking()
    assert model.tokens(f"{SPECIAL[1]}user\n")[0] == 1
