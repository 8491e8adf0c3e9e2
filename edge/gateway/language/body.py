"""Requests of OpenAI's protocol: which parameters there are, and what is expected of each. Whatever is not in these
tables is refused, so that no parameter is silently without effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edge.gateway.errors import GatewayError
from lite_runtime.bundle.refusal import show

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "Field", "ParameterError", "read"]

MOST_CHOICES, MOST_PROMPTS, MOST_BIASES, MOST_INPUTS = 16, 64, 1024, 2048


class ParameterError(GatewayError):
    """A request with a wrong parameter (400). code: as OpenAI's, a word for programs."""

    def __init__(self, parameter: str | None, text: str, code: str = "invalid_value") -> None:
        super().__init__(400, text)
        self.parameter, self.code = parameter, code


class Field(NamedTuple):
    """A parameter: whether a value is allowed, and what to tell those who send another."""

    allows: Callable[[Any], bool]
    expected: str


def _whole(least: int, most: int) -> Field:
    return Field(lambda v: type(v) is int and least <= v <= most, f"a whole number from {least} to {most}")


def _number(least: float, most: float) -> Field:
    allows: Callable[[Any], bool] = lambda v: type(v) in (int, float) and least <= v <= most  # noqa: E731
    return Field(allows, f"a number from {least:g} to {most:g}")


def _only(*values: Any) -> Field:
    return Field(lambda v: any(type(v) is type(one) and v == one for one in values), f"only {values[0]!r} here")


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, list) and bool(v) and all(type(one) is kind for one in v)


_TEXT = Field(lambda v: isinstance(v, str) and bool(v), "a text")
_BOOL = Field(lambda v: isinstance(v, bool), "true or false")
_OBJECT = Field(lambda v: isinstance(v, dict), "an object")
_BIASES = Field(lambda v: isinstance(v, dict) and len(v) <= MOST_BIASES, f"an object of at most {MOST_BIASES} entries")
_OBJECTS = Field(_all(dict), "a list of objects")
_STOP = Field(lambda v: isinstance(v, str) or _all(str)(v), "a text, or a list of texts")
_PROMPT = Field(
    lambda v: isinstance(v, str) or any(_all(kind)(v) for kind in (str, int))
    or (_all(list)(v) and all(_all(int)(one) for one in v)),
    "a text, a list of texts, a list of token ids, or a list of such lists",
)  # fmt: skip

_COMMON: Mapping[str, Field] = {
    "model": _TEXT, "stream": _BOOL, "stream_options": _OBJECT, "n": _whole(1, MOST_CHOICES), "stop": _STOP,
    "max_tokens": _whole(1, 1 << 31), "temperature": _number(0, 2), "top_p": _number(0, 1),
    "presence_penalty": _number(-2, 2), "frequency_penalty": _number(-2, 2), "logit_bias": _BIASES,
    "seed": _whole(-(1 << 63), (1 << 63) - 1), "response_format": _OBJECT, "user": Field(_TEXT.allows, "a text"),
    "top_k": _whole(0, 1 << 31), "min_p": _number(0, 1), "repetition_penalty": _number(0.01, 100),
}  # fmt: skip
"""`user` is a note for whoever reads the requests. The last three are not OpenAI's, but those of other servers."""
COMPLETIONS: Mapping[str, Field] = {
    **_COMMON, "prompt": _PROMPT, "logprobs": _whole(0, 5), "echo": _only(False), "best_of": _only(1),
    "suffix": _only(""),
}  # fmt: skip
CHAT: Mapping[str, Field] = {
    **_COMMON, "messages": _OBJECTS, "max_completion_tokens": _whole(1, 1 << 31), "logprobs": _BOOL,
    "top_logprobs": _whole(0, 20), "tools": _OBJECTS, "tool_choice": _only("auto", "none"),
    "parallel_tool_calls": _only(True), "store": _only(False), "modalities": _only(["text"]),
}  # fmt: skip


EMBEDDINGS: Mapping[str, Field] = {
    "model": _TEXT, "input": _PROMPT, "dimensions": _whole(1, 1 << 16), "user": _COMMON["user"],
    "encoding_format": Field(lambda v: v in ("float", "base64"), "float or base64"),
}  # fmt: skip


def read(given: Mapping[str, Any], fields: Mapping[str, Field], *needed: str) -> dict[str, Any]:
    """The parameters of a request that have a value (null has none). Raises ParameterError."""
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        field = fields.get(name)
        if field is None:
            known = ", ".join(sorted(fields))
            raise ParameterError(name[:80], f"unknown parameter {name[:80]!r}; known are {known}", "unknown_parameter")
        if not field.allows(value):
            raise ParameterError(name, f"{name}: expected {field.expected}, got {show(value)}")
    for name in ("model", *needed):
        if name not in found:
            text = f"{name}: expected {fields[name].expected}, got none"
            raise ParameterError(name, text, "missing_required_parameter")
    return found
