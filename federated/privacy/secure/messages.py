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

__all__ = ["NUMBER", "Stage", "Terms", "pack", "pack_rows", "unpack", "unpack_rows"]

_VERSION = 1
_HEADER = struct.Struct("<2sBB16sI")
_TERMS = struct.Struct("<16s32sQIIBI")
NUMBER = struct.Struct("<I")
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
    REVEALED = 7


@dataclass(frozen=True)
class Terms:
    """The terms of a sum: the round, which devices may take part, how many must stay until the end, integers modulo
    2^bits, and a digest of the work whose results are summed (`federated.messages.agreement`).

    More than half must stay: then two groups of them cannot be told different sets of dropped devices, which would
    reveal a device's input (Bonawitz et al. 2017, section 6.2).
    """

    nonce: bytes
    round: int
    devices: tuple[int, ...]
    threshold: int
    size: int
    bits: int = 32
    work: bytes = bytes(32)

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
        if not len(numbers) < 2 * self.threshold <= 2 * len(numbers):
            raise FederatedError(
                f"secure sum: expected a threshold of {len(numbers) // 2 + 1} to {len(numbers)} devices, "
                f"got {self.threshold}"
            )

    @cached_property
    def data(self) -> bytes:
        """The terms as bytes."""
        numbers = self.round, self.threshold, self.size, self.bits, len(self.devices)
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
        nonce, work, number, threshold, size, bits, devices = _TERMS.unpack_from(data)
        if devices > _MOST_DEVICES or len(data) != _TERMS.size + devices * NUMBER.size:
            raise FederatedError(f"secure sum: expected terms with {devices} devices, got {len(data)} bytes")
        numbers = tuple(one for (one,) in NUMBER.iter_unpack(data[_TERMS.size :]))
        return cls(nonce, number, numbers, threshold, size, bits, work)

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
