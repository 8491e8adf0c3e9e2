"""Asynchronous rounds: the server keeps devices busy and takes a step for every few updates, whenever they arrive.

Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (FedBuff), algorithm 1: a
buffer of K updates makes one step, each scaled by 1 / (1 + s)^a for the s steps that the server took in the meantime
(a = 1/2 there). Scaled, not reweighted: a buffer of late updates makes a small step. A device that fails or is silent
beyond the deadline frees its place, and another is asked. A device that has worked on a version of the model is asked
again only when there is a newer one: its random draws follow from the version, so the same update would count twice.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from federated import tree
from federated.errors import FederatedError
from federated.server import rounds
from federated.server.conduct import After, Watch, finish, look_first, meet, owed, quoted
from federated.server.federation import MOST_DETAILS, Federation, described, told
from federated.server.gathering import Exchange
from federated.server.replies import Expected, Failure, Received, Refused

__all__ = ["Buffered", "conduct_async", "discount"]


def discount(staleness: int, exponent: float) -> float:
    """The weight of an update that is `staleness` versions late."""
    return float((1 + staleness) ** -exponent)


@dataclass(frozen=True)
class Sent:
    """A message that is not answered yet."""

    node: int
    name: str
    version: int
    at: float


@dataclass
class Buffered:
    """The rules, without I/O: which devices are asked next, the weight of an answer, when the server steps."""

    federation: Federation
    busy: dict[str, Sent] = field(default_factory=dict)
    buffer: list[tuple[Received, int]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    asked: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    draws: int = 0
    tried: set[str] = field(default_factory=set)
    """Devices that have answered for the current version."""
    fruitless: int = 0
    """Answers since the last useful one."""

    def wanted(self, nodes: Collection[int]) -> list[tuple[str, int]]:
        """Idle devices to ask now, name and node, so that `async.concurrency` work. Those that have answered already
        are asked only if nothing else is possible: all have answered, without reaching a step."""
        there = self.federation.present(nodes)
        working = {sent.name for sent in self.busy.values()}
        idle = [name for name in there if name not in working]
        fresh = [name for name in idle if name not in self.tried]
        idle = fresh if fresh or working else idle
        count = min(len(idle), self.federation.config.buffer.concurrency - len(self.busy))
        if count <= 0:
            return []
        self.draws += 1
        chosen = rounds.choose(idle, count, self.federation.config.rounds.seed, self.federation.round, self.draws)
        return [(name, there[name]) for name in chosen]

    def sent(self, ticket: str, node: int, name: str, size: int, now: float) -> None:
        """A message of `size` bytes was sent."""
        self.busy[ticket] = Sent(node, name, self.federation.round, now)
        self.federation.members[name].asked += 1
        self.asked += 1
        self.bytes_down += size

    def take(self, ticket: str, reply: bytes | Failure) -> None:
        """Process an answer; its device is idle again."""
        sent = self.busy.pop(ticket)
        federation = self.federation
        member = federation.members[sent.name]
        self.bytes_up += 0 if isinstance(reply, Failure) else len(reply)
        late = federation.round - sent.version
        if not late:
            self.tried.add(sent.name)
        try:
            expected = Expected("update", sent.name, federation.run, sent.version + 1, federation.attempt)
            received = federation.read(reply, expected)
            federation.arrived(sent.name, sent.version)
            if late > federation.config.buffer.most:
                raise Refused("stale", f"{late} versions late, expected at most {federation.config.buffer.most}")
        except Refused as refused:
            if refused.reason == "behind":
                federation.lost(sent.name)
            self.refused[refused.reason] += 1
            self.details.append(described(sent.name, refused))
            self.fruitless += 1
            member.refused += 1
            return
        self.fruitless = 0
        member.answered += 1
        self.buffer.append((received, late))

    def expire(self, now: float) -> int:
        """Free the places of devices that are silent beyond the deadline; returns how many."""
        deadline = self.federation.config.rounds.deadline
        gone = [ticket for ticket, sent in self.busy.items() if now - sent.at >= deadline]
        for ticket in gone:
            del self.busy[ticket]
        self.refused["silent"] += len(gone)
        return len(gone)

    @property
    def full(self) -> bool:
        """Whether the server should step."""
        return len(self.buffer) >= self.federation.config.buffer.size

    def step(self) -> dict[str, Any]:
        """Learn from the buffer; returns the report's row."""
        federation, config = self.federation, self.federation.config.buffer
        scaled = []
        for each, late in self.buffer:
            payload = tree.scale(each.payload, np.float32(discount(late, config.exponent)))
            scaled.append(replace(each, payload=payload))
        limited = federation.limited(scaled)
        self._refuse(limited.refused)
        self.details += limited.details()
        row = {
            "round": federation.round + 1,
            "counted": True,
            "asked": self.asked,
            "answered": len(limited.updates),
            "silent": self.refused.pop("silent", 0),
            "refused": dict(sorted(self.refused.items())),
            "limited": limited.counts(),
            "epsilon": None,
            "details": self.details[:MOST_DETAILS],
            **told(federation, [each for each, _ in self.buffer]),
            "staleness": float(np.mean([late for _, late in self.buffer])),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }
        federation.advance(limited.updates, max(1, len(federation.members)))
        federation.rows.append(row)
        self.buffer, self.refused, self.details, self.tried = [], Counter(), [], set()
        self.asked = self.bytes_down = self.bytes_up = 0
        return row

    def _refuse(self, found: Mapping[str, Refused]) -> None:
        """The step is then made by the others: fewer than half of the buffer can be outliers."""
        for name, refused in found.items():
            self.refused[refused.reason] += 1
            self.details.append(described(name, refused))
        self.buffer = [(each, late) for each, late in self.buffer if each.device not in found]


