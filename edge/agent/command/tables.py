"""Tables of a configuration as typed values, strictly checked, by the standard library alone: a device may have no
other package. What `federated.tables` does for larger machines; errors read alike."""

from __future__ import annotations

import difflib
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from edge.agent.errors import AgentError

__all__ = ["Take", "file", "flag", "listed", "named", "real", "record", "table", "text", "whole", "wrong"]

Take = Callable[[Any, str], Any]
"""(value of TOML, its key) to what it means. Raises AgentError."""
FIX = "msedge agent init prints a template"


def wrong(key: str, what: str, got: Any) -> NoReturn:
    """Refuse a value."""
    shown = repr(got)
    raise AgentError(f"{key}: expected {what}, got {shown if len(shown) <= 80 else f'{shown[:80]}…'}")


def file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a TOML file."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as held:
            return tomllib.load(held)
    except OSError as error:
        raise AgentError(f"cannot read {name!r}: {error.strerror}; {FIX}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AgentError(f"{name!r}: expected TOML: {error}") from error


def text(what: str = "a text", fits: Callable[[str], Any] = lambda value: True) -> Take:
    """A text for which `fits` is true."""

    def take(value: Any, key: str) -> str:
        if type(value) is not str or not fits(value):
            wrong(key, what, value)
        return value

    return take


def whole(low: int, high: int | None = None, what: str = "") -> Take:
    """A whole number from `low` to `high`."""

    def take(value: Any, key: str) -> int:
        if type(value) is not int or value < low or (high is not None and value > high):
            wrong(key, what or f"a whole number of at least {low}", value)
        return value

    return take


def real(low: float, *, above: bool = False, high: float = math.inf) -> Take:
    """A number from `low` (or above it) to `high`, as a float."""

    def take(value: Any, key: str) -> float:
        fits = type(value) in (int, float) and math.isfinite(value) and low <= value <= high
        if not fits or (above and value == low):
            end = f" and at most {high:g}" if math.isfinite(high) else ""
            wrong(key, f"a number {'above' if above else 'of at least'} {low:g}{end}", value)
        return float(value)

    return take


def flag(value: Any, key: str) -> bool:
    """True or false."""
    if type(value) is not bool:
        wrong(key, "true or false", value)
    return value


def listed(of: Take, what: str = "a list of texts") -> Take:
    """A list, as a tuple."""

    def take(value: Any, key: str) -> tuple[Any, ...]:
        if type(value) is not list:
            wrong(key, what, value)
        return tuple(of(one, f"{key}[{number}]") for number, one in enumerate(value))

    return take


def named(of: Take, what: str, may: Callable[[str], bool], most: int = 1 << 16) -> Take:
    """A table whose keys are names: `what` describes them, and `may` says which are some."""

    def take(value: Any, key: str) -> dict[str, Any]:
        if type(value) is not dict or len(value) > most:
            wrong(key, f"a table of at most {most} entries", value)
        for name in value:
            if not may(name):
                wrong(key, what, name)
        return {name: of(one, f"{key}.{name}") for name, one in value.items()}

    return take


def record(kind: Any, /, **fields: Take) -> Take:
    """A table as a named tuple; a field without a default must be there."""
    if fields.keys() != set(kind._fields):
        raise TypeError(f"{kind.__name__} has the fields {', '.join(kind._fields)}; got {', '.join(fields)}")

    def take(value: Any, key: str) -> Any:
        return kind(**table(value, key, fields, kind._field_defaults))

    return take


def table(value: Any, key: str, fields: Mapping[str, Take], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a table that are there, and those that must be. key: "FILE: " for a whole file."""
    if type(value) is not dict:
        wrong(key.removesuffix(": "), "a table", value)
    top = key.endswith(": ")
    for name in value:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, 1)
            end = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(fields)}"
            raise AgentError(f"{key}{'' if top else '.'}{name}: no such key; {end}")
    for name in fields:
        if name not in value and name not in defaults:
            raise AgentError(f"{key}{'' if top else '.'}{name}: expected this key, got none; {FIX}")
    return {name: fields[name](one, f"{key}{'' if top else '.'}{name}") for name, one in value.items()}
