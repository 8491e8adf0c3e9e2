"""What a device believes of a repository: the client workflow of The Update Framework, by python-tuf.

This is the only file of the agent that imports tuf. Three things are added to its client: what is trusted is stored so
that a power failure loses nothing, refusals are named for the attack that they prevent, and the clock is doubted.

**Time.** Expiry is judged at the later of the device's clock and the newest time that is known to have passed: hubs
write into root and timestamp when they were signed. A clock more than `LAG` seconds before that time, or more than
`LEAD` after it, is an error: with the first an attacker could present what expired long ago, with the second nothing
could be believed. No time is taken from the network, from files' dates or from an earlier reading of the clock, so a
clock that was wrong once does no lasting harm. After a rotation of the timestamp's key the earlier timestamp counts no
more, also not for this.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Signed, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from edge.agent.errors import AgentError, MissingError, UntrustedError
from edge.agent.fetching import Fetch
from lite_runtime._files import write_atomically
from lite_runtime.errors import BundleError
from lite_runtime.updates.places import METADATA, channel_target, delta_target, file_of_target, release_target
from lite_runtime.updates.release import MAX_BYTES, Channel, Release, read_channel, read_release

__all__ = ["KINDS", "LAG", "LEAD", "Trust", "time_of"]

_LOG = logging.getLogger("msedge.agent.trust")

KINDS = MappingProxyType(
    {
        "rollback": "somebody offers an older state of the repository than this device has seen; nothing was changed."
        " If the repository was restored from a backup, rotate its timestamp and snapshot keys (msedge hub rotate)",
        "freeze": "somebody withholds updates, or the hub does not sign any more. Look at the hub (msedge hub status)"
        " and at what is between; if this device's clock is wrong, set it",
        "expired": "its owner has to sign it again (msedge hub renew); if this device's clock is wrong, set it",
        "signatures": "somebody without the keys made it, or its keys were exchanged without the root's consent;"
        " nothing was changed",
        "mix-and-match": "files of different states of the repository were put together, by an attacker or by a mirror"
        " that is being updated; try again, then look at what is between",
        "endless data": "the download was ended there",
        "slow retrieval": "the download was ended; somebody holds the connection open, or the network is very slow",
        "wrong file": "the content was thrown away; a mirror may be damaged, or somebody replaced the file",
        "malformed": "nothing was changed",
        "clock": "set this device's clock (NTP)",
    }
)
"""What is refused, by kind, and what a person can do."""

LAG, LEAD = 86_400.0, 10 * 365.25 * 86_400.0
"""Seconds by which the clock may be before, and after, the newest time known to have passed."""
SIGNED = "x-msedge-signed"
"""The field of root and timestamp that says when they were signed, as TUF writes times."""

_LIMITS = UpdaterConfig(max_root_rotations=1024, max_delegations=32)
_KEPT = 256
"""Documents that are kept: releases and channels."""
_PATIENCE, _LEAST = 60.0, 512.0
"""Seconds after which a download must have had this many bytes a second on average."""


def time_of(now: float, known: float) -> float:
    """The time at which expiry is judged, in seconds since 1970: `now` is what the device's clock says, `known` the
    newest time known to have passed, 0 for none. Raises UntrustedError ("clock")."""
    if now < known - LAG:
        _refuse("clock", f"the clock says {_shown(now)}, but this device has seen what was signed at {_shown(known)}")
    if known and now > known + LEAD:
        _refuse("clock", f"the clock says {_shown(now)}, ten years after the newest known time, {_shown(known)}")
    return max(now, known)


class Trust:
    """The trusted state of one repository. Not for use by several threads or processes at once.

    folder: where the trusted metadata is stored. root: the root that the device was given with its first installation;
    newer ones are reached from it, one signed by the other, however many there are. fetch: the repository's files.
    clock: the time in seconds since 1970. moment: seconds of a clock that is never set.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        root: bytes,
        fetch: Fetch,
        clock: Callable[[], float] = time.time,
        moment: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = Path(folder)
        self._root, self._clock = root, clock
        self._bounded = _Bounded(fetch, moment)
        self._client: _Client | None = None

    def refresh(self) -> None:
        """Bring the trusted metadata up to date: root, timestamp, snapshot, targets (section 5 of the specification).

        Raises UntrustedError for what is not believed, FetchError where the repository cannot be reached, AgentError
        if the folder cannot be written; what was trusted before stays trusted. All refusals are logged.
        """
        self._client = None
        with self._naming():
            self.folder.mkdir(parents=True, exist_ok=True)
            client = _Client(str(self.folder), self._bounded, self._root)
            client.update(self._clock)
        self._client = client

    def release(self, application: str, version: str) -> Release:
        """A version of an application. Raises MissingError for one that its owners do not offer, and as `refresh`."""
        found: Release = self._document(read_release, release_target(application, version))
        if (found.application, found.version) != (application, version):
            self._log("wrong file", f"{application} {version} is a document of {found.application} {found.version}")
        return found

    def channel(self, application: str, name: str) -> Channel:
        """The versions of an application that may run. Raises as `release` does."""
        found: Channel = self._document(read_channel, channel_target(application, name))
        if (found.application, found.name) != (application, name):
            self._log("wrong file", f"channel {name} of {application} is one of {found.application} {found.name}")
        return found

    def delta(self, old: str, new: str) -> tuple[int, str] | None:
        """Size and SHA-256 of what turns the file with SHA-256 `old` (hex) into that with `new`; None if there is none,
        or if what is offered of deltas is not believed: all can be downloaded without them."""
        try:
            found = self._info(delta_target(old, new))
        except (UntrustedError, MissingError):
            return None
        return None if found is None or "sha256" not in found.hashes else (found.length, found.hashes["sha256"])

    def target(self, name: str, most: int = MAX_BYTES) -> bytes:
        """The content of a target of at most `most` bytes, from the folder if it is there. Raises as `release`."""
        found = self._info(name)
        if found is None:
            raise MissingError(f"the repository offers no {name!r}")
        if found.length > most:
            self._log("endless data", f"{name!r} has {found.length} bytes, expected at most {most}")
        kept = self.folder / "targets" / quote(name, "")
        with contextlib.suppress(OSError, exceptions.LengthOrHashMismatchError), kept.open("rb") as file:
            data = file.read(most + 1)
            found.verify_length_and_hashes(data)
            return data
        with self._naming():
            data = self._bounded.download_bytes(self._file(found), found.length)
            found.verify_length_and_hashes(data)
        with self._naming():
            kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, data, AgentError)
        _forget(kept.parent)
        return data

    def _file(self, found: TargetFile) -> str:
        if self._client is not None and self._client.root.consistent_snapshot:
            return file_of_target(found.path, next(iter(found.hashes.values())))
        return f"targets/{found.path}"

    def _info(self, name: str) -> TargetFile | None:
        if self._client is None:
            raise AgentError("nothing is trusted yet; call refresh, and use nothing if it fails")
        with self._naming():
            return self._client.get_targetinfo(name)

    def _document(self, read: Callable[[bytes], Any], name: str) -> Any:
        try:
            return read(self.target(name))
        except BundleError as error:
            self._log("malformed", f"{name}: {error}")

    def _log(self, kind: str, text: str) -> None:
        """Refuse, and say so in the log."""
        with self._naming():
            _refuse(kind, text)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn errors of tuf into ours, and log all refusals."""
        try:
            yield
        except UntrustedError as error:
            _LOG.warning("refused (%s): %s", error.kind, error)
            raise
        except exceptions.DownloadHTTPError:
            raise MissingError(f"the repository has no {self._bounded.name!r}; is its address right?") from None
        except (exceptions.RepositoryError, exceptions.DownloadError, ValueError) as error:
            made = self._bounded.named(error)
            _LOG.warning("refused (%s): %s", made.kind, made)
            raise made from None
        except OSError as error:
            raise AgentError(f"cannot use {str(self.folder)!r}: {error.strerror or error}; check the disk") from None


def _forget(folder: Path) -> None:
    """Keep the newest documents alone: one that is needed again is fetched again."""
    with contextlib.suppress(OSError):
        rows = sorted(((path.stat().st_mtime, path) for path in folder.iterdir()), reverse=True)
        for _, path in rows[_KEPT:]:
            path.unlink()


class _Client(Updater):
    """python-tuf's client, with files that survive a power failure and a clock that is doubted."""

    def __init__(self, folder: str, fetcher: _Bounded, root: bytes) -> None:
        self._walking = False
        super().__init__(folder, f"{METADATA}/", fetcher=fetcher, config=_LIMITS, bootstrap=root)
        fetcher.trusted = self._trusted_set

    @property
    def root(self) -> Root:
        """The newest trusted root."""
        return self._trusted_set.root

    def update(self, clock: Callable[[], float]) -> None:
        """All steps of the client workflow."""
        self._walking = True
        self._load_root()
        now = clock()
        at = datetime.fromtimestamp(time_of(now, max(_signed(self.root), self._stamped())), UTC)
        self._trusted_set.reference_time = at
        if self.root.is_expired(at):
            when = f"expired at {self.root.expires:%Y-%m-%d %H:%M} UTC, the time is {_shown(at.timestamp())}"
            _refuse("freeze", f"the newest root that is offered, version {self.root.version}, {when}")
        self._load_timestamp()
        stamp = self._trusted_set.timestamp
        time_of(now, _signed(stamp))
        if stamp.is_expired(at):  # tuf says so of a new timestamp alone
            when = f"expired at {stamp.expires:%Y-%m-%d %H:%M} UTC, the time is {_shown(at.timestamp())}"
            _refuse("freeze", f"the newest timestamp that is offered, version {stamp.version}, {when}")
        self._load_snapshot()
        self._load_targets(Targets.type, Root.type)

    def _stamped(self) -> float:
        """When the stored timestamp was signed; 0 if none is stored that the newest root's keys have signed."""
        with contextlib.suppress(OSError, ValueError, exceptions.RepositoryError):
            read: Metadata[Timestamp] = Metadata.from_bytes(self._load_local_metadata(Timestamp.type))
            self.root.verify_delegate(Timestamp.type, read.signed_bytes, read.signatures)
            return _signed(read.signed)
        return 0.0

    def _persist_file(self, filename: str, data: bytes) -> None:
        with contextlib.suppress(OSError):
            if Path(filename).read_bytes() == data:
                return
        write_atomically(filename, data, AgentError)

    def _update_root_symlink(self) -> None:
        """A copy instead of a link, which some file systems of devices lack; written once a walk."""
        if self._walking:
            path = Path(self._dir, "root_history", f"{self.root.version}.root.json")
            with contextlib.suppress(FileNotFoundError):  # it could not be stored, which is being reported
                self._persist_file(os.path.join(self._dir, "root.json"), path.read_bytes())


