"""From devices and their data to a release: what a version was learned from, as one document with a digest.

The document has, for each device that took part, how many examples it had and the SHA-256 of them that it told, and the
bundle, the run and the reason that it began with. It stays with the loop; the release's lineage, which its team signs,
has the document's SHA-256. Which devices run the release, the hub knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloud.hub.client import Client
from cloud.hub.errors import HubError
from cloud.hub.loop.plan import Plan
from cloud.hub.repository.releases import Releases
from lite_runtime._files import write_atomically

__all__ = ["DOCUMENT", "of_release", "of_version", "write"]

DOCUMENT = "lineage.json"


def write(folder: Path, table: Mapping[str, Any]) -> str:
    """Write the document into a cycle's folder; its SHA-256."""
    raw = json.dumps(table, sort_keys=True, indent=1).encode()
    write_atomically(folder / DOCUMENT, raw, HubError)
    return sha256(raw).hexdigest()


def of_release(loop: str, cycle: int, cause: str, learned: Mapping[str, Any]) -> dict[str, str]:
    """What a release's lineage says beside its source. learned: the result of the step `learn`."""
    found = {"loop": f"{loop} {cycle}", "cause": cause, **{key: learned[key] for key in
             ("base", "run", "rounds", "devices", "examples", "figure", "value", "before", "data")
             if learned.get(key) is not None}}  # fmt: skip
    return {f"loop.{key}" if key != "loop" else key: f"{value}"[:4096] for key, value in found.items() if value != ""}


def of_version(plan: Plan, releases: Releases, hub: Client, version: str) -> dict[str, Any]:
    """A version's release, the document that it names, and the ids of the devices that run it. Raises HubError if the
    loop did not make it, or the document is another one."""
    said = releases.release(plan.loop.application, version).lineage
    digest, cycle = said.get("loop.data"), said.get("loop", "").rpartition(" ")[2]
    if digest is None or not cycle.isdecimal():
        raise HubError(f"{plan.loop.application} {version}: expected a release that a loop made, got another")
    document = _checked(plan.path(plan.loop.folder) / cycle, digest)
    runs = [one["id"] for one in _devices(hub) if _runs(one, plan.loop.application) == version]
    return {"version": version, "release": dict(said), "document": document, "runs": runs}


def _devices(hub: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        page = hub.json("GET", f"/v1/fleet/devices?most=1000&after={found[-1]['id'] if found else ''}")["devices"]
        found += page
        if len(page) < 1000:
            return found


def _runs(device: Mapping[str, Any], application: str) -> str:
    """The version that a device last said it runs."""
    there = ((device["report"] or {}).get("applications") or {}).get(application) or {}
    return str(there.get("trial") or there.get("version") or "")


def _checked(folder: Path, digest: str) -> dict[str, Any]:
    try:
        raw = (folder / DOCUMENT).read_bytes()
    except OSError as problem:
        raise HubError(f"cannot read {str(folder / DOCUMENT)!r}: {problem.strerror}; it stays with the loop") from None
    if sha256(raw).hexdigest() != digest:
        raise HubError(f"{str(folder / DOCUMENT)!r}: expected SHA-256 {digest}, as the release says, got another; "
                       "restore it from a backup")  # fmt: skip
    found: dict[str, Any] = json.loads(raw)
    return found
