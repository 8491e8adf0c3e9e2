"""Tables of a TOML file as frozen dataclasses: unknown keys, wrong types and missing values are errors that name the
key. What else is configured so, training in the cloud above all, reads with it too."""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Collection, Mapping
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

__all__ = ["Sections", "closest"]

S = TypeVar("S")
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def closest(name: str, known: Collection[str]) -> str:
    """The end of an error about a name that is not `known`."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known)}"


@dataclasses.dataclass(frozen=True)
class Sections:
    """Reads a file of one kind. `error`: what is raised for whatever is wrong; `fix`: what makes such a file."""

    error: type[Exception]
    fix: str

    def words(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """What the TOML file at `path` says."""
        shown = os.fspath(path)
        try:
            with open(path, "rb") as file:
                return tomllib.load(file)
        except OSError as error:
            raise self.error(f"cannot read {shown!r}: {error.strerror}; {self.fix}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(f"{shown!r}: expected TOML: {error}") from error

    def need(self, truth: bool, key: str, expected: str, got: object) -> None:
        """Raises unless `truth`."""
        if not truth:
            raise self.error(f"{key}: expected {expected}, got {got!r}")

    def known(self, words: Mapping[str, Any], names: Collection[str]) -> None:
        """Raises unless the file's sections are all of these `names`, and tables."""
        for name, table in words.items():
            if name not in names:
                raise self.error(f"[{name}]: no such section{closest(name, names)}")
            self.need(isinstance(table, Mapping), name, f"a section [{name}]", table)

    def section(self, kind: type[S], words: Mapping[str, Any], where: str) -> S:
        """The dataclass `kind` from a table named `where`."""
        hints = get_type_hints(kind)
        for key in words:
            if key not in hints:
                raise self.error(f"{where}.{key}: no such key{closest(key, hints)}")
        fields, none = dataclasses.fields(kind), dataclasses.MISSING  # type: ignore[arg-type]
        absent = [f.name for f in fields if f.default is f.default_factory is none and f.name not in words]
        if absent:
            raise self.error(f"{where}.{absent[0]}: expected a value, got none")
        return kind(**{key: self._value(hints[key], value, f"{where}.{key}") for key, value in words.items()})

    def _value(self, hint: Any, value: Any, key: str) -> Any:
        origin = get_origin(hint)
        if origin is Literal:
            self.need(value in get_args(hint), key, " or ".join(map(repr, get_args(hint))), value)
            return value
        if origin is tuple:
            texts = isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)
            self.need(texts, key, "a list of texts", value)
            return tuple(value)
        if origin is not None:
            self.need(isinstance(value, Mapping), key, "a table", value)
            return dict(value)
        if hint is float:
            self.need(isinstance(value, int | float) and not isinstance(value, bool), key, _WORDS[float], value)
            self.need(abs(value) < 1e300, key, "a number below 1e300", value)
            return float(value)
        self.need(type(value) is hint, key, _WORDS[hint], value)
        return value
