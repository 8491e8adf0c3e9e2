"""Detects incomplete or changed folders: a manifest with digests of all files, written last."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloud.errors import CheckpointError
from lite_runtime._files import write_atomically

__all__ = ["MANIFEST", "NAME", "problem_of", "read_json", "seal", "step_of"]

MANIFEST = "manifest.json"
NAME = "step-"
"""How the names of complete checkpoints' folders begin."""


def step_of(name: str) -> int:
    """The step in the name of a checkpoint's folder, -1 for other names."""
    number = name.removeprefix(NAME)
    return int(number) if name.startswith(NAME) and number.isdecimal() else -1


def seal(folder: Path) -> None:
    """Write a manifest with size and BLAKE2b of every file below `folder`. Raises CheckpointError."""
    files = {name: [path.stat().st_size, _digest(path)] for name, path in _files(folder)}
    data = json.dumps({"version": 1, "files": files}, sort_keys=True).encode()
    write_atomically(folder / MANIFEST, data, CheckpointError)


def problem_of(folder: Path) -> str:
    """What is wrong with a sealed folder, in words; "" if nothing is."""
    try:
        said = read_json(folder / MANIFEST)["files"]
        there = dict(_files(folder))
        if missing := sorted(said.keys() - there.keys()):
            return f"{len(missing)} of {len(said)} files are missing, such as {missing[0]!r}"
        for name, (size, digest) in sorted(said.items()):
            if there[name].stat().st_size != size:
                return f"{name!r} has {there[name].stat().st_size} bytes, expected {size}"
            if _digest(there[name]) != digest:
                return f"{name!r} differs from what was written"
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"cannot read {error.filename!r}: {error.strerror}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return f"{MANIFEST!r} is damaged"
    return ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises CheckpointError."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path.name!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name!r} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path.name!r} is damaged: expected an object, got {type(found).__name__}")
    return found


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            shown = path.relative_to(folder).as_posix()
            if shown != MANIFEST:
                yield shown, path


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
