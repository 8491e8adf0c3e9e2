"""Documents of a fleet's repository: a release is one version of an application, a channel the versions that may run.

Both are JSON, at most `MAX_BYTES`, and targets of The Update Framework: whoever reads one has checked its signatures.
They are read as strictly as hostile files all the same, since a team's key may be stolen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lite_runtime.bundle.refusal import list_of, mapping_of, object_of, refuse, show, string_of
from lite_runtime.bundle.strict import parsed
from lite_runtime.frozen import NamedTuple

__all__ = ["MAX_BYTES", "MAX_FILES", "MAX_PIECES", "Channel", "File", "Piece", "Release", "Requirements"]
__all__ += ["may_name", "read_channel", "read_release", "written"]

MAX_BYTES = 1 << 20
MAX_FILES = 64
MAX_PIECES = 2048
MAX_NAMES = 1024
MAX_SIZE = 1 << 40
MAX_TEXT = 4096
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){2}", re.ASCII)


class Piece(NamedTuple):
    """Bytes of a file: `size` of them, with this SHA-256 in hex, by which a repository keeps them."""

    size: int
    sha256: str


class File(NamedTuple):
    """One bundle of a release. sha256: of the whole file. digest: the bundle's own. pieces: the file, in order."""

    size: int
    sha256: str
    digest: str
    pieces: tuple[Piece, ...]


class Requirements(NamedTuple):
    """What a device must have. memory: bytes that may be in use at once, 0: any. latency_ms: the most milliseconds that
    the golden sample may take, 0: any. targets: names of `lite_runtime.targets` that may run it, none: all. runtime:
    the first version of msedge that can."""

    memory: int = 0
    latency_ms: float = 0.0
    targets: tuple[str, ...] = ()
    runtime: str = ""


class Release(NamedTuple):
    """One version of an application: its files by name, which a device installs together, and what they need."""

    application: str
    version: str
    files: Mapping[str, File]
    requirements: Requirements = Requirements()
    lineage: Mapping[str, str] = MappingProxyType({})


class Channel(NamedTuple):
    """The versions of an application that its owners let run; `serial` grows with every change."""

    application: str
    name: str
    serial: int
    versions: tuple[str, ...]


def may_name(text: object) -> bool:
    """Whether a text may name an application, a version, a file or a channel: it is safe as a part of a path."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None and ".." not in text


def written(document: Release | Channel) -> bytes:
    """The JSON of a document, the same bytes for equal documents."""
    kind = "release" if isinstance(document, Release) else "channel"
    return json.dumps({"msedge": kind, **_plain(document)}, sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def read_release(raw: bytes) -> Release:
    """The release that these bytes say. Raises BundleError."""
    table = _document(raw, "release", Release)
    files = _named(table["files"], "release, files", MAX_FILES)
    if not files:
        refuse("release, files", "at least one file", "none")
    read = {name: _file(value, f"release, {name!r}") for name, value in files.items()}
    lineage = _named(table["lineage"], "release, lineage", 256)
    return Release(
        _name(table["application"], "release, application"),
        _name(table["version"], "release, version"),
        MappingProxyType(read),
        _requirements(table["requirements"], "release, requirements"),
        MappingProxyType({name: _text(value, f"release, lineage, {name!r}") for name, value in lineage.items()}),
    )


def read_channel(raw: bytes) -> Channel:
    """The channel that these bytes say. Raises BundleError."""
    table = _document(raw, "channel", Channel)
    return Channel(
        _name(table["application"], "channel, application"),
        _name(table["name"], "channel, name"),
        _number(table["serial"], "channel, serial"),
        _names(table["versions"], "channel, versions"),
    )


def _document(raw: bytes, kind: str, of: type[Release] | type[Channel]) -> dict[str, Any]:
    if len(raw) > MAX_BYTES:
        refuse(kind, f"at most {MAX_BYTES} bytes", str(len(raw)))
    table = object_of(parsed(raw, kind), kind, ("msedge", *of._fields))
    if table["msedge"] != kind:
        refuse(f"{kind}, msedge", repr(kind), show(table["msedge"]))
    return table


def _file(value: Any, at: str) -> File:
    table = object_of(value, at, File._fields)
    rows = list_of(table["pieces"], f"{at}, pieces")
    if len(rows) > MAX_PIECES:
        refuse(f"{at}, pieces", f"at most {MAX_PIECES}", str(len(rows)))
    pieces = [object_of(row, f"{at}, pieces", Piece._fields) for row in rows]
    read = tuple(Piece(_number(row["size"], at, 1), _sha256(row["sha256"], at)) for row in pieces)
    size = _number(table["size"], f"{at}, size")
    if sum(piece.size for piece in read) != size:
        refuse(f"{at}, pieces", f"{size} bytes together", str(sum(piece.size for piece in read)))
    return File(size, _sha256(table["sha256"], f"{at}, sha256"), _sha256(table["digest"], f"{at}, digest"), read)


def _requirements(value: Any, at: str) -> Requirements:
    table = object_of(value, at, Requirements._fields)
    latency, runtime = table["latency_ms"], _text(table["runtime"], f"{at}, runtime")
    if type(latency) not in (int, float) or not 0 <= latency < 1e9:
        refuse(f"{at}, latency_ms", "milliseconds", show(latency))
    if runtime and not _VERSION.fullmatch(runtime):
        refuse(f"{at}, runtime", "a version such as 0.1.0", show(runtime))
    memory = _number(table["memory"], f"{at}, memory")
    return Requirements(memory, float(latency), _names(table["targets"], f"{at}, targets"), runtime)


def _number(value: Any, at: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= MAX_SIZE:
        refuse(at, f"a whole number from {least} to {MAX_SIZE}", show(value))
    return value


def _sha256(value: Any, at: str) -> str:
    if not _SHA256.fullmatch(string_of(value, at)):
        refuse(at, "a digest of 64 hexadecimal digits", show(value))
    return str(value)


def _text(value: Any, at: str) -> str:
    if len(string_of(value, at)) > MAX_TEXT:
        refuse(at, f"at most {MAX_TEXT} characters", str(len(value)))
    return str(value)


def _named(value: Any, at: str, most: int) -> dict[str, Any]:
    table = mapping_of(value, at)
    if len(table) > most:
        refuse(at, f"at most {most} entries", str(len(table)))
    return {_name(name, at): one for name, one in table.items()}


def _names(value: Any, at: str) -> tuple[str, ...]:
    if len(list_of(value, at)) > MAX_NAMES:
        refuse(at, f"at most {MAX_NAMES} names", str(len(value)))
    return tuple(_name(one, at) for one in value)


def _name(value: Any, at: str) -> str:
    if not may_name(value):
        refuse(at, "a name of 1 to 64 of a-z 0-9 . _ -, beginning with a letter or digit, without '..'", show(value))
    return str(value)
