"""One memory budget for the bodies and replies of all requests, whichever way they come.

A body reserves its declared length before any of it is read. When the budget is used up, those who are waited for the
longest give way: clients that send their body, or take their reply, more slowly than would finish in time.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from edge.gateway.errors import GatewayError

__all__ = ["TEXT", "Held", "Room", "memory_limit"]

TEXT = 4
"""Bytes to reserve for each byte of JSON: `[0,0,…` is read into 4 bytes of FP64 for each of its own."""

GRACE = 1.0
"""Seconds before a client counts as slow."""
PACE = 16 << 10
"""Bytes per second below which a client is slow, if its body has no declared length."""


class Held:
    """The memory of one body or reply. Use as a context manager, or call `release`."""

    __slots__ = ("_evict", "_room", "done", "inner", "peer", "seconds", "since", "size", "waits")

    def __init__(self, room: Room, peer: str, seconds: float, evict: Callable[[], None], inner: bool = False) -> None:
        self._room, self._evict = room, evict
        self.peer, self.seconds, self.inner = peer, seconds, inner
        self.size = 0
        """Bytes reserved."""
        self.done = 0
        """Bytes that the client has sent or taken."""
        self.waits = False
        """Whether the client is what is waited for."""
        self.since = 0.0
        """Since when."""

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def wait(self) -> None:
        """From now on, the client is waited for."""
        self.waits, self.since, self.done = True, self._room.clock(), 0

    def on_evict(self, evict: Callable[[], None]) -> None:
        """Use another function to end the connection."""
        self._evict = evict

    def reach(self, size: int) -> None:
        """Reserve `size` bytes altogether. Raises GatewayError: 503 if the budget is used up, 413 if it could never be
        enough."""
        self._room.reserve(self, size)

    def release(self) -> None:
        """Give everything back; further calls have no effect."""
        self._room.drop(self)

    def evict(self) -> None:
        """Give everything back, and end the connection."""
        self.release()
        self._evict()

    def late(self, now: float) -> float:
        """Seconds by which the client is behind; 0: it is not waited for, or fast enough."""
        waited = now - self.since
        if not self.waits or waited < GRACE:
            return 0.0
        return max(0.0, waited - self.done / max(PACE, self.size / self.seconds))


class Room:
    """The budget: `most` bytes, of which one peer may hold half unless `exempt(peer)`, or as much as a single request
    needs."""

    def __init__(
        self, most: int, exempt: Callable[[str], bool] = lambda peer: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most, self.clock, self._exempt = most, clock, exempt
        self.taken = 0
        self.evicted = 0
        """Connections that gave way so far."""
        self._held: dict[Held, None] = {}
        self._peers: Counter[str] = Counter()

    def enter(self, peer: str, seconds: float, evict: Callable[[], None] = lambda: None) -> Held:
        """A new share of the budget. seconds: within which a body must arrive. evict: ends the connection."""
        return Held(self, peer, seconds, evict)

    def inner(self, peer: str) -> Held:
        """A share for what a request needs beside its body: copies of shared memory, tensors between steps."""
        return Held(self, peer, 1.0, lambda: None, inner=True)

    def reserve(self, held: Held, size: int) -> None:
        """See `Held.reach`."""
        more = size - held.size
        if size > self.most:
            raise GatewayError(413, f"{size} bytes of memory are needed, more than the {self.most} that this server"
                               " allows for all requests; send less at once, or raise limits.bodies")  # fmt: skip
        if more > 0:
            mine = self._peers[held.peer]
            over = mine - held.size if held.inner else mine + more if mine > held.size else 0
            if over > self.most // 2 and not self._exempt(held.peer):
                self._make(over - self.most // 2, held, held.peer)
            if self.taken + more > self.most:
                self._make(self.taken + more - self.most, held, "")
        self.taken += more
        self._peers[held.peer] += more
        held.size = size
        self._held[held] = None

    def drop(self, held: Held) -> None:
        """See `Held.release`."""
        self._held.pop(held, None)
        self.taken -= held.size
        self._peers[held.peer] -= held.size
        if not self._peers[held.peer]:
            del self._peers[held.peer]
        held.size, held.waits = 0, False

    def _make(self, wanted: int, held: Held, peer: str) -> None:
        """Evict the slowest clients (of one peer, if named) until `wanted` bytes are free. Raises GatewayError (503) if
        that is not possible; then nobody was evicted."""
        now = self.clock()
        late = [(of.late(now), of) for of in self._held if of is not held and (not peer or of.peer == peer)]
        slow = [of for seconds, of in sorted(late, key=lambda one: -one[0]) if seconds > 0]
        if sum(of.size for of in slow) < wanted:
            text = "the bodies of current requests use all the memory allowed for them; try again later"
            raise GatewayError(503, text, retry_after=1.0)
        for of in slow:
            if wanted <= 0:
                return
            wanted -= of.size
            self.evicted += 1
            of.evict()


def memory_limit() -> int:
    """Bytes of memory that this process may use: the smallest limit of its control groups, or the machine's memory."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                found += _limits(Path("/sys/fs/cgroup"), path, "memory.max")
            elif "memory" in controllers.split(","):
                found += _limits(Path("/sys/fs/cgroup/memory"), path, "memory.limit_in_bytes")
    return min(found)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """The limits of a group and of those that contain it; in a container, the path may not exist below the root."""
    found = []
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):
            found.append(int((folder / name).read_text()))
        if folder == root:
            break
    return found
