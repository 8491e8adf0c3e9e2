"""Where bundles and ensembles are found. A scan lists the current files; their contents are read when they are loaded.

    ROOT/name/VERSION/model.mslite      versions are whole numbers from 1, as Triton's
    ROOT/name/model.mslite              version 1
    ROOT/name.mslite                    version 1
    ROOT/name/VERSION/ensemble.toml     a version of an ensemble, or ensemble.json; without VERSION: version 1
    ROOT/name/config.toml               the model's configuration (ROOT/name.toml beside a file), if there is any

Names with a leading dot are skipped, as they are used for files that are written and then renamed. Links must lead to
places within ROOT.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig, parse_config
from edge.gateway.models.names import check_name, is_name, version_of

__all__ = [
    "BUNDLE", "CONFIG", "ENSEMBLES", "FILES", "Candidate", "Files", "Folder", "Listing", "Source", "Stamp",
    "is_ensemble", "joined", "merged",
]  # fmt: skip

BUNDLE, CONFIG = "model.mslite", "config.toml"
ENSEMBLES = ("ensemble.toml", "ensemble.json")
FILES = (BUNDLE, *ENSEMBLES)
"""Names of files, any of which is a version."""
TRITON = "config.pbtxt"
MOST_CONFIG = 1 << 20
"""Most bytes of a configuration."""

Stamp = tuple[int, int, int]
"""A file's size, modification time in ns, and inode: they change when the file is written or replaced."""


class Candidate(NamedTuple):
    """A file that may be a model's version."""

    path: str
    stamp: Stamp


def is_ensemble(path: str | os.PathLike[str]) -> bool:
    """Whether a version in a file of this name is an ensemble; others are bundles."""
    return os.fspath(path).endswith((".toml", ".json"))


class Listing(NamedTuple):
    """A source's files of one model by version, and why others cannot be used."""

    versions: Mapping[int, Candidate]
    config: ModelConfig | None = None
    problem: str = ""
    misconfigured: str = ""
    """The error in the configuration, if there is one: then `config` is None."""


class Source(Protocol):
    """Something that has models.

    name: as logs, metrics and the status page show it. problem: why the last listings are not up to date, or leave
    models out; "" if all is well. read: when the source itself was last read, in seconds since 1970; 0: at the last
    scan. remote: whether it may be unreachable when the gateway starts, and read later. waiting: whether a later scan
    will find more without any change of the source. named: models that the settings name one by one: if they cannot be
    served, the gateway does not start.
    """

    name: str
    problem: str
    read: float
    remote: bool
    named: frozenset[str]

    @property
    def waiting(self) -> bool:
        """See above."""
        ...

    def scan(self) -> dict[str, Listing]:
        """The current listings by name. Blocking. Raises GatewayError if the source cannot be read."""
        ...


class Folder:
    """A folder of models, or one model: a folder with a bundle, an ensemble or versions in it, and no other model.

    A folder with both is refused at its first scan. If it becomes one later, the models found before stay, and
    `problem` says what to move.
    """

    read, remote, waiting = 0.0, False, False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.name, self.problem = os.fspath(root), ""
        self.named: frozenset[str] = frozenset()
        self._seen = False

    def scan(self) -> dict[str, Listing]:
        """See `Source`."""
        root = Path(os.path.realpath(self.root))
        models, own = _models(root), _versions(root, None)
        alone = own is not None and bool(own.versions or own.problem)
        self.problem = self._mixed(root.name, models) if alone and models else ""
        if self.problem and not self._seen:
            raise GatewayError(400, self.problem)
        if own is not None and alone and (self.named or not models):
            name = check_name(root.name, repr(self.name))
            models, self.named = {name: own._replace(problem=joined(own.problem, self.problem))}, frozenset({name})
        else:
            self.named = frozenset()
        self._seen = self._seen or bool(models)
        return models

    def _mixed(self, own: str, models: Mapping[str, Listing]) -> str:
        return (
            f"{self.name!r} holds a model itself ({BUNDLE} or numbered versions) and other models, such as"
            f" {min(models)!r}; move the former to {own}/{own}/{BUNDLE}, or the latter to another folder"
        )


class Files:
    """Individual files, or folders of versions: `PATH`, named like the file, or `NAME=PATH`. An ensemble's file has no
    configuration beside it."""

    problem, read, remote, waiting = "", 0.0, False, False

    def __init__(self, paths: Sequence[str]) -> None:
        self.name = ", ".join(paths)
        self._paths: dict[str, Path] = {}
        for text in paths:
            name, _, path = text.partition("=")
            where = Path(path if path and is_name(name) else text)
            name = name if path and is_name(name) else check_name(_stem(where.name), repr(text))
            if name in self._paths:
                raise GatewayError(400, f"{text!r}: another model has the name {name!r}; use NAME=PATH for one of them")
            self._paths[name] = where
        self.named = frozenset(self._paths)

    def scan(self) -> dict[str, Listing]:
        """See `Source`."""
        return {name: self._listing(path) for name, path in self._paths.items()}

    def _listing(self, path: Path) -> Listing:
        folder = _is_folder(path)
        config = None if is_ensemble(path) else path.with_suffix(".toml")
        found = _versions(path, None) if folder else _single(path, config, None)
        return found or Listing({}, None, f"{os.fspath(path)!r}: expected a bundle, got nothing; check the path")


def _stem(name: str) -> str:
    """A model's name by that of its file."""
    stem, dot, kind = name.rpartition(".")
    return stem if dot and kind in ("mslite", "toml", "json") else name


