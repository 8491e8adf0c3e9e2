"""Tables of TOML and JSON files as typed values: msgspec validates them, this module describes errors.

A file is described by subclasses of `Table`. Annotations give a key's type; `msgspec.Meta` bounds numbers, and its
`description` replaces the words that errors would use. A `Reader` raises its package's own error, which names the
file, the key, what was expected, what was found, and the nearest key that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cache
from threading import RLock
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

__all__ = [
    "Count", "Fraction", "NotNegative", "Number", "Positive", "Reader", "Seed", "Share", "Table", "Whole", "closest",
    "expected",
]  # fmt: skip

T = TypeVar("T")
_MOST = 1e300
_NOUNS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="a whole number from 0 to below 2^63")]
Number = Annotated[float, Meta(gt=-_MOST, lt=_MOST)]
"""A finite float."""
NotNegative = Annotated[float, Meta(ge=0, lt=_MOST)]
Positive = Annotated[float, Meta(gt=0, lt=_MOST)]
Share = Annotated[float, Meta(ge=0, lt=1, description="a share from 0 to below 1")]
Fraction = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]


def closest(name: str, known: Collection[str]) -> str:
    """The end of an error about a name that is not `known`."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; expected one of {', '.join(known) or 'none'}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads values of one kind of file.

    error: the class of errors. fix: how to get such a file. shown: how errors quote a value.
    """

    error: Callable[[str], Exception]
    fix: str
    shown: Callable[[object], str] = _shown

    def file(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """The content of the TOML file at `path`."""
        name = os.fspath(path)
        try:
            with open(path, "rb") as file:
                return tomllib.load(file)
        except OSError as error:
            raise self.error(f"cannot read {name!r}: {error.strerror}; {self.fix}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.error(f"{name!r}: expected TOML: {error}") from error

    def need(self, truth: bool, key: str, what: str, got: object) -> None:
        """Raises unless `truth`."""
        if not truth:
            raise self.wrong(key, what, got)

    def wrong(self, key: str, what: str, got: object) -> Exception:
        """The error for a value that is not as expected."""
        return self.error(f"{key}: expected {what}, got {self.shown(got)}")

    def read(self, kind: type[T], value: object, where: str = "") -> T:
        """`value` as `kind`: a Table, a dataclass, or any other type that msgspec converts to.

        where: the key of `value`; "" or a string that ends with ": " for a whole file.
        """
        try:
            return _converted(value, kind)
        except (msgspec.ValidationError, RecursionError) as error:
            raise self.error(self._fault(value, kind, where)) from error

    def _fault(self, value: Any, kind: Any, where: str) -> str:
        """What is wrong with a value that msgspec refuses, at the innermost wrong part."""
        plain, _ = _bare(kind)
        if _is_union(plain):
            plain = next((_bare(one)[0] for one in get_args(plain) if _alike(value, one)), plain)
        if _is_record(plain) and isinstance(value, Mapping) and (wrong := self._wrong_key(value, plain, where)):
            return wrong
        for part, hint, place in _parts(value, plain, where):
            if not _is_taken(part, hint):
                return self._fault(part, hint, place)
        what, key = expected(kind), where.rpartition(": ")[2]
        what = "a section" if what == "a table" and key and not {*key} & {".", "["} else what
        return f"{where.removesuffix(': ') or 'the file'}: expected {what}, got {self.shown(value)}"

    def _wrong_key(self, value: Mapping[str, Any], kind: Any, where: str) -> str:
        """What is wrong with the keys of a table."""
        known = _keys(kind)
        top = not where or where.endswith(": ")
        strict = dataclasses.is_dataclass(kind) or kind.__struct_config__.forbid_unknown_fields
        for key in value if strict else ():
            if key not in known:
                section = top and isinstance(value[key], Mapping)
                name = f"{where}[{key}]: no such section" if section else f"{_at(where, key)}: no such key"
                return f"{name}{closest(str(key), known)}"
        for key, (hint, needed) in known.items():
            if needed and key not in value:
                plain = _bare(hint)[0]
                if top and _is_record(plain):
                    inner = " and ".join(name for name, (_, wanted) in _keys(plain).items() if wanted)
                    return f"{where}[{key}]: expected this section{inner and f' with {inner}'}, got none; {self.fix}"
                return f"{_at(where, key)}: expected {expected(hint)}, got none"
        return ""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a file. Values set in Python are validated like those of a file."""

    reader: ClassVar[Reader] = Reader(ValueError, "")

    def __post_init__(self) -> None:
        """Raises the reader's error; subclasses with more checks call this first."""
        for key, hint in _hints(type(self)).items():
            self.reader.read(hint, getattr(self, key), f"{type(self).__name__}.{key}")


