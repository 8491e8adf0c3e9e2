"""Token ids as words and back: of a list, of single characters, of a bundle's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.measuring.tokens import Words, words_of
from lite_runtime.errors import ExplainError


def test_a_list_has_words_and_perhaps_one_for_unknown_ones() -> None:
    words = Words(["[PAD]", "<unk>", "the", "king", "the"])
    assert words.ids("The king sleeps") == [2, 3, 1]
    assert [words.word(number) for number in (3, 4, 5, -1)] == ["king", "the", "5", "-1"]
    with pytest.raises(ExplainError, match="expected words of the list of tokens, got 'sleeps'"):
        Words(["the", "king"]).ids("the king sleeps")


def test_a_list_of_characters_splits_a_text_into_them() -> None:
    words = Words(["", "a", "b", " "])
    assert words.ids("ab a") == [1, 2, 3, 1]
    assert [words.word(number) for number in (0, 2, 3)] == ["0", "b", "␣"]


def test_a_tokenizer_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(
        '{"model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", '
        '"max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "king": 1, "##s": 2}}, '
        '"pre_tokenizer": {"type": "Whitespace"}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}}'
    )
    words = words_of(tmp_path / "model.onnx", file)
    assert words is not None
    assert words.ids("kings king fool") == [1, 2, 1, 0] and words.word(1).strip() == "king" and words.word(2) == "s"
    assert words.word(9) == "9" and words_of(tmp_path / "model.onnx", None) is None


def test_a_file_that_is_no_list_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ExplainError, match="expected tokens, one a line, in UTF-8"):
        words_of(tmp_path / "model.onnx", tmp_path / "model.bin")
    with pytest.raises(ExplainError, match="expected tokens, one a line, in UTF-8"):
        words_of(tmp_path / "model.onnx", tmp_path / "none.txt")
