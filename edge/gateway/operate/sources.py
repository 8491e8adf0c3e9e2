"""Merging the sources of settings. Precedence: flags, environment variables, file, defaults in `settings`.

Errors name the key, what was expected, what was got, and the source.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints
from urllib.parse import urlsplit, urlunsplit

from edge.gateway.errors import GatewayError
from edge.gateway.operate.entries import ENVIRONMENT, Entry, entries
from edge.gateway.operate.settings import REMOTE, Settings
from federated.tables import Reader

__all__ = ["entries", "print_config", "resolve"]

_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
          "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}  # fmt: skip


_FILES = Reader(partial(GatewayError, 500), "check --config")


class _Said(NamedTuple):
    value: Any
    source: str
    folder: Path


def resolve(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: str | os.PathLike[str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The effective settings.

    flags: by name (`port`, `batching.rows`), strings or values; None: not given. environment: `os.environ` by default.
    file: TOML with `[serve]` (or `[tool.msedge.serve]`); None: msedge.toml, else pyproject.toml of `folder`, if it
    exists and has that section. Paths are relative to the file that has them, else to `folder` (the working folder).
    Raises GatewayError for unknown settings and invalid values.
    """
    here = Path.cwd() if folder is None else folder
    said: dict[str, _Said] = {}
    for text, words, base in _files(here, file):
        said |= _of_file(words, text, base)
    said |= _of_environment(os.environ if environment is None else environment, here)
    for name, value in (flags or {}).items():
        if name not in entries():
            raise GatewayError(500, f"{name}: no such setting{_closest(name, entries())}")
        if value is not None:
            said[name] = _Said(value, f"flag {entries()[name].flag}", here)
    return _build(said)


def _build(said: Mapping[str, _Said]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for name, (value, source, base) in said.items():
        entry = entries()[name]
        sections.setdefault(entry.section, {})[entry.key] = _checked(entry, value, source, base)
    kinds = get_type_hints(Settings)
    nested = {section: kinds[section](**values) for section, values in sections.items() if section}
    return Settings(**sections.get("", {}), **nested, sources={name: s.source for name, s in said.items()})


def _files(folder: Path, file: str | os.PathLike[str] | None) -> Iterator[tuple[str, Mapping[str, Any], Path]]:
    """The file that is used, if any: its name, its section, its folder."""
    for path in [Path(file)] if file is not None else [folder / "msedge.toml", folder / "pyproject.toml"]:
        if file is None and not path.is_file():
            continue
        words = _FILES.file(path)
        section: Any = words.get("serve")
        if section is None:
            section = words
            for key in ("tool", "msedge", "serve"):
                section = section.get(key) if isinstance(section, Mapping) else None
        if section is None and file is None:
            continue
        if not isinstance(section, Mapping):
            got = "none" if section is None else repr(section)
            raise GatewayError(500, f"{str(path)!r}: expected a section [serve], got {got}")
        yield (str(path) if file is not None else path.name), section, path.resolve().parent
        return


def _of_file(words: Mapping[str, Any], file: str, base: Path) -> dict[str, _Said]:
    known, sections = entries(), {entry.section for entry in entries().values()}
    said = {}
    for key, value in words.items():
        inner = value if key in sections and isinstance(value, Mapping) else {"": value}
        for below, word in inner.items():
            name = f"{key}.{below}" if below else key
            if name not in known:
                what = f"expected a section [serve.{key}]" if key in sections and not below else "no such setting"
                raise GatewayError(500, f"{file}: {name}: {what}{_closest(name, known)}")
            if isinstance(word, str) and not known[name].has("size"):
                _read(known[name], word, file)  # only flags and variables may give numbers as text
            said[name] = _Said(word, file, base)
    return said


def _of_environment(environment: Mapping[str, str], here: Path) -> dict[str, _Said]:
    known = {entry.variable: name for name, entry in entries().items()}
    said = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT):
            if variable not in known:
                raise GatewayError(500, f"{variable}: no such setting{_closest(variable, known)}")
            said[known[variable]] = _Said(text, variable, here)
    return said


def _checked(entry: Entry, value: Any, source: str, base: Path) -> Any:
    """The value converted to the setting's type and checked."""
    text = isinstance(value, str) and entry.kind is not str
    made = _read(entry, _of_text(entry.kind, value, entry.has("size")) if text else value, source)
    if entry.has("path"):
        return tuple(_located(word, base) for word in made) if entry.kind is tuple else _located(made, base)
    return made


def _read(entry: Entry, value: Any, source: str) -> Any:
    reader = Reader(lambda text: GatewayError(500, f"{text} ({source})"), "", lambda got: repr(_masked(got)))
    return reader.read(entry.hint, value, entry.name)


def _of_text(kind: type[Any], text: str, size: bool) -> Any:
    """The value of a text from a flag or variable; the text itself if it cannot be converted."""
    if kind is tuple:
        return tuple(word.strip() for word in text.split(",") if word.strip())
    if kind is bool:
        return _WORDS.get(text.strip().lower(), text)
    if size:
        digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        unit, digits = _UNITS.get(text.strip()[len(digits) :].lower()), digits.strip()
        return int(digits) * unit if unit and digits.isascii() and digits.isdigit() and len(digits) < 16 else text
    try:
        return kind(text) if len(text) < 32 else text
    except ValueError:
        return text


def _located(text: str, base: Path) -> str:
    """A path, `NAME=path` or address, with the path relative to the file that has it."""
    if not text or text.startswith(REMOTE):
        return text
    label, mark, path = text.partition("=")
    if mark and path and "/" not in label:
        return text if path.startswith(REMOTE) else f"{label}={base / path}"
    return str(base / text)


def _closest(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else "; `msedge serve --print-config` shows all settings"


def _masked(value: Any) -> Any:
    """The value without the secrets that an address may contain: user, password, query."""
    if isinstance(value, list | tuple):
        return [_masked(word) for word in value]
    if not isinstance(value, str) or "://" not in value:
        return value
    try:
        parts = urlsplit(value)
        host = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(
            netloc=f"***@{host[2]}" if host[1] else host[2], query="***" if parts.query else "", fragment=""
        ))  # fmt: skip
    except ValueError:
        return "***"


def print_config(settings: Settings) -> str:
    """The settings as a TOML file, each with its source in a comment; secrets in addresses are masked."""
    lines, section = ["[serve]"], ""
    for name, entry in entries().items():
        if entry.section != section:
            section = entry.section
            lines += ["", f"[serve.{section}]"]
        value = getattr(getattr(settings, section) if section else settings, entry.key)
        lines.append(f"{entry.key} = {_toml(_masked(value))}  # {_comment(settings.sources.get(name, 'default'))}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _comment(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
