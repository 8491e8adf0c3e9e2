"""Requests of people: what the repository has, and where a version comes from and where it runs.

GET /v1/releases                     applications: versions, channels, and versions that a rollout ever had
GET /v1/releases/APPLICATION/VERSION the document, the chain of what it was made of, rollouts, and devices that run it
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from aiohttp import web

from cloud.hub.database.tokens import Token
from cloud.hub.errors import HubError
from cloud.hub.repository import Repository
from cloud.hub.repository.ancestry import chain
from cloud.hub.repository.releases import Releases
from cloud.hub.server.hub import Hub
from cloud.hub.server.people.gate import Gate
from cloud.hub.storage import Storage
from lite_runtime.errors import MsedgeError
from lite_runtime.updates import fields
from lite_runtime.updates.release import Release, may_name

__all__ = ["Shelves"]

_RELATIVES = 200
"""Most versions that are looked through for the parents of a bundle."""
_FRESH = 10.0
"""Seconds for which the list of what the repository has is good."""


class Shelves:
    """What people ask of a repository. storage: None: there is none."""

    def __init__(self, hub: Hub, storage: Storage | None, gate: Gate) -> None:
        self._hub, self._gate = hub, gate
        self._releases = Releases(Repository(storage)) if storage is not None else None
        self._known: tuple[float, dict[str, Any]] = (0.0, {})

    def routes(self) -> list[web.RouteDef]:
        """The paths."""
        read = self._gate.guard("viewer", "operator")
        return [
            web.get("/v1/releases", read(self._all)),
            web.get("/v1/releases/{application}/{version}", read(self._one)),
        ]

    async def _all(self, request: web.Request, token: Token) -> web.StreamResponse:
        now, releases = self._hub.clock(), self._releases
        if releases is not None and not 0 <= now - self._known[0] < _FRESH:
            self._known = now, await _asked(_listed, releases)
        rolled: dict[str, set[str]] = {}
        for one in self._hub.fleet.rollouts.values():
            rolled.setdefault(one.plan.application, set()).add(one.plan.version)
        found = {name: {**about, "rolled": sorted(rolled.get(name, ()))} for name, about in self._known[1].items()}
        return web.json_response({"applications": found})

    async def _one(self, request: web.Request, token: Token) -> web.StreamResponse:
        application, version = request.match_info["application"], request.match_info["version"]
        releases = self._releases
        if releases is None or not may_name(application) or not may_name(version):
            raise web.HTTPNotFound
        found = await _asked(_described, releases, application, version)
        fleet = self._hub.fleet
        rollouts = [one for one in fleet.rollouts.values() if one.plan.application == application]
        mine = sorted((one for one in rollouts if one.plan.version == version), key=lambda one: -one.started)
        running = fleet.summary()["versions"].get(application, {}).get(version, 0)
        shown = [{"id": one.id, "status": one.status, "started": one.started} for one in mine]
        return web.json_response({**found, "rollouts": shown, "devices": running})


async def _asked(call: Callable[..., dict[str, Any]], *about: Any) -> dict[str, Any]:
    """What a repository says, from a thread. Raises HubError, for damaged documents too."""
    try:
        return await asyncio.to_thread(call, *about)
    except MsedgeError as problem:
        raise problem if isinstance(problem, HubError) else HubError(str(problem)) from problem


def _listed(releases: Releases) -> dict[str, Any]:
    return {
        name: {
            "versions": releases.versions(name),
            "channels": {key: list(one.versions) for key, one in releases.channels(name).items()},
        }
        for name in releases.applications()
    }


def _described(releases: Releases, application: str, version: str) -> dict[str, Any]:
    release = releases.release(application, version)
    channels = [key for key, one in releases.channels(application).items() if version in one.versions]
    links = chain(release, _relatives(releases, release))
    files = {
        name: {"size": file.size, "sha256": file.sha256, "digest": file.digest, "pieces": len(file.pieces)}
        for name, file in release.files.items()
    }
    return {
        "application": application,
        "version": version,
        "channels": channels,
        "files": files,
        "requirements": fields.plain(release.requirements),
        "chain": [dataclasses.asdict(one) for one in links],
    }


def _relatives(releases: Releases, release: Release) -> dict[str, str]:
    """Other versions by the digests of their bundles, where a parent is asked for."""
    if not any(name.endswith(".parent") for name in release.lineage):
        return {}
    others = [one for one in releases.versions(release.application) if one != release.version][-_RELATIVES:]
    documents = [releases.release(release.application, one) for one in others]
    return {file.digest: one.version for one in documents for file in one.files.values()}
