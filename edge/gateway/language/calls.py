"""Calls of tools in an answer's text, in the forms that models were trained to write them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import orjson

__all__ = ["Calls", "calls_in"]


class Calls(NamedTuple):
    """What an answer says beside its calls, and the calls, as in OpenAI's messages."""

    text: str
    calls: list[dict[str, Any]]


class _Format(NamedTuple):
    """mark: what a model's chat template has if the model writes calls so; find: the texts of the calls, and the rest;
    arguments: the field beside `name`."""

    mark: str
    find: Callable[[str], tuple[Sequence[str], str]]
    arguments: str


_BEGIN, _END = "<tool_call>", "</tool_call>"


def _tagged(text: str) -> tuple[Sequence[str], str]:
    found, rest, at = list[str](), list[str](), 0
    while (begin := text.find(_BEGIN, at)) >= 0 and (end := text.find(_END, begin)) >= 0:
        rest.append(text[at:begin])
        found.append(text[begin + len(_BEGIN) : end])
        at = end + len(_END)
    return found, "".join([*rest, text[at:]]).strip()


FORMATS = (
    _Format(_BEGIN, _tagged, "arguments"),
    _Format('"parameters":', lambda text: ([text], ""), "parameters"),
)
"""That of Hermes, Qwen and SmolLM; that of Llama 3.1, whose answer is one call and nothing else."""


def calls_in(text: str, template: str) -> Calls:
    """The calls in an answer of a model with that template; none if its form is unknown, or if they are not whole."""
    form = next((form for form in FORMATS if form.mark in template), None)
    if form is None:
        return Calls(text, [])
    found, rest = form.find(text)
    calls = [_call(one, form.arguments) for one in found]
    whole = [call for call in calls if call is not None]
    return Calls(rest, whole) if whole and len(whole) == len(calls) else Calls(text, [])


def _call(text: str, field: str) -> dict[str, Any] | None:
    """A call, if the text is one; None also for what no reply can hold, such as half of a surrogate pair."""
    try:
        given = json.loads(text, parse_constant=_no_constant)
        if not isinstance(given, dict) or not isinstance(given.get(field), dict):
            return None
        function = {"name": given.get("name"), "arguments": json.dumps(given[field], ensure_ascii=False)}
        if not isinstance(function["name"], str) or not orjson.dumps(function):
            return None
    except (TypeError, ValueError, RecursionError):
        return None
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"expected finite numbers, got {name}")
