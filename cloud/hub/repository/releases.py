"""What a repository holds for devices: releases, channels, deltas; and the removal of what nothing refers to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tuf.api.metadata import Metadata, TargetFile, Targets

from cloud.hub.errors import HubError
from cloud.hub.repository.attestation import Attestation, opened, sealed, statement
from cloud.hub.repository.draft import STAGED, Draft, Outcome
from cloud.hub.repository.repository import Repository, delegator_keys
from cloud.hub.repository.shelf import Shelf, file_of, names_of
from lite_runtime import bundle
from lite_runtime._mapping import mapped
from lite_runtime.updates.pieces import file_of as file_of_bundle
from lite_runtime.updates.places import (
    CHANNELS,
    DELTAS,
    METADATA,
    attestation_target,
    channel_target,
    delta_target,
    file_of_piece,
    file_of_target,
    release_target,
)
from lite_runtime.updates.release import (
    Channel,
    File,
    Release,
    Requirements,
    may_name,
    read_channel,
    read_release,
    written,
)

__all__ = ["Added", "Made", "Pruned", "Releases"]


class Added(NamedTuple):
    """What a release took. pieces: how many, size: their bytes; shared: pieces, saved: bytes that were there before.
    attested: names of the keys that signed where its bundles come from."""

    release: Release
    pieces: int
    size: int
    shared: int
    saved: int
    outcome: Outcome
    attested: tuple[str, ...] = ()


class Made(NamedTuple):
    """Deltas that were made: their bytes by the SHA-256 of old and new file. useless: how many would save nothing."""

    deltas: Mapping[tuple[str, str], int]
    useless: int
    outcome: Outcome


class Pruned(NamedTuple):
    """What was removed: files of the repository, and their bytes."""

    files: tuple[str, ...]
    size: int


class Releases:
    """The releases of a repository. See `Repository` for keys, staging and errors."""

    def __init__(self, repository: Repository) -> None:
        self.repository, self.storage = repository, repository.storage

    # -- reading -------------------------------------------------------------------------------------------------------

    def applications(self) -> list[str]:
        """The applications, in order."""
        return sorted(role for role in self.repository.shelf().roles() if role != DELTAS)

    def versions(self, application: str) -> list[str]:
        """The versions of an application, in the order of their names. Raises HubError for an unknown application."""
        found = self._role(self.repository.shelf(), application).targets
        return sorted(name.split("/")[1] for name in found if name.endswith("/release.json"))

    def channels(self, application: str) -> dict[str, Channel]:
        """The channels of an application by name."""
        found = self._role(self.repository.shelf(), application).targets
        read = [read_channel(self._content(found[name])) for name in sorted(found) if f"/{CHANNELS}/" in name]
        return {channel.name: channel for channel in read}

    def release(self, application: str, version: str) -> Release:
        """A release. Raises HubError if there is none."""
        found = self._role(self.repository.shelf(), application).targets.get(release_target(application, version))
        if found is None:
            raise HubError(f"{application} has no version {version!r}; it has {_listed(self.versions(application))}")
        return read_release(self._content(found))

    def content(self, file: File) -> Iterator[bytes]:
        """The bytes of a release's file, piece by piece. Raises HubError for a damaged piece."""
        for piece in file.pieces:
            data = self.storage.read(file_of_piece(piece.sha256))
            if sha256(data).hexdigest() != piece.sha256:
                raise HubError(f"{self.storage.where}: piece {piece.sha256} is damaged; delete it and add it again")
            yield data

    def write_file(self, file: File, path: Path) -> Path:
        """Put the file of a release together, at `path`. Raises HubError if what is stored is damaged."""
        digest = sha256()
        with path.open("wb") as made:
            for data in self.content(file):
                digest.update(data)
                made.write(data)
        if digest.hexdigest() != file.sha256:
            raise HubError(f"{self.storage.where}: a file's pieces are not what its release says; add it again")
        return path

    def deltas(self) -> dict[tuple[str, str], TargetFile]:
        """The deltas, by the SHA-256 of old and new file."""
        found = self._role(self.repository.shelf(), DELTAS).targets
        return {(name.split("/")[1], name.split("/")[2]): each for name, each in found.items()}

    def _role(self, shelf: Shelf, application: str) -> Targets:
        found = shelf.role(application) if shelf.root and application in shelf.roles() else None
        if found is None:
            known = _listed(role for role in shelf.roles() if role != DELTAS)
            raise HubError(
                f"there is no application {application!r}; there is {known}. msedge hub delegate"
                f" {self.storage.where} {application} makes one"
            )
        return found.signed  # type: ignore[no-any-return]

    def _content(self, found: TargetFile) -> bytes:
        data = self.storage.read(file_of_target(found.path, found.hashes["sha256"]))
        if sha256(data).hexdigest() != found.hashes["sha256"]:
            raise HubError(f"{self.storage.where}: target {found.path} is damaged; restore it from a backup")
        return data

    # -- releases ------------------------------------------------------------------------------------------------------

    def add(
        self,
        application: str,
        version: str,
        files: Mapping[str, str | os.PathLike[str]],
        requirements: Requirements | None = None,
        lineage: Mapping[str, str] = MappingProxyType({}),
        builder: str = "",
    ) -> Added:
        """Store bundles (by the name that they have on devices) and sign them as a version. A version is never changed.
        With a key of the application at hand it is attested where they come from, also afterwards. builder: a URI of
        the platform that converted them.

        Raises HubError if the version exists with other content, BundleError for a file that is no bundle.
        """
        target = release_target(application, version)
        for name in files:
            if not may_name(name):
                raise HubError(
                    f"expected a file's name of 1 to 64 of a-z 0-9 . _ -, got {name!r}; NAME=FILE gives it one"
                )
        self._role(self.repository.shelf(), application)
        listed = {name: file_of_bundle(path) for name, path in files.items()}
        needs = requirements or Requirements()
        release = Release(application, version, MappingProxyType(listed), needs, MappingProxyType(dict(lineage)))
        raw = written(release)
        read_release(raw)  # within the limits of devices
        counts = self._upload(files, listed)
        with self.repository.draft() as draft:
            self._upload(files, listed)  # a prune may have come between
            known = self._role(draft.shelf, application).targets.get(target)
            if known is not None and known.hashes["sha256"] != sha256(raw).hexdigest():
                raise HubError(f"{application} {version} exists with other content; give the new one another version")
            if known is None:
                self._put(draft.edit(application), target, raw)
            attested = self._attest(draft, release, files, builder)
            return Added(release, *counts, draft.store(), attested)

    def _upload(self, files: Mapping[str, Any], listed: Mapping[str, File]) -> tuple[int, int, int, int]:
        """Store the pieces that are not there: how many pieces and bytes, and of these how many were there."""
        pieces = size = shared = saved = 0
        for name, file in listed.items():
            data, at = mapped(os.fspath(files[name])) or memoryview(b""), 0
            for piece in file.pieces:
                part = data[at : at + piece.size]
                at += piece.size
                where = file_of_piece(piece.sha256)
                there = self.storage.size(where) == piece.size
                if not there:
                    if sha256(part).hexdigest() != piece.sha256:
                        raise HubError(f"{os.fspath(files[name])!r} was changed while it was read; try again")
                    self.storage.write(where, part)
                pieces, size = pieces + 1, size + piece.size
                shared, saved = shared + there, saved + there * piece.size
        return pieces, size, shared, saved

    def _put(self, role: Targets, target: str, raw: bytes) -> None:
        found = TargetFile.from_data(target, raw, ["sha256"])
        self.storage.write(file_of_target(target, found.hashes["sha256"]), raw)
        role.targets[target] = found

    def remove(self, application: str, version: str) -> Outcome:
        """Take a version out of the repository. Raises HubError while a channel has it."""
        with self.repository.draft() as draft:
            self.release(application, version)
            holding = [name for name, each in self.channels(application).items() if version in each.versions]
            if holding:
                raise HubError(f"{application} {version} is in {_listed(holding)}; msedge hub promote --withdraw first")
            targets = draft.edit(application).targets
            del targets[release_target(application, version)]
            targets.pop(attestation_target(application, version), None)
            return draft.store()

    # -- where releases come from --------------------------------------------------------------------------------------

    def attestations(self, application: str, version: str) -> list[Attestation]:
        """What is attested of a release's bundles; [] if nothing is. Raises HubError for what does not fit to it."""
        shelf = self.repository.shelf()
        found = self._role(shelf, application).targets.get(attestation_target(application, version))
        if found is None:
            return []
        keys = shelf.targets.signed.delegations
        by_id = {} if keys is None else keys.keys
        counting = [by_id[keyid] for keyid in shelf.delegator(application).get_delegated_role(application).keyids]
        return opened(self._content(found), self.release(application, version), counting)

    def signers(self, attestation: Attestation) -> tuple[str, ...]:
        """The names of the keys that signed an attestation and count now."""
        names = names_of(self.repository.shelf().targets.signed)
        return tuple(names.get(keyid, keyid[:16]) for keyid in attestation.signed)

    def envelopes(self, application: str, version: str) -> bytes:
        """The attestations as other programs read them: in-toto's lines. Raises HubError if there are none."""
        found = self._role(self.repository.shelf(), application).targets.get(attestation_target(application, version))
        if found is None:
            raise HubError(f"{application} {version} is not attested; msedge hub add once more, with the team's key")
        return self._content(found)

    def _attest(
        self, draft: Draft, release: Release, files: Mapping[str, str | os.PathLike[str]], builder: str
    ) -> tuple[str, ...]:
        """Attest a release, unless a key that counts has done so; the names of the keys that have."""
        delegator = draft.delegators(release.application)[-1]
        held = delegator_keys(delegator)
        keys = [held[keyid] for keyid in delegator.get_delegated_role(release.application).keyids]
        signers = draft.signers(release.application)
        target = attestation_target(release.application, release.version)
        known = self._role(draft.shelf, release.application).targets.get(target)
        found: list[Attestation] = []
        if known is not None:
            with contextlib.suppress(HubError):  # one that is damaged is made anew
                found = opened(self._content(known), release, keys)
        signed = {keyid for one in found for keyid in one.signed}
        if signers and not (found and all(one.signed for one in found)):
            said = {name: bundle.read(os.fspath(path)).provenance for name, path in files.items()}
            raw = sealed([statement(release, name, said[name], builder) for name in release.files], signers)
            self._put(draft.edit(release.application), target, raw)
            signed = {signer.public_key.keyid for signer in signers}
        names = names_of(delegator)
        return tuple(sorted(names.get(keyid, keyid[:16]) for keyid in signed))

    # -- channels ------------------------------------------------------------------------------------------------------

    def promote(
        self, application: str, version: str, channel: str, *, withdraw: bool = False
    ) -> tuple[Channel, Outcome]:
        """Let a version run, as the newest of a channel; or withdraw it, so that no device may start it any more."""
        target = channel_target(application, channel)
        with self.repository.draft() as draft:
            self.release(application, version)
            before = self.channels(application).get(channel, Channel(application, channel, 0, ()))
            if withdraw and version not in before.versions:
                raise HubError(
                    f"{channel} of {application} does not have {version!r}; it has {_listed(before.versions)}"
                )
            others = tuple(each for each in before.versions if each != version)
            after = before._replace(
                serial=before.serial + 1, versions=others if withdraw else (*others, version)
            )  # fmt: skip
            if after.versions == before.versions:
                return before, draft.store()
            raw = written(after)
            read_channel(raw)
            self._put(draft.edit(application), target, raw)
            return after, draft.store()

    # -- deltas --------------------------------------------------------------------------------------------------------

    def put_deltas(self, deltas: Mapping[tuple[str, str], bytes | Path]) -> Outcome:
        """Offer deltas, each by the SHA-256 of its old and its new file. One that is there is replaced."""
        with self.repository.draft() as draft:
            role = draft.edit(DELTAS)
            for (old, new), data in deltas.items():
                found = _measured(delta_target(old, new), data)
                self.storage.write(file_of_target(found.path, found.hashes["sha256"]), data)
                role.targets[found.path] = found
            return draft.store()

    def make_deltas(self, application: str, version: str, before: Sequence[str] = ()) -> Made:
        """Make and offer deltas to a version from others; none given: from all that a channel has. Those that are
        there, or would save nothing, are left out. Raises HubError for versions that are not there."""
        from cloud.hub.deltas import make
        from lite_runtime.updates.pieces import missing

        release = self.release(application, version)
        held = {each for channel in self.channels(application).values() for each in channel.versions}
        made: dict[tuple[str, str], bytes | Path] = {}
        known, useless = self.deltas(), 0
        with tempfile.TemporaryDirectory(prefix="msedge-") as folder:
            for other in before or sorted(held - {version}):
                for name, old in self.release(application, other).files.items():
                    new = release.files.get(name)
                    if new is None or new.sha256 == old.sha256 or (old.sha256, new.sha256) in {*known, *made}:
                        continue
                    paths = [self._whole(Path(folder), file) for file in (old, new)]
                    data = make(*paths)
                    if len(data) < sum(piece.size for piece in missing(new.pieces, old.pieces)):
                        made[old.sha256, new.sha256] = data
                    else:
                        useless += 1
        outcome = self.put_deltas(made) if made else Outcome({}, {})
        return Made({pair: len(data) for pair, data in made.items() if isinstance(data, bytes)}, useless, outcome)

    def _whole(self, folder: Path, file: File) -> Path:
        """A release's file in a folder, put together once."""
        path = folder / file.sha256
        return path if path.exists() else self.write_file(file, path)

    # -- pruning -------------------------------------------------------------------------------------------------------

    def prune(self, older: float = 86_400.0, *, dry: bool = False) -> Pruned:
        """Delete what nothing refers to and is older than `older` seconds: pieces, documents, deltas from or to files
        that no release has, metadata that newer ones replaced. Roots stay, so that any device finds its way."""
        with self.repository.draft() as draft:
            kept = self._documents(draft.shelf)
            files = {file.sha256 for release in kept for file in release.files.values()}
            role = draft.shelf.role(DELTAS)
            gone = (
                [] if role is None else [name for name in role.signed.targets if not set(name.split("/")[1:]) <= files]
            )
            if gone and not dry:
                for name in gone:
                    del draft.edit(DELTAS).targets[name]
                if draft.store().waiting:
                    gone = []  # devices are still offered them
            shelf = self.repository.shelf()
            needed = self._needed(shelf, kept, set(gone))
            removed: list[str] = []
            size = 0
            for name in list(self.storage.names()):
                if (
                    name in needed
                    or name.startswith(STAGED)
                    or not name.startswith(("metadata/", "pieces/", "targets/"))
                ):
                    continue
                if (self.storage.age(name) or 0.0) >= older:
                    size += self.storage.size(name) or 0
                    removed.append(name)
                    if not dry:
                        self.storage.delete(name)
            return Pruned(tuple(removed), size)

    def _documents(self, shelf: Shelf) -> list[Release]:
        documents = {
            each.hashes["sha256"]: each
            for role in shelf.roles()
            if role != DELTAS
            for held in self._held(shelf, role)
            for name, each in held.targets.items()
            if name.endswith("/release.json")
        }
        return [read_release(self._content(each)) for each in documents.values()]

    def _held(self, shelf: Shelf, role: str) -> list[Targets]:
        """What may be asked for of a role: as devices see it, its newest version, and one that waits for signatures."""
        newest, published = shelf.role(role), shelf.at(role, shelf.published(role))
        staged = [Metadata.from_bytes(self.storage.read(name)) for name in self.storage.names(f"{STAGED}{role}.json")]
        found = [one for one in (newest, published, *staged) if one is not None]
        return [one.signed for one in found if isinstance(one.signed, Targets)]

    def _needed(self, shelf: Shelf, kept: Sequence[Release], gone: set[str]) -> set[str]:
        """The files that the newest metadata, or those that the snapshot names, lead to."""
        needed = {f"{METADATA}/timestamp.json"}
        needed |= {file_of("root", number) for number in shelf.versions["root"]}
        snapshot = shelf.role("snapshot")
        needed |= {file_of("snapshot", shelf.last("snapshot"))}
        for role in ("targets", *shelf.roles()):
            newest = shelf.role(role)
            published = None if snapshot is None else snapshot.signed.meta.get(f"{role}.json")
            numbers = {each.version for each in (published,) if each is not None}
            numbers |= {newest.signed.version} if newest is not None else set()
            needed |= {file_of(role, number) for number in numbers}
            needed |= {
                file_of_target(each.path, each.hashes["sha256"])
                for held in self._held(shelf, role)
                for each in held.targets.values()
                if each.path not in gone
            }
        needed |= {
            file_of_piece(piece.sha256) for release in kept for file in release.files.values() for piece in file.pieces
        }
        return needed


def _measured(name: str, data: bytes | Path) -> TargetFile:
    """A target of this content."""
    if isinstance(data, bytes):
        return TargetFile.from_data(name, data, ["sha256"])
    with data.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
        return TargetFile(file.tell(), {"sha256": digest}, name)


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
