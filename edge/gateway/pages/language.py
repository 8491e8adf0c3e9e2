"""JSON Schemas of OpenAI's protocol, as far as the gateway speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["LANGUAGE"]

Schema = Mapping[str, Any]


def _whole(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


_TEXT: Schema = {"type": "string"}
_BOOL: Schema = {"type": "boolean"}
_IDS: Schema = {"type": "array", "items": _whole(0), "minItems": 1}
_TEXTS: Schema = {
    "oneOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}, _IDS,
              {"type": "array", "items": _IDS, "minItems": 1}],
}  # fmt: skip
_COMMON: dict[str, Schema] = {
    "model": {**_TEXT, "minLength": 1, "description": "A language model, or MODEL:ADAPTER."},
    "stream": {**_BOOL, "description": "Whether the reply comes as server-sent events; the last one is `[DONE]`."},
    "stream_options": {"type": "object", "properties": {"include_usage": _BOOL}, "additionalProperties": False},
    "n": {**_whole(1, 16), "description": "Answers to each prompt; they share what was computed of it."},
    "max_tokens": _whole(1),
    "stop": {"oneOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "temperature": {**_number(0, 2), "description": "0: the most probable token; default 1."},
    "top_p": _number(0, 1), "top_k": _whole(0), "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2), "frequency_penalty": _number(-2, 2), "repetition_penalty": _number(0.01, 100),
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "seed": _whole(-(1 << 63), (1 << 63) - 1),
    "response_format": {"type": "object", "description": "`text`, `json_object`, `json_schema`, `regex`, `grammar`."},
    "user": _TEXT,
}  # fmt: skip
_MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"oneOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
    },
    "required": ["role"],
}


def _reply(kind: str, answer: str, value: Schema) -> Schema:
    choice = {
        "type": "object",
        "properties": {"index": _whole(0), answer: value, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}},
        "required": ["index", answer, "finish_reason"],
    }
    return {
        "type": "object",
        "properties": {
            "id": _TEXT, "object": {"const": kind}, "created": _whole(0), "model": _TEXT,
            "choices": {"type": "array", "items": choice}, "usage": {"type": "object"},
        },
        "required": ["id", "object", "created", "model", "choices", "usage"],
    }  # fmt: skip


LANGUAGE: Mapping[str, Schema] = {
    "CompletionRequest": {
        "type": "object",
        "properties": {
            **_COMMON, "logprobs": _whole(0, 5),
            "prompt": _TEXTS,
        },
        "required": ["model", "prompt"],
        "additionalProperties": False,
    },
    "ChatRequest": {
        "type": "object",
        "properties": {
            **_COMMON, "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
            "max_completion_tokens": _whole(1), "logprobs": _BOOL, "top_logprobs": _whole(0, 20),
            "tools": {"type": "array", "items": {"type": "object"}, "minItems": 1},
            "tool_choice": {"enum": ["auto", "none"]},
        },
        "required": ["model", "messages"],
        "additionalProperties": False,
    },
    "EmbeddingRequest": {
        "type": "object",
        "properties": {
            "model": _COMMON["model"],
            "input": {**_TEXTS, "description": "Texts that are too long are cut off; token ids are used as they are."},
            "encoding_format": {"enum": ["float", "base64"], "description": "base64: of little-endian float32."},
            "dimensions": {**_whole(1), "description": "Only so many of a vector's first numbers."}, "user": _TEXT,
        },
        "required": ["model", "input"],
        "additionalProperties": False,
    },
    "EmbeddingReply": {
        "type": "object",
        "properties": {
            "object": {"const": "list"}, "model": _TEXT, "usage": {"type": "object"},
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "object": {"const": "embedding"}, "index": _whole(0),
                        "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}}, _TEXT]},
                    },
                    "required": ["object", "index", "embedding"],
                },
            },
        },
        "required": ["object", "data", "model", "usage"],
    },
    "CompletionReply": _reply("text_completion", "text", _TEXT),
    "ChatReply": _reply("chat.completion", "message", {"type": "object"}),
    "LanguageError": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": _TEXT, "type": _TEXT,
                    "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]},
                },
                "required": ["message", "type", "param", "code"],
            },
        },
        "required": ["error"],
    },
}  # fmt: skip
"""By name, for `schemas.SCHEMAS`."""
