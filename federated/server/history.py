"""Earlier rounds of a run, kept as files next to its checkpoint, and the return to one of them.

The folder `CHECKPOINT.history` has a file RUN-ROUND-DIGEST.state for each kept round, written atomically: the
algorithm's state, what devices hold, the clipping bound, and the report's rows up to this round. DIGEST is the
beginning of the file's SHA-256: a damaged file is refused.

What was sent stays sent: a return changes neither the privacy account nor the counts of devices, and no number of a
round or of a version of the model is used a second time (`Federation.go_back`).
"""

from __future__ import annotations

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from federated.errors import FederatedError
from federated.messages.downlink import follows
from federated.messages.packed import pack, unpack
from federated.server import checkpoint
from federated.server.federation import Earlier, Federation
from lite_runtime._files import write_atomically

__all__ = ["Kept", "folder_of", "listed", "put", "read", "return_to"]

VERSION = 1
_NAME = re.compile(r"([0-9a-f]{16})-([0-9]{8,10})-([0-9a-f]{16})\.state")


class Kept(NamedTuple):
    """The file of a round, its size in bytes, and the digest in its name."""

    round: int
    path: Path
    size: int
    digest: str


def folder_of(path: str | os.PathLike[str]) -> Path:
    """Where the rounds of the checkpoint `path` are kept."""
    return Path(f"{os.fspath(path)}.history")


def put(path: str | os.PathLike[str], federation: Federation) -> None:
    """Keep the last round, if it counted and [history] asks for it; delete what exceeds `history.keep`.

    path: the checkpoint's. Written before the checkpoint that contains the round: if the process is killed in between,
    the round is repeated and its file replaced.
    """
    words, row = federation.config.history, federation.rows[-1]
    number = int(row["round"])
    if not (words.keep and row["counted"] and (number % words.every == 0 or federation.done)):
        return
    meta = {
        "version": VERSION,
        "run": federation.run,
        "bundle": federation.start.bundle,
        "config": checkpoint.fingerprint(federation.config),
        "round": number,
        "learned": federation.learned,
        "bound": federation.bound,
    }
    body: dict[str, Any] = {"state": federation.state, "rows": np.frombuffer(federation.told(), np.uint8)}
    if follows(federation.link.codec):
        body["held"] = federation.link.tree
    data = pack(meta, body)
    folder = folder_of(path)
    name = f"{federation.run}-{number:08d}-{sha256(data).hexdigest()[:16]}.state"
    try:
        folder.mkdir(exist_ok=True)
        write_atomically(folder / name, data, FederatedError)
        found = [kept for kept in _found(folder, federation.run) if kept.path.name != name]
        older = [kept for kept in found if kept.round != number][: words.keep - 1]
        for kept in found:
            if kept not in older:
                kept.path.unlink(missing_ok=True)
    except OSError as error:
        raise FederatedError(f"cannot keep round {number} in {str(folder)!r}: {error.strerror}") from error


def listed(path: str | os.PathLike[str], federation: Federation) -> list[Kept]:
    """The kept rounds of this run, in order. One that is newer than the checkpoint is not among them: the server was
    killed before it counted, and the account does not contain it."""
    found = _found(folder_of(path), federation.run)
    return [kept for kept in reversed(found) if kept.round <= federation.round]


def read(kept: Kept, federation: Federation) -> Earlier:
    """A kept round. Raises FederatedError for a damaged file, or one of another run, bundle or configuration."""
    what = f"kept round {str(kept.path)!r}"
    try:
        data = kept.path.read_bytes()
    except OSError as error:
        raise FederatedError(f"cannot read {what}: {error.strerror}; return to another round") from error
    if sha256(data).hexdigest()[:16] != kept.digest:
        raise FederatedError(f"{what}: expected the digest that its name gives; it is damaged: return to another round")
    meta, body = unpack(data, what, most=len(data))
    wanted = {
        "version": VERSION,
        "run": federation.run,
        "bundle": federation.start.bundle,
        "config": checkpoint.fingerprint(federation.config),
        "round": kept.round,
    }
    for key, value in wanted.items():
        if meta.get(key) != value:
            raise FederatedError(f"{what}: its {key} is not this run's; return to another round")
    try:
        lines = body["rows"].tobytes().splitlines()
        rows = [json.loads(line) for line in lines]
        return Earlier(
            kept.round, int(meta["learned"]), float(meta["bound"]), body["state"], body.get("held"), rows, lines
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FederatedError(f"{what}: expected a round's state, got {error!r}; return to another round") from error


def return_to(path: str | os.PathLike[str], federation: Federation, number: int) -> None:
    """Continue from the model of round `number`: the checkpoint is replaced, nothing is deleted.

    Raises FederatedError if this round is not kept, or if its model is the current one.
    """
    found = {kept.round: kept for kept in listed(path, federation)}
    if number not in found:
        there = ", ".join(map(str, found)) or "none; [history] keep decides how many rounds a run keeps"
        raise FederatedError(f"expected a round that is kept, got {number}; kept: {there}")
    if number == federation.newest:
        raise FederatedError(f"expected an earlier round, got {number}, whose model is the current one")
    federation.go_back(read(found[number], federation))
    checkpoint.save(path, federation)


def _found(folder: Path, run: str) -> list[Kept]:
    """The files of a run, the newest round first. Other files are left alone."""
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    mine = [(name, path) for name, path in named if name is not None and name[1] == run]
    return sorted((Kept(int(name[2]), path, path.stat().st_size, name[3]) for name, path in mine), reverse=True)
