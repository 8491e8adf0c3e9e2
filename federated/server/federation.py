"""The server's side of a run: its devices, what was learned, the report. No I/O, no clock, no transport.

`Federation` is the state that survives a process (saved by `federated.server.checkpoint`); `Round` is one round in
progress.
"""

from __future__ import annotations

import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from msgspec import structs

from federated import tree
from federated.algorithms import Algorithm
from federated.client.device import VERSION
from federated.codec import Codec, Spec
from federated.config import Config
from federated.errors import FederatedError
from federated.evaluation import WIDEST, Score, noisy_summary, perplexity, plain, summarise
from federated.exact import ExactSum
from federated.hierarchy.partial import Partial
from federated.messages.downlink import Downlink
from federated.messages.packed import pack
from federated.messages.transforms import Transforms
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SecureSource
from federated.server import rounds
from federated.server.influence import Bounds, Limited, bounds, limit
from federated.server.replies import (
    Expected,
    Failure,
    Greeted,
    Received,
    Refused,
    read_evaluation,
    read_hello,
    read_score,
    read_share,
    read_shares,
    read_update,
)
from federated.server.template import payload_spec
from federated.tree import Array, Tree

__all__ = ["MOST_DETAILS", "Earlier", "Federation", "Member", "Round", "Start", "Survey", "admit", "described"]

MOST_DETAILS = 50
"""The most problems of a round that the report describes one by one; all of them are counted."""


@dataclass
class Member:
    """A device that has joined: its current node, and its history."""

    node: int
    examples: int
    identity: str = ""
    """The digest of the proof with which it may return as another node (`Device.hello`); "": it may not."""
    asked: int = 0
    answered: int = 0
    refused: int = 0
    holds: int | None = 0
    """The version of the model that it certainly has; None: it has lost its copy."""


def admit(members: dict[str, Member], node: int, found: Greeted, nodes: Collection[int]) -> None:
    """Enter a device that has said who it is. A name belongs to the node that used it first in the run. Another node
    gets it only with the same proof, when the first is gone: the same device, restarted without a node key. Raises
    Refused."""
    known = members.get(found.device)
    if known is None:
        members[found.device] = Member(node, found.examples, found.identity)
        return
    if known.node != node:
        if known.node in nodes:
            raise Refused("impostor", f"{found.device!r} is registered at another node, which is connected")
        if not found.identity or found.identity != known.identity:
            raise Refused("impostor", f"{found.device!r} joined this run from another node; a device may return as a "
                          "new node only with the state file that it had")  # fmt: skip
    known.node, known.examples = node, found.examples


@dataclass(frozen=True)
class Start:
    """The start of a run: the parameters of the bundle, which of them have no gradient, the bundle's digest."""

    params: Tree
    statistics: tuple[str, ...]
    bundle: str
    signed: bool = True
    """Whether the bundle's loss may be negative."""
    language: bool = False
    """Whether it is a language model, whose evaluations tell the perplexity too."""


@dataclass(frozen=True)
class Earlier:
    """A run as it was after round `round`, when it had learned from `learned` rounds. `held`: the model as devices
    decoded it, if they keep it; `lines`: the rows, as `Federation.told` encodes them."""

    round: int
    learned: int
    bound: float
    state: Tree
    held: Tree | None
    rows: list[dict[str, Any]]
    lines: list[bytes]


