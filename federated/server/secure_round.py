"""A round with secure aggregation: the server sees only the sum of the updates. Five exchanges instead of one.

    keys     devices make keys                           -> KEYS
    shares   devices share their mask secrets            -> SHARES
    train    devices learn, and send their update masked -> MASKED
    agree    remaining devices sign who remains          -> CONSISTENT (only if the server may be malicious)
    reveal   remaining devices unmask the sum            -> REVEALED

A device that fails between two exchanges is excluded; the sum is over the devices that sent an update
(`federated.privacy.secure`). `rounds.quorum` is part of the terms: no sum of fewer is opened. Devices take part in one
sum of a round, so after a round without a result the next one has another number (`Federation.skip`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from federated.client.device import VERSION
from federated.errors import FederatedError
from federated.hierarchy.partial import Partial
from federated.messages.agreement import work_digest
from federated.messages.packed import pack, unpack
from federated.privacy.secure import SecureServer, Terms
from federated.privacy.secure.identity import who
from federated.server.federation import Round
from federated.server.influence import capped
from federated.server.replies import Expected, Failure, Refused, read_secure

__all__ = ["STAGES", "SecureRound"]

STAGES = ("keys", "shares", "train", "agree", "reveal")


@dataclass
class SecureRound:
    """The rules, without I/O. `messages(stage)` returns the messages by node; `take` reads an answer; `opened` is
    the sum."""

    round: Round
    answers: dict[int, bytes] = field(default_factory=dict)
    failed: str = ""
    requests: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        federation = self.round.federation
        # The protocol numbers devices in the order of their names.
        names = sorted(self.round.asked.values())
        self.numbers = {name: at for at, name in enumerate(names, 1)}
        self.nodes = {self.numbers[name]: node for node, name in self.round.asked.items()}
        transforms, spec = federation.transforms, federation.payload
        if spec is None:
            raise FederatedError(f"privacy.secure: expected updates, but {federation.algorithm.name} has none to send")
        declared = [federation.sum_weight(name) for name in names]
        heaviest = max(capped(declared, federation.config.limits.influence))
        self.spec = spec
        self.grid = transforms.fixed_point(len(names), heaviest, federation.multiplier)
        terms = Terms(
            os.urandom(16),
            self.round.number,
            tuple(self.numbers.values()),
            transforms.threshold(len(names)),
            self.grid.size(spec),
            self.grid.bits,
            self._agreed(),
            quorum=min(self.round.quorum, len(names)),
            malicious=transforms.privacy.model == "malicious",
        )
        self.server = SecureServer(terms, {number: who(name) for name, number in self.numbers.items()})
        self.stages = tuple(stage for stage in STAGES if terms.malicious or stage != "agree")

    def messages(self, stage: str) -> dict[int, bytes]:
        """The message for each node that still takes part. Consumes the answers of the previous stage. Raises
        FederatedError if too few are left."""
        malicious = self.server.terms.malicious
        step: dict[str, Callable[[], dict[int, bytes]]] = {
            "keys": self.server.requests,
            "shares": lambda: self.server.all_keys(self.answers),
            "train": lambda: self.server.all_shares(self.answers),
            "agree": lambda: self.server.survivors(self.answers),
            "reveal": lambda: (self.server.signatures if malicious else self.server.survivors)(self.answers),
        }
        self.requests, self.answers = step[stage](), {}
        federation = self.round.federation
        made = {}
        for number, request in self.requests.items():
            node = self.nodes[number]
            if stage == "train":
                made[node] = self._work(number, federation.links(self.round.asked[node]))
                continue
            meta = {"version": VERSION, "kind": "secure", "run": federation.run, "round": self.round.number,
                    "attempt": federation.attempt, "stage": stage, "number": number}  # fmt: skip
            made[node] = pack(meta, {"secure": np.frombuffer(request, np.uint8)})
        return made

    def _work(self, number: int, links: int | None) -> bytes:
        return self._told(self.requests[number], links)

    def _told(self, request: bytes, links: int | None) -> bytes:
        secure = np.frombuffer(request, np.uint8)
        return self.round.federation.work(self.round.number, {"secure": asdict(self.grid)}, {"secure": secure}, links)

    def _agreed(self) -> bytes:
        """The digest of every device's task, computed as on a device."""
        words, _ = unpack(self._told(b"", None))
        return work_digest(words, self.round.federation.link.decoded())

    def take(self, node: int, reply: bytes | Failure, stage: str) -> bytes | None:
        """Process an answer; returns a message to send instead of one that the device could not read. An invalid answer
        is counted and its device is excluded."""
        federation, attempt = self.round.federation, self.round
        name = attempt.asked[node]
        kind = "update" if stage == "train" else "secure"
        try:
            if self.numbers[name] in self.answers:
                raise Refused("duplicate", "an answer was already received")
            expected = Expected(kind, name, federation.run, attempt.number, federation.attempt)
            self.answers[self.numbers[name]] = read_secure(reply, expected)
        except Refused as refused:
            if stage == "train" and refused.reason == "behind" and federation.lost(name):
                return self._work(self.numbers[name], None)
            attempt.refuse(name, refused)
            return None
        if stage == "train":
            federation.arrived(name, federation.link.version)
        return None

    def opened(self) -> Partial | None:
        """The sum; None if too few devices stayed."""
        federation, attempt = self.round.federation, self.round
        part = None
        if not self.failed:
            try:
                total = self.server.sum(self.answers)
                sum_ = self.grid.summed(total.total)
                part = Partial(sum_, len(total.devices), attempt.there, stretch=self.grid.stretch(self.spec))
            except FederatedError as error:
                self.failed = str(error)
        names = {number: name for name, number in self.numbers.items()}
        for number, why in self.server.refused.items():
            attempt.refuse(names[number], Refused("malformed", why))
        if part is None:
            attempt.details.append(self.failed or "too few updates")
            return None
        for number in total.devices:
            federation.members[names[number]].answered += 1
        return part
