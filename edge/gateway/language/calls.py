"""Calls of tools in an answer's text, in the forms that models were trained to write them."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


def _tagged(text: str) -> tuple[Sequence[str], str]:
    pattern = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
    return pattern.findall(text), pattern.sub("", text).strip()


FORMATS = (
    _Format("<tool_call>", _tagged, "arguments"),
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
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str) or not isinstance(given.get(field), dict):
        return None
    function = {"name": given["name"], "arguments": json.dumps(given[field], ensure_ascii=False)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
