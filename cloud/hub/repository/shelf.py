"""The metadata of a repository as they are stored: of each role the newest version that its delegator's keys signed.

A version that no snapshot names is no part of the repository for devices. One may be left by a process that was killed,
or wait for the keys of snapshot and timestamp: it is then published with the next change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeAlias

from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, Root, Targets

from cloud.hub.errors import HubError
from cloud.hub.storage import Storage
from lite_runtime.updates.places import METADATA

__all__ = ["DAYS", "SIGNED", "Delegator", "Shelf", "days_of", "file_of", "fits", "names_of", "time_from", "time_text"]

Delegator: TypeAlias = Root | Targets
SIGNED, _DAYS, _NAMES = "x-msedge-signed", "x-msedge-days", "x-msedge-names"
"""Fields of ours in signed metadata: when root and timestamp were signed; in root, days until roles expire; in root and
targets, names of keys by their identifiers."""
DAYS: Mapping[str, int] = {
    "root": 365, "targets": 365, "applications": 365, "deltas": 30, "snapshot": 14, "timestamp": 3,
}  # fmt: skip
"""After how many days a signature of a role expires, unless the repository was made with others."""
_FILE = re.compile(rf"{METADATA}/(\d+)\.([a-z0-9._-]+)\.json")


class Shelf:
    """What is stored, as it was when each file was first looked at."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._found: dict[str, Metadata[Any] | None] = {}

    @cached_property
    def versions(self) -> Mapping[str, list[int]]:
        """By role, the versions that are stored, rising."""
        found: dict[str, list[int]] = {}
        for name in self.storage.names(f"{METADATA}/"):
            if match := _FILE.fullmatch(name):
                found.setdefault(match[2], []).append(int(match[1]))
        return {role: sorted(numbers) for role, numbers in found.items()}

    def last(self, role: str) -> int:
        """The highest number that a version of a role has had, valid or not; 0 for none."""
        return max(self.versions.get(role, [0])[-1], self.published(role))

    def published(self, role: str) -> int:
        """The version of a role that devices see; 0 for none."""
        if role in ("root", "timestamp"):
            newest = self.role(role)
            return 0 if newest is None else int(newest.signed.version)
        above = self.role("timestamp" if role == "snapshot" else "snapshot")
        if above is None:
            return 0
        meta = above.signed.snapshot_meta if role == "snapshot" else above.signed.meta.get(f"{role}.json")
        return 0 if meta is None else int(meta.version)

    @property
    def root(self) -> Metadata[Root]:
        """The newest root. Raises HubError if there is no repository."""
        found = self.role("root")
        if found is None:
            raise HubError(f"there is no repository at {self.storage.where}; msedge hub init {self.storage.where}")
        return found

    @property
    def targets(self) -> Metadata[Targets]:
        """The newest top-level targets."""
        found = self.role("targets")
        if found is None:
            raise HubError(f"{self.storage.where}: no targets that the root's keys have signed; restore a backup")
        return found

    def roles(self) -> list[str]:
        """All roles below the top-level targets."""
        targets = self.role("targets")
        below = None if targets is None else targets.signed.delegations
        return [] if below is None or below.roles is None else list(below.roles)

    def role(self, role: str) -> Metadata[Any] | None:
        """The newest valid version of a role; None if there is none."""
        if role not in self._found:
            self._found[role] = self._read(role)
        return self._found[role]

    def _read(self, role: str) -> Metadata[Any] | None:
        if role == "timestamp":
            there = self.storage.size(f"{METADATA}/timestamp.json") is not None
            return self._load("timestamp.json") if there else None
        for number in reversed(self.versions.get(role, [])):
            found = self._load(f"{number}.{role}.json")
            if found is not None and (role == "root" or fits(self.delegator(role), role, found)):
                return found
        return None

    def at(self, role: str, version: int) -> Metadata[Any] | None:
        """A version of a role, whoever signed it; None if it is not there."""
        return self._load(f"{version}.{role}.json") if version in self.versions.get(role, ()) else None

    def delegator(self, role: str) -> Delegator:
        """Whose keys vouch for a role."""
        return self.root.signed if role in self.root.signed.roles else self.targets.signed

    def _load(self, file: str) -> Metadata[Any] | None:
        try:
            return Metadata.from_bytes(self.storage.read(f"{METADATA}/{file}"))
        except RepositoryError as error:
            raise HubError(f"{self.storage.where}: {file} is damaged: {error}; restore a backup") from None


def file_of(role: str, version: int) -> str:
    """The file of a version of a role."""
    return f"{METADATA}/timestamp.json" if role == "timestamp" else f"{METADATA}/{version}.{role}.json"


def fits(delegator: Delegator, role: str, found: Metadata[Any]) -> bool:
    """Whether enough keys have signed a role's metadata."""
    try:
        delegator.verify_delegate(role, found.signed_bytes, found.signatures)
    except (UnsignedMetadataError, ValueError):
        return False
    return True


def names_of(delegator: Delegator) -> dict[str, str]:
    """Names of keys by their identifiers, to be changed in place."""
    return delegator.unrecognized_fields.setdefault(_NAMES, {})  # type: ignore[no-any-return]


def days_of(root: Root) -> dict[str, int]:
    """Days until roles expire, to be changed in place."""
    return root.unrecognized_fields.setdefault(_DAYS, dict(DAYS))  # type: ignore[no-any-return]


def time_from(seconds: float) -> datetime:
    """A time as TUF keeps it: whole seconds."""
    return datetime.fromtimestamp(int(seconds), UTC)


def time_text(seconds: float) -> str:
    """A time as TUF writes it."""
    return f"{time_from(seconds):%Y-%m-%dT%H:%M:%SZ}"