class _Bounded(FetcherInterface):
    """Downloads into memory that end at a size, and when they are too slow; remembers the last, to name errors by."""

    def __init__(self, fetch: Fetch, moment: Callable[[], float]) -> None:
        self._files, self._moment = fetch, moment
        self.name, self._data = "", b""
        self.trusted: Any = {}

    def _fetch(self, url: str) -> Iterator[bytes]:
        return self._files.open(url)

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """See FetcherInterface."""
        self.name, self._data = url, b""
        made, begun = bytearray(), self._moment()
        try:
            with contextlib.closing(self._files.open(url)) as parts:  # type: ignore[type-var]
                for part in parts:
                    made += part
                    if len(made) > max_length:
                        _refuse("endless data", f"{url}: expected at most {max_length} bytes, got more")
                    took = self._moment() - begun
                    if took > _PATIENCE and len(made) < took * _LEAST:
                        _refuse("slow retrieval", f"{url}: {len(made)} bytes in {took:.0f} s")
        except MissingError as error:
            raise exceptions.DownloadHTTPError(str(error), 404) from None
        self._data = bytes(made)
        return self._data

    def named(self, error: Exception) -> UntrustedError:
        """An error of tuf in our words: about the file that was downloaded last."""
        kind = next((kind for of, kind in _NAMES if isinstance(error, of)), "malformed")
        role = self._role()
        if kind == "rollback" and not self._goes_back(role):
            kind = "mix-and-match"
        if kind == "expired" and role in (Timestamp.type, Snapshot.type):
            kind = "freeze"
        if kind == "mix-and-match" and not role:
            kind = "wrong file"
        if kind == "malformed" and role == Snapshot.type and "missing info" in str(error):
            kind = "rollback"
        return _refusal(kind, f"{self.name}: {error}{self._expiry() if kind in ('freeze', 'expired') else ''}")

    def _role(self) -> str:
        """The role of the metadata that was downloaded last; "" for a target."""
        folder, _, name = self.name.rpartition("/")
        first, _, rest = name.removesuffix(".json").partition(".")
        return "" if folder != METADATA else rest if first.isdigit() and rest else name.removesuffix(".json")

    def _offered(self) -> Signed | None:
        with contextlib.suppress(ValueError, exceptions.RepositoryError):
            read: Metadata[Any] = Metadata.from_bytes(self._data)
            return read.signed  # type: ignore[no-any-return]
        return None

    def _goes_back(self, role: str) -> bool:
        """Whether a wrong version number goes back behind what is trusted, instead of not fitting to other files."""
        offered = self._offered()
        if role == Snapshot.type and offered is not None:
            return bool(offered.version == self.trusted.timestamp.snapshot_meta.version)
        return role in (Root.type, Timestamp.type)

    def _expiry(self) -> str:
        offered = self._offered()
        when = "" if offered is None else f" (it expired at {offered.expires:%Y-%m-%d %H:%M} UTC"
        return f"{when}, the time is {self.trusted.reference_time:%Y-%m-%d %H:%M} UTC)" if when else ""


_NAMES: tuple[tuple[type[Exception], str], ...] = (
    (exceptions.UnsignedMetadataError, "signatures"),
    (exceptions.ExpiredMetadataError, "expired"),
    (exceptions.BadVersionNumberError, "rollback"),
    (exceptions.LengthOrHashMismatchError, "mix-and-match"),
)


def _refusal(kind: str, text: str) -> UntrustedError:
    return UntrustedError(kind, f"{text} ({kind}); {KINDS[kind]}")


def _refuse(kind: str, text: str) -> Any:
    raise _refusal(kind, text)


def _signed(signed: Signed) -> float:
    """When a root or timestamp was signed, in seconds since 1970; 0 if it does not say so."""
    text: Any = signed.unrecognized_fields.get(SIGNED)
    with contextlib.suppress(TypeError, ValueError):
        found = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        return found.timestamp() if found <= signed.expires else 0.0
    return 0.0


def _shown(seconds: float) -> str:
    with contextlib.suppress(ValueError, OverflowError, OSError):
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    return f"{seconds:.0f} s"