@dataclass
class Federation:
    """A run between rounds. `state` is the algorithm's, after `round` rounds; `rows` are the report's rows, one per
    round."""

    config: Config
    start: Start
    state: Tree
    link: Downlink
    """The downlink: how the model is sent to devices."""
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    secret: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    """Seeds Poisson sampling: it costs less epsilon only as long as participation stays secret, and `rounds.seed` is
    sent to devices."""
    round: int = 0
    """The number of the last round that was learned from or skipped."""
    skipped: int = 0
    """How many rounds are no part of the model: secure ones without a result, since devices take part in one sum of a
    round, so that the next has a new number; and those that a return gave up."""
    returns: list[dict[str, int]] = field(default_factory=list)
    """Each return to an earlier round: `after` which number, `to` which round."""
    left: list[bytes] = field(default_factory=list, repr=False)
    """The rows of rounds that returns gave up, as lines of JSON."""
    given_up: int = 0
    """How many of these rounds were learned from, and charged."""
    begun: int = 0
    """The number of the last secure round that devices were asked to begin."""
    attempt: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    first: dict[str, Any] | None = None
    """The evaluations before the first round by group of devices, if [gate] compares with them, and their bytes."""
    turned_away: Counter[str] = field(default_factory=Counter)
    turned_away_details: list[str] = field(default_factory=list)
    account: Accountant = field(default_factory=Accountant)
    bound: float = 0.0
    """The current clipping bound."""
    source: NoiseSource = field(default_factory=SecureSource)
    again: set[str] = field(default_factory=set)
    """Devices to greet again, because they have more examples than they declared."""
    _transforms: Transforms | None = None
    _lines: list[bytes] = field(default_factory=list)

    @classmethod
    def begin(cls, config: Config, start: Start) -> Self:
        """A new run."""
        state = _settled(config.algorithm.init(start.params))
        link = Downlink.begin(Codec.parse(config.codec.down), config.rounds.seed, config.algorithm.broadcast(state))
        made = cls(config, start, state, link, bound=config.transforms.privacy.clip)
        made.transforms.update_multiplier(made.multiplier)  # impossible noise is refused now, not after a round
        made._refuse_noisy_statistics()
        return made

    def _refuse_noisy_statistics(self) -> None:
        """Raises FederatedError if noise would be added to running statistics."""
        noise = self.transforms.privacy.noise
        if noise == "none" or self.payload is None:
            return
        moving = set(self.start.statistics) & {leaf.path[-1] for leaf in self.payload.leaves}
        if moving:
            raise FederatedError(
                f"privacy.noise: expected updates without running statistics, got {min(moving)!r} and "
                f"{len(moving) - 1} more: noise can make a variance negative, and clipping would measure statistics "
                'with gradients; convert the bundle with batch_norm="frozen", or choose an algorithm that leaves them '
                'on the device (name = "fedbn")'
            )

    @property
    def algorithm(self) -> Algorithm:
        """The run's algorithm."""
        return self.config.algorithm

    @cached_property
    def payload(self) -> Spec | None:
        """The structure of updates."""
        return payload_spec(self.algorithm, self.start.params, self.start.statistics)

    @property
    def transforms(self) -> Transforms:
        """The update transforms, with the current clipping bound."""
        if self._transforms is None or self._transforms.privacy.clip != self.bound:
            self._transforms = self.config.transforms.at(self.bound)
        return self._transforms

    @cached_property
    def multiplier(self) -> float:
        """The noise multiplier with which all rounds together stay within the configured budget."""
        config = self.config
        return config.transforms.multiplier(config.rounds.count, config.rounds.fraction, self._evaluations)

    @property
    def _evaluations(self) -> int:
        """How many evaluations a run of all rounds has."""
        every, first = self.config.evaluation.every, self.config.gate.against != "none"
        return (math.ceil(self.config.rounds.count / every) if every else 0) + first

    @property
    def done(self) -> bool:
        """Whether all rounds are over. A budget of epsilon is for `rounds.count` rounds, including those given up."""
        paid = self.given_up if self.config.transforms.privacy.epsilon else 0
        return self.learned + paid >= self.config.rounds.count

    @property
    def learned(self) -> int:
        """How many rounds the model was learned from."""
        return self.round - self.skipped

    @property
    def newest(self) -> int:
        """The number of the last round that the model was learned from; 0: none."""
        return next((int(row["round"]) for row in reversed(self.rows) if row["counted"]), 0)

    def go_back(self, to: Earlier) -> None:
        """Continue from the model of an earlier round, as a branch.

        The next round has the next number, as after rounds without a result: it draws other batches, and devices, which
        take part in one sum of a round, take part in it. The model is a new version, which devices are sent whole. The
        privacy account, the members and the rows of all rounds remain.
        """
        stays = Counter(to.lines)
        left = []
        for line in [*self.left, *self.told().splitlines()]:
            if stays[line]:
                stays[line] -= 1
            else:
                left.append(line)
        self.left, self.given_up = left, sum(bool(json.loads(line)["counted"]) for line in left)
        self.returns.append({"after": self.round, "to": to.round})
        self.rows, self._lines = list(to.rows), []
        self.state, self.bound, self.skipped, self.attempt = to.state, to.bound, self.round - to.learned, 0
        held = self.algorithm.broadcast(to.state) if to.held is None else to.held
        self.link = Downlink(self.link.codec, self.link.seed, held, self.link.version + 1)

    def told(self) -> bytes:
        """The rows as lines of JSON. All but the last, whose evaluation may be pending, no longer change and are
        encoded once: encoding all of them in every round would take seconds per round in the end."""
        lines = [json.dumps(row, allow_nan=False).encode() for row in self.rows[len(self._lines) :]]
        self._lines += lines[:-1]
        return b"\n".join([*self._lines, *lines[-1:]])

    def model(self) -> Tree:
        """The global parameters."""
        return self.algorithm.model(self.state)

    # -- devices that are present -----------------------------------------------------------------------------------

    def strangers(self, nodes: Collection[int]) -> list[int]:
        """Nodes without a member, and those to greet again, in order."""
        greeted = {member.node for name, member in self.members.items() if name not in self.again}
        return sorted(set(nodes) - greeted)

    @property
    def branching(self) -> bool:
        """Whether aggregators answer to this server; otherwise devices do."""
        return bool(self.config.hierarchy.aggregators)

    @property
    def awaited(self) -> int:
        """How many nodes must be there before a round begins."""
        return self.config.hierarchy.aggregators[0] if self.branching else self.config.rounds.minimum

    def hello(self) -> bytes:
        """The message to new nodes."""
        private = self.transforms.privacy.noise != "none"
        words = {"version": VERSION, "kind": "hello", "run": self.run, "private": private}
        if self.branching:
            words["levels"] = len(self.config.hierarchy.aggregators) - 1
        return pack(words, {})

    def welcome(self, node: int, reply: bytes | Failure, nodes: Collection[int]) -> None:
        """Admit a new node, or count the reason for refusing it."""
        try:
            levels = len(self.config.hierarchy.aggregators)
            found = read_hello(reply, self.run, self.start.bundle, self.config.limits, levels)
            admit(self.members, node, found, nodes)
        except Refused as refused:
            self.turned_away[refused.reason] += 1
            if len(self.turned_away_details) < MOST_DETAILS:
                self.turned_away_details.append(described(f"node {node}", refused))
            return
        self.again.discard(found.device)

    def present(self, nodes: Collection[int], *, held_out: bool = False) -> dict[str, int]:
        """Members that are present, by name: those that train, or the held-out ones. Aggregators train."""
        share = 0.0 if self.branching else self.config.evaluation.held_out
        apart = rounds.held_out(sorted(self.members), share, self.config.rounds.seed)
        return {
            name: member.node
            for name, member in sorted(self.members.items())
            if member.node in nodes and (name in apart) == held_out
        }

    def read(self, reply: bytes | Failure, expected: Expected) -> Received:
        """An update, valid and with no more examples than its device declared when it joined. Raises Refused."""
        limits, signed = self.config.limits, self.start.signed
        received = read_update(reply, expected, self.transforms, self.payload, limits, signed)
        declared = self.members[expected.device].examples
        if received.examples > declared:
            self.again.add(expected.device)
            raise Refused("examples", f"expected at most the {declared} that it declared, got {received.examples}")
        return received

    # -- messages to devices ----------------------------------------------------------------------------------------

    def task(
        self, kind: str, number: int, more: Mapping[str, Any], body: Tree | None = None, links: int | None = None
    ) -> bytes:
        """A message that is the same for every device of a round, except for `more`, `body` and `links`: as how many
        differences the model is sent (None: whole)."""
        config = self.config
        model, data = self.link.content(links)
        meta = {
            "version": VERSION,
            "kind": kind,
            "run": self.run,
            "round": number,
            "attempt": self.attempt,
            "bundle": self.start.bundle,
            "algorithm": dict(config.source.get("algorithm", {"name": self.algorithm.name})),
            "seed": config.rounds.seed,
            "test": config.data.test,
            "up": list(config.codec.up),
            "privacy": structs.asdict(self.transforms.privacy),
            "multiplier": self.multiplier,
            "down": list(config.codec.down),
            **model,
            **more,
        }
        return pack(meta, {"data": data, **(body or {})})

    def work(
        self, number: int, more: Mapping[str, Any] | None = None, body: Tree | None = None, links: int | None = None
    ) -> bytes:
        """A round's message for devices that train."""
        local = self.config.local
        words = {"steps": local.steps, "batch": local.batch, **self._rates(number), **(more or {})}
        return self.task("train", number, words, body, links)

    def scheduled(self, number: int) -> Algorithm:
        """The algorithm with the rates of round `number`; rounds that are no part of the model do not count."""
        return self.config.schedule.at(self.algorithm, number - self.skipped, self.config.rounds.count)

    def _rates(self, number: int) -> dict[str, Any]:
        """The field of a message with the algorithm, if its local rates differ from the configuration's."""
        if self.config.schedule.constant:
            return {}
        words = dict(self.config.source.get("algorithm", {"name": self.algorithm.name}))
        algorithm = self.scheduled(number)
        return {"algorithm": words | {name: getattr(algorithm, name) for name in algorithm.local_rates}}

    def links(self, name: str) -> int | None:
        """How many differences a device lacks; None: it must be sent the whole model."""
        return self.link.lacks(self.members[name].holds)

    def letters(self, asked: Mapping[int, str], write: Callable[[int | None], bytes]) -> dict[int, bytes]:
        """A message for each node, encoded once for all nodes that lack the same number of differences."""
        lacking = {node: self.links(name) for node, name in asked.items()}
        made = {links: write(links) for links in set(lacking.values())}
        return {node: made[links] for node, links in lacking.items()}

    def arrived(self, name: str, version: int) -> None:
        """A device has proven that it has this version."""
        member = self.members[name]
        member.holds = max(version, member.holds or 0)

    def lost(self, name: str) -> bool:
        """A device lacks the reference of a difference. Returns whether to send it the whole model, if it did not get
        that."""
        member = self.members[name]
        there = member.holds is not None
        member.holds = None
        return there

    def open(self, nodes: Collection[int]) -> Round:
        """The next round, or the next attempt at it. Raises FederatedError if too few devices are present."""
        config = self.config.rounds
        there = self.present(nodes)
        if len(there) < config.minimum or not there:
            raise FederatedError(
                f"rounds.minimum: expected at least {max(1, config.minimum)} devices that train, got {len(there)} "
                f"(turned away: {dict(self.turned_away) or 'none'}); start more, or lower it"
            )
        number = self.round + 1
        if self.transforms.privacy.sampling == "poisson":
            chosen = rounds.toss(there, config.fraction, self.secret, number, self.attempt)
            want = len(chosen)
        else:
            want = rounds.wanted(len(there), config.fraction, config.minimum)
            count = rounds.asked(len(there), want, config.over_selection)
            chosen = rounds.choose(there, count, config.seed, number, self.attempt)
        for name in chosen:
            self.members[name].asked += 1
        self.promise()
        return Round(self, number, {there[name]: name for name in chosen}, want, len(there))

    def survey(self, nodes: Collection[int], most: int | None = None) -> list[Survey]:
        """The devices to evaluate after the last round: at most so many that train, and as many held-out ones (None:
        `evaluation.devices`)."""
        config = self.config
        surveys = []
        for held_out in (False, True) if config.evaluation.training else (True,):
            there = self.present(nodes, held_out=held_out)
            if there:
                count = min(len(there), config.evaluation.devices if most is None else most)
                chosen = rounds.choose(there, count, config.rounds.seed, self.round)
                words = {key: getattr(config.evaluation, key) for key in ("support", "steps", "batch")}
                words["lowest"] = self.lowest
                surveys.append(Survey(self, held_out, {there[name]: name for name in chosen}, words))
        return surveys

    @property
    def lowest(self) -> float:
        """The smallest loss that a noisy evaluation tells."""
        return -self.transforms.privacy.most_loss if self.start.signed else 0.0

    def due(self) -> bool:
        """Whether the last round ends in an evaluation."""
        every = self.config.evaluation.every
        return bool(every) and (self.round % every == 0 or self.done)

    def advance(self, received: Sequence[tuple[Received, float]], there: int) -> tuple[str, ...]:
        """One step of the server from updates with weights. `there`: how many devices could have taken part. Returns
        the names that the robust rule excluded."""
        if self.payload is None or self.transforms.rule.adds:
            self.learn(self.partial(received, there))
            return ()
        ordered = sorted(received, key=lambda each: each[0].device)
        payloads, weights = [each.payload for each, _ in ordered], [weight for _, weight in ordered]
        mean, left_out = self.transforms.combine(payloads, weights, self.source)
        self._conclude(mean, len(ordered), sum(each.within for each, _ in ordered), there)
        return tuple(ordered[at][0].device for at in left_out)

    def partial(self, received: Sequence[tuple[Received, float]], there: int) -> Partial:
        """With a rule that adds: the sum of updates with weights, of some of the `there` devices."""
        within = math.fsum(each.within for each, _ in received)
        total = None if self.payload is None else ExactSum(self.payload.size + 1)
        if total is not None and received:
            total = self.transforms.summed([each.payload for each, _ in received], [weight for _, weight in received])
        return Partial(total, len(received), there, within)

    def learn(self, part: Partial) -> None:
        """One step of the server from a sum. If nobody was drawn, the sum is noise alone, as in every round, so that it
        does not show. Updates may be longer than they were clipped to (`part.stretch`): the noise covers that too."""
        mean: Tree = {}
        if part.total is not None and self.payload is not None:
            multiplier = self.transforms.update_multiplier(self.multiplier) * part.stretch
            expected = self.expected(part.there)
            mean = self.transforms.mean(part.total, self.payload, part.devices, self.source, multiplier, expected)
        self._conclude(mean, part.devices, part.within, part.there)

    def _conclude(self, mean: Tree, devices: int, within: float, there: int) -> None:
        """Move the clipping bound, and make the step."""
        if self.payload is not None:
            normal = float(self.source.normal(1)[0]) if self.transforms.privacy.adaptive else 0.0
            self.bound = self.transforms.next(within, max(1, devices), normal).privacy.clip
        self.step(mean, devices / there)

    def expected(self, there: int) -> float | None:
        """Under Poisson sampling, the expected number of devices in a round."""
        return self.config.rounds.fraction * there if self.transforms.privacy.sampling == "poisson" else None

    def step(self, mean: Tree, fraction: float) -> None:
        """The algorithm's step, and the privacy cost of noise that the server added."""
        state = _settled(self.scheduled(self.round + 1).apply(self.state, mean, fraction))
        self.link = self.link.next(self.algorithm.broadcast(state))
        if self.transforms.privacy.noise == "central":
            self.account = self.transforms.charge(self.account, self.multiplier, self.config.rounds.fraction)
        self.state = state
        self.round += 1
        self.attempt = 0

    def promise(self) -> None:
        """Charge an attempt at a round before devices are asked: those that add the noise send it whether the attempt
        succeeds, fails, or is lost with the server."""
        if self.transforms.privacy.noise == "local":
            self.account = self.transforms.charge(self.account, self.multiplier, self.config.rounds.fraction)

    def affords_evaluation(self) -> bool:
        """Whether the budget, if there is one, covers an evaluation: after a return to an earlier round it may not."""
        privacy = self.transforms.privacy
        if not (privacy.epsilon and self.transforms.noisy_evaluation):
            return True
        return self.account.charge(self.multiplier).epsilon(privacy.delta) <= privacy.epsilon * (1 + 1e-6)

    def charge_evaluation(self) -> bool:
        """Charge an evaluation before devices are asked, if it gets noise; returns whether it does. Each device is in
        one group; which are asked is no secret."""
        if self.transforms.noisy_evaluation:
            self.account = self.account.charge(self.multiplier)
        return self.transforms.noisy_evaluation

    def fail(self) -> None:
        """An attempt failed."""
        if self.transforms.privacy.secure:
            self.skip()
        else:
            self.attempt += 1

    def skip(self) -> None:
        """Continue with the next round's number and the same model."""
        self.round += 1
        self.skipped += 1

    def epsilon(self) -> float | None:
        """The privacy cost of the rounds so far; None without a guarantee, or without noise."""
        privacy = self.transforms.privacy
        spent = self.account.epsilon(privacy.delta) if privacy.noise != "none" else math.inf
        return spent if math.isfinite(spent) else None

    def guarantee(self) -> dict[str, Any] | None:
        """What the account of a run with noise says, covers, and does not cover; None without noise."""
        privacy = self.transforms.privacy
        if privacy.noise == "none":
            return None
        bounds = self.account.bounds(privacy.delta)
        noisy = self.transforms.noisy_evaluation
        open_ones = "evaluations" if self.config.evaluation.training else "evaluations of held-out devices"
        return {
            "noise": privacy.noise,
            "multiplier": self.multiplier,
            "delta": privacy.delta,
            "epsilon": self.epsilon(),
            "bounds": {way: value if math.isfinite(value) else None for way, value in bounds.items()},
            "spent": self.account.as_data(),
            "covered": ["updates", *(["evaluations"] if noisy else [])],
            "not_covered": [*([] if noisy else [open_ones]), "who answers", "personal versions with consent"],
        }

    def weight(self, received: Received) -> float:
        """The weight of an update."""
        uniform = self.algorithm.uniform or self.transforms.uniform
        weight = 1.0 if uniform else float(received.examples)
        member = self.members[received.device]
        if self.config.rounds.compensate:
            weight /= rounds.reliability(member.asked, member.answered)
        return weight

    def sum_weight(self, name: str) -> float:
        """The largest weight of a device in a secure sum: the number of examples it reported when it joined."""
        return 1.0 if self.algorithm.uniform or self.transforms.uniform else float(self.members[name].examples)

    def limited(self, updates: Sequence[Received]) -> Limited:
        """The updates with their weights, held to what the others of the round sent."""
        weighted = [(each, self.weight(each)) for each in updates]
        measured = np.array([(each.norm, weight) for each, weight in weighted], np.float64).reshape(-1, 2)
        return limit(weighted, self.allowed(measured))

    def allowed(self, measured: Array) -> Bounds:
        """What the updates of a round with these norms and weights (float64 [n, 2]) are held to."""
        if not self.compares:
            return Bounds()
        earlier = max((row["norm"] or 0.0 for row in self.rows if row["counted"]), default=0.0)
        return bounds(measured[:, 0], measured[:, 1], self.config.limits, earlier)

    @property
    def compares(self) -> bool:
        """Whether updates are held to what the others sent. Robust rules compare them in their own way, and under
        central noise a limit that depends on the others would change how much one device matters."""
        limits = self.config.limits
        limited = limits.outlier > 0 or limits.influence > 0
        return limited and not {"a robust rule", "central noise"} & self.transforms.features