_CONVERTING = RLock()
"""msgspec 0.22 reads memory at 0 when two threads convert to one type for the first time."""


def _converted(value: object, kind: type[T]) -> T:
    """Raises ValidationError or RecursionError for a value of another kind."""
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping) and not {*value} <= {*_keys(kind)}:
        raise msgspec.ValidationError("an unknown key")  # which msgspec ignores in a dataclass
    try:
        with _CONVERTING:
            return msgspec.convert(value, kind)
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can name
        raise msgspec.ValidationError(str(error)) from None


def _is_taken(value: object, kind: Any) -> bool:
    try:
        _converted(value, kind)
    except (msgspec.ValidationError, RecursionError):
        return False
    return True


def expected(kind: Any) -> str:
    """A description of the values that an annotation allows."""
    plain, meta = _bare(kind)
    if meta and meta.description:
        return meta.description
    origin, inner = get_origin(plain), get_args(plain)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if _is_union(plain):
        return " or ".join(expected(one) for one in inner if one is not type(None))
    if origin in (tuple, list):
        return "a list of texts" if inner[0] is str else f"a list, each element {expected(inner[0])}"
    if plain not in _NOUNS:
        return "a table"
    return f"{_NOUNS[plain]}{_bounds(meta) if meta else ''}"


def _bounds(meta: Meta) -> str:
    """Such as " of at least 0 and below 1"; the bounds of `Number` are omitted."""
    limits = (("of at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt))
    said = [(word, limit) for word, limit in limits if limit is not None and abs(limit) < _MOST]
    texts = [f"{word} {f'{limit:,}' if isinstance(limit, int) else f'{limit:g}'}" for word, limit in said]
    both = f" from {texts[0].rpartition(' ')[2]} to {texts[1].rpartition(' ')[2]}" if len(texts) == 2 else ""
    return both if both and meta.gt is meta.lt is None else f" {' and '.join(texts)}" if texts else ""


def _bare(kind: Any) -> tuple[Any, Meta | None]:
    """An annotation without `Annotated`, and its Meta."""
    if get_origin(kind) is not Annotated:
        return kind, None
    plain, *metas = get_args(kind)
    return plain, next((meta for meta in metas if isinstance(meta, Meta)), None)


def _is_union(plain: Any) -> bool:
    return get_origin(plain) in (Union, UnionType)


def _is_record(plain: Any) -> bool:
    return isinstance(plain, type) and (issubclass(plain, msgspec.Struct) or dataclasses.is_dataclass(plain))


def _alike(value: Any, kind: Any) -> bool:
    """Whether a value has the form of one part of a union, so that the error is inside it."""
    plain = _bare(kind)[0]
    if isinstance(value, Mapping):
        return _is_record(plain) or get_origin(plain) in (dict, Mapping)
    return isinstance(value, list | tuple) and get_origin(plain) in (list, tuple)


def _parts(value: Any, plain: Any, where: str) -> Iterator[tuple[Any, Any, str]]:
    """The contents of a table or a list: value, annotation, place."""
    origin, inner = get_origin(plain), get_args(plain)
    if _is_record(plain) and isinstance(value, Mapping):
        yield from ((value[key], hint, _at(where, key)) for key, (hint, _) in _keys(plain).items() if key in value)
    elif isinstance(value, Mapping) and origin in (dict, Mapping):
        yield from ((key, inner[0], where) for key in value)
        yield from ((part, inner[1], _at(where, key)) for key, part in value.items())
    elif isinstance(value, list | tuple) and origin in (list, tuple):
        yield from ((part, inner[0], f"{where}[{i}]") for i, part in enumerate(value))


def _at(where: str, key: str) -> str:
    return f"{where}{key}" if not where or where.endswith(": ") else f"{where}.{key}"


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """Annotations of a record's fields by their names in Python."""
    names = {entry.name for entry in _fields(kind)}
    return {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if name in names}


@cache
def _keys(kind: type) -> Mapping[str, tuple[Any, bool]]:
    """By a record's keys in a file: the annotation, and whether the key must be there."""
    none = (dataclasses.MISSING, msgspec.NODEFAULT)
    return {
        getattr(entry, "encode_name", entry.name): (
            _hints(kind)[entry.name],
            any(entry.default is word for word in none) and any(entry.default_factory is word for word in none),
        )
        for entry in _fields(kind)
    }


def _fields(kind: Any) -> tuple[Any, ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
