"""The server's part in a secure sum: it sees only masked inputs and their sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, TypeVar

import numpy as np

from federated.errors import FederatedError
from federated.privacy.secure import crypto, shamir
from federated.privacy.secure.device import authentic, identity_of, pair_mask, self_mask
from federated.privacy.secure.graph import Graph, graph_of
from federated.privacy.secure.identity import SIGNATURE
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
    """Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017 (figure 4;
    with signatures and the consistency check if the terms assume a malicious server), between the neighbours of
    Bell et al., CCS 2020 (`federated.privacy.secure.graph`).

    `requests` returns the first messages by device; then `all_keys`, `all_shares`, `survivors`, `signatures` (only with
    a malicious server) and `sum` take the answers received, by device, in this order. A wrong answer is ignored and
    listed in `refused`. Raises FederatedError if fewer devices than the terms' are left: nothing is revealed, and the
    devices' work may be summed in a new round only.
    """

    def __init__(self, terms: Terms, names: Mapping[int, bytes] | None = None) -> None:
        """`names`: the digests of devices' names, which signed keys must have (`identity.who`)."""
        self.terms = terms
        self._names = names or {}
        self.refused: dict[int, str] = {}
        self._next = Stage.KEYS
        self._present = terms.devices
        self._keys: dict[int, bytes] = {}
        self._found: Graph | None = None
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
        graph = self._graph()
        return {
            one: pack(
                Stage.ALL_SHARES,
                self.terms,
                one,
                pack_rows({sender: shares[sender][one] for sender in graph.neighbours(one) if sender in shares}),
            )
            for one in shares
        }

    def survivors(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """SURVIVORS, from MASKED."""
        self._masked = self._take(Stage.MASKED, answers, self._vector)
        body = pack_rows(dict.fromkeys(self._masked, b""))
        return {one: pack(Stage.SURVIVORS, self.terms, one, body) for one in self._masked}

    def signatures(self, answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """SIGNATURES, from CONSISTENT: devices check them."""
        signed = self._take(Stage.CONSISTENT, answers, self._signature)
        body = pack_rows(signed)
        return {one: pack(Stage.SIGNATURES, self.terms, one, body) for one in signed}

    def sum(self, answers: Mapping[int, bytes]) -> SecureSum:
        """The sum, from REVEALED. Raises FederatedError if shares were tampered with, or a device has too few."""
        revealed = self._take(Stage.REVEALED, answers, self._reveal_rows)
        graph = self._graph()
        combiner_of = lru_cache(maxsize=2)(shamir.Combiner)  # with all pairs, the holders are the same for all devices

        def secret(of: int) -> bytes:
            needed = graph.degree.threshold
            holders = [one for one in sorted((of, *graph.neighbours(of))) if of in revealed.get(one, ())][:needed]
            if len(holders) < needed:
                raise FederatedError(
                    f"secure sum: {len(holders)} devices revealed shares of device {of}, {needed} are needed; repeat "
                    "the round"
                )
            return combiner_of(tuple(holders)).combine([revealed[holder][of] for holder in holders])

        total = np.sum(list(self._masked.values()), axis=0, dtype=f"<u{self.terms.bits // 8}")
        for one in self._masked:
            total -= self_mask(self._proven(one, secret(one), lambda key: sha256(key).digest(), 64), self.terms)
        for one in set(self._sharing) - set(self._masked):
            if not (others := [other for other in graph.neighbours(one) if other in self._masked]):
                continue
            key = self._proven(one, secret(one), crypto.public_key, 32)
            for other in others:
                total += pair_mask(key, self._keys[other][32:64], one, other, self.terms)
        return SecureSum(total, tuple(self._masked))

    def _graph(self) -> Graph:
        if self._found is None:
            self._found = graph_of(self.terms, pack_rows(self._keys))
        return self._found

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
        self._next = stage.following(self.terms)
        found = {}
        for one in self._present:
            if one in answers:
                try:
                    found[one] = read(one, unpack(answers[one], stage, self.terms, one))
                except FederatedError as problem:
                    self.refused[one] = str(problem)
        self._present = tuple(found)
        needed = self.terms.least if stage <= Stage.MASKED else self.terms.threshold
        if len(found) < needed:
            raise FederatedError(
                f"secure sum: {len(found)} devices gave {stage.name}, {needed} are needed; "
                "repeat the round, with more devices or a longer deadline"
            )
        return found

    def _key_row(self, one: int, body: bytes) -> bytes:
        if len(body) != self.terms.row:
            raise FederatedError(f"secure sum: expected {self.terms.row} bytes of keys, got {len(body)}")
        for key in (body[:32], body[32:64]):
            crypto.check(key)
        if self.terms.malicious and not authentic(body, one, self.terms):
            raise FederatedError("secure sum: expected keys with a valid signature")
        if self.terms.malicious and identity_of(body)[0] != self._names.get(one, identity_of(body)[0]):
            raise FederatedError("secure sum: expected keys signed with this device's name, got another")
        return body

    def _share_rows(self, one: int, body: bytes) -> dict[int, bytes]:
        rows = unpack_rows(body, 2 * shamir.SHARE + crypto.TAG)
        return _of_all(rows, set(self._graph().neighbours(one)))

    def _signature(self, one: int, body: bytes) -> bytes:
        if len(body) != SIGNATURE:
            raise FederatedError(f"secure sum: expected a signature of {SIGNATURE} bytes, got {len(body)}")
        return body

    def _vector(self, one: int, body: bytes) -> Array:
        if len(body) != self.terms.size * self.terms.bits // 8:
            raise FederatedError(f"secure sum: expected {self.terms.size} masked integers, got {len(body)} bytes")
        return np.frombuffer(body, f"<u{self.terms.bits // 8}")

    def _reveal_rows(self, one: int, body: bytes) -> dict[int, bytes]:
        held = {*self._graph().neighbours(one), one} & set(self._sharing)
        return _of_all(unpack_rows(body, shamir.SHARE), held)


def _of_all(rows: dict[int, bytes], wanted: set[int]) -> dict[int, bytes]:
    if rows.keys() != wanted:
        raise FederatedError(f"secure sum: expected a share for each of {len(wanted)} devices, got {len(rows)} others")
    return rows


