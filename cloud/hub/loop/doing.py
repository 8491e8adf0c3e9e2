"""What a step of a cycle has: the plan, the hub, the repository, the cycle's folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from cloud.hub.client import Client
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import Cycle
from cloud.hub.loop.plan import Plan
from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.releases import Releases
from cloud.hub.storage import storage_at
from lite_runtime.bundle.keys import content
from lite_runtime.updates.release import Release

__all__ = ["Doing", "EndedError", "StoppedError", "WaitsError", "newest", "releases_of"]


class EndedError(HubError):
    """The cycle has failed; to do the step again does not help."""


class WaitsError(HubError):
    """Somebody else has to do something first, such as sign."""


class StoppedError(HubError):
    """The loop was asked to end; the step goes on at the next start."""


class Doing:
    """What a step has. cycle: as it was when the step began. pause: waits until the next look; raises StoppedError when
    the loop shall end."""

    def __init__(
        self, plan: Plan, client: Client, cycle: Cycle, say: Callable[[str], None], pause: Callable[[float], None]
    ) -> None:
        self.plan, self.client, self.cycle, self.say, self._pause = plan, client, cycle, say, pause
        self.folder = plan.path(plan.loop.folder) / str(cycle.number)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.version = plan.version(cycle.number)

    def look(self) -> None:
        """Raises StoppedError if the loop shall end."""
        self._pause(0.0)

    def wait(self) -> None:
        """Until the next look at what others do. Raises StoppedError."""
        self._pause(self.plan.loop.every)

    @cached_property
    def releases(self) -> Releases:
        """The repository's releases. Raises HubError."""
        return releases_of(self.plan)

    @property
    def newest(self) -> str:
        """The version that devices should have. Raises HubError if there is none."""
        found = newest(self.releases, self.plan)
        if not found:
            raise EndedError(f"{self.plan.loop.application}: expected a version in {self.plan.loop.channel}, got none")
        return found

    def based_on(self) -> Release:
        """The release that the cycle began with."""
        learned = self.cycle.results.get("learn", {})
        return self.releases.release(self.plan.loop.application, str(learned.get("base") or self.newest))

    def file(self, release: Release) -> str:
        """The file of a release that the loop is about. Raises EndedError."""
        name = self.plan.loop.file or next(iter(release.files))
        if name not in release.files or (not self.plan.loop.file and len(release.files) > 1):
            raise EndedError(f"loop.file: expected one of {', '.join(release.files)}, got {self.plan.loop.file!r}")
        return name

    def base(self) -> tuple[str, Path]:
        """The version that devices have, and its bundle, which is written here once."""
        named = self.folder / "base.version"
        version = named.read_text() if named.exists() else self.newest
        path = self.folder / "base.mslite"
        if not named.exists():
            release = self.releases.release(self.plan.loop.application, version)
            self.releases.write_file(release.files[self.file(release)], path)
            named.write_text(version)
        return version, path


def releases_of(plan: Plan) -> Releases:
    """The releases of a plan's repository. Raises HubError."""
    said = plan.file.repository

    def asked(path: str) -> bytes | None:
        if not said.passphrase:
            return None
        return content(plan.path(said.passphrase)).split(b"\n", 1)[0].rstrip(b"\r")

    keys = Keys([plan.path(folder) for folder in said.keys], asked)
    return Releases(Repository(storage_at(plan.where(said.at)), keys))


def newest(releases: Releases, plan: Plan) -> str:
    """The newest version of the channel of all devices, "" if there is none."""
    found = releases.channels(plan.loop.application).get(plan.loop.channel)
    return found.versions[-1] if found is not None and found.versions else ""
