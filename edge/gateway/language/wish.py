"""What a request asks of a language model: prompts as tokens, and how answers to them are written."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

from edge.gateway.errors import GatewayError
from edge.gateway.language.body import CHAT, COMPLETIONS, MOST_PROMPTS, ParameterError, read
from lite_runtime.bundle.refusal import show
from lite_runtime.errors import InputError, MissingExtraError, TemplateError
from lite_runtime.language.answer import Request
from lite_runtime.language.generation import LanguageModel
from lite_runtime.language.prompts import of_messages

__all__ = ["Wish", "wish_of_chat", "wish_of_completion"]

DEFAULT = 16
"""Tokens of a completion whose request does not say how many; answers of a chat end where the context does."""
SHORTENED = 4
"""Characters that a normaliser may make one of."""
OVERHEAD = 1 << 14
"""Characters of messages and tools beside their texts, which a template may leave out."""
_SAMPLING = (
    "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_PARTS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")
_ROLES = ("system", "developer", "user", "assistant", "tool")


class Wish(NamedTuple):
    """A request, checked. requests: by prompt, one for each of its answers. top: how many probable tokens are shown
    with each token of the answer; None: none, and no probabilities. tools: whether the answer may call some."""

    requests: list[list[Request]]
    stream: bool
    usage: bool
    top: int | None
    tools: bool = False


def wish_of_completion(given: Mapping[str, Any], model: LanguageModel, capacity: int) -> Wish:
    """The wish in a body of `/v1/completions`. capacity: tokens of the longest text that there is room for. Raises
    GatewayError (400)."""
    found = read(given, COMPLETIONS, "prompt")
    prompt = found["prompt"]
    many = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    if len(many) > MOST_PROMPTS:
        raise ParameterError("prompt", f"prompt: expected at most {MOST_PROMPTS} prompts, got {len(many)}")
    prompts = [_tokens(model, capacity, "prompt", **{"prompt" if isinstance(p, str) else "tokens": p}) for p in many]
    top = found.get("logprobs")
    return _wish(found, model, prompts, found.get("max_tokens", DEFAULT), top, capacity)


def wish_of_chat(given: Mapping[str, Any], model: LanguageModel, capacity: int) -> Wish:
    """The wish in a body of `/v1/chat/completions`: see `wish_of_completion`."""
    found = read(given, CHAT, "messages")
    if "max_tokens" in found and "max_completion_tokens" in found:
        raise ParameterError("max_tokens", "max_tokens: expected this or max_completion_tokens, got both")
    if "top_logprobs" in found and not found.get("logprobs"):
        raise ParameterError("top_logprobs", "top_logprobs: expected logprobs true beside it")
    tools = _tools(found.get("tools", [])) if found.get("tool_choice") != "none" else []
    messages = [_message(message, i) for i, message in enumerate(found["messages"])]
    for parameter, given_ in (("messages", messages), ("tools", tools)):
        _check_size(model, capacity, parameter, _written(given_, parameter))
    prompt = _tokens(model, capacity, "messages", tokens=_conversation(model, messages, tools))
    most = found.get("max_completion_tokens", found.get("max_tokens"))
    top = found.get("top_logprobs", 0) if found.get("logprobs") else None
    return _wish(found, model, [prompt], most, top, capacity)._replace(tools=bool(tools))


def _conversation(model: LanguageModel, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
    """The tokens of messages by the model's template. Raises ParameterError."""
    if model.tokenizer is None:
        raise ParameterError("model", "model: it has no tokenizer; send token ids to /v1/completions")
    try:
        return of_messages(model.about, model.tokenizer, messages, tools or None)
    except (InputError, TemplateError) as error:
        parameter = "tools" if str(error).startswith("tools:") else "messages"
        raise ParameterError(parameter, f"{parameter}: {str(error).removeprefix(f'{parameter}: ')}") from None
    except MissingExtraError as error:
        raise GatewayError(501, f"messages: this server cannot read the model's template of chats: {error}") from None


