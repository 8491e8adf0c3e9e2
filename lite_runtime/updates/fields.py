"""Reading the JSON that a hub and its devices send each other: hostile until read, and of another version perhaps.

A key that is not known is left out, and one that is missing has its default: an agent and a hub of different versions
understand each other as long as nothing changes its meaning. What is there is checked as strictly as a file.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

from lite_runtime.bundle.refusal import show
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import BundleError, MsedgeError
from lite_runtime.updates.release import may_name

__all__ = ["PROTOCOL", "ProtocolError", "Read", "digits", "flag", "name", "one_of", "plain", "read", "real", "record"]
__all__ += ["rows", "sayable", "table", "text", "whole", "written"]

PROTOCOL = 1
"""Changes when a key that is already there gets another meaning, and not when a key is added."""
_ABSENT = object()

Read = Callable[[Any, str], Any]
"""(value of JSON, where it stands) to what it means. Raises ProtocolError."""


class ProtocolError(MsedgeError):
    """A message of a hub or a device is malformed, too large or of another protocol."""


def _refuse(at: str, expected: str, got: str) -> NoReturn:
    raise ProtocolError(f"{at}: expected {expected}, got {got}; both ends need releases that fit together")


def read(raw: bytes, what: str, of: Read, most: int) -> Any:
    """The message that these bytes say, which `of` reads. Raises ProtocolError for more than `most` bytes too."""
    if len(raw) > most:
        _refuse(what, f"at most {most} bytes", str(len(raw)))
    try:
        found = parsed(raw, what)
    except BundleError as problem:
        raise ProtocolError(str(problem)) from None
    if type(found) is not dict:
        _refuse(what, "an object", show(found))
    if found.get("protocol") != PROTOCOL:
        _refuse(f"{what}, protocol", str(PROTOCOL), show(found.get("protocol")))
    return of(found, what)


def written(message: Any) -> bytes:
    """The JSON of a message (a named tuple), the same bytes for equal messages."""
    return json.dumps({"protocol": PROTOCOL, **plain(message)}, sort_keys=True, separators=(",", ":")).encode()


def plain(value: Any) -> Any:
    """A value of named tuples in JSON's types."""
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple) else value


# -- fields ------------------------------------------------------------------------------------------------------------


def whole(low: int, high: int) -> Read:
    """A whole number from `low` to `high`."""

    def take(value: Any, at: str) -> int:
        if type(value) is not int or not low <= value <= high:
            _refuse(at, f"a whole number from {low} to {high}", show(value))
        return value

    return take


def real(low: float, high: float) -> Read:
    """A number from `low` to `high`, as a float."""

    def take(value: Any, at: str) -> float:
        if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
            _refuse(at, f"a number from {low:g} to {high:g}", show(value))
        return float(value)

    return take


def flag(value: Any, at: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        _refuse(at, "true or false", show(value))
    return value


def text(most: int) -> Read:
    """A text of at most so many characters. U+0000, which databases do not take, is none of them."""

    def take(value: Any, at: str) -> str:
        if type(value) is not str or len(value) > most or "\0" in value:
            _refuse(at, f"text of at most {most} characters, none of them U+0000", show(value))
        return value

    return take


def sayable(value: str, most: int) -> str:
    """The beginning of any text as `text` takes it: what a program printed, or the name of a file, may hold zero bytes
    and halves of characters."""
    return value[:most].replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def digits(count: int) -> Read:
    """A text of so many hexadecimal digits."""
    fits = re.compile(f"[0-9a-f]{{{count}}}").fullmatch

    def take(value: Any, at: str) -> str:
        if type(value) is not str or fits(value) is None:
            _refuse(at, f"{count} hexadecimal digits", show(value))
        return value

    return take


def name(*, empty: bool = False) -> Read:
    """What `lite_runtime.updates.release.may_name` allows; with `empty`, no name too."""
    expected = "a name of 1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit, without '..'"

    def take(value: Any, at: str) -> str:
        if not may_name(value) and not (empty and value == ""):
            _refuse(at, f"{expected}{', or none' if empty else ''}", show(value))
        return str(value)

    return take


def one_of(known: Mapping[str, Any]) -> Read:
    """One of the keys of a table."""

    def take(value: Any, at: str) -> str:
        if type(value) is not str or value not in known:
            _refuse(at, f"one of {', '.join(known)}", show(value))
        return value

    return take


def table(of: Read, most: int) -> Read:
    """An object of at most so many entries, whose keys are names."""
    key = name()

    def take(value: Any, at: str) -> Mapping[str, Any]:
        if type(value) is not dict or len(value) > most:
            _refuse(at, f"an object of at most {most} entries", show(value))
        return MappingProxyType({key(word, at): of(one, f"{at}, {word}") for word, one in value.items()})

    return take


def rows(of: Read, most: int) -> Read:
    """A list of at most so many."""

    def take(value: Any, at: str) -> tuple[Any, ...]:
        if type(value) is not list or len(value) > most:
            _refuse(at, f"a list of at most {most}", show(value))
        return tuple(of(one, f"{at}, {number}") for number, one in enumerate(value))

    return take


def record(kind: Any, /, **fields: Read) -> Read:
    """An object as a named tuple. A field with a default may be missing; null is what a default of None reads."""
    if fields.keys() != set(kind._fields):
        raise TypeError(f"{kind.__name__} has the fields {', '.join(kind._fields)}; got {', '.join(fields)}")
    defaults = kind._field_defaults
    readers = [(word, fields[word], defaults.get(word, _ABSENT)) for word in kind._fields]

    def take(value: Any, at: str) -> Any:
        if type(value) is not dict:
            _refuse(at, "an object", show(value))
        found = []
        for word, of, default in readers:
            one = value.get(word, _ABSENT)
            if one is _ABSENT or (one is None and default is None):
                if default is _ABSENT:
                    _refuse(f"{at}, {word}", "a value", "none")
                found.append(default)
            else:
                found.append(of(one, f"{at}, {word}"))
        return kind(*found)

    return take