def conduct_async(
    federation: Federation,
    exchange: Exchange,
    *,
    keep: str | os.PathLike[str] | None = None,
    watch: Watch = lambda row: None,
    after: After = lambda exchange, nodes: {},
) -> None:
    """Steps until the last. Updates that were pending when a server died are requested again.

    Raises FederatedError if nothing arrives for `rounds.attempts` deadlines, or too many answers in a row are useless.
    """
    look_first(federation, exchange)
    owed(federation, exchange, keep=keep, watch=watch, after=after)
    rules = Buffered(federation)
    config = federation.config.rounds
    begun = heard = exchange.now()
    nodes = meet(federation, exchange)
    while not federation.done:
        if wanted := rules.wanted(nodes):
            names = {node: name for name, node in wanted}
            letters = federation.letters(names, lambda links: federation.work(federation.round + 1, links=links))
            for node, message in letters.items():
                for ticket, to in exchange.send("train", {node: message}).items():
                    rules.sent(ticket, to, names[node], len(message), exchange.now())
        asked_at = exchange.now()  # answers that arrive during the evaluation are polled before devices expire
        replies = list(exchange.poll(list(rules.busy)))
        for ticket, reply in replies:
            rules.take(ticket, reply)
            if not rules.fruitless:
                heard = exchange.now()
            if rules.full and not federation.done:
                rules.step()
                finish(federation, exchange, nodes, begun, keep=keep, watch=watch, after=after)
                begun = exchange.now()
                nodes = meet(federation, exchange)
        rules.expire(asked_at)
        if not rules.busy:
            nodes = meet(federation, exchange)
        in_vain = config.attempts * max(federation.config.buffer.concurrency, federation.config.buffer.size)
        if exchange.now() - heard > config.attempts * config.deadline or rules.fruitless >= in_vain:
            raise FederatedError(
                f"step {federation.round + 1}: expected {federation.config.buffer.size} updates, got "
                f"{len(rules.buffer)}, no valid one for {exchange.now() - heard:.0f} s and {rules.fruitless} answers; "
                f"refused: {dict(rules.refused) or 'none'}{quoted(rules.details)}"
            )
        if not replies:
            exchange.wait(0.25)
