"""Replies of OpenAI's protocol: answers as they grow, as one object or as a stream of objects; errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import orjson

from edge.gateway.errors import GatewayError
from edge.gateway.language.body import ParameterError
from edge.gateway.language.calls import Calls, calls_in
from lite_runtime.errors import InputError
from lite_runtime.language.answer import Piece
from lite_runtime.language.sampling import LogProbability
from lite_runtime.language.tokenizers import Tokenizer

__all__ = ["DONE", "Chat", "Completion", "Form", "error_of", "event"]

DONE = b"data: [DONE]\n\n"
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_CODES = {401: "invalid_api_key", 404: "not_found", 413: "too_large", 429: "rate_limit_exceeded", 503: "unavailable"}


def event(document: Any) -> bytes:
    """A server-sent event."""
    return b"data: %s\n\n" % orjson.dumps(document)


def error_of(error: GatewayError) -> dict[str, Any]:
    """The reply that says why there is none."""
    status = error.status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    parameter, code = None, _CODES.get(status)
    if isinstance(error, ParameterError):
        parameter, code = error.parameter, error.code
    return {"error": {"message": str(error), "type": kind, "param": parameter, "code": code}}


class _Choice:
    """One answer so far."""

    def __init__(self) -> None:
        self.text, self.finish, self.chances = "", "", list[LogProbability]()
        self.answer = Calls("", [])
        """When it is complete: the text to be shown, and calls of tools."""
        self.begun = False


class Form:
    """Replies of one kind. Subclasses say how an answer, and a part of it, are written."""

    prefix = object_ = chunk = ""

    def __init__(
        self, model: str, choices: int, top: int | None, tokenizer: Tokenizer | None, template: str | None = None
    ) -> None:
        """top: how many probable tokens to show. template: of chats, if the answers may call tools; their text is
        shown when it is complete."""
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._choices, self._top, self._tokenizer = [_Choice() for _ in range(choices)], top, tokenizer
        self._template = template

    def add(self, number: int, piece: Piece) -> bytes:
        """A piece of the answer of that number; the event of a stream, b"" if the piece shows nothing."""
        choice = self._choices[number]
        begins, before = not choice.begun, len(choice.text)
        choice.begun = True
        choice.text += piece.text
        choice.chances += piece.logprobs
        found = Calls(piece.text, [])
        if self._template is not None:
            found = calls_in(choice.text, self._template) if piece.finish_reason else Calls("", [])
        if piece.finish_reason:
            choice.finish = "tool_calls" if found.calls else piece.finish_reason
            choice.answer = Calls(choice.text, []) if self._template is None else found
        if not (begins or found.text or piece.logprobs or choice.finish):
            return b""
        chances = None if self._top is None else self._chances(piece.logprobs, before)
        part = {"index": number, **self._part(found, begins), "logprobs": chances}
        part["finish_reason"] = choice.finish or None
        return event({**self._head, "object": self.chunk, "choices": [part]})

    def whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The reply, when all answers are complete."""
        choices = [
            {
                "index": number, **self._answer(choice.answer), "finish_reason": choice.finish,
                "logprobs": None if self._top is None else self._chances(choice.chances, 0),
            }
            for number, choice in enumerate(self._choices)
        ]  # fmt: skip
        return {**self._head, "object": self.object_, "choices": choices, "usage": usage}

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last event of a stream that shows the number of tokens."""
        return event({**self._head, "object": self.chunk, "choices": [], "usage": usage})

    def _word(self, token: int) -> bytes:
        try:
            return b"" if self._tokenizer is None else self._tokenizer.id_to_bytes(token)
        except InputError:  # vocabularies are padded: such ids have no text
            return b""

    def _part(self, found: Calls, begins: bool) -> dict[str, Any]:
        raise NotImplementedError

    def _answer(self, found: Calls) -> dict[str, Any]:
        raise NotImplementedError

    def _chances(self, found: Sequence[LogProbability], offset: int) -> dict[str, Any]:
        raise NotImplementedError


class Completion(Form):
    """Of `/v1/completions`."""

    prefix, object_, chunk = "cmpl", "text_completion", "text_completion"

    def _part(self, found: Calls, begins: bool) -> dict[str, Any]:
        return {"text": found.text}

    def _answer(self, found: Calls) -> dict[str, Any]:
        return {"text": found.text}

    def _chances(self, found: Sequence[LogProbability], offset: int) -> dict[str, Any]:
        words = [self._word(one.token).decode("utf-8", "replace") for one in found]
        offsets = list(accumulate(map(len, words), initial=offset))[:-1]
        tops = [{self._word(t).decode("utf-8", "replace"): value for t, value in one.top} for one in found]
        values = [one.value for one in found]
        return {"tokens": words, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


class Chat(Form):
    """Of `/v1/chat/completions`."""

    prefix, object_, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _part(self, found: Calls, begins: bool) -> dict[str, Any]:
        calls = [{"index": i, **call} for i, call in enumerate(found.calls)]
        return {
            "delta": {
                **({"role": "assistant"} if begins else {}), "content": found.text,
                **({"tool_calls": calls} if calls else {}),
            }
        }  # fmt: skip

    def _answer(self, found: Calls) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": found.text, "refusal": None}
        if found.calls:
            message |= {"content": found.text or None, "tool_calls": found.calls}
        return {"message": message}

    def _chances(self, found: Sequence[LogProbability], offset: int) -> dict[str, Any]:
        content = [
            {**self._token(one.token, one.value), "top_logprobs": [self._token(*each) for each in one.top]}
            for one in found
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, value: float) -> dict[str, Any]:
        word = self._word(token)
        return {"token": word.decode("utf-8", "replace"), "logprob": value, "bytes": list(word)}
