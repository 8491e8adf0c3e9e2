"""The messages between devices and server in a secure sum, as bytes.

A message is "ss", the version, its stage, 16 bytes of the terms' digest, the device's number; then rows of a fixed
size. Terms contain a random number, so that a message of another round, or of an earlier attempt at this round, is
refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from hashlib import sha256
from itertools import pairwise

from federated.errors import FederatedError

__all__ = [
    "KEYS", "NUMBER", "SIGNED", "Stage", "Terms", "lowest_threshold", "pack", "pack_rows", "unpack", "unpack_rows",
]  # fmt: skip

_VERSION = 2
_HEADER = struct.Struct("<2sBB16sI")
_TERMS = struct.Struct("<16s32sQIIIBBI")
NUMBER = struct.Struct("<I")
KEYS, SIGNED = 96, 112
"""Bytes of a device's keys; bytes after them if they are signed: the digest of its name, its public key, its signature
(`federated.privacy.secure.identity`)."""
_MOST_DEVICES, _MOST_ELEMENTS = 1 << 14, 1 << 28


class Stage(IntEnum):
    """Even: server to device; odd: its answer."""

    TERMS = 0
    KEYS = 1
    ALL_KEYS = 2
    SHARES = 3
    ALL_SHARES = 4
    MASKED = 5
    SURVIVORS = 6
    CONSISTENT = 7
    SIGNATURES = 8
    REVEALED = 9

    def following(self, terms: Terms) -> Stage:
        """The stage of a device's answer after this one; TERMS after the last."""
        if self == Stage.MASKED and not terms.malicious:
            return Stage.REVEALED
        return Stage(self + 2) if self < Stage.REVEALED else Stage.TERMS


def lowest_threshold(devices: int, *, malicious: bool) -> int:
    """The lowest threshold that is secure (Bonawitz et al. 2017, sections 4 and 6)."""
    return (2 * devices if malicious else devices) // (3 if malicious else 2) + 1


@dataclass(frozen=True)
class Terms:
    """The terms of a sum: the round, which devices may take part, how many must stay until the end, integers modulo
    2^bits, a digest of the work whose results are summed (`federated.messages.agreement`), of how many inputs the sum
    must be (`quorum`; the threshold if that is more), and whether the server is assumed to be malicious.

    The threshold is more than half of the devices, or more than two thirds with a malicious server (Bonawitz et al.
    2017, sections 4 and 6): two groups of that size cannot be told different sets of dropped devices.
    """

    nonce: bytes
    round: int
    devices: tuple[int, ...]
    threshold: int
    size: int
    bits: int = 32
    work: bytes = bytes(32)
    quorum: int = 0
    malicious: bool = False

    def __post_init__(self) -> None:
        numbers = self.devices
        fits = (
            len(self.nonce) == 16
            and len(self.work) == 32
            and 0 <= self.round < 1 << 64
            and 2 <= len(numbers) <= _MOST_DEVICES
            and all(0 < one < 1 << 32 for one in numbers)
            and all(one < other for one, other in pairwise(numbers))
            and 1 <= self.size <= _MOST_ELEMENTS
            and self.bits in (16, 32)
        )
        if not fits:
            raise FederatedError(
                "secure sum: expected a nonce of 16 bytes, a digest of 32, two or more devices by sorted numbers from "
                f"1, 1 to {_MOST_ELEMENTS} elements of 16 or 32 bits, got {len(self.nonce)} bytes and "
                f"{len(self.work)}, {len(numbers)}, {self.size} elements of {self.bits}"
            )
        lowest = lowest_threshold(len(numbers), malicious=self.malicious)
        for what, count, low in (("threshold", self.threshold, lowest), ("quorum", self.quorum, 0)):
            if not low <= count <= len(numbers):
                raise FederatedError(
                    f"secure sum: expected a {what} of {low} to {len(numbers)} devices, got {count}"
                )

    @property
    def least(self) -> int:
        """The fewest inputs in the sum."""
        return max(self.quorum, self.threshold)

    @property
    def row(self) -> int:
        """Bytes of a device's keys."""
        return KEYS + (SIGNED if self.malicious else 0)

    @cached_property
    def data(self) -> bytes:
        """The terms as bytes."""
        numbers = self.round, self.threshold, self.quorum, self.size, self.bits, self.malicious, len(self.devices)
        head = _TERMS.pack(self.nonce, self.work, *numbers)
        return head + b"".join(NUMBER.pack(one) for one in self.devices)

    @cached_property
    def digest(self) -> bytes:
        """A digest of the terms, 16 bytes."""
        return sha256(self.data).digest()[:16]

    @classmethod
    def of(cls, data: bytes) -> Terms:
        """The inverse of `data`. Raises FederatedError for anything else."""
        if len(data) < _TERMS.size:
            raise FederatedError("secure sum: the terms are cut short")
        nonce, work, number, threshold, quorum, size, bits, malicious, devices = _TERMS.unpack_from(data)
        if malicious > 1:
            raise FederatedError(f"secure sum: expected terms of a threat model 0 or 1, got {malicious}")
        if devices > _MOST_DEVICES or len(data) != _TERMS.size + devices * NUMBER.size:
            raise FederatedError(f"secure sum: expected terms with {devices} devices, got {len(data)} bytes")
        numbers = tuple(one for (one,) in NUMBER.iter_unpack(data[_TERMS.size :]))
        return cls(nonce, number, numbers, threshold, size, bits, work, quorum, bool(malicious))

    @classmethod
    def of_request(cls, request: bytes, device: int) -> Terms:
        """The terms in a message TERMS to this device."""
        terms = cls.of(request[_HEADER.size :])
        unpack(request, Stage.TERMS, terms, device)
        if device not in terms.devices:
            raise FederatedError(f"secure sum: device {device} is not among those of the round")
        return terms


def pack(stage: Stage, terms: Terms, device: int, body: bytes) -> bytes:
    """A message to or from a device."""
    return _HEADER.pack(b"ss", _VERSION, stage, terms.digest, device) + body


def unpack(data: bytes, stage: Stage, terms: Terms, device: int) -> bytes:
    """A message's body. Raises FederatedError unless it belongs to this stage, these terms and this device."""
    if len(data) < _HEADER.size:
        raise FederatedError(f"secure sum: expected a message of at least {_HEADER.size} bytes, got {len(data)}")
    magic, version, found, digest, number = _HEADER.unpack_from(data)
    if magic != b"ss" or version != _VERSION:
        raise FederatedError(f"secure sum: expected a message of version {_VERSION}; both ends need the same release")
    if found != stage:
        raise FederatedError(f"secure sum: expected stage {stage.name}, got {found}")
    if digest != terms.digest:
        raise FederatedError("secure sum: the message is of another round")
    if number != device:
        raise FederatedError(f"secure sum: expected a message of device {device}, got one of device {number}")
    return data[_HEADER.size :]


def pack_rows(rows: dict[int, bytes]) -> bytes:
    """Each device's number and its bytes, concatenated."""
    return b"".join(NUMBER.pack(one) + row for one, row in rows.items())


def unpack_rows(body: bytes, size: int) -> dict[int, bytes]:
    """Rows of `size` bytes by number. Raises FederatedError for other lengths, or a number that occurs twice."""
    rows = struct.Struct(f"<I{size}s")
    if len(body) % rows.size:
        raise FederatedError(f"secure sum: expected rows of {rows.size} bytes, got {len(body)} bytes")
    found = dict(rows.iter_unpack(body))
    if len(found) != len(body) // rows.size:
        raise FederatedError("secure sum: a device is named twice")
    return found
