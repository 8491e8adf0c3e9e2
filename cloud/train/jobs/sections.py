"""Tables of a TOML file as frozen dataclasses: unknown keys, wrong types and missing values are errors that name the
key. Shared by what is configured so."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from cloud.errors import TrainError

__all__ = ["closest", "need", "overridden", "section"]

S = TypeVar("S")
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def need(truth: bool, key: str, expected: str, got: object) -> None:
    """Raise TrainError unless `truth`."""
    if not truth:
        raise TrainError(f"{key}: expected {expected}, got {got!r}")


def closest(name: str, known: Collection[str]) -> str:
    """The end of an error about a name that is not `known`."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


def section(kind: type[S], words: Mapping[str, Any], where: str) -> S:
    """The dataclass `kind` from a table named `where`."""
    hints = get_type_hints(kind)
    for key in words:
        if key not in hints:
            raise TrainError(f"{where}.{key}: no such key{closest(key, hints)}")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    absent = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING and f.name not in words]
    if absent:
        raise TrainError(f"{where}.{absent[0]}: expected a value, got none")
    return kind(**{key: _value(hints[key], value, f"{where}.{key}") for key, value in words.items()})


def _value(hint: Any, value: Any, key: str) -> Any:
    origin = get_origin(hint)
    if origin is Literal:
        need(value in get_args(hint), key, " or ".join(map(repr, get_args(hint))), value)
        return value
    if origin is tuple:
        need(isinstance(value, list | tuple) and all(isinstance(v, str) for v in value), key, "a list of texts", value)
        return tuple(value)
    if origin is not None:
        need(isinstance(value, Mapping), key, "a table", value)
        return dict(value)
    if hint is float:
        need(isinstance(value, int | float) and not isinstance(value, bool), key, _WORDS[float], value)
        need(abs(value) < 1e300, key, "a number below 1e300", value)
        return float(value)
    need(type(value) is hint, key, _WORDS[hint], value)
    return value


def overridden(words: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """`words` with "section.key=value" texts put in; a value is TOML, or else a text as it stands."""
    made: dict[str, Any] = {name: dict(table) if isinstance(table, Mapping) else table for name, table in words.items()}
    for change in changes:
        path, equals, text = change.partition("=")
        *tables, key = (part.strip() for part in path.split("."))
        if not (equals and tables and key and all(tables)):
            raise TrainError(f"expected SECTION.KEY=VALUE, such as train.rate=0.1; got {change!r}")
        at = made
        for name in tables:
            at[name] = dict(at.get(name) or {})
            at = at[name]
        at[key] = _toml(text.strip())
    return made


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text
