"""One change of a repository: new versions of some roles, their signatures, and the order in which they are stored.

Devices see a change when the timestamp is replaced, so everything that it leads to is stored before: a role before who
delegates to it, so that what a killed process leaves is complete or not valid. A new root is stored last, and what it
demands of other roles is signed with their old and their new keys: every state between is one that both a device with
the old root and one with the new root can verify. Only where an old key is gone the root comes before the timestamp.

A change that lacks signatures is staged: `staged/ROLE.json`, which others sign in their turn (`msedge hub sign`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from securesystemslib.signer import CryptoSigner
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Metadata, MetaFile, Snapshot, Targets, Timestamp

from cloud.hub.errors import HubError
from cloud.hub.repository.keys import Keys
from cloud.hub.repository.shelf import SIGNED, Delegator, Shelf, days_of, file_of, fits, names_of, time_from, time_text

__all__ = ["STAGED", "Draft", "Outcome"]

STAGED = "staged/"


class Outcome(NamedTuple):
    """What became of a change. stored: versions by role. waiting: by role, whose signatures are missing; while there
    are any, devices see nothing of the change."""

    stored: Mapping[str, int]
    waiting: Mapping[str, str]


class Draft:
    """A change that is being made. now: seconds since 1970."""

    def __init__(self, shelf: Shelf, keys: Keys, now: float) -> None:
        self.shelf, self.keys, self.now = shelf, keys, now
        self.new: dict[str, Metadata[Any]] = {}
        self.staged = self._staged()

    # -- changes -------------------------------------------------------------------------------------------------------

    def edit(self, role: str) -> Any:
        """The signed part of a role's next version, to be changed; a staged one is continued."""
        if role not in self.new:
            found = self.staged.get(role) or self.shelf.role(role)
            if found is None or found.signed.version < self.shelf.published(role):
                raise HubError(
                    f"{self.shelf.storage.where}: the newest version of {role} is lost, or its keys are not its"
                    f" delegator's any more; restore the file from a backup"
                )
            self.put(role, copy.deepcopy(found.signed))
        return self.new[role].signed

    def put(self, role: str, signed: Any) -> None:
        """Make `signed` the next version of a role."""
        signed.version = self.shelf.last(role) + 1
        self.new[role] = Metadata(signed)
        self._date(role)

    def resume(self) -> None:
        """Continue what is staged, with its signatures."""
        self.new |= {role: found for role, found in self.staged.items() if role not in self.new}

    def delegators(self, role: str) -> tuple[Delegator, ...]:
        """Whose keys vouch for a role now, and after the change."""
        if role in ("root", "targets", "snapshot", "timestamp"):
            now = self.shelf.role("root")
            then = self.new.get("root")
        else:
            now = self.shelf.role("targets")
            then = self.new.get("targets")
        return tuple(found.signed for found in (now, then) if found is not None)

    def _date(self, role: str) -> None:
        signed = self.new[role].signed
        root = self.new.get("root") or self.shelf.root
        days = days_of(root.signed)
        signed.expires = time_from(self.now) + timedelta(days=days.get(role, days["applications"]))
        if role in ("root", "timestamp"):
            signed.unrecognized_fields[SIGNED] = time_text(self.now)

    # -- signatures ----------------------------------------------------------------------------------------------------

    def sign(self, roles: Iterable[str]) -> None:
        """Sign roles with every key that is there and counts for them, before or after the change."""
        for role in roles:
            made = self.new[role]
            for delegator in self.delegators(role):
                for keyid in _keyids(delegator, role):
                    signer = None if keyid in made.signatures else self.keys.signer(keyid)
                    if signer is not None:
                        made.sign(signer, append=True)

    def signers(self, role: str) -> list[CryptoSigner]:
        """The keys that are there of those that sign a role now."""
        found = (self.keys.signer(keyid) for keyid in _keyids(self.delegators(role)[-1], role))
        return [one for one in found if one is not None]

    def lacks(self, role: str) -> str:
        """Which signatures a role's new version lacks; "" for none. A root needs the keys of the root before it too."""
        made = self.new[role]
        given = self.delegators(role)
        for delegator in given if role == "root" else given[-1:]:
            found = delegator.get_verification_result(role, made.signed_bytes, made.signatures)
            if not found:
                names = names_of(delegator)
                others = ", ".join(sorted(names.get(keyid, keyid[:16]) for keyid in found.unsigned))
                return f"{len(found.signed)} of {found.threshold} signatures; {found.missing} more of {others}"
        return ""

    # -- storing -------------------------------------------------------------------------------------------------------

    def store(self) -> Outcome:
        """Sign and store the change, or stage it."""
        if self.new.keys() & {*self.staged, "root", "targets"}:
            self.resume()
        self._follow()
        changed = list(self.new)
        self.sign(changed)
        waiting = {role: text for role in changed if (text := self.lacks(role))}
        if not waiting:
            self._online()
            later = {role: text for role in self.new if role not in changed and (text := self.lacks(role))}
            if "root" not in changed and later:
                for role in ("snapshot", "timestamp"):
                    self.new.pop(role, None)
                return Outcome(self._write(), later)
            waiting = later
        if waiting:
            for role in changed:
                self.shelf.storage.replace(f"{STAGED}{role}.json", self.new[role].to_bytes())
            return Outcome({}, waiting)
        return Outcome(self._write(), {})

    def _follow(self) -> None:
        """Add the roles whose keys the change exchanges: they have to be signed again."""
        for role in ("targets", *self.shelf.roles()):
            found = self.shelf.role(role)
            if role not in self.new and found is not None and not fits(self.delegators(role)[-1], role, found):
                self.edit(role)

    def _online(self) -> None:
        """Add snapshot and timestamp if they do not fit the other roles any more, or half of their time is over."""
        root = self.delegators("snapshot")[-1]
        found = self.shelf.role("snapshot")
        wanted = self._meta(found)
        if found is None or found.signed.meta != wanted or not fits(root, "snapshot", found) or self.old("snapshot"):
            self.put("snapshot", Snapshot(meta=wanted))
            self.sign(["snapshot"])
        newest = self.new.get("snapshot", found)
        assert newest is not None
        meta = _meta_of(newest)
        stamp = self.shelf.role("timestamp")
        if (
            stamp is None or stamp.signed.snapshot_meta != meta or not fits(root, "timestamp", stamp)
            or self.old("timestamp")
        ):  # fmt: skip
            self.put("timestamp", Timestamp(snapshot_meta=meta))
            self.sign(["timestamp"])

    def _meta(self, before: Metadata[Snapshot] | None) -> dict[str, MetaFile]:
        """What the snapshot has to say of all roles. Raises HubError if a file was lost."""
        roles = {role: self.new.get(role) or self.shelf.role(role) for role in ("targets", *self.shelf.roles())}
        roles |= {role: made for role, made in self.new.items() if isinstance(made.signed, Targets)}
        meta = {f"{role}.json": _meta_of(found) for role, found in roles.items() if found is not None}
        for name, old in ({} if before is None else before.signed.meta).items():
            if name not in meta or meta[name].version < old.version:
                raise HubError(
                    f"{self.shelf.storage.where}: version {old.version} of {name} is lost, or its keys are not"
                    f" its delegator's any more; restore the file from a backup, or sign a newer one"
                )
        return meta

    def old(self, role: str) -> bool:
        """Whether half of the time of a role's signature is over."""
        found = self.shelf.role(role)
        days = days_of(self.shelf.root.signed)
        return found is None or (
            found.signed.expires - time_from(self.now) < timedelta(days=days.get(role, days["applications"]) / 2)
        )

    def _write(self) -> dict[str, int]:
        late = [role for role in ("snapshot", "timestamp") if role in self.new]
        early = [role for role in self.new if role not in (*late, "targets", "root")]
        early += ["targets"] if "targets" in self.new else []
        root = ["root"] if "root" in self.new else []
        before = self.shelf.role("root")
        if (
            root
            and before is not None
            and not all(
                fits(before.signed, role, found)
                for role in ("targets", "snapshot", "timestamp")
                if (found := self.new.get(role) or self.shelf.role(role)) is not None
            )
        ):
            stamp = [role for role in late if role == "timestamp"]
            late, root = [role for role in late if role != "timestamp"], [*root, *stamp]
        for role in [*early, *late, *root]:
            self._write_one(role)
        for role in self.staged.keys() & self.new.keys():
            self.shelf.storage.delete(f"{STAGED}{role}.json")
        return {role: made.signed.version for role, made in self.new.items()}

    def _write_one(self, role: str) -> None:
        made = self.new[role]
        name, data = file_of(role, made.signed.version), made.to_bytes()
        if role == "timestamp":
            self.shelf.storage.replace(name, data)
        elif not self.shelf.storage.create(name, data):
            raise HubError(f"{self.shelf.storage.where}: another process made {name} at the same time; try again")

    def _staged(self) -> dict[str, Metadata[Any]]:
        """What is staged, without what was stored since."""
        found: dict[str, Metadata[Any]] = {}
        for name in self.shelf.storage.names(STAGED):
            role = name.removeprefix(STAGED).removesuffix(".json")
            try:
                read: Metadata[Any] = Metadata.from_bytes(self.shelf.storage.read(name))
            except RepositoryError as error:
                raise HubError(f"{self.shelf.storage.where}: {name} is damaged: {error}; delete it") from None
            if read.signed.version == self.shelf.last(role) + 1:
                found[role] = read
        return found


def _keyids(delegator: Delegator, role: str) -> list[str]:
    try:
        return delegator.get_delegated_role(role).keyids
    except ValueError:
        return []


def _meta_of(found: Metadata[Any]) -> MetaFile:
    return MetaFile.from_data(found.signed.version, found.to_bytes(), ["sha256"])
