"""A round whose updates the server never sees, only their sum: four exchanges instead of one.

    keys     devices make keys                           -> KEYS
    shares   devices share what unmasks them             -> SHARES
    train    devices learn, and send their update masked -> MASKED
    reveal   those that stayed unmask the sum            -> REVEALED

Whoever fails between two exchanges is out; the sum is of those who sent an update (`federated.privacy.secure`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from federated.device import VERSION
from federated.errors import FederatedError
from federated.federation import Round
from federated.packed import pack
from federated.privacy.secure import SecureServer, Terms
from federated.replies import Expected, Failure, Refused, read_secure

__all__ = ["STAGES", "SecureRound"]

STAGES = ("keys", "shares", "train", "reveal")


@dataclass
class SecureRound:
    """The rules, without I/O. `messages(stage)` says what to send to whom; `take` reads an answer; `close` ends it."""

    round: Round
    answers: dict[int, bytes] = field(default_factory=dict)
    failed: str = ""

    def __post_init__(self) -> None:
        federation = self.round.federation
        # Devices go by numbers in the protocol: by the order of their names.
        names = sorted(self.round.asked.values())
        self.numbers = {name: at for at, name in enumerate(names, 1)}
        self.nodes = {self.numbers[name]: node for node, name in self.round.asked.items()}
        pipeline, spec = federation.pipeline, federation.payload
        if spec is None:
            raise FederatedError(f"privacy.secure: expected updates, but {federation.algorithm.name} has none to send")
        heaviest = max(federation.sum_weight(name) for name in names)
        self.spec = spec
        self.grid = pipeline.fixed_point(len(names), heaviest, federation.multiplier)
        terms = Terms(
            os.urandom(16),
            self.round.number,
            tuple(self.numbers.values()),
            pipeline.threshold(len(names)),
            self.grid.size(spec),
            self.grid.bits,
        )
        self.server = SecureServer(terms)

    def messages(self, stage: str) -> dict[int, bytes]:
        """To each node that is still in: what it is sent. Uses up the answers of the stage before. FederatedError
        where too few are left."""
        step: dict[str, Callable[[], dict[int, bytes]]] = {
            "keys": self.server.requests,
            "shares": lambda: self.server.all_keys(self.answers),
            "train": lambda: self.server.all_shares(self.answers),
            "reveal": lambda: self.server.survivors(self.answers),
        }
        requests, self.answers = step[stage](), {}
        federation, terms = self.round.federation, {"secure": asdict(self.grid)}
        made = {}
        for number, request in requests.items():
            secure = np.frombuffer(request, np.uint8)
            if stage == "train":
                made[self.nodes[number]] = federation.work(self.round.number, terms, {"secure": secure})
                continue
            meta = {"version": VERSION, "kind": "secure", "run": federation.run, "round": self.round.number,
                    "attempt": federation.attempt, "stage": stage, "number": number}  # fmt: skip
            made[self.nodes[number]] = pack(meta, {"secure": secure})
        return made

    def take(self, node: int, reply: bytes | Failure, stage: str) -> None:
        """An answer; one that is not in order is counted and its device is out."""
        federation, attempt = self.round.federation, self.round
        attempt.bytes_up += 0 if isinstance(reply, Failure) else len(reply)
        name = attempt.asked[node]
        kind = "update" if stage == "train" else "secure"
        try:
            if self.numbers[name] in self.answers:
                raise Refused("duplicate", "an answer is there already")
            expected = Expected(kind, name, federation.run, attempt.number, federation.attempt)
            self.answers[self.numbers[name]] = read_secure(reply, expected)
        except Refused as refused:
            attempt.refuse(name, refused)

    def close(self) -> dict[str, Any]:
        """Learn from the sum, or leave the model as it is where too few stayed; the report's row."""
        federation, attempt = self.round.federation, self.round
        devices: tuple[int, ...] = ()
        if not self.failed:
            try:
                total = self.server.sum(self.answers)
                mean, _ = self.grid.mean(total.total, self.spec)
                devices = total.devices
            except FederatedError as error:
                self.failed = str(error)
        names = {number: name for name, number in self.numbers.items()}
        for number, why in self.server.refused.items():
            attempt.refuse(names[number], Refused("malformed", why))
        enough = len(devices) >= attempt.quorum
        for number in devices:
            federation.members[names[number]].answered += 1
        if enough:
            federation.learn(mean, len(devices), attempt.there)
        else:
            federation.attempt += 1
            attempt.details.append(self.failed or "too few updates")
        return attempt.row(enough, len(devices), ())
