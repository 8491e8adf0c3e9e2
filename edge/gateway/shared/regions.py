"""The regions that clients have registered, and those that a request borrows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from edge.gateway.apart import Workers
from edge.gateway.errors import GatewayError
from edge.gateway.models.names import shown
from edge.gateway.ports import Ports
from edge.gateway.protocol.elements import from_bytes, to_bytes
from edge.gateway.protocol.layout import Shared
from edge.gateway.protocol.parameters import expect, natural
from edge.gateway.shared.peer import user_of
from edge.gateway.shared.region import Region, opened
from lite_runtime.graph import Array

__all__ = ["Borrowed", "Regions", "Wish", "opened_for", "wish_of"]

AT_ONCE = 64
"""Regions that may wait to be opened."""
LONGEST = 255
"""Characters of a region's name."""


class Wish(NamedTuple):
    """A region that a client wants to register."""

    name: str
    key: str
    offset: int
    size: int


def wish_of(name: str, given: Mapping[str, Any]) -> Wish:
    """What a request to register asks for. Raises GatewayError (400)."""
    key, offset, size = given.get("key"), given.get("offset", 0), given.get("byte_size")
    expect(0 < len(name) <= LONGEST, "region: expected a name of 1 to %s characters, got %s", LONGEST, len(name))
    if not isinstance(key, str):
        raise GatewayError(400, f"key: expected the name of a shared memory object, got {shown(key)}")
    expect(natural(offset), "offset: expected an integer from 0 on, got %r", offset)
    if not (natural(size) and isinstance(size, int)):
        raise GatewayError(400, f"byte_size: expected an integer from 1 on, got {shown(size)}")
    return Wish(name, key, offset, size)


def opened_for(wish: Wish, peer: str, port: int) -> Region:
    """The region that the client at this end of a connection wants; any thread. Raises as `region.opened`. It takes 10
    ms, in which the kernel goes through its table of sockets."""
    return opened(wish.name, wish.key, wish.offset, wish.size, user_of(peer, port))


class Regions:
    """All registered regions; on the event loop's thread. A region belongs to who registered it, as tokens and
    certificates say: others can neither use it nor see it, and may use its name for one of their own."""

    def __init__(self, most: int, most_bytes: int) -> None:
        """most: regions at once; most_bytes: of all of them together."""
        self._most, self._most_bytes = most, most_bytes
        self._held: dict[tuple[str, str], Region] = {}
        self._worker, self._waiting = Workers("msedge-memory", 1), 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

    async def register(self, owner: str, wish: Wish, peer: str, port: int) -> None:
        """Register a region for the client at this end of a connection. Raises GatewayError: 400, 403, 409 for a name
        in use, 429 if there are too many."""
        self._check(owner, wish)
        if self._waiting >= AT_ONCE:
            raise GatewayError(429, f"{AT_ONCE} regions are being registered; try again", retry_after=1.0)
        self._waiting += 1
        try:
            region = await asyncio.wrap_future(self._worker.submit(opened_for, wish, peer, port))
        finally:
            self._waiting -= 1
        self._check(owner, wish)  # others may have been faster
        self._held[owner, region.name] = region
        self.nbytes += region.size

    def _check(self, owner: str, wish: Wish) -> None:
        if (owner, wish.name) in self._held:
            text = f"shared memory region {shown(wish.name)} is registered already; unregister it first"
            raise GatewayError(409, text)
        if len(self._held) >= self._most or self.nbytes + wish.size > self._most_bytes:
            text = f"limits.regions allows {self._most}, limits.region_bytes {self._most_bytes}; unregister some"
            raise GatewayError(429, f"{len(self._held)} regions of {self.nbytes} bytes are registered; {text}")

    def find(self, owner: str, name: str) -> Region:
        """A client's region. Raises GatewayError (404)."""
        found = self._held.get((owner, name))
        if found is None:
            raise GatewayError(404, f"there is no shared memory region {shown(name)}; register it first")
        return found

    def status(self, owner: str, name: str = "") -> list[dict[str, Any]]:
        """A client's regions, or one of them, in the protocol's words. Raises GatewayError (404)."""
        found = [self.find(owner, name)] if name else [region for (of, _), region in self._held.items() if of == owner]
        return [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.size} for r in found]

    def remove(self, owner: str, name: str = "") -> None:
        """Unregister a client's region, if there is one of that name, or all of them."""
        for key in [key for key in self._held if key[0] == owner and name in ("", key[1])]:
            self.nbytes -= self._held.pop(key).size

    def close(self) -> None:
        """Unregister all regions of all clients."""
        self._held.clear()
        self.nbytes = 0


class Borrowed:
    """The regions of one request, from which its inputs come and into which its outputs go. It keeps them, also if they
    are unregistered meanwhile."""

    def __init__(self, find: Callable[[str], Region], shared: Shared) -> None:
        """Raises GatewayError: 400 for places outside regions, and what `find` raises."""
        self._inputs = [(part, place, find(place.region)) for part, place in shared.inputs]
        self._outputs = {name: (place, find(place.region)) for name, place in shared.outputs.items()}
        for part, place, region in self._inputs:
            region.check(place, f"input {part.port.name!r}")
        for name, (place, region) in self._outputs.items():
            region.check(place, f"output {name!r}")
            if not region.writable:
                text = f"may not write shared_memory_region {shown(place.region)}; change the permissions of"
                raise GatewayError(400, f"output {name!r}: the gateway's user {text} {shown(region.key)}")

    @property
    def size(self) -> int:
        """Bytes of the inputs."""
        return sum(place.size for _, place, _ in self._inputs)

    @property
    def room(self) -> int:
        """Bytes that the outputs may have."""
        return sum(place.size for place, _ in self._outputs.values())

    def inputs(self) -> dict[str, Array]:
        """Copies of the inputs. Any thread. Raises GatewayError (400)."""
        found = {}
        for part, place, region in self._inputs:
            data = region.read(place, f"input {part.port.name!r}")
            found[part.port.name] = from_bytes(data, 0, place.size, part.port, part.shape)
        return found

    def put(self, outputs: Mapping[str, Array], ports: Ports) -> None:
        """Write the outputs. Any thread. Raises GatewayError: 400 for a place that is too small, and then nothing is
        written; else as `Region.write`."""
        data = {name: to_bytes(outputs[name], ports.outputs[name]) for name in self._outputs}
        for name, (place, _) in self._outputs.items():
            if len(data[name]) > place.size:
                raise GatewayError(400, f"output {name!r} takes {len(data[name])} bytes, shared_memory_byte_size is"
                                        f" {place.size}")  # fmt: skip
        for name, (place, region) in self._outputs.items():
            region.write(place, data[name], f"output {name!r}")
