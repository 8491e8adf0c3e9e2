"""A tokenizer: text to ids and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

from lite_runtime.bundle.refusal import refuse, show
from lite_runtime.errors import InputError
from lite_runtime.language.tokenizers.added import Finder
from lite_runtime.language.tokenizers.bpe import Bpe
from lite_runtime.language.tokenizers.decoders import Detokenizer, decoder_of
from lite_runtime.language.tokenizers.description import (
    ABSENT,
    BYTE,
    NORMAL,
    SECTION,
    UNDERLINE,
    AddedToken,
    Description,
    check,
    unpack,
)
from lite_runtime.language.tokenizers.normalizers import normalizer
from lite_runtime.language.tokenizers.pretokenizers import pre_tokenizer
from lite_runtime.language.tokenizers.unigram import Unigram
from lite_runtime.language.tokenizers.wordpiece import WordPiece

__all__ = ["Tokenizer"]

_WORDS, _LONG = 1 << 16, 64
"""Words whose ids are remembered, and the most characters of one."""


class Model(Protocol):
    """What turns a word into ids."""

    def encode(self, word: str) -> list[int]:
        """The ids of a word."""


MODELS: Mapping[str, Callable[[Description], Model]] = {"BPE": Bpe, "Unigram": Unigram, "WordPiece": WordPiece}


def _cut_of(description: Description) -> re.Pattern[str] | None:
    """Where a text may be cut because no token reaches across: before a sign for a space that follows another
    character. None if some token does.

    Parts repeat, so that their ids can be remembered; a whole text does not.
    """
    normal = [token for token, kind in zip(description.tokens, description.kinds, strict=True) if kind == NORMAL]
    text = b"\0".join(normal).decode("utf-8")
    if UNDERLINE.encode() not in normal or re.search(f"[^\0{UNDERLINE}]{UNDERLINE}", text):
        return None
    return re.compile(f"(?<=[^{UNDERLINE}])(?={UNDERLINE})")


class Tokenizer:
    """Text to ids and back, from a checked description.

    Raises BundleError for a description whose parts do not fit together, or that names something unknown here.
    """

    def __init__(self, description: Description) -> None:
        check(description)
        name = description.model.get("type")
        if type(name) is not str or name not in MODELS:
            refuse(f"{SECTION}, model", f"one of {', '.join(MODELS)}", show(name))
        self._model = MODELS[name](description)
        self._normalized = normalizer(description.normalizer, description.charsmap)
        self._words = pre_tokenizer(description.pre_tokenizer)
        self._cut = None if description.model.get("units") == "bytes" else _cut_of(description)
        self._decoder = decoder_of(description)
        self._added = {token.id: token for token in description.added}
        in_text = [token for token in description.added if not token.normalized]
        normalized = [token for token in description.added if token.normalized]
        self._in_text = Finder((token.content, token) for token in in_text)
        self._in_normalized = Finder((self._normalized(token.content), token) for token in normalized)
        self._remembered: dict[str, list[int]] = {}
        self.description = description
        """What the tokenizer was made from."""
        self.ids: Mapping[str, int] = MappingProxyType(dict(description.ids))
        """The ids of special tokens by name: bos, eos, unk, pad and others, as far as the model has them."""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Tokenizer:
        """The tokenizer of a bundle's section `tokenizer`. Raises BundleError for anything else."""
        return cls(unpack(data))

    def __len__(self) -> int:
        """The number of ids: the least size of the model's vocabulary."""
        return len(self.description.tokens)

    @cached_property
    def special(self) -> Finder:
        """Finds special tokens of two characters or more in a text."""
        tokens = (token for token in self.description.added if token.special and len(token.content) > 1)
        return Finder((token.content, token) for token in tokens)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.description.tokens))

    @property
    def chat_template(self) -> str:
        """The template that turns a list of messages into a text, or ""."""
        return self.description.chat_template

    def encode(self, text: str, *, special: bool = True, add: bool = True, limit: int | None = None) -> list[int]:
        """The ids of a text.

        special: whether special tokens in the text, such as `<|im_end|>`, are these tokens; False makes them ordinary
        text, as text of users should be. add: whether the model's template adds tokens of begin and end. limit: the
        most ids, those of the template included, which stay: the end of a longer text is left out, as `tokenizers`
        truncates. Raises InputError for anything but valid Unicode text.
        """
        ids = self._encoded(text, special)
        template = self.description.template["single"] if add else ("A",)
        if limit is not None:
            ids = ids[: max(0, limit + 1 - len(template))]
        filled: list[int] = []
        for item in template:
            filled += [item] if isinstance(item, int) else ids
        return filled

    def encode_pair(
        self, first: str, second: str, *, special: bool = True, add: bool = True
    ) -> tuple[list[int], list[int]]:
        """The ids of two texts in the model's template of pairs, and the type of each id, 0 or 1: its text.

        Raises InputError for anything but valid Unicode text.
        """
        template = self.description.template
        rows = zip(template["pair"], template["types"], strict=True) if add else (("A", 0), ("B", 1))
        texts = {"A": self._encoded(first, special), "B": self._encoded(second, special)}
        ids: list[int] = []
        types: list[int] = []
        for item, kind in rows:
            ids += texts[item] if isinstance(item, str) else [item]
            types += [kind] * (len(ids) - len(types))
        return ids, types

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids. Raises InputError for an id that the tokenizer does not have."""
        made = self.detokenizer(skip_special=skip_special)
        return made.feed(*ids) + made.finish()

    def detokenizer(self, *, skip_special: bool = True, padded: bool = False) -> Detokenizer:
        """What gives text for ids as they come. padded: ids without a token add nothing, as a model may write them
        whose vocabulary is larger than the tokenizer's."""
        token = self._skipping if skip_special else self._stored
        return Detokenizer(
            self._decoder, (lambda number: token(number) if self._has(number) else None) if padded else token
        )

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as `id_to_token` writes it; None if there is none."""
        return self._ids_by_token.get(token)

    def id_to_token(self, number: int) -> str:
        """The text of a token, with U+FFFD where a token of bytes is no text. Raises InputError for an unknown id."""
        stored = self._stored(number)[0].decode("utf-8", "replace")
        return self._added[number].content if number in self._added else stored

    def id_to_bytes(self, number: int) -> bytes:
        """The bytes that a token adds to a text inside it. Raises InputError for an unknown id."""
        return self._decoder.adds(*self._stored(number), False)

    def is_special(self, number: int) -> bool:
        """Whether `decode` leaves the token out unless it is told not to. Raises InputError for an unknown id."""
        self._stored(number)
        return number in self._added and self._added[number].special

    @cached_property
    def _ids_by_token(self) -> dict[str, int]:
        tokens = self.description.tokens
        made = {token.decode("utf-8", "replace"): i for i, token in enumerate(tokens) if self.description.kinds[i]}
        return made | {token.content: token.id for token in self.description.added}

    def _stored(self, number: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether it is one of the 256 tokens of bytes."""
        if not self._has(number):
            raise InputError(f"expected ids of {len(self)} tokens, got {number}; the model's vocabulary may be larger")
        return self.description.tokens[number], self.description.kinds[number] == BYTE

    def _has(self, number: int) -> bool:
        kinds = self.description.kinds
        return 0 <= number < len(kinds) and kinds[number] != ABSENT

    def _skipping(self, number: int) -> tuple[bytes, bool] | None:
        return None if self.is_special(number) else self._stored(number)

    def _encoded(self, text: str, special: bool) -> list[int]:
        if not isinstance(text, str):
            raise InputError(f"expected text, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(f"expected valid Unicode, got half of a surrogate pair at {error.start}") from None
        ids: list[int] = []
        for i, part in enumerate(self._in_text.parts(text, special)):
            if isinstance(part, AddedToken):
                ids.append(part.id)
                continue
            pieces = self._in_normalized.parts(self._normalized(part), special)
            for j, piece in enumerate(pieces):
                if isinstance(piece, AddedToken):
                    ids.append(piece.id)
                elif piece:
                    self._add(ids, piece, not i and not j)
        return ids

    def _add(self, ids: list[int], text: str, first: bool) -> None:
        """Append the ids of normalised text without added tokens."""
        remembered, cut = self._remembered, self._cut
        for word in self._words(text, first):
            for part in cut.split(word) if cut is not None else (word,):
                found = remembered.get(part)
                if found is None:
                    found = self._model.encode(part)
                    if len(part) <= _LONG:
                        if len(remembered) >= _WORDS:
                            remembered.clear()
                        remembered[part] = found
                ids += found
