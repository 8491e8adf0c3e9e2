"""Answers that must have a form: JSON, a JSON schema, a regular expression, a grammar.

llguidance computes which tokens may follow; this module alone knows its interface.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from lite_runtime.errors import InputError, MissingExtraError, MsedgeError
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from lite_runtime.language.tokenizers import Tokenizer

__all__ = ["FORMATS", "Following", "Guided", "constraint"]

_MOST = 1 << 18
"""Characters of a schema, an expression or a grammar."""
_READY: WeakKeyDictionary[Tokenizer, Any] = WeakKeyDictionary()
"""llguidance's tokenizers: one takes about 0.1 s for 50,000 tokens."""


class Guided:
    """A grammar that answers must match."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def begin(self) -> Following:
        """The state of an answer that has no tokens yet: a copy, so that several answers may have one grammar."""
        return Following(self._matcher.deep_copy(), self._vocabulary)


class Following:
    """The state of one answer that must match a grammar."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher, self._vocabulary = matcher, vocabulary

    def allowed(self) -> Array:
        """Which tokens may follow: bool [vocabulary]."""
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._check()
        made = np.zeros(self._vocabulary, bool)
        count = min(len(bits), self._vocabulary)
        made[:count] = bits[:count]
        return made

    def accept(self, token: int) -> None:
        """A token follows."""
        self._matcher.consume_token(token)
        self._check()

    @property
    def complete(self) -> bool:
        """Whether no token may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MsedgeError(f"the answer cannot be kept to its format: {str(self._matcher.get_error())[:400]}")


def constraint(response_format: Mapping[str, Any], tokenizer: Tokenizer, about: Mapping[str, Any]) -> Guided | None:
    """What keeps an answer to a format; None for plain text.

    response_format: an object whose `type` is a row of FORMATS, with the field of that row: `{"type": "json_schema",
    "json_schema": {"schema": {…}}}` as in OpenAI's interface, `{"type": "regex", "regex": "[0-9]+"}`, `{"type":
    "grammar", "grammar": "start: …"}` in Lark's notation. Raises InputError for another object and for a schema,
    expression or grammar that is wrong or too large; MissingExtraError if llguidance is not installed.
    """
    name = response_format.get("type") if isinstance(response_format, Mapping) else None
    if not isinstance(name, str) or name not in FORMATS:
        raise InputError(f"response_format: expected a type of {', '.join(FORMATS)}, got {str(name)[:80]!r}")
    if name == "text":
        return None
    try:
        import llguidance
    except ModuleNotFoundError as error:
        raise MissingExtraError("llguidance", "language", "it keeps answers to a format", ["llguidance"]) from error
    grammar = FORMATS[name](response_format, llguidance.LLMatcher)
    matcher = llguidance.LLMatcher(_ready(tokenizer, about), grammar, log_level=0)
    if matcher.is_error():
        raise InputError(f"response_format: {str(matcher.get_error())[:400]}")
    return Guided(matcher, about["vocabulary"])


def _ready(tokenizer: Tokenizer, about: Mapping[str, Any]) -> Any:
    """llguidance's form of a tokenizer."""
    if tokenizer not in _READY:
        import llguidance

        words = _Words(tokenizer, about)
        _READY[tokenizer] = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words), eos_token=list(about["stop"]))
    return _READY[tokenizer]


class _Words:
    """A tokenizer as llguidance wants it."""

    def __init__(self, tokenizer: Tokenizer, about: Mapping[str, Any]) -> None:
        self.tokens = [_bytes(tokenizer, i) for i in range(about["vocabulary"])]
        self.special_token_ids = [token.id for token in tokenizer.description.added if token.special]
        stop = about["stop"]
        self.eos_token_id, self.bos_token_id = stop[0] if stop else None, about.get("bos")
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False, add=False)


def _bytes(tokenizer: Tokenizer, number: int) -> bytes:
    try:
        return tokenizer.id_to_bytes(number)
    except InputError:  # a number without a token
        return b""


def _schema(given: Mapping[str, Any], matcher: Any) -> str:
    held = given.get("json_schema")
    schema = held.get("schema") if isinstance(held, Mapping) else None
    if not isinstance(schema, Mapping):
        raise InputError("response_format: expected json_schema with a schema, an object")
    return _json(schema, matcher)


def _json(schema: Mapping[str, Any], matcher: Any) -> str:
    try:
        text = _bounded(json.dumps(schema, allow_nan=False))
        return str(matcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": r"[\x20\x0A]?"}))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"response_format: expected a JSON schema: {str(error)[:200]}") from None


def _bounded(text: str) -> str:
    if len(text) > _MOST:
        raise InputError(f"response_format: expected at most {_MOST} characters, got {len(text)}; shorten it")
    return text


def _text(field: str, method: str) -> Callable[[Mapping[str, Any], Any], str]:
    def made(given: Mapping[str, Any], matcher: Any) -> str:
        value = given.get(field)
        if not isinstance(value, str) or not value:
            raise InputError(f"response_format: expected {field} as text, got {str(value)[:80]!r}")
        try:
            return str(getattr(matcher, method)(_bounded(value)))
        except ValueError as error:
            raise InputError(f"response_format: expected {field}: {str(error)[:200]}") from None

    return made


FORMATS: Mapping[str, Callable[[Mapping[str, Any], Any], str]] = MappingProxyType(
    {
        "text": lambda given, matcher: "",
        "json_object": lambda given, matcher: _json({"type": "object"}, matcher),
        "json_schema": _schema,
        "regex": _text("regex", "grammar_from_regex"),
        "grammar": _text("grammar", "grammar_from_lark"),
    }
)
"""How a format becomes a grammar, by type. White space between the parts of JSON is at most one character: a small
model otherwise writes white space without end."""
