"""A repository: who may sign what, and the changes of that. What it holds for devices is changed in `releases`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from securesystemslib.signer import SSlibKey
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, Role, Root, Targets

from cloud.hub.errors import HubError
from cloud.hub.repository.draft import STAGED, Draft, Outcome
from cloud.hub.repository.keys import Keys, public_of
from cloud.hub.repository.shelf import DAYS, Delegator, Shelf, days_of, names_of
from cloud.hub.storage import Storage
from lite_runtime.updates.places import CHANNELS, DELTAS, METADATA, RESERVED, is_application

__all__ = ["OFFLINE", "ONLINE", "Repository", "Signing"]

OFFLINE, ONLINE = ("root", "targets"), ("snapshot", "timestamp", DELTAS)


class Signing(NamedTuple):
    """How many keys a role has, and how many of them must sign."""

    keys: int = 1
    threshold: int = 1


class Repository:
    """The repository in a storage. keys: those at hand; without some, changes are staged until others sign them. clock:
    seconds since 1970.

    Every method that changes something holds the storage's lock, stores what devices see last, and raises HubError
    without a trace of the change if it cannot be done.
    """

    def __init__(self, storage: Storage, keys: Keys | None = None, clock: Callable[[], float] = time.time) -> None:
        self.storage, self.keys, self.clock = storage, keys or Keys(), clock

    def shelf(self) -> Shelf:
        """The metadata as they are now."""
        return Shelf(self.storage)

    @contextlib.contextmanager
    def draft(self) -> Iterator[Draft]:
        """A change, under the lock; the caller stores it."""
        with self.storage.lock():
            yield Draft(self.shelf(), self.keys, self.clock())

    # -- making --------------------------------------------------------------------------------------------------------

    def init(
        self,
        signing: Mapping[str, Signing] | None = None,
        days: Mapping[str, int] | None = None,
        applications: Sequence[str] = (),
    ) -> Outcome:
        """Make a repository and its keys, in the subfolders `offline`, `online` and `applications` of the first folder
        of keys. signing: by role, if not one key. days: by role, until its signature expires, if not as in DAYS."""
        signing = dict(signing or {})
        for what, names in (("roles", signing), ("days", days or {})):
            if unknown := set(names) - {*OFFLINE, *ONLINE, *DAYS}:
                raise HubError(f"{what}: expected names of {', '.join([*OFFLINE, *ONLINE])}; got {', '.join(unknown)}")
        for role, given in signing.items():
            _check_threshold(role, given.threshold, given.keys)
        for name in applications:
            _check_application(name)
        with self.draft() as draft:
            if "root" in draft.shelf.versions:
                raise HubError(f"there is a repository at {self.storage.where} already")
            for name in [*self.storage.names(f"{METADATA}/"), *self.storage.names(STAGED)]:
                self.storage.delete(name)  # what a killed process left
            draft = Draft(self.shelf(), self.keys, self.clock())
            root = Root(consistent_snapshot=True)
            days_of(root).update(days or {})
            draft.put("root", root)
            targets = Targets(delegations=Delegations({}, {}))
            draft.put("targets", targets)
            for role in (*OFFLINE, "snapshot", "timestamp"):
                self._set(root, role, signing.get(role, Signing()), "online" if role in ONLINE else "offline")
            self._delegate(draft, DELTAS, [f"{DELTAS}/*/*"], signing.get(DELTAS, Signing()), "online")
            for name in applications:
                self._delegate(draft, name, _paths(name), Signing(), "applications")
            return draft.store()

    def delegate(self, application: str, public: Sequence[Path] = (), threshold: int = 1) -> Outcome:
        """Let keys sign an application's releases: those in the given files, else a new one."""
        _check_application(application)
        with self.draft() as draft:
            if application in draft.shelf.roles():
                raise HubError(f"{application!r} exists; msedge hub rotate exchanges its keys")
            draft.edit("targets")
            given = [public_of(path) for path in public]
            signing = Signing(len(given) or 1, threshold)
            self._delegate(draft, application, _paths(application), signing, "applications", given)
            return draft.store()

    def _delegate(
        self, draft: Draft, role: str, paths: list[str], signing: Signing, folder: str,
        public: Sequence[tuple[str, SSlibKey]] = (),
    ) -> None:  # fmt: skip
        targets = draft.edit("targets")
        if targets.delegations is None:
            targets.delegations = Delegations({}, {})
        targets.delegations.roles[role] = DelegatedRole(role, [], 1, True, paths)
        self._set(targets, role, signing, folder, public)
        draft.put(role, Targets())

    def _set(
        self, delegator: Delegator, role: str, signing: Signing, folder: str,
        public: Sequence[tuple[str, SSlibKey]] = (),
    ) -> None:  # fmt: skip
        """Give a role keys, beside those that it has."""
        of: Role = delegator.get_delegated_role(role)
        count = len({*of.keyids, *(key.keyid for _, key in public)}) + (0 if public else signing.keys)
        _check_threshold(role, signing.threshold, count)
        made = list(public) or [
            self.keys.make(self.keys.free(role, names_of(delegator).values()), folder) for _ in range(signing.keys)
        ]
        for name, key in made:
            delegator.add_key(key, role)
            names_of(delegator)[key.keyid] = name
        of.threshold = signing.threshold

    # -- keys ----------------------------------------------------------------------------------------------------------

    def rotate(self, role: str, public: Sequence[Path] = (), revoke: Sequence[str] = (), threshold: int = 0) -> Outcome:
        """Exchange a role's keys. revoke: names of those that go; none: all. public: files of those that come; none:
        as many new ones as go. threshold: how many must sign from now on; 0: as many as before."""
        with self.draft() as draft:
            above = "root" if role in draft.shelf.root.signed.roles else "targets"
            delegator: Delegator = draft.edit(above)
            try:
                of = delegator.get_delegated_role(role)
            except ValueError:
                known = [*draft.shelf.root.signed.roles, *draft.shelf.roles()]
                raise HubError(f"there is no role {role!r}; the roles are {', '.join(known)}") from None
            names = names_of(delegator)
            old = [keyid for keyid in of.keyids if not revoke or names.get(keyid) in revoke or keyid in revoke]
            if len(old) < len(revoke):
                shown = ", ".join(names.get(keyid, keyid) for keyid in of.keyids)
                raise HubError(f"{role} has the keys {shown}; got --revoke {', '.join(revoke)}")
            before = of.threshold
            for keyid in old:
                delegator.revoke_key(keyid, role)
            folder = "offline" if role in OFFLINE else "online" if role in ONLINE else "applications"
            given = [public_of(path) for path in public]
            kept = len(of.keyids)
            count = len(given) or len(old)
            signing = Signing(count, threshold or min(before, kept + count))
            self._set(delegator, role, signing, folder, given)
            for keyid in [each for each in names if each not in delegator_keys(delegator)]:
                del names[keyid]
            return draft.store()

    def sign(self) -> Outcome:
        """Add signatures to what is staged, and store it if nothing lacks."""
        with self.draft() as draft:
            if not draft.staged:
                raise HubError(f"nothing waits for signatures at {self.storage.where}")
            draft.resume()
            return draft.store()

    def discard(self) -> list[str]:
        """Throw away what is staged; returns its roles."""
        with self.storage.lock():
            found = list(self.storage.names(STAGED))
            for name in found:
                self.storage.delete(name)
            return [name.removeprefix(STAGED).removesuffix(".json") for name in found]

    # -- time ----------------------------------------------------------------------------------------------------------

    def publish(self) -> Outcome:
        """What the hub does from time to time, with the online keys: show devices what waits for it, and sign again
        what has lived for half of its time."""
        with self.draft() as draft:
            if draft.old(DELTAS):
                draft.edit(DELTAS)
                draft.sign([DELTAS])
                if draft.lacks(DELTAS):
                    del draft.new[DELTAS]
            return draft.store()

    def renew(self, within: float) -> Outcome:
        """Sign every role again that expires within so many days."""
        with self.draft() as draft:
            for role in ("root", "targets", *draft.shelf.roles()):
                if self.left(draft.shelf.role(role)) < within:
                    draft.edit(role)
            return draft.store()

    def left(self, found: Metadata[Any] | None) -> float:
        """Days until metadata expire; negative: since. None: none are there."""
        return -1e9 if found is None else (found.signed.expires.timestamp() - self.clock()) / 86_400.0


def delegator_keys(delegator: Delegator) -> Mapping[str, Any]:
    """The keys that a root or targets names, by identifier."""
    if isinstance(delegator, Root):
        return delegator.keys
    return {} if delegator.delegations is None else delegator.delegations.keys


def _paths(application: str) -> list[str]:
    return [
        f"{application}/*/release.json",
        f"{application}/*/release.intoto.jsonl",
        f"{application}/{CHANNELS}/*.json",
    ]


def _check_threshold(role: str, threshold: int, keys: int) -> None:
    if not 1 <= threshold <= keys:
        raise HubError(f"{role}: expected a threshold from 1 to its {keys} keys, got {threshold}")


def _check_application(name: str) -> None:
    if not is_application(name):
        raise HubError(
            f"expected an application's name of a-z 0-9 . _ -, other than {', '.join(sorted(RESERVED))}; got {name!r}"
        )
