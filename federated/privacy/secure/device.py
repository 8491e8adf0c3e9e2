"""A device's part in a secure sum."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.privacy.secure import crypto, shamir
from federated.privacy.secure.messages import NUMBER, Stage, Terms, pack, pack_rows, unpack, unpack_rows
from federated.tree import Array

__all__ = ["SecureDevice", "pair_mask", "self_mask"]


class SecureDevice:
    """Answers four requests, in this order, each once: `keys`, `shares`, `masked`, `revealed`.

    All of its randomness is derived from one seed, so that an answer computed again after a crash is the same. A
    request that is out of order, belongs to another round, or would reveal this or another device's input is refused
    with FederatedError. `save` contains secrets: keep it on the device and only until the round is over.
    """

    def __init__(self, request: bytes, number: int, seed: bytes | None = None) -> None:
        """From the server's request TERMS. `seed`: 32 bytes; by default from the operating system's generator."""
        self.terms, self.number = Terms.of_request(request, number), number
        self._seed = os.urandom(32) if seed is None else seed
        self._next = Stage.KEYS
        self._derived: dict[bytes, bytes] = {}
        self._keys: dict[int, bytes] = {}
        self._sealed: dict[int, bytes] = {}

    def keys(self) -> bytes:
        """KEYS: two public keys, one to send shares with and one to mask with, and the hash of the self mask's seed,
        with which the server later checks the seed that it combined from shares."""
        self._at(Stage.KEYS)
        return self._answer(Stage.KEYS, self._own())

    def shares(self, request: bytes) -> bytes:
        """SHARES: for every device that takes part, sealed for it: its share of the masking key and of the self mask's
        seed."""
        self._at(Stage.SHARES)
        keys = unpack_rows(unpack(request, Stage.ALL_KEYS, self.terms, self.number), 3 * crypto.KEY)
        if keys.get(self.number) != self._own():
            raise FederatedError("secure sum: the server distributed keys for this device that are not its own")
        self._enough(keys, self.terms.devices)
        if len({key for row in keys.values() for key in (row[:32], row[32:64])}) != 2 * len(keys):
            raise FederatedError("secure sum: two devices have the same key")
        self._keys = keys
        random = self._secret(b"polynomials", 0), self._secret(b"polynomials", 1)
        parts = [
            shamir.split(secret, self.terms.threshold, keys, crypto.key_stream(key, 64 * self.terms.threshold))
            for secret, key in zip((self._secret(b"mask"), self._secret(b"own")), random, strict=True)
        ]
        sealed = {
            peer: crypto.seal(self._channel(self.number, peer), parts[0][peer] + parts[1][peer], self.terms.digest)
            for peer in keys
            if peer != self.number
        }
        return self._answer(Stage.SHARES, pack_rows(sealed))

    def masked(self, request: bytes, vector: Array) -> bytes:
        """MASKED: unsigned integers [size], of the terms' bits, plus masks that cancel in the sum."""
        self._at(Stage.MASKED)
        sealed = unpack_rows(unpack(request, Stage.ALL_SHARES, self.terms, self.number), 2 * shamir.SHARE + crypto.TAG)
        if self.number in sealed:
            raise FederatedError("secure sum: got a share that this device made itself")
        self._enough([*sealed, self.number], self._keys)
        kind = np.dtype(f"<u{self.terms.bits // 8}")
        if vector.shape != (self.terms.size,) or vector.dtype != kind:
            raise FederatedError(
                f"secure sum: expected {kind.name}[{self.terms.size}], got {vector.dtype.name}{list(vector.shape)}"
            )
        self._sealed = sealed
        total = vector + self_mask(self._secret(b"own"), self.terms)
        for peer in sealed:
            total += pair_mask(self._secret(b"mask"), self._keys[peer][32:64], self.number, peer, self.terms)
        return self._answer(Stage.MASKED, total.tobytes())

    def revealed(self, request: bytes) -> bytes:
        """REVEALED: for every device that stayed, the share of its self mask's seed; for every other one that sent
        shares, the share of its masking key. Never both for one device."""
        self._at(Stage.REVEALED)
        survivors = unpack_rows(unpack(request, Stage.SURVIVORS, self.terms, self.number), 0)
        self._enough(survivors, [*self._sealed, self.number])
        if self.number not in survivors:
            raise FederatedError("secure sum: the server excluded this device although it sent its input")
        rows = {}
        for peer, sealed in self._sealed.items():
            shares = crypto.unseal(self._channel(peer, self.number), sealed, self.terms.digest)
            rows[peer] = shares[shamir.SHARE :] if peer in survivors else shares[: shamir.SHARE]
        rows[self.number] = self._own_share()
        return self._answer(Stage.REVEALED, pack_rows(rows))

    def save(self) -> bytes:
        """The whole state as bytes, for a device whose process ends between messages."""
        rows = {name: {str(n): row.hex() for n, row in table.items()} for name, table in self._tables().items()}
        plain = {"terms": self.terms.data.hex(), "number": self.number, "seed": self._seed.hex(), "next": self._next}
        return json.dumps({**plain, **rows}).encode()

    @classmethod
    def restore(cls, data: bytes) -> SecureDevice:
        """The inverse of `save`. Raises FederatedError for anything else."""
        try:
            plain: dict[str, Any] = json.loads(data)
            terms = Terms.of(bytes.fromhex(plain["terms"]))
            number = int(plain["number"])
            device = cls(pack(Stage.TERMS, terms, number, terms.data), number, bytes.fromhex(plain["seed"]))
            device._next = Stage(plain["next"])
            for name, table in device._tables().items():
                table.update({int(n): bytes.fromhex(row) for n, row in plain[name].items()})
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise FederatedError("secure sum: the stored state is damaged; wait for a new round") from problem
        return device

    def _tables(self) -> dict[str, dict[int, bytes]]:
        return {"keys": self._keys, "sealed": self._sealed}

    def _at(self, stage: Stage) -> None:
        if self._next != stage:
            raise FederatedError(f"secure sum: expected to be asked for {self._next.name}, got {stage.name}")

    def _answer(self, stage: Stage, body: bytes) -> bytes:
        self._next = Stage(stage + 2) if stage < Stage.REVEALED else Stage.TERMS
        return pack(stage, self.terms, self.number, body)

    def _enough(self, present: Mapping[int, bytes] | list[int], known: Any) -> None:
        """Raises FederatedError if the server names too few devices, or unknown ones."""
        if strangers := set(present) - set(known):
            raise FederatedError(f"secure sum: device {min(strangers)} was not in the stage before")
        if len(present) < self.terms.threshold:
            raise FederatedError(f"secure sum: expected {self.terms.threshold} devices or more, got {len(present)}")

    def _secret(self, purpose: bytes, index: int = 0) -> bytes:
        label = purpose + b" %d " % index
        if label not in self._derived:
            self._derived[label] = crypto.derive(self._seed, label + self.terms.digest)
        return self._derived[label]

    def _own(self) -> bytes:
        """This device's row of keys."""
        hidden = sha256(self._secret(b"own")).digest()
        return crypto.public_key(self._secret(b"channel")) + crypto.public_key(self._secret(b"mask")) + hidden

    def _own_share(self) -> bytes:
        """This device's own share of its self mask's seed, computed again."""
        random = crypto.key_stream(self._secret(b"polynomials", 1), 64 * self.terms.threshold)
        return shamir.split(self._secret(b"own"), self.terms.threshold, [self.number], random)[self.number]

    def _channel(self, sender: int, receiver: int) -> bytes:
        """The key of one message: of this pair, in this direction, in this round."""
        peer = receiver if sender == self.number else sender
        shared = crypto.agree(self._secret(b"channel"), self._keys[peer][:32])
        return crypto.derive(shared, b"shares" + NUMBER.pack(sender) + NUMBER.pack(receiver) + self.terms.digest)


def self_mask(seed: bytes, terms: Terms) -> Array:
    """The mask that still hides an input whose pair masks become known because it arrived late."""
    return _integers(crypto.derive(seed, b"own mask" + terms.digest), terms)


def pair_mask(secret: bytes, peer: bytes, number: int, other: int, terms: Terms) -> Array:
    """The mask that `number`, whose secret this is, adds for `other`, whose public key it is; they cancel."""
    low, high = sorted((number, other))
    purpose = b"pair mask" + NUMBER.pack(low) + NUMBER.pack(high) + terms.digest
    mask = _integers(crypto.derive(crypto.agree(secret, peer), purpose), terms)
    return mask if number < other else -mask


def _integers(key: bytes, terms: Terms) -> Array:
    return np.frombuffer(crypto.key_stream(key, terms.size * terms.bits // 8), f"<u{terms.bits // 8}").copy()