def _tools(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Functions that the model may call. Raises ParameterError."""
    for number, tool in enumerate(given):
        function = tool.get("function") if tool.get("type") == "function" else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ParameterError("tools", f"tools[{number}]: expected type function, and a function with a name")
    return given


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    """Calls in a former message, with their arguments as objects, which templates write as JSON again."""
    try:
        functions = [{**one["function"], "arguments": json.loads(one["function"]["arguments"])} for one in given]
    except (ValueError, TypeError, KeyError, RecursionError):
        text = f"{where}.tool_calls: expected functions with a name, and arguments as a text of JSON"
        raise ParameterError("messages", text) from None
    return [{"type": "function", "function": function} for function in functions]


def _message(given: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A message with its content as one text. Raises ParameterError."""
    where = f"messages[{number}]"
    role, content = given.get("role"), given.get("content")
    if role not in _ROLES:
        raise ParameterError("messages", f"{where}.role: expected one of {', '.join(_ROLES)}, got {str(role)[:80]!r}")
    unknown = [name for name in sorted(given) if name not in _PARTS and given[name] is not None]
    if unknown:
        raise ParameterError("messages", f"{where}: expected {', '.join(_PARTS)}, got {', '.join(unknown)[:80]}")
    more = {name: given[name] for name in ("name", "tool_call_id") if given.get(name) is not None}
    if wrong := [name for name, value in more.items() if not isinstance(value, str)]:
        raise ParameterError("messages", f"{where}.{wrong[0]}: expected a text, got {show(more[wrong[0]])}")
    if given.get("tool_calls") and role != "assistant":
        raise ParameterError("messages", f"{where}.tool_calls: expected these in messages of role assistant only")
    if given.get("tool_calls"):
        more["tool_calls"], content = _calls(given["tool_calls"], where), content or ""
    if isinstance(content, list):
        if not all(map(_is_text, content)):
            raise ParameterError("messages", f"{where}.content: expected parts of type text; the model reads no others")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ParameterError("messages", f"{where}.content: expected a text, got {type(content).__name__}")
    return {"role": "system" if role == "developer" else role, "content": content, **more}


def _is_text(part: Any) -> bool:
    """Whether a part of a message's content is a text."""
    return isinstance(part, dict) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)


def _written(value: Any, parameter: str) -> int:
    """Characters of a value as JSON. Raises ParameterError for one that is nested too deeply."""
    try:
        return len(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise ParameterError(parameter, f"{parameter}: expected values that are nested less deeply") from None


def _check_size(model: LanguageModel, capacity: int, parameter: str, characters: int) -> None:
    """Refuse a text that has too many tokens in any case, before the work of cutting it. Raises ParameterError."""
    longest = model.tokenizer.longest if model.tokenizer is not None else 0
    most = SHORTENED * longest * capacity + OVERHEAD
    if characters > most:
        text = f"{parameter}: expected at most {most} characters, got {characters}; the context has {capacity} tokens"
        raise ParameterError(parameter, text, "context_length_exceeded")


def _tokens(model: LanguageModel, capacity: int, parameter: str, **prompt: Any) -> list[int]:
    """A prompt's tokens. Raises ParameterError."""
    _check_size(model, capacity, parameter, len(prompt.get("prompt", "")))
    try:
        tokens = model.tokens(**prompt)
    except (InputError, TemplateError) as error:
        code = "context_length_exceeded" if "context has" in str(error) else "invalid_value"
        raise ParameterError(parameter, f"{parameter}: {error}", code) from None
    if len(tokens) >= capacity:
        text = f"{parameter}: expected less than {capacity} tokens, got {len(tokens)}; the server's setting"
        raise ParameterError(parameter, f"{text} language.tokens has no room for more", "context_length_exceeded")
    return tokens


def _wish(
    found: Mapping[str, Any], model: LanguageModel, prompts: list[list[int]], most: int | None, top: int | None,
    capacity: int,
) -> Wish:  # fmt: skip
    stream, options = found.get("stream", False), found.get("stream_options", {})
    if options and (not stream or set(options) != {"include_usage"} or type(options["include_usage"]) is not bool):
        raise ParameterError("stream_options", "stream_options: expected stream true, and include_usage true or false")
    sampling = {name: found[name] for name in _SAMPLING if name in found}
    sampling |= {"temperature": found.get("temperature", 1.0), "logit_bias": _bias(found.get("logit_bias", {}))}
    seed = found.get("seed", secrets.randbits(64))
    first = _request(model, prompts[0], max_tokens=most, stop=found.get("stop", ()), logprobs=top,
                     response_format=found.get("response_format"), **sampling)  # fmt: skip
    made = [
        [
            first._replace(
                tokens=tokens,
                limit=min(most or capacity, capacity - len(tokens)),
                sampling=first.sampling._replace(seed=(seed + number) % (1 << 64)),
            )
            for number in range(found.get("n", 1))
        ]
        for tokens in prompts
    ]
    return Wish(made, stream, bool(options.get("include_usage")), top)


def _request(model: LanguageModel, tokens: list[int], **options: Any) -> Request:
    """The request, of which all answers are copies: their options are checked, and a grammar is compiled, once."""
    try:
        return model.request(tokens, **options)
    except InputError as error:
        parameter, colon, _ = str(error).partition(":")
        raise ParameterError(parameter if colon and parameter in options else None, str(error)) from None
    except MissingExtraError as error:
        raise ParameterError("response_format", f"response_format: not supported by this server: {error}") from None


def _bias(given: Mapping[str, Any]) -> dict[int, float]:
    """Numbers by token id; their keys are texts in JSON."""
    made = {}
    for key, value in given.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10) or type(value) not in (int, float):
            raise ParameterError("logit_bias", f"logit_bias: expected numbers by token id, got {key[:20]!r}")
        if not -100 <= value <= 100:
            raise ParameterError("logit_bias", f"logit_bias: expected numbers from -100 to 100, got {value!r}")
        made[int(key)] = float(value)
    return made
