"""The server's part in a secure sum: it sees only masked inputs and their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple, TypeVar

import numpy as np

from federated.errors import FederatedError
from federated.privacy.secure import crypto, shamir
from federated.privacy.secure.device import pair_mask, self_mask
from federated.privacy.secure.messages import Stage, Terms, pack, pack_rows, unpack, unpack_rows
from federated.tree import Array

__all__ = ["SecureServer", "SecureSum"]

Read = TypeVar("Read")


class SecureSum(NamedTuple):
    """Unsigned integers [size], the sum of the devices' inputs modulo 2^bits, and the devices whose inputs it
    contains."""

    total: Array
    devices: tuple[int, ...]


class SecureServer:
    """Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, for a server
    that follows the protocol but is curious (figure 4 without signatures; devices' keys are as trustworthy as the
    transport that carried them).

    `requests` returns the first messages by device; then `all_keys`, `all_shares`, `survivors` and `sum` take the
    answers received, by device, in this order. A wrong answer is ignored and listed in `refused`. Raises FederatedError
    if fewer devices than the threshold are left: nothing is revealed, and the round may be repeated with new terms.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.refused: dict[int, str] = {}
        self._next = Stage.KEYS
        self._present = terms.devices
        self._keys: dict[int, bytes] = {}
        self._sharing: tuple[int, ...] = ()
        self._masked: dict[int, Array] = {}

    def requests(self) -> dict[int, bytes]:
        """TERMS."""
        return {one: pack(Stage.TERMS, self.terms, one, self.terms.data) for one in self.terms.devices}

    def all_keys(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """ALL_KEYS, from KEYS."""
        self._keys = self._take(Stage.KEYS, answers, self._key_row)
        body = pack_rows(self._keys)
        return {one: pack(Stage.ALL_KEYS, self.terms, one, body) for one in self._keys}

    def all_shares(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """ALL_SHARES, from SHARES: each device gets what the others sealed for it."""
        shares = self._take(Stage.SHARES, answers, self._share_rows)
        self._sharing = tuple(shares)
        return {
            one: pack(
                Stage.ALL_SHARES,
                self.terms,
                one,
                pack_rows({sender: rows[one] for sender, rows in shares.items() if sender != one}),
            )
            for one in shares
        }

    def survivors(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """SURVIVORS, from MASKED."""
        self._masked = self._take(Stage.MASKED, answers, self._vector)
        body = pack_rows(dict.fromkeys(self._masked, b""))
        return {one: pack(Stage.SURVIVORS, self.terms, one, body) for one in self._masked}

    def sum(self, answers: Mapping[int, bytes]) -> SecureSum:
        """The sum, from REVEALED. Raises FederatedError if shares were tampered with."""
        revealed = self._take(Stage.REVEALED, answers, self._reveal_rows)
        combiner = shamir.Combiner(list(revealed)[: self.terms.threshold])

        def secret(of: int) -> bytes:
            return combiner.combine([revealed[holder][of] for holder in combiner.holders])

        total = np.sum(list(self._masked.values()), axis=0, dtype=f"<u{self.terms.bits // 8}")
        for one in self._sharing:
            if one in self._masked:
                total -= self_mask(self._proven(one, secret(one), lambda key: sha256(key).digest(), 64), self.terms)
        for one in set(self._sharing) - set(self._masked):
            key = self._proven(one, secret(one), crypto.public_key, 32)
            for other in self._masked:
                total += pair_mask(key, self._keys[other][32:64], one, other, self.terms)
        return SecureSum(total, tuple(self._masked))

    def _proven(self, one: int, secret: bytes, proof: Callable[[bytes], bytes], at: int) -> bytes:
        """The secret, if it matches the proof that the device sent with its keys."""
        if proof(secret) != self._keys[one][at : at + 32]:
            raise FederatedError(f"secure sum: shares of device {one} were tampered with; repeat the round")
        return secret

    def _take(
        self, stage: Stage, answers: Mapping[int, bytes], read: Callable[[int, bytes], Read]
    ) -> dict[int, Read]:
        """The answers of the remaining devices, in the terms' order; devices without a valid one are excluded from now
        on."""
        if self._next != stage:
            raise FederatedError(f"secure sum: expected answers {self._next.name}, got {stage.name}")
        self._next = Stage(stage + 2) if stage < Stage.REVEALED else Stage.TERMS
        found = {}
        for one in self._present:
            if one in answers:
                try:
                    found[one] = read(one, unpack(answers[one], stage, self.terms, one))
                except FederatedError as problem:
                    self.refused[one] = str(problem)
        self._present = tuple(found)
        if len(found) < self.terms.threshold:
            raise FederatedError(
                f"secure sum: {len(found)} devices gave {stage.name}, {self.terms.threshold} are needed; "
                "repeat the round, with more devices or a longer deadline"
            )
        return found

    def _key_row(self, one: int, body: bytes) -> bytes:
        if len(body) != 3 * crypto.KEY:
            raise FederatedError(f"secure sum: expected {3 * crypto.KEY} bytes of keys, got {len(body)}")
        for key in (body[:32], body[32:64]):
            crypto.check(key)
        return body

    def _share_rows(self, one: int, body: bytes) -> dict[int, bytes]:
        rows = unpack_rows(body, 2 * shamir.SHARE + crypto.TAG)
        return _of_all(rows, set(self._keys) - {one})

    def _vector(self, one: int, body: bytes) -> Array:
        if len(body) != self.terms.size * self.terms.bits // 8:
            raise FederatedError(f"secure sum: expected {self.terms.size} masked integers, got {len(body)} bytes")
        return np.frombuffer(body, f"<u{self.terms.bits // 8}")

    def _reveal_rows(self, one: int, body: bytes) -> dict[int, bytes]:
        return _of_all(unpack_rows(body, shamir.SHARE), set(self._sharing))


def _of_all(rows: dict[int, bytes], wanted: set[int]) -> dict[int, bytes]:
    if rows.keys() != wanted:
        raise FederatedError(f"secure sum: expected a share for each of {len(wanted)} devices, got {len(rows)} others")
    return rows


