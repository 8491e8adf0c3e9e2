"""The fuzzer of tokenizers' files, as part of the test suite: few cases, and it notices what it looks for."""

from __future__ import annotations

from random import Random

import pytest

from lite_runtime.language import ChatTemplate
from lite_runtime.language.tokenizers import Tokenizer, pack
from tests.fuzz import tokenizer_files
from tests.fuzz.tokenizer_files import descriptions, main, run, spoiled, try_case


def test_seeds_are_read() -> None:
    tokenizer_files.use(*(pack(held) for held in descriptions()))
    tokenizer_files.use(*(pack(tokenizer_files.from_gguf(held)) for held in tokenizer_files.metadata()))
    tokenizer_files.use(*(pack(tokenizer_files.from_tokenizer_json(held)) for held in tokenizer_files.documents()))
    tokenizer_files.use(pack(tokenizer_files.from_sentencepiece(tokenizer_files.sentencepiece_file())))
    for source in tokenizer_files.TEMPLATES:
        assert ChatTemplate(source).render([{"role": "user", "content": "a"}])


def test_two_thousand_files() -> None:
    counts, findings = run(3, range(2000))
    assert not findings, f"case {findings[0][0]}: {findings[0][1]}"
    assert counts["read"] > 200 and counts["refused"] > 500


def test_cases_are_the_same_everywhere() -> None:
    one, other = (spoiled(Random(5), tokenizer_files.documents()[0]) for _ in range(2))
    assert one == other


def test_findings_are_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(data: bytes) -> Tokenizer:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Tokenizer, "from_bytes", broken)
    assert "on purpose" in next(
        text for number in range(50) if (text := try_case(1, number)) != "refused" and text != "read"
    )
    monkeypatch.setattr(tokenizer_files, "fuzz", lambda cases, seed, workers: run(seed, range(cases)))
    assert main(["--cases", "50", "--seed", "1"]) == 1
    assert "findings" in capsys.readouterr().out
