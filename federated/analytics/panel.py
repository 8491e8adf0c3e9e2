"""The server's side of questions: who is asked, what is accepted, the sum, its noise, and its cost.

A question that too few devices answered is asked again, under another number. A device masks one answer to a question
once only (`federated.privacy.secure`): if a secure sum fails after that, those devices decline, and the run ends.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from federated.analytics.base import Question, answer_limit, question_digest
from federated.analytics.config import Asking, Private
from federated.analytics.registry import words_of
from federated.client.device import VERSION
from federated.config import Limits
from federated.errors import FederatedError
from federated.messages.packed import pack
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SecureSource
from federated.privacy.secure import SecureServer, Terms
from federated.privacy.secure.identity import who
from federated.server.conduct import quoted
from federated.server.federation import MOST_DETAILS, Member, admit, described
from federated.server.gathering import Exchange, gather
from federated.server.replies import Expected, Failure, Refused, read_answer, read_hello, read_secure
from federated.tree import Array

__all__ = ["Panel", "Total"]

_INTEGER = 2**31 - 1


class Total(NamedTuple):
    """The sum (float64 [size]) over this many devices, and the standard deviation of the noise in each number."""

    values: Array
    devices: int
    deviation: float


@dataclass
class Panel:
    """The devices of a run that asks questions. `multiplier`: of the noise on every sum."""

    exchange: Exchange
    rounds: Asking
    privacy: Private
    multiplier: float
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    number: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    account: Accountant = field(default_factory=Accountant)
    source: NoiseSource = field(default_factory=SecureSource)
    rows: list[dict[str, Any]] = field(default_factory=list)
    turned_away: Counter[str] = field(default_factory=Counter)
    carried: list[int] = field(default_factory=lambda: [0, 0])
    """Bytes sent to devices and received from them, greetings not included."""

    def ask(self, question: Question, arrays: Mapping[str, Array] | None = None, step: float | None = None) -> Total:
        """The sum of the devices' answers. `step`: the grid of contributions; None: as fine as a sum of 31 bits allows.

        Raises FederatedError if too few devices come or answer, `rounds.attempts` times.
        """
        row: dict[str, Any] = {}
        for _ in range(self.rounds.attempts):
            self.number += 1
            asked = self.meet()
            sum_ = Sum(self, question, arrays or {}, asked, step)
            total = sum_.secure() if self.privacy.secure else sum_.plain()
            if self.privacy.noise == "local" or (total is not None and self.privacy.noise == "central"):
                self.account = self.account.charge(self.multiplier)
            row = sum_.row(total is not None)
            self.rows.append(row)
            if total is not None:
                return self._noisy(question, total, sum_)
        raise FederatedError(
            f"question {self.number}: {row['answered']} of {row['asked']} devices answered, expected "
            f"{self.quorum(row['asked'])}; refused: {row['refused'] or 'none'}{quoted(row['details'])}"
        )

    def _noisy(self, question: Question, total: tuple[Array, int], asked: Sum) -> Total:
        values, devices = total[0].astype(np.float64) * asked.step, total[1]
        if self.privacy.noise == "none":
            return Total(values, devices, 0.0)
        if self.privacy.noise == "local":
            return Total(values, devices, 2 * self.multiplier * question.bound * math.sqrt(devices))
        # Rounding to the grid moves each element by half a step at most.
        deviation = self.multiplier * (question.bound + asked.step / 2 * math.sqrt(question.size))
        return Total(values + deviation * self.source.normal(len(values)), devices, deviation)

    def quorum(self, asked: int) -> int:
        """How many answers a sum needs."""
        return max(1, math.ceil(self.rounds.quorum * asked - 1e-9))

    def epsilon(self) -> float | None:
        """What the questions so far cost; None without noise."""
        spent = self.account.epsilon(self.privacy.delta) if self.privacy.noise != "none" else math.inf
        return spent if math.isfinite(spent) else None

    def meet(self) -> dict[int, str]:
        """Greet new nodes, and wait for `rounds.minimum` devices; returns the names of those present by node."""
        until = self.exchange.now() + self.rounds.deadline
        turned_away: set[int] = set()
        private = self.privacy.noise != "none"
        hello = pack({"version": VERSION, "kind": "hello", "run": self.run, "private": private}, {})
        while True:
            nodes = self.exchange.nodes()
            greeted = {member.node for member in self.members.values()} | turned_away
            if strangers := sorted(set(nodes) - greeted):
                left = max(0.0, until - self.exchange.now())
                gather(self.exchange, "query", dict.fromkeys(strangers, hello), left, partial(self._welcome, nodes))
                turned_away |= set(strangers) - {member.node for member in self.members.values()}
            here = {member.node: name for name, member in sorted(self.members.items()) if member.node in nodes}
            if len(here) >= self.rounds.minimum:
                return here
            if self.exchange.now() >= until:
                raise FederatedError(
                    f"rounds.minimum: expected at least {self.rounds.minimum} devices, got {len(here)} (turned away: "
                    f"{dict(self.turned_away) or 'none'}); start more, or lower it"
                )
            self.exchange.wait(1.0)

    def _welcome(self, nodes: Collection[int], node: int, reply: bytes | Failure) -> None:
        try:
            admit(self.members, node, read_hello(reply, self.run, None, Limits()), nodes)
        except Refused as refused:
            self.turned_away[refused.reason] += 1


@dataclass
class Sum:
    """One question to some devices, plain or as a secure sum. `asked`: names by node."""

    panel: Panel
    question: Question
    arrays: Mapping[str, Array]
    asked: Mapping[int, str]
    wanted_step: float | None
    answers: dict[str, Any] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    @cached_property
    def step(self) -> float:
        """The grid of contributions."""
        if self.wanted_step is not None:
            return self.wanted_step
        panel, question = self.panel, self.question
        room = 12 * panel.multiplier * question.bound if panel.privacy.noise == "local" else 0.0
        return (question.largest + room) / (_INTEGER // len(self.asked))

    @cached_property
    def words(self) -> dict[str, Any]:
        """The message's fields."""
        panel = self.panel
        return {
            "version": VERSION, "kind": "question", "run": panel.run, "round": panel.number, "attempt": 0,
            "question": words_of(self.question), "step": self.step, "devices": len(self.asked),
            "noise": panel.privacy.noise, "secure": panel.privacy.secure, "threat": panel.privacy.model,
            "multiplier": panel.multiplier, "seed": panel.rounds.seed,
        }  # fmt: skip

    def plain(self) -> tuple[Array, int] | None:
        """One exchange; None if too few answered."""
        message = pack(self.words, {"arrays": self.arrays})
        limit = answer_limit(self.question, self.step, self.panel.privacy.noise, self.panel.multiplier)
        local = self.panel.privacy.noise == "local"
        size = self.question.size
        norm = math.inf if local else self.question.bound / self.step * (1 + 1e-9) + math.sqrt(size)
        read = partial(read_answer, size=size, limit=limit, signed=self.question.signed or local, norm=norm)
        self._gather("query", dict.fromkeys(self.asked, message), "answer", read)
        if len(self.answers) < self.panel.quorum(len(self.asked)):
            return None
        total = np.zeros(size, np.int64)
        for name in sorted(self.answers):
            total += self.answers[name]
        return total, len(self.answers)

    def secure(self) -> tuple[Array, int] | None:
        """Four or five exchanges; None if too few stayed."""
        privacy, names = self.panel.privacy, sorted(self.asked.values())
        if len(names) < 2:
            self.details.append("a secure sum needs at least two devices: a sum over one device would be its answer")
            return None
        numbers = {name: at for at, name in enumerate(names, 1)}
        digest = question_digest(self.words, self.arrays)
        terms = Terms(
            os.urandom(16), self.panel.number, tuple(numbers.values()), privacy.stay(len(names)), self.question.size,
            32, digest, quorum=self.panel.quorum(len(names)), malicious=privacy.model == "malicious",
        )  # fmt: skip
        server = SecureServer(terms, {number: who(name) for name, number in numbers.items()})
        try:
            requests = server.requests()
            for stage, step in _stages(server):
                self.answers = {}
                letters = self._letters(stage, requests, numbers)
                self._gather("query", letters, _REPLIES.get(stage, "secure"), read_secure)
                found = {numbers[name]: answer for name, answer in self.answers.items()}
                if stage == "reveal":
                    total = server.sum(found)
                    return total.total.view("<i4").astype(np.int64), len(total.devices)
                requests = step(found)
        except FederatedError as error:  # too few are left
            self.details.append(str(error))
        self.details += [f"{names[number - 1]}: {why}" for number, why in server.refused.items()]
        return None

    def _letters(self, stage: str, requests: Mapping[int, bytes], numbers: Mapping[str, int]) -> dict[int, bytes]:
        made = {}
        for node, name in self.asked.items():
            if numbers[name] not in requests:
                continue
            secure = np.frombuffer(requests[numbers[name]], np.uint8)
            if stage == "train":
                made[node] = pack(self.words, {"arrays": self.arrays, "secure": secure})
            else:
                same = {key: self.words[key] for key in ("version", "run", "round", "attempt")}
                meta = {**same, "kind": "secure", "stage": stage, "number": numbers[name]}
                made[node] = pack(meta, {"secure": secure})
        return made

    def _gather(self, kind: str, messages: Mapping[int, bytes], reply_kind: str, read: Any) -> None:
        panel = self.panel

        def take(node: int, reply: bytes | Failure) -> None:
            name = self.asked[node]
            try:
                if name in self.answers:
                    raise Refused("duplicate", "an answer was already received")
                self.answers[name] = read(reply, Expected(reply_kind, name, panel.run, panel.number, 0))
            except Refused as refused:
                self.refused[refused.reason] += 1
                self.details.append(described(name, refused))

        found = gather(panel.exchange, kind, messages, panel.rounds.deadline, take)
        panel.carried[0] += found.bytes_down
        panel.carried[1] += found.bytes_up

    def row(self, counted: bool) -> dict[str, Any]:
        """The report's row."""
        return {
            "round": self.panel.number, "question": words_of(self.question)["name"], "counted": counted,
            "asked": len(self.asked), "answered": len(self.answers), "refused": dict(sorted(self.refused.items())),
            "epsilon": self.panel.epsilon(), "details": self.details[:MOST_DETAILS],
        }  # fmt: skip


def _stages(server: SecureServer) -> list[tuple[str, Any]]:
    """Each stage's name, and what turns its answers into the next requests."""
    stages: list[tuple[str, Any]] = [
        ("keys", server.all_keys), ("shares", server.all_shares), ("train", server.survivors),
        ("agree", server.signatures), ("reveal", None),
    ]  # fmt: skip
    return [each for each in stages if server.terms.malicious or each[0] != "agree"]


_REPLIES = {"train": "answer"}
"""The kind of reply at a stage, if it is not "secure"."""
