"""The files of public models: what is in the folder with the right digest stays, the rest is downloaded and checked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from benchmarks.zoo.listing import Entry, file_of
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["digest_of", "fetch", "is_there"]

_RAW = "https://raw.githubusercontent.com"
_SECONDS = 60


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_there(entry: Entry, folder: Path) -> bool:
    """Whether the folder has the model, unchanged."""
    path = file_of(entry, folder)
    return path.is_file() and digest_of(path) == entry.sha256


def fetch(models: Sequence[Entry], folder: Path) -> Iterator[tuple[Entry, str]]:
    """Put every model that is missing into `folder`; yields those that could not be had, with the reason.

    Packages come from where pip and npm are set up to look, each once; files of repositories from GitHub.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [entry for entry in models if not is_there(entry, folder)]
    packages: defaultdict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for entry in missing:
        if entry.package:
            packages[entry.registry, entry.package, entry.version].append(entry)
            continue
        try:
            _keep(entry, folder, _from_github(entry))
        except MsedgeError as error:
            yield entry, str(error)
    for (registry, package, version), wanted in packages.items():
        try:
            with tempfile.TemporaryDirectory() as there:
                archive = _REGISTRIES[registry](package, version, Path(there))
                for entry in wanted:
                    _keep(entry, folder, _member(archive, entry.path))
        except MsedgeError as error:
            yield from ((entry, str(error)) for entry in wanted if not is_there(entry, folder))


def _keep(entry: Entry, folder: Path, data: bytes) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != entry.sha256:
        raise MsedgeError(f"{entry.source}: {entry.path}: expected SHA-256 {entry.sha256}, got {found}")
    write_atomically(file_of(entry, folder), data)


def _from_github(entry: Entry) -> bytes:
    url = f"{_RAW}/{entry.repository}/{entry.commit}/{urllib.parse.quote(entry.path)}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as reply:  # an address of the list, and always https
            data: bytes = reply.read(entry.size + 1)
            return data
    except (OSError, urllib.error.URLError) as error:
        raise MsedgeError(f"{url}: cannot be fetched: {error}") from error


def _download(package: str, version: str, folder: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), *options]
    done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
    found = sorted(folder.iterdir())
    if done.returncode or not found:
        raise MsedgeError(f"pip cannot download {package} {version}: {done.stderr.strip()[-300:]}")
    return found[0]


def _download_source(package: str, version: str, folder: Path) -> Path:
    return _download(package, version, folder, "--no-binary", package)


def _pack(package: str, version: str, folder: Path) -> Path:
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), f"{package}@{version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    except OSError as error:
        raise MsedgeError(f"{package} {version} is a package of npm, which cannot be started: {error}") from error
    found = sorted(folder.glob("*.tgz"))
    if done.returncode or not found:
        raise MsedgeError(f"npm cannot download {package} {version}: {done.stderr.strip()[-300:]}")
    return found[0]


_REGISTRIES = {"": _download, "sdist": _download_source, "npm": _pack}


def _member(archive: Path | BytesIO, path: str) -> bytes:
    """The contents of a file in an archive; "!/" stands between an archive's path inside another and one inside it."""
    outer, _, inner = path.partition("!/")
    data = _contents(archive, outer)
    return _member(BytesIO(data), inner) if inner else data


def _contents(archive: Path | BytesIO, path: str) -> bytes:
    name = archive.name if isinstance(archive, Path) else "the inner archive"
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as held:
                return held.read(path)
        if isinstance(archive, BytesIO):
            raise MsedgeError(f"{name}: expected a zip archive")
        with tarfile.open(archive) as packed:
            file = packed.extractfile(path)
            if file is not None:
                return file.read()
    except (KeyError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise MsedgeError(f"{name}: expected to contain {path}: {error}") from error
    raise MsedgeError(f"{name}: expected {path} to be a file")
