"""What this machine is and has now, read from the system: the only file of the agent that reads /sys and /proc.

Whatever a system does not say is None, and counts as met: a machine without a battery is not refused for it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from lite_runtime.bundle.layout import NEEDS
from lite_runtime.frozen import NamedTuple

__all__ = ["COSTLY", "Facts", "Machine"]

COSTLY = ("wwan*", "rmnet*", "ppp*", "usb*")
"""Names of network interfaces whose traffic usually costs: cellular modems, and phones that share theirs."""
_BATTERY_TYPES = ("Battery",)
_ROUTE_UP = 1
_QUIET = 0.25


class Facts(NamedTuple):
    """free: bytes of disk. memory: bytes that programs can have without swapping. total: bytes of memory. battery:
    percent. charging: whether it is, or there is a supply. metered: whether traffic costs. targets: names of
    `lite_runtime.targets` whose kernels run here, best first. runtime: the version of msedge. minute: of the day, local
    time. idle: whether nobody uses the machine: its processors were busy for less than a quarter of the last minute."""

    free: int | None = None
    memory: int | None = None
    total: int | None = None
    battery: int | None = None
    charging: bool | None = None
    metered: bool | None = None
    targets: tuple[str, ...] = ()
    runtime: str = ""
    minute: int = 0
    idle: bool | None = None


class Machine:
    """Asks this machine. costly: patterns of interfaces with metered traffic. root: where /sys and /proc are."""

    def __init__(self, costly: Iterable[str] = COSTLY, root: str | Path = "/") -> None:
        self._costly, self._root = tuple(costly), Path(root)

    def facts(self, folder: str | os.PathLike[str]) -> Facts:
        """All facts; `folder` is on the disk that counts."""
        battery, charging = self._power()
        memory, total = self._memory()
        now = time.localtime()
        return Facts(
            free=free_of(folder),
            memory=memory,
            total=total,
            battery=battery,
            charging=charging,
            metered=self._metered(),
            targets=_targets(),
            runtime=_version(),
            minute=60 * now.tm_hour + now.tm_min,
            idle=_idle(),
        )

    def _text(self, path: str | Path) -> str | None:
        try:
            return (self._root / path).read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            return None

    def _memory(self) -> tuple[int | None, int | None]:
        """Bytes that are available, and all."""
        lines = (self._text("proc/meminfo") or "").splitlines()
        found = {name: words.split() for name, _, words in (line.partition(":") for line in lines)}
        sizes = []
        for name in ("MemAvailable", "MemTotal"):
            words = found.get(name, [])
            sizes.append(int(words[0]) << 10 if len(words) == 2 and words[0].isdigit() else None)
        return sizes[0], sizes[1]

    def _power(self) -> tuple[int | None, bool | None]:
        """Percent of the emptiest battery, and whether a supply is on."""
        levels, charging = [], None
        with contextlib.suppress(OSError):
            for supply in sorted((self._root / "sys/class/power_supply").iterdir()):
                kind, scope = self._text(supply / "type"), self._text(supply / "scope")
                if scope == "Device":  # a mouse's battery is not the machine's
                    continue
                if kind in _BATTERY_TYPES:
                    level = self._text(supply / "capacity")
                    if level is not None and level.isdigit():
                        levels.append(min(100, int(level)))
                    charging = charging or self._text(supply / "status") in ("Charging", "Full")
                elif (online := self._text(supply / "online")) is not None:
                    charging = charging or online == "1"
        return (min(levels) if levels else None), charging

    def _metered(self) -> bool | None:
        """Whether the interface of the default route matches a pattern; None without one."""
        names = {row[0] for row in self._routes()}
        return any(fnmatchcase(name, pattern) for name in names for pattern in self._costly) if names else None

    def _routes(self) -> Iterable[list[str]]:
        for line in (self._text("proc/net/route") or "").splitlines()[1:]:
            row = line.split()
            if len(row) > 7 and row[1] == row[7] == "00000000" and int(row[3], 16) & _ROUTE_UP:
                yield row
        for line in (self._text("proc/net/ipv6_route") or "").splitlines():
            row = line.split()
            if len(row) == 10 and row[0] == "0" * 32 and row[1] == "00" and row[9] != "lo":
                yield [row[9]]


def free_of(folder: str | os.PathLike[str]) -> int | None:
    """Bytes of disk that this user may fill; None if the system does not say."""
    try:
        if sys.platform == "win32":
            import shutil

            return shutil.disk_usage(folder).free
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _idle() -> bool | None:
    try:
        return os.getloadavg()[0] < _QUIET * (os.cpu_count() or 1)
    except (OSError, AttributeError):  # not every system has it
        return None


def _targets() -> tuple[str, ...]:
    from lite_runtime.native.target import runnable

    return tuple(target.name for target in runnable())


def _version() -> str:
    """The version of msedge; of a copy that was not installed, the one that its bundles need."""
    from importlib import metadata

    for name in ("msedge", "msedge-runtime"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return ".".join(map(str, NEEDS))
