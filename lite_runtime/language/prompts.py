"""Prompts as tokens: a text, or a conversation by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lite_runtime.errors import InputError
from lite_runtime.language.tokenizers import Tokenizer

if TYPE_CHECKING:
    from lite_runtime.language.template import ChatTemplate
    from lite_runtime.language.tokenizers.added import Finder

__all__ = ["of_messages", "of_text"]

_DEEPEST = 32
"""Levels of lists and objects in messages and tools: as many as a template is given."""
_MARK = "\ufdd0"
"""A number that Unicode keeps free of characters: put into texts of messages where a special token would be found."""


def of_text(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The tokens of a text, in which special tokens are what they say."""
    return tokenizer.encode(prompt)


def of_messages(
    about: Mapping[str, Any],
    tokenizer: Tokenizer,
    messages: Items[Mapping[str, Any]],
    tools: Items[Mapping[str, Any]] | None = None,
    answered: bool = False,
) -> list[int]:
    """The tokens of a conversation, up to where the answer begins. tools: functions that the model may call. answered:
    the last message is the answer, and all its tokens are wanted.

    Special tokens that a message's content spells out are ordinary text there: a user cannot end a message and begin
    another in the name of somebody else. Raises InputError for messages that the template refuses, and for a model
    without a template.
    """
    if not isinstance(messages, list | tuple) or not all(map(_is_message, messages)):
        raise InputError("messages: expected a list of objects, each with a role, a text")
    template = about.get("template")
    if not template:
        raise InputError("this model has no chat template; give a prompt instead of messages")
    special = tokenizer.special
    marked, offered = _marked(messages, special, "messages"), _marked(tools, special, "tools")
    names: dict[str, Any] = {f"{name}_token": tokenizer.id_to_token(number) for name, number in tokenizer.ids.items()}
    text = _template(template).render(marked, tools=offered, add_generation_prompt=not answered, **names)
    return [number for part in text.split(_MARK) for number in tokenizer.encode(part, add=False)]


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str)


@lru_cache(maxsize=8)
def _template(source: str) -> ChatTemplate:
    from lite_runtime.language.template import ChatTemplate

    return ChatTemplate(source)


def _marked(value: Any, special: Finder, where: str, depth: int = 0) -> Any:
    """Messages or tools whose texts hold no special token: a mark follows the first character of each."""
    if depth > _DEEPEST:
        raise InputError(f"{where}: expected values nested at most {_DEEPEST} deep")
    if isinstance(value, str):
        return special.broken(value.replace(_MARK, ""), _MARK)
    if isinstance(value, Mapping):
        return {name: _marked(held, special, where, depth + 1) for name, held in value.items()}
    return [_marked(held, special, where, depth + 1) for held in value] if isinstance(value, list | tuple) else value