def _models(root: Path) -> dict[str, Listing]:
    """The models below a folder, without a bundle and versions of its own."""
    found: dict[str, Listing] = {}
    for entry in _entries(root):
        name = entry.name
        listing: Listing | None = None
        if name in FILES or (version_of(name) is not None and any(os.path.lexists(entry / file) for file in FILES)):
            continue
        if name.endswith(".mslite") and not _is_folder(entry):
            name = name.removesuffix(".mslite")
            listing = _single(entry, entry.with_suffix(".toml"), root)
        elif _is_folder(entry):
            listing = _versions(entry, root)
        if listing is not None and is_name(name):
            found[name] = _both(found[name], listing) if name in found else listing
    return found


def merged(scans: Sequence[Mapping[str, Listing]]) -> dict[str, Listing]:
    """The listings of several sources together; a model in two sources is taken from the first, with a note."""
    found: dict[str, Listing] = {}
    for scan in scans:
        for name, listing in scan.items():
            if name in found:
                twice = f"{name!r} is in two sources; the first one is used"
                found[name] = found[name]._replace(problem=joined(found[name].problem, twice))
            else:
                found[name] = listing
    return found


def joined(*problems: str) -> str:
    """Problems as one text."""
    return "; ".join(p for p in problems if p)


def _both(one: Listing, other: Listing) -> Listing:
    """Merge a model's file and folder; a version in both is an error."""
    twice = sorted(one.versions.keys() & other.versions.keys())
    problem = f"version {twice[0]} exists twice, as a file and in a folder; remove one" if twice else ""
    config = one.config or other.config
    wrong = joined(one.misconfigured, other.misconfigured)
    return Listing({**one.versions, **other.versions}, config, joined(one.problem, other.problem, problem), wrong)


def _entries(folder: Path) -> Iterator[Path]:
    """The entries of a folder in order, without hidden ones."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        where = repr(os.fspath(folder))
        raise GatewayError(400, f"{where}: expected a folder of models: {error.strerror}; check the path") from None
    return (folder / name for name in names if not name.startswith("."))


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def _within(path: Path, root: Path) -> bool:
    """Whether a path below `root` stays there when links are followed."""
    part, top = os.fspath(path), os.fspath(root)
    while len(part) > len(top):  # most are not links: checking is two to four times as fast as resolving
        if os.path.islink(part):
            return Path(os.path.realpath(path)).is_relative_to(root)
        part = os.path.dirname(part)
    return True


def _candidate(path: Path, root: Path | None) -> tuple[Candidate | None, str]:
    """(the file, ""), or (None, why it cannot be used; "" if it does not exist). It must be within `root`, a path
    without links."""
    try:
        status = os.stat(path)
        if root is not None and not _within(path, root):
            return None, f"{path.name}: a link that leads out of the folder of models; put the file itself there"
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path.name}: {getattr(error, 'strerror', None) or error}"
    if not stat.S_ISREG(status.st_mode):
        return None, f"{path.name}: expected a file, got a folder or device"
    return Candidate(os.fspath(path), (status.st_size, status.st_mtime_ns, status.st_ino)), ""


def _single(path: Path, config: Path | None, root: Path | None) -> Listing | None:
    """A model in a single file; None if there is none."""
    found, problem = _candidate(path, root)
    if found is None and not problem:
        return None
    settings, wrong = _config(config, root) if config is not None else (None, "")
    return Listing({1: found} if found is not None else {}, settings, problem, wrong)


def _versions(folder: Path, root: Path | None) -> Listing | None:
    """A model in a folder; None if the folder has neither versions nor a file that is one, and so is not a model."""
    try:
        entries = list(_entries(folder))
    except GatewayError as error:
        return Listing({}, None, str(error))
    found: dict[int, Candidate] = {}
    problems: list[str] = []
    for version, path in _places(folder, entries):
        candidate, problem = _candidate(path, root)
        if candidate is not None and version in found:
            problem = f"version {version} exists twice; remove {os.fspath(path)!r}"
        elif candidate is not None:
            found[version] = candidate
        problems.append(f"version {version}: {problem}" if problem else "")
    settings, wrong = _config(folder / CONFIG, root)
    if not found and folder / TRITON in entries:
        problems.append(f"{TRITON} is not read: give its keys in {CONFIG}, and those of an ensemble in {ENSEMBLES[0]}")
    if not found and not any(problems) and not wrong and settings is None:
        return None
    return Listing(found, settings, joined(*problems), wrong)


def _places(folder: Path, entries: Sequence[Path]) -> Iterator[tuple[int, Path]]:
    """The possible places of a model's versions."""
    for entry in entries:
        number = version_of(entry.name)
        if number is not None and _is_folder(entry):
            yield from ((number, entry / file) for file in FILES)
    yield from ((1, folder / file) for file in FILES)


def _config(path: Path, root: Path | None) -> tuple[ModelConfig | None, str]:
    """(the configuration, ""), or (None, what is wrong with it; "" if it does not exist)."""
    candidate, problem = _candidate(path, root)
    if candidate is None:
        return None, problem
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_CONFIG + 1)
        if len(raw) > MOST_CONFIG:
            return None, f"{path.name}: expected at most {MOST_CONFIG} bytes, got more"
        return parse_config(tomllib.loads(raw.decode("utf-8")), path.name), ""
    except GatewayError as error:
        return None, str(error)
    except (OSError, ValueError, RecursionError) as error:
        return None, f"{path.name}: expected TOML, got something else: {str(error)[:200]}"