@dataclass
class Round:
    """One attempt at a round: `asked` are devices' names by node, `there` how many could have been asked."""

    federation: Federation
    number: int
    asked: dict[int, str]
    want: int
    there: int
    bytes_down: int = 0
    received: dict[str, Received] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    cut: dict[str, int] = field(default_factory=dict)
    """How many devices `limits.influence` applied to, by what was cut."""
    bytes_up: int = 0

    def messages(self) -> dict[int, bytes]:
        """The message to each node."""
        return self.federation.letters(self.asked, self._work)

    def _work(self, links: int | None) -> bytes:
        return self.federation.work(self.number, links=links)

    def take(self, node: int, reply: bytes | Failure) -> bytes | None:
        """Process a reply; returns a message to send instead of one that the device could not read. An invalid reply is
        counted and otherwise ignored."""
        federation = self.federation
        name = self.asked.get(node)
        try:
            if name is None:
                raise Refused("unasked", f"node {node} was not asked")
            if name in self.received:
                raise Refused("duplicate", "an update for this round was already received")
            expected = Expected("update", name, federation.run, self.number, federation.attempt)
            received = federation.read(reply, expected)
        except Refused as refused:
            if name is not None and refused.reason == "behind" and federation.lost(name):
                return self._work(None)
            self.refuse(name, refused)
            return None
        self.received[name] = received
        federation.members[name].answered += 1
        federation.arrived(name, federation.link.version)
        return None

    def refuse(self, name: str | None, refused: Refused) -> None:
        """Count a reply that is not used."""
        self.refused[refused.reason] += 1
        self.details.append(described(name, refused))
        if name is not None:
            self.federation.members[name].refused += 1

    def outcome(self, row: Mapping[str, Any]) -> str:
        """How many answered, for an error."""
        return f"{row['answered']} of {row['asked']} devices answered, expected {self.quorum}"

    @property
    def quorum(self) -> int:
        """How many updates the round needs: none if Poisson sampling drew nobody."""
        if not self.asked:
            return 0
        return max(1, int(np.ceil(self.federation.config.rounds.quorum * self.want - 1e-9)))

    def close(self) -> dict[str, Any]:
        """Learn from the updates, or leave the model unchanged if there were too few; returns the report's row."""
        federation = self.federation
        limited = self.held(federation.limited([self.received[name] for name in sorted(self.received)]))
        left_out: tuple[str, ...] = ()
        enough = len(limited.updates) >= self.quorum
        if enough:
            try:
                left_out = federation.advance(limited.updates, self.there)
            except FederatedError as error:  # too few for a robust rule
                enough = False
                self.details.append(str(error))
        if not enough:
            federation.fail()
        return self.row(enough, len(limited.updates), left_out)

    def held(self, limited: Limited) -> Limited:
        """Count what was refused and cut."""
        for name, refused in limited.refused.items():
            del self.received[name]
            self.federation.members[name].answered -= 1
            self.refuse(name, refused)
        self.details += limited.details()
        self.cut = limited.counts()
        return limited

    def row(self, counted: bool, answered: int, left_out: tuple[str, ...]) -> dict[str, Any]:
        """The report's row for the round."""
        federation = self.federation
        refused = sum(count for reason, count in self.refused.items() if reason not in _EXTRA)
        row: dict[str, Any] = {
            "round": self.number,
            "counted": counted,
            "asked": len(self.asked),
            "answered": answered,
            "silent": max(0, len(self.asked) - answered - refused),
            "refused": dict(sorted(self.refused.items())),
            "limited": self.cut,
            "left_out": list(left_out),
            "epsilon": federation.epsilon(),
            "details": self.details[:MOST_DETAILS],
            **told(federation, list(self.received.values())),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }
        federation.rows.append(row)
        return row


