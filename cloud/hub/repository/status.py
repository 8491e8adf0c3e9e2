"""The state of a repository: who may sign what, what expires when, what waits, what is missing."""

from __future__ import annotations

from typing import Any, NamedTuple

from cloud.hub.errors import HubError
from cloud.hub.repository.draft import Draft
from cloud.hub.repository.releases import Releases
from cloud.hub.repository.repository import ONLINE, Repository
from cloud.hub.repository.shelf import Shelf, days_of, names_of
from lite_runtime.errors import MsedgeError
from lite_runtime.updates.places import DELTAS, file_of_piece, file_of_target

__all__ = ["SOON", "RoleState", "Status", "status"]

SOON = 30.0
"""Days before the expiry of a signature by people that they are warned. Signatures by the hub, which renews them when
half of their time is over, are reported when a quarter is left."""


class RoleState(NamedTuple):
    """One role: its newest version, and that which devices see. left: days until it expires, negative: since."""

    role: str
    version: int
    published: int
    threshold: int
    keys: tuple[str, ...]
    left: float
    expires: str


class Status(NamedTuple):
    """A repository. applications: by name, versions, channels, and by version the names of the keys that attest where
    all of its bundles come from. expiring: roles to sign again. waiting: by role, whose signatures are missing.
    problems: what is damaged or missing."""

    repository: str
    roles: tuple[RoleState, ...]
    applications: dict[str, Any]
    expiring: tuple[str, ...]
    waiting: dict[str, str]
    problems: tuple[str, ...]


def status(repository: Repository, within: float | None = None, *, content: bool = False) -> Status:
    """Look at everything. within: days before expiry that count as expiring, for all roles; None: as SOON says.
    content: read every piece and every document, and check its digest."""
    shelf, releases = repository.shelf(), Releases(repository)
    states = tuple(_state(repository, shelf, role) for role in [*shelf.root.signed.roles, *shelf.roles()])
    days = days_of(shelf.root.signed)
    expiring = [
        each.role
        for each in states
        if each.left < (within if within is not None else days[each.role] / 4 if each.role in ONLINE else SOON)
    ]
    waiting = {each.role: "the hub's keys: msedge hub publish" for each in states if each.published != each.version}
    draft = Draft(shelf, repository.keys, repository.clock())
    draft.resume()
    waiting |= {role: draft.lacks(role) for role in draft.staged}
    found: dict[str, Any] = {}
    problems = [f"{each.role}: no version of it is there" for each in states if not each.version]
    for name in releases.applications():
        try:
            channels = {key: list(channel.versions) for key, channel in releases.channels(name).items()}
            found[name] = {"versions": releases.versions(name), "channels": channels, "attested": {}}
        except MsedgeError as error:
            problems.append(str(error))
    problems += _missing(repository, releases, shelf, found, content)
    return Status(repository.storage.where, states, found, tuple(expiring), waiting, tuple(problems))


def _state(repository: Repository, shelf: Shelf, role: str) -> RoleState:
    newest, delegator = shelf.role(role), shelf.delegator(role)
    of = delegator.get_delegated_role(role)
    names = names_of(delegator)
    keys = tuple(names.get(keyid, keyid[:16]) for keyid in of.keyids)
    version = 0 if newest is None else newest.signed.version
    published = shelf.published(role)
    expires = "" if newest is None else f"{newest.signed.expires:%Y-%m-%d %H:%M} UTC"
    return RoleState(role, version, published, of.threshold, keys, round(repository.left(newest), 2), expires)


def _missing(
    repository: Repository, releases: Releases, shelf: Shelf, found: dict[str, Any], content: bool
) -> list[str]:
    """What the releases and deltas refer to and is not there, or is damaged."""
    storage, problems = repository.storage, []
    for application, about in found.items():
        for version in about["versions"]:
            try:
                release = releases.release(application, version)
                signed = [releases.signers(one) for one in releases.attestations(application, version)]
                about["attested"][version] = sorted({name for names in signed for name in names}) if all(signed) else []
                for name, file in release.files.items():
                    lost = [one for one in file.pieces if storage.size(file_of_piece(one.sha256)) != one.size]
                    if lost:
                        raise HubError(f"{len(lost)} pieces of {name!r} are missing or damaged; add the version again")
                    for _ in releases.content(file) if content else ():
                        pass
            except MsedgeError as error:
                problems.append(f"{application} {version}: {error}")
    deltas = releases.deltas() if shelf.role(DELTAS) is not None else {}
    for target in deltas.values():
        if storage.size(file_of_target(target.path, target.hashes["sha256"])) != target.length:
            problems.append(f"{target.path}: the file is missing or damaged")
    return problems
