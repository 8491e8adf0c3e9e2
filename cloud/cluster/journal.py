"""The journal of a cluster: its description and every event, a line of JSON each. What is decided follows from it.

A line is written to the disk before its orders are done. A last line that a crash cut off is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import msgspec

from cloud.cluster.cluster import Cluster, Pool, Rules
from cloud.cluster.result import Result
from cloud.cluster.scheduler import Scheduler
from cloud.cluster.state import Event
from cloud.errors import ClusterError
from cloud.parallel.topology import Device, Level

__all__ = ["Journal", "replayed"]

VERSION = 1


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    msedge_cluster: int
    name: str
    rules: dict[str, Any]
    pools: list[dict[str, Any]]


class Journal:
    """Appends to the file `path`, which begins with the cluster. Raises ClusterError if it cannot be written, and for a
    file of another cluster."""

    def __init__(self, path: str | os.PathLike[str], cluster: Cluster) -> None:
        self.path = Path(path)
        head = _head(cluster)
        try:
            whole = self.path.read_bytes() if self.path.exists() else b""
            kept = whole[: whole.rfind(b"\n") + 1]
            if kept and kept.split(b"\n", 1)[0] + b"\n" != head:
                raise ClusterError(
                    f"{os.fspath(path)}: expected the journal of this cluster, got another's: use another folder"
                )
            self.file: IO[bytes] = open(self.path, "r+b" if whole else "w+b")  # noqa: SIM115
            self.file.truncate(len(kept))
            self.file.seek(len(kept))
        except OSError as error:
            raise ClusterError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error
        if not kept:
            self._write(head)

    def add(self, event: Event) -> None:
        """Write one event."""
        self._write(msgspec.json.encode(event) + b"\n")

    def _write(self, line: bytes) -> None:
        try:
            self.file.write(line)
            self.file.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            raise ClusterError(f"cannot write {os.fspath(self.path)!r}: {error.strerror}") from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.file.close()


def replayed(path: str | os.PathLike[str]) -> tuple[Scheduler, Result]:
    """The scheduler and its result after all events of a journal. Raises ClusterError, which names the line."""
    where = os.fspath(path)
    try:
        lines = Path(path).read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ClusterError(f"cannot read {where!r}: {error.strerror}; msedge cluster run writes it") from error
    if not lines:
        raise ClusterError(f"{where}: expected a cluster in the first line, got none")
    cluster = _cluster(_decoded(lines[0], _Head, f"{where}:1"), f"{where}:1")
    scheduler, result = Scheduler(cluster), Result(cluster)
    for number, line in enumerate(lines[1:], 2):
        event = _decoded(line, Event, f"{where}:{number}")
        try:
            result.note(event, scheduler.apply(event))
        except ClusterError as error:
            raise ClusterError(f"{where}:{number}: {error}") from None
    return scheduler, result


def _decoded(line: bytes, kind: Any, where: str) -> Any:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ClusterError(f"{where}: expected a line as msedge cluster run writes it: {error}") from None


def _head(cluster: Cluster) -> bytes:
    pools = [
        {name: getattr(pool, name) for name in Pool.__dataclass_fields__} | {"device": _device(pool.device)}
        for pool in cluster.pools
    ]
    head = {"msedge_cluster": VERSION, "name": cluster.name, "rules": cluster.rules, "pools": pools}
    return msgspec.json.encode(head) + b"\n"


def _device(device: Device) -> Mapping[str, Any]:
    return {"flops": dict(device.flops), "bandwidth": device.bandwidth, "launch": device.launch}


def _cluster(head: _Head, where: str) -> Cluster:
    try:
        if head.msedge_cluster != VERSION:
            raise ValueError(f"version {head.msedge_cluster} instead of {VERSION}")
        pools = []
        for said in head.pools:
            device = msgspec.convert(said["device"], Device)
            links = {name: msgspec.convert(said[name], Level) for name in ("inside", "between")}
            pools.append(msgspec.convert({**said, "device": device, **links}, Pool, from_attributes=True))
        return Cluster(head.name, tuple(pools), Rules(**head.rules))
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError, ClusterError) as error:
        raise ClusterError(f"{where}: expected a cluster as msedge cluster run writes it: {error}") from None