def told(federation: Federation, updates: Sequence[Received]) -> dict[str, float | None]:
    """The mean loss and the median norm; None if they would reveal what the noise must hide."""
    losses = [each.loss for each in updates if each.loss is not None]
    if federation.transforms.quiet or not losses:
        return {"loss": None, "norm": None}
    return {"loss": float(np.mean(losses)), "norm": float(np.median([each.norm for each in updates]))}


def described(name: str | None, refused: Refused) -> str:
    """A refusal in the report."""
    return f"{name or 'unknown'}: {refused.reason}: {refused}"[:300]


_EXTRA = ("unasked", "duplicate")
"""Refusals of replies that arrived in addition to the requested one."""


@dataclass
class Survey:
    """An evaluation on some devices, before and after they adapt."""

    federation: Federation
    held_out: bool
    asked: dict[int, str]
    words: Mapping[str, Any]
    found: dict[str, Score] = field(default_factory=dict)
    shares: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """What devices sent instead of a score, if evaluations get noise."""
    refused: Counter[str] = field(default_factory=Counter)
    lost: dict[str, str] = field(default_factory=dict)
    """Why a device that was asked has no score."""
    details: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0

    def messages(self) -> dict[int, bytes]:
        """The message to each node."""
        return self.federation.letters(self.asked, self._question)

    def _question(self, links: int | None) -> bytes:
        federation = self.federation
        return federation.task("evaluate", federation.round, {"held_out": self.held_out, **self.words}, links=links)

    def take(self, node: int, reply: bytes | Failure) -> bytes | None:
        """Process a reply; returns a message to send instead of one that the device could not read."""
        federation = self.federation
        name = self.asked.get(node)
        try:
            if name is None or name in self._answered:
                raise Refused("unasked" if name is None else "duplicate", f"node {node}")
            expected = Expected("evaluation", name, federation.run, federation.round, federation.attempt)
            if federation.transforms.noisy_evaluation:
                self.shares[name] = read_shares(reply, expected, self._room)
            else:
                self.found[name] = read_evaluation(reply, expected, federation.config.limits, federation.start.signed)
        except Refused as refused:
            if name is not None and refused.reason == "behind" and federation.lost(name):
                return self._question(None)
            self.refused[refused.reason] += 1
            self.details.append(described(name, refused))
            if name is not None and name not in self._answered:
                self.lost[name] = refused.reason
            return None
        federation.arrived(name, federation.link.version)
        return None

    def told(self) -> dict[str, Any]:
        """For the server above: what devices answered, as plain data."""
        return {
            "asked": sorted(self.asked.values()),
            "found": [[None if part == math.inf else part for part in astuple(each)] for each in self.found.values()],
            "shares": {name: list(found) for name, found in self.shares.items()},
            "lost": self.lost,
            "refused": dict(self.refused),
            "details": self.details[:MOST_DETAILS],
            "bytes": [self.bytes_down, self.bytes_up],
        }

    def absorb(self, prefix: str, handed: Any) -> None:
        """Add what another server was answered; `prefix` for its devices' names. Raises Refused."""
        match handed:
            case {
                "asked": list(asked), "found": list(found), "shares": dict(shares), "lost": dict(lost),
                "refused": dict(refused), "details": list(details), "bytes": [int(down), int(up)],
            } if all(isinstance(name, str) for name in asked) and {*shares, *lost} <= {*asked}:  # fmt: skip
                scores = [read_score(each, asked, self.federation.config.limits) for each in found]
                told = {name: read_share(each, self._room) for name, each in shares.items()}
            case _:
                raise Refused("malformed", f"expected an evaluation, got {str(handed)[:80]}")
        self.asked |= {len(self.asked) + at: f"{prefix}{name}" for at, name in enumerate(asked)}
        self.found |= {f"{prefix}{each.device}": replace(each, device=f"{prefix}{each.device}") for each in scores}
        self.shares |= {f"{prefix}{name}": each for name, each in told.items()}
        self.lost |= {f"{prefix}{name}": str(why)[:40] for name, why in lost.items()}
        self.refused.update({str(why)[:40]: count for why, count in refused.items() if type(count) is int})
        self.details += [f"{prefix}{detail}"[:300] for detail in details]
        self.bytes_down += down
        self.bytes_up += up

    @property
    def _answered(self) -> Collection[str]:
        return self.shares if self.federation.transforms.noisy_evaluation else self.found

    @property
    def _room(self) -> float:
        """How far noise that devices add may take a share out of [0, 1]."""
        federation = self.federation
        local = federation.transforms.privacy.noise == "local"
        return 6 * WIDEST * federation.multiplier if local else 0.0

    def _published(self) -> dict[str, Any] | None:
        """The means of what devices sent, with the server's noise if theirs has none."""
        federation = self.federation
        if not self.shares:
            return None
        mean = np.mean([self.shares[name] for name in sorted(self.shares)], axis=0)
        if federation.transforms.privacy.noise == "central":
            mean = mean + WIDEST * federation.multiplier / len(self.shares) * federation.source.normal(len(mean))
        return noisy_summary(len(self.shares), mean, federation.lowest, federation.transforms.privacy.most_loss)

    def close(self) -> dict[str, Any]:
        """The summary as plain data, every device's score, which devices diverged, and why others have no score. With
        noise, only what the noise protects."""
        scores = [self.found[name] for name in sorted(self.found)]
        tested = [each for each in scores if each.examples]
        lost = Counter(self.lost.get(name, "silent") for name in self.asked.values() if name not in self._answered)
        summary = plain(summarise(scores)) if tested else self._published()
        return {
            "asked": len(self.asked),
            "answered": len(self._answered),
            "lost": dict(sorted(lost.items())),
            "diverged": [each.device for each in tested if each.diverged],
            "summary": summary,
            **({"perplexity": perplexity(tested, summary)} if self.federation.start.language and summary else {}),
            "refused": dict(sorted(self.refused.items())),
            "details": self.details[:MOST_DETAILS],
            "by_device": {each.device: [each.accuracy_before, each.accuracy_after] for each in tested},
        }


def _settled(state: Tree) -> Tree:
    """Numbers as arrays of one dtype, so that a state restored from a checkpoint computes the same."""
    return tree.map_leaves(lambda leaf: np.float32(leaf) if isinstance(leaf, float) else np.asarray(leaf), state)
