"""A device's part in a secure sum."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from hashlib import sha256
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.privacy.secure import crypto, shamir
from federated.privacy.secure.graph import Graph, graph_of
from federated.privacy.secure.identity import SIGNATURE, WHO, Identity, signs
from federated.privacy.secure.messages import KEYS, NUMBER, Stage, Terms, pack, pack_rows, unpack, unpack_rows
from federated.tree import Array

__all__ = ["SecureDevice", "authentic", "identity_of", "pair_mask", "self_mask"]


class SecureDevice:
    """Answers requests in this order, each once: `keys`, `shares`, `masked`, with a malicious server `consistent`, and
    `revealed`.

    All of its randomness is derived from one seed, so that an answer computed again after a crash is the same. A
    request that is out of order, belongs to another round, or would reveal this or another device's input is refused
    with FederatedError. `save` contains secrets: keep it on the device and only until the round is over. Nothing here
    prevents that a saved state is restored twice: whoever keeps it counts answers (`federated.client.state`).
    """

    def __init__(
        self, request: bytes, number: int, seed: bytes | None = None, identity: Identity | None = None
    ) -> None:
        """From the server's request TERMS. `seed`: 32 bytes; by default from the operating system's generator.
        `identity`: required with a malicious server."""
        self.terms, self.number = Terms.of_request(request, number), number
        if self.terms.malicious and identity is None:
            raise FederatedError("secure sum: expected a device with a key to sign with, got none")
        self._identity = identity
        self._seed = os.urandom(32) if seed is None else seed
        self.stage = Stage.KEYS
        self._derived: dict[bytes, bytes] = {}
        self._keys: dict[int, bytes] = {}
        self._sealed: dict[int, bytes] = {}
        self._shared: dict[int, bytes] = {}
        self._survivors: tuple[int, ...] = ()
        self._found: Graph | None = None

    def keys(self) -> bytes:
        """KEYS: two public keys, one to send shares with and one to mask with, and the hash of the self mask's seed,
        with which the server later checks the seed that it combined from shares; signed, with a malicious server."""
        self._at(Stage.KEYS)
        return self._answer(Stage.KEYS, self._own())

    def shares(self, request: bytes) -> bytes:
        """SHARES: for every neighbour, sealed for it: its share of the masking key and of the self mask's seed."""
        self._at(Stage.SHARES)
        keys = unpack_rows(unpack(request, Stage.ALL_KEYS, self.terms, self.number), self.terms.row)
        if keys.get(self.number) != self._own():
            raise FederatedError("secure sum: the server distributed keys for this device that are not its own")
        self._enough(keys, self.terms.devices)
        if len({key for row in keys.values() for key in (row[:32], row[32:64])}) != 2 * len(keys):
            raise FederatedError("secure sum: two devices have the same key")
        self._keys, self._found = dict(sorted(keys.items())), None
        neighbours = self._graph().neighbours(self.number)
        if self.terms.malicious:
            self._authentic(neighbours)
        parts = [self._split(purpose, at, neighbours) for at, purpose in enumerate((b"mask", b"own"))]
        sealed = {
            peer: crypto.seal(self._channel(self.number, peer), parts[0][peer] + parts[1][peer], self.terms.digest)
            for peer in neighbours
        }
        return self._answer(Stage.SHARES, pack_rows(sealed))

    def masked(self, request: bytes, vector: Array) -> bytes:
        """MASKED: unsigned integers [size], of the terms' bits, plus masks that cancel in the sum."""
        self._at(Stage.MASKED)
        sealed = unpack_rows(unpack(request, Stage.ALL_SHARES, self.terms, self.number), 2 * shamir.SHARE + crypto.TAG)
        if self.number in sealed:
            raise FederatedError("secure sum: got a share that this device made itself")
        self._known(sealed, self._graph().neighbours(self.number))
        if len(sealed) + 1 < self._graph().degree.threshold:
            raise FederatedError(
                f"secure sum: expected shares of {self._graph().degree.threshold - 1} neighbours, got {len(sealed)}"
            )
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

    def consistent(self, request: bytes) -> bytes:
        """CONSISTENT, with a malicious server: a signature of all devices' keys and of the list of those that sent
        their input, from SURVIVORS."""
        self._at(Stage.CONSISTENT)
        if not self.terms.malicious or self._identity is None:
            raise FederatedError("secure sum: expected REVEALED to follow MASKED, for these terms need no signatures")
        self._survivors = self._remaining(request)
        return self._answer(Stage.CONSISTENT, self._identity.sign(self._statement()))

    def revealed(self, request: bytes) -> bytes:
        """REVEALED: for every holder's device that stayed, the share of its self mask's seed; for every other one that
        sent shares, the share of its masking key. Never both for one device. From SURVIVORS, or, with a malicious
        server, from SIGNATURES: those of at least the threshold of devices for the list that this device signed."""
        self._at(Stage.REVEALED)
        if self.terms.malicious:
            self._agreed(request)
        else:
            self._survivors = self._remaining(request)
        survivors, rows = set(self._survivors), {}
        for peer, sealed in self._sealed.items():
            shares = crypto.unseal(self._channel(peer, self.number), sealed, self.terms.digest)
            rows[peer] = shares[shamir.SHARE :] if peer in survivors else shares[: shamir.SHARE]
        rows[self.number] = self._split(b"own", 1, (self.number,))[self.number]
        return self._answer(Stage.REVEALED, pack_rows(rows))

    def _remaining(self, request: bytes) -> tuple[int, ...]:
        """The devices whose inputs are in the sum, by SURVIVORS."""
        survivors = unpack_rows(unpack(request, Stage.SURVIVORS, self.terms, self.number), 0)
        self._enough(survivors, self._keys)
        if self.number not in survivors:
            raise FederatedError("secure sum: the server excluded this device although it sent its input")
        graph = self._graph()
        if apart := set(survivors) & set(graph.neighbours(self.number)) - set(self._sealed):
            raise FederatedError(f"secure sum: device {min(apart)} was not in the stage before: it shares no mask")
        if not graph.connects(survivors):
            raise FederatedError("secure sum: the devices that stayed do not share enough masks; wait for a new round")
        return tuple(sorted(survivors))

    def _agreed(self, request: bytes) -> None:
        """Raises FederatedError unless enough devices signed what this one signed."""
        signatures = unpack_rows(unpack(request, Stage.SIGNATURES, self.terms, self.number), SIGNATURE)
        self._known(signatures, self._survivors)
        statement = self._statement()
        valid = sum(signs(identity_of(self._keys[one])[1], each, statement) for one, each in signatures.items())
        if valid < self.terms.threshold:
            raise FederatedError(
                f"secure sum: expected {self.terms.threshold} signatures of the list of remaining devices that this "
                f"device got, got {valid}; the server must send all devices the same"
            )

    def _authentic(self, neighbours: Collection[int]) -> None:
        """Raises FederatedError for keys that were not signed by devices that this one knows."""
        if self._identity is None:
            raise FederatedError("secure sum: expected an identity of this device, got none")
        found = {one: identity_of(row) for one, row in self._keys.items()}
        names, keys = {name for name, _ in found.values()}, {key for _, key in found.values()}
        if min(len(names), len(keys)) < len(found):
            raise FederatedError("secure sum: a device takes part twice")
        self._identity.check(dict(found.values()))
        for one in neighbours:
            if not authentic(self._keys[one], one, self.terms):
                raise FederatedError(f"secure sum: expected keys signed by device {one}, got another signature")

    def _statement(self) -> bytes:
        """What devices sign: the terms, all devices' keys, and who sent an input."""
        listed = pack_rows(self._keys), pack_rows(dict.fromkeys(self._survivors, b""))
        return b"msedge secure sum list" + self.terms.digest + b"".join(sha256(each).digest() for each in listed)

    def _graph(self) -> Graph:
        if self._found is None:
            self._found = graph_of(self.terms, pack_rows(self._keys))
        return self._found

    def save(self) -> bytes:
        """The whole state as bytes, for a device whose process ends between messages."""
        rows = {name: {str(n): row.hex() for n, row in table.items()} for name, table in self._tables().items()}
        plain = {"terms": self.terms.data.hex(), "number": self.number, "seed": self._seed.hex(), "next": self.stage,
                 "survivors": self._survivors}  # fmt: skip
        return json.dumps({**plain, **rows}).encode()

    @classmethod
    def restore(cls, data: bytes, identity: Identity | None = None) -> SecureDevice:
        """The inverse of `save`. Raises FederatedError for anything else."""
        try:
            plain: dict[str, Any] = json.loads(data)
            terms = Terms.of(bytes.fromhex(plain["terms"]))
            number = int(plain["number"])
            device = cls(pack(Stage.TERMS, terms, number, terms.data), number, bytes.fromhex(plain["seed"]), identity)
            device.stage = Stage(plain["next"])
            device._survivors = tuple(int(one) for one in plain["survivors"])
            for name, table in device._tables().items():
                table.update({int(n): bytes.fromhex(row) for n, row in plain[name].items()})
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise FederatedError("secure sum: the stored state is damaged; wait for a new round") from problem
        return device

    def _tables(self) -> dict[str, dict[int, bytes]]:
        return {"keys": self._keys, "sealed": self._sealed, "shared": self._shared}

    def _at(self, stage: Stage) -> None:
        if self.stage != stage:
            raise FederatedError(f"secure sum: expected to be asked for {self.stage.name}, got {stage.name}")

    def _answer(self, stage: Stage, body: bytes) -> bytes:
        self.stage = stage.following(self.terms)
        return pack(stage, self.terms, self.number, body)

    def _enough(self, present: Collection[int], known: Collection[int]) -> None:
        """Raises FederatedError if the server names too few devices, or unknown ones."""
        self._known(present, known)
        if len(present) < self.terms.least:
            raise FederatedError(f"secure sum: expected {self.terms.least} devices or more, got {len(present)}")

    def _known(self, present: Collection[int], known: Collection[int]) -> None:
        if strangers := set(present) - set(known):
            raise FederatedError(f"secure sum: device {min(strangers)} was not in the stage before")

    def _secret(self, purpose: bytes, index: int = 0) -> bytes:
        label = purpose + b" %d " % index
        if label not in self._derived:
            self._derived[label] = crypto.derive(self._seed, label + self.terms.digest)
        return self._derived[label]

    def _own(self) -> bytes:
        """This device's row of keys."""
        if b"row" not in self._derived:
            hidden = sha256(self._secret(b"own")).digest()
            row = crypto.public_key(self._secret(b"channel")) + crypto.public_key(self._secret(b"mask")) + hidden
            if self.terms.malicious and self._identity is not None:
                row += self._identity.who + self._identity.public
                row += self._identity.sign(_advert(row, self.number, self.terms))
            self._derived[b"row"] = row
        return self._derived[b"row"]

    def _split(self, purpose: bytes, index: int, holders: Collection[int]) -> dict[int, bytes]:
        """Shares of a secret; computed again they are the same."""
        threshold = self._graph().degree.threshold
        random = crypto.key_stream(self._secret(b"polynomials", index), 64 * threshold)
        return shamir.split(self._secret(purpose), threshold, holders, random)

    def _channel(self, sender: int, receiver: int) -> bytes:
        """The key of one message: of this pair, in this direction, in this round."""
        peer = receiver if sender == self.number else sender
        if peer not in self._shared:
            self._shared[peer] = crypto.agree(self._secret(b"channel"), self._keys[peer][:32])
        purpose = b"shares" + NUMBER.pack(sender) + NUMBER.pack(receiver) + self.terms.digest
        return crypto.derive(self._shared[peer], purpose)


def identity_of(row: bytes) -> tuple[bytes, bytes]:
    """The digest of the name, and the public key, in a signed row of keys."""
    return row[KEYS : KEYS + WHO], row[KEYS + WHO : KEYS + WHO + crypto.KEY]


def authentic(row: bytes, number: int, terms: Terms) -> bool:
    """Whether a row of keys is signed by the public key in it."""
    body, signature = row[:-SIGNATURE], row[-SIGNATURE:]
    return signs(identity_of(row)[1], signature, _advert(body, number, terms))


def _advert(body: bytes, number: int, terms: Terms) -> bytes:
    return b"msedge secure sum keys" + terms.digest + NUMBER.pack(number) + body


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
