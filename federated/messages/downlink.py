"""How the model is sent to devices: whole, or as the difference from a version that they have.

A version of the model is what devices receive after that number of server steps; version 0 follows from the bundle
alone, so every device has it. With "difference" in `codec.down` versions form a chain: each is the previous one as
devices decoded it, plus an encoded difference. What a selection left out or rounding lost is part of the next
difference, so errors do not accumulate. A device is sent the differences it lacks, or the exact whole version if they
are no longer stored: the server stores as many as are together shorter than the whole. Without "difference" all devices
are sent the whole model, in the codec's number format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from federated.codec import Codec, Spec
from federated.codec.codec import Difference
from federated.errors import FederatedError
from federated.server.rounds import seed_of
from federated.tree import Tree

__all__ = ["Behind", "Downlink", "catch_up", "digest", "first", "follows", "read_whole"]


class Behind(FederatedError):
    """A device has none of the versions from which a message's differences start."""


@dataclass(frozen=True)
class Downlink:
    """The server's end. `tree`: what devices have after receiving this version; without "difference", what is encoded
    for them. `log`: the newest differences, each from one version to the next, the last one to this version."""

    codec: Codec
    seed: int
    tree: Tree
    version: int = 0
    log: tuple[bytes, ...] = ()

    @classmethod
    def begin(cls, codec: Codec, seed: int, broadcast: Tree) -> Downlink:
        """Version 0, which `broadcast` is."""
        return cls(codec, seed, first(broadcast) if follows(codec) else broadcast)

    def next(self, broadcast: Tree) -> Downlink:
        """The next version. Raises FederatedError for values that cannot be sent: training diverged."""
        version = self.version + 1
        if not follows(self.codec):
            return replace(self, tree=broadcast, version=version)
        data = self.codec.encode(broadcast, self._rng(version), reference=self.tree).data
        spec = Spec.of(broadcast)
        log = (*self.log, data)
        while sum(map(len, log)) > 4 * spec.size and len(log) > 1:
            log = log[1:]
        return replace(self, tree=self.codec.decode(data, spec, reference=self.tree), version=version, log=log)

    def lacks(self, holds: int | None) -> int | None:
        """How many differences a device with version `holds` needs; None: it must be sent the whole version."""
        missing = self.version - holds if holds is not None and follows(self.codec) else -1
        return missing if 0 <= missing <= len(self.log) else None

    def decoded(self) -> Tree:
        """What devices have after receiving this version."""
        return self.tree if follows(self.codec) else read_whole(self.codec, self._whole, Spec.of(self.tree))

    def content(self, links: int | None) -> tuple[dict[str, Any], np.ndarray]:
        """Fields and bytes (uint8 [n]) of a message: the newest `links` differences; None: the whole version."""
        parts = [self._whole] if links is None else list(self.log[len(self.log) - links :])
        lengths = None if links is None else [len(part) for part in parts]
        words = {"model": self.version, "parts": lengths, "digest": self._digest}
        return words, np.frombuffer(b"".join(parts), np.uint8)

    @cached_property
    def _digest(self) -> str:
        return digest(self.tree) if follows(self.codec) else ""

    @cached_property
    def _whole(self) -> bytes:
        return _plain(self.codec).encode(self.tree, self._rng(self.version)).data

    def _rng(self, version: int) -> np.random.Generator:
        return np.random.default_rng(seed_of(self.seed, "down", version))


def first(broadcast: Tree) -> dict[str, Any]:
    """Version 0 as both ends compute it: in the precision that is sent."""
    spec = Spec.of(broadcast)
    return spec.unflatten(spec.flatten(broadcast))


def read_whole(codec: Codec, data: bytes, spec: Spec) -> dict[str, Any]:
    """On the device: reads a version that was sent whole. Raises FederatedError."""
    return _plain(codec).decode(data, spec)


def catch_up(
    codec: Codec, words: Mapping[str, Any], data: bytes, spec: Spec, held: Iterable[tuple[int, Tree]]
) -> Tree:
    """On the device: the version of a message with differences, computed from the first matching version in `held`. One
    with the right number may still not match: a restarted server may have continued with other noise. Raises Behind if
    none matches; FederatedError for an invalid message."""
    ends = list(accumulate(words["parts"], initial=0))
    oldest = words["model"] - len(words["parts"])
    if oldest < 0 or ends[-1] != len(data):
        raise FederatedError(f"expected differences of {len(data)} bytes to version {words['model']}, got {ends[-1]}")
    for version, tree in held:
        if not oldest <= version <= words["model"]:
            continue
        links = list(pairwise(ends))[version - oldest :]
        try:
            for begin, end in links:
                tree = codec.decode(data[begin:end], spec, reference=tree)
        except FederatedError:
            continue
        if digest(tree) == words["digest"]:
            return tree
    raise Behind(f"expected a stored model of version {oldest} to {words['model']}, got none")


def digest(tree: Tree) -> str:
    """A digest that identifies a version."""
    return blake2b(Spec.of(tree).flatten(tree).astype("<f4", copy=False), digest_size=8).hexdigest()


def follows(codec: Codec) -> bool:
    """Whether devices keep the model they received, to add differences to it."""
    return codec.find(Difference) is not None


def _plain(codec: Codec) -> Codec:
    """The codec for whole versions: exact if differences to them will follow."""
    return Codec() if follows(codec) else codec
