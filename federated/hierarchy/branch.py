"""A round and an evaluation of a server whose nodes are aggregators: the root, or an aggregator of aggregators.

    gather   the model and the work  -> measured: norm and weight of each update, or partial where nothing is compared
    sum      what updates are held to -> partial: the sum of the updates
    survey   the model                -> surveyed: every device's evaluation

Exact sums make the result independent of which aggregator has which devices. The limits of updates are those that one
server would find, because medians of all norms and weights are known to the root after the first exchange.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.exact import ExactSum
from federated.hierarchy.orders import order
from federated.hierarchy.partial import Partial
from federated.server.federation import MOST_DETAILS, Federation, Survey, described
from federated.server.gathering import Exchange, gather
from federated.server.influence import Bounds, most
from federated.server.replies import Expected, Failure, Refused, read_handed
from federated.tree import Array

__all__ = ["Branch", "end", "survey"]

TOLERANCE = 1e-5
"""How much longer than its bound an update may seem: codecs and clipping round in float32."""
_COUNTS = ("asked", "answered", "silent")


@dataclass
class Branch:
    """One attempt at a round. `asked`: the aggregators' names by node; `quorum`: how many must hand up a sum."""

    federation: Federation
    number: int
    asked: dict[int, str]
    quorum: int
    norms: dict[str, Array] = field(default_factory=dict)
    """Norm and weight of the updates that each aggregator has (float64 [n, 2])."""
    parts: dict[str, Partial] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each aggregator reports of its devices."""
    refused: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)
    bytes_down: int = 0
    bytes_up: int = 0

    @classmethod
    def open(cls, federation: Federation, nodes: Collection[int]) -> Branch:
        """The next round, or the next attempt at it. Raises FederatedError if too few aggregators are present."""
        words, there = federation.config.hierarchy, federation.present(nodes)
        quorum = max(1, math.ceil(words.quorum * words.aggregators[0] - 1e-9))
        if len(there) < quorum:
            raise FederatedError(
                f"hierarchy.quorum: expected at least {quorum} aggregators, got {len(there)} (turned away: "
                f"{dict(federation.turned_away) or 'none'}); start more, or lower it"
            )
        for name in there:
            federation.members[name].asked += 1
        federation.promise()
        return cls(federation, federation.round + 1, {node: name for name, node in there.items()}, quorum)

    def gather(self, exchange: Exchange) -> None:
        """Let the aggregators ask their devices."""
        self._ask(exchange, self.asked, "gather", {})

    @property
    def measured(self) -> Array:
        """Norm and weight of each update below this server (float64 [n, 2])."""
        return np.concatenate([np.zeros((0, 2)), *(self.norms[name] for name in sorted(self.norms))])

    def sum(self, exchange: Exchange, allowed: Bounds) -> None:
        """Let the aggregators that measured updates add them up."""
        bounds = [each if math.isfinite(each) else None for each in allowed]
        self._ask(exchange, {node: name for node, name in self.asked.items() if name in self.norms}, "sum",
                  {"allowed": bounds})  # fmt: skip

    def _ask(self, exchange: Exchange, asked: Mapping[int, str], kind: str, more: Mapping[str, Any]) -> None:
        if asked:
            message = order(self.federation, kind, self.number, more)
            deadline = self.federation.config.hierarchy.deadline
            carried = gather(exchange, "query", dict.fromkeys(asked, message), deadline, partial(self._take, kind))
            self.bytes_down += carried.bytes_down
            self.bytes_up += carried.bytes_up

    def _take(self, kind: str, node: int, reply: bytes | Failure) -> None:
        federation, name = self.federation, self.asked[node]
        try:
            if name in (self.parts if kind == "sum" else self.rows):
                raise Refused("duplicate", "an answer was already received")
            expected = Expected("partial", name, federation.run, self.number, federation.attempt)
            meta, body = read_handed(reply, expected, ("partial", "measured") if kind == "gather" else ("partial",))
            self.rows[name] = _row(meta)
            if meta["kind"] == "measured":
                self.norms[name] = _measured(body, self.rows[name]["answered"])
            elif meta.get("counted") is True:
                self.parts[name] = self._part(name, meta, body)
        except Refused as refused:
            self.refused[refused.reason] += 1
            self.details.append(described(name, refused))
            federation.members[name].refused += 1

    def _part(self, name: str, meta: Mapping[str, Any], body: Mapping[str, Any]) -> Partial:
        """A sum, within what its devices could have sent. Raises Refused."""
        federation = self.federation
        size = federation.payload.size + 1 if federation.payload else 0
        try:
            part = Partial.of(meta, body, size)
        except FederatedError as error:
            raise Refused("payload", str(error)) from None
        row = self.rows[name]
        if part.devices != row["answered"]:
            raise Refused(
                "malformed", f"expected a sum of {row['answered']} devices, as it reports, got {part.devices}"
            )
        heaviest = part.devices * self._heaviest * (1 + TOLERANCE)
        if part.weight > heaviest:
            raise Refused(
                "examples", f"expected a weight up to {heaviest:g} of {part.devices} devices, got {part.weight:g}"
            )
        longest = part.weight * self._longest * part.stretch * (1 + TOLERANCE)
        if part.pull > longest:
            raise Refused("norm", f"expected a sum of a norm up to {longest:g}, got {part.pull:g}")
        federation.members[name].answered += 1
        return part

    @property
    def _heaviest(self) -> float:
        """The largest weight of one device."""
        federation, config = self.federation, self.federation.config
        if federation.algorithm.uniform or federation.transforms.uniform:
            return 1.0
        rarely = self.number + federation.attempt + 2 if config.rounds.compensate else 1
        return float(config.limits.examples * rarely)

    @property
    def _longest(self) -> float:
        """The largest norm of one update."""
        privacy, limits = self.federation.transforms.privacy, self.federation.config.limits
        clipped = privacy.noise == "central" or (privacy.secure and privacy.noise == "none")
        return min(limits.norm, privacy.clip) if clipped else limits.norm

    def result(self) -> tuple[Partial | None, dict[str, Any]]:
        """The sum over all aggregators that handed one up, none of them with too much influence (None: too few did, or
        not yet), and the report's row."""
        parts, cut = self._limited()
        total: Partial | None = None
        if len(parts) >= self.quorum:
            size = self.federation.payload.size + 1 if self.federation.payload else 0
            total = Partial(ExactSum(size) if size else None, 0, 0)
            for name in sorted(parts):
                total.merge(parts[name])
        return total, self._told(total is not None, cut)

    def _limited(self) -> tuple[dict[str, Partial], Counter[str]]:
        times = self.federation.config.hierarchy.influence
        parts, cut = dict(self.parts), Counter[str]()
        if not times or not self.federation.compares or self.federation.payload is None:
            return parts, cut
        weights = {name: part.weight for name, part in parts.items()}
        heaviest = most(np.array(list(weights.values())), times)
        shares = {name: min(1.0, heaviest / weight) if weight else 1.0 for name, weight in weights.items()}
        pulls = {name: part.pull * shares[name] for name, part in parts.items()}
        strongest = most(np.array(list(pulls.values())), times)
        for name, part in parts.items():
            elements = shares[name] * (strongest / pulls[name] if pulls[name] > strongest else 1.0)
            parts[name] = part.scaled(elements, shares[name])
            for what, less in (("weight", shares[name] < 1), ("norm", pulls[name] > strongest)):
                if less:
                    cut[f"aggregator {what}"] += 1
                    self.details.append(f"{name}: {what} cut to hierarchy.influence")
        return parts, cut

    def _told(self, counted: bool, cut: Counter[str]) -> dict[str, Any]:
        """The report's row: the sums over the devices below, and each aggregator's own counts."""
        below = [self.rows[name] for name in sorted(self.rows)]
        lost = sorted(set(self.asked.values()) - set(self.parts))
        refused, limited = Counter(self.refused), Counter(cut)
        for row in below:
            refused.update(row["refused"])
            limited.update(row["limited"])
        details = [*self.details, *(f"{name}/{detail}" for name in sorted(self.rows)
                                    for detail in self.rows[name]["details"])]  # fmt: skip
        return {
            "round": self.number,
            "counted": counted,
            **{key: sum(row[key] for row in below) for key in ("asked", "silent")},
            "answered": sum(part.devices for part in self.parts.values()),
            "refused": dict(sorted(refused.items())),
            "limited": dict(sorted(limited.items())),
            "left_out": [],
            "epsilon": self.federation.epsilon(),
            "details": details[:MOST_DETAILS],
            "loss": _mean([(row["loss"], row["answered"]) for row in below]),
            "norm": None,
            "bytes_down": self.bytes_down + sum(row["bytes_down"] for row in below),
            "bytes_up": self.bytes_up + sum(row["bytes_up"] for row in below),
            "aggregators": {
                name: {key: row[key] for key in (*_COUNTS, "refused", "limited") if row[key] or key in _COUNTS}
                for name, row in sorted(self.rows.items())
            },
            "lost_aggregators": lost,
            "lost_devices": sum(self.rows[name]["answered"] for name in lost if name in self.rows),
        }

    def learn(self, exchange: Exchange) -> dict[str, Any]:
        """At the root: the whole round, and a step from it; returns the report's row."""
        federation = self.federation
        self.gather(exchange)
        allowed = federation.allowed(self.measured)
        self.sum(exchange, allowed)
        total, row = self.result()
        norms = self.measured[:, 0]
        if len(norms) and not federation.transforms.quiet:
            row["norm"] = float(np.median(norms[norms <= allowed.norm]))
        if total is not None:
            federation.learn(total)
        else:
            federation.fail()
        row["epsilon"] = federation.epsilon()
        federation.rows.append(row)
        return row

    def outcome(self, row: Mapping[str, Any]) -> str:
        """How many answered, for an error."""
        return (
            f"{len(self.parts)} of {len(self.asked)} aggregators handed up a sum, expected {self.quorum}; "
            f"{row['answered']} of {row['asked']} devices answered"
        )


def end(federation: Federation, exchange: Exchange) -> None:
    """Tell the aggregators that the run is over. Those that do not answer within the devices' deadline are left."""
    nodes = federation.present(exchange.nodes()).values()
    message = order(federation, "end", federation.round)
    deadline = federation.config.rounds.deadline
    # A transport may drop what was sent when this server ends: wait for the answers, whatever they are.
    gather(exchange, "query", dict.fromkeys(nodes, message), deadline, lambda node, reply: None)


def survey(federation: Federation, exchange: Exchange, nodes: Collection[int], most: int) -> list[Survey]:
    """Let the aggregators evaluate the model, each on a part of the `most` devices of each kind; returns an evaluation
    of those that train, and one of the held-out ones if there are any."""
    there = federation.present(nodes)
    asked = {node: name for name, node in there.items()}
    each = math.ceil(most / max(1, len(asked)))
    message = order(federation, "survey", federation.round, {"most": each})
    handed: dict[str, Mapping[str, Any]] = {}
    lost: dict[str, str] = {}

    def take(node: int, reply: bytes | Failure) -> None:
        name = asked[node]
        try:
            expected = Expected("surveyed", name, federation.run, federation.round, federation.attempt)
            meta, _ = read_handed(reply, expected, ("surveyed",))
            handed[name] = meta
        except Refused as refused:
            lost[name] = described(name, refused)

    deadline = federation.config.hierarchy.deadline
    carried = gather(exchange, "query", dict.fromkeys(asked, message), deadline, take)
    found = []
    for kind in ("training", "held_out"):
        one = Survey(federation, kind == "held_out", {}, {}, details=list(lost.values()))
        for name in sorted(handed):
            told = handed[name].get(kind)
            if told is not None:
                try:
                    one.absorb(f"{name}/", told)
                except Refused as refused:
                    one.details.append(described(name, refused))
        if one.asked:
            found.append(one)
    if found:
        found[0].bytes_down += carried.bytes_down
        found[0].bytes_up += carried.bytes_up
    return found


def _row(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What an aggregator reports of its devices. Raises Refused."""
    row = meta.get("row")
    counts = (*_COUNTS, "bytes_down", "bytes_up")
    fits = isinstance(row, dict) and all(type(row.get(key)) is int and 0 <= row[key] < 1 << 53 for key in counts)
    if not isinstance(row, dict) or not fits or row["answered"] > row["asked"]:
        raise Refused("malformed", f"expected a row with counts {', '.join(counts)}, got {str(row)[:80]}")
    for key in ("refused", "limited"):
        found = row.get(key)
        if not isinstance(found, dict) or not all(type(count) is int and count >= 0 for count in found.values()):
            raise Refused("malformed", f"expected counts by reason as {key}, got {str(found)[:80]}")
    loss, details = row.get("loss"), row.get("details")
    if not (loss is None or (isinstance(loss, float) and math.isfinite(loss))) or not isinstance(details, list):
        raise Refused("malformed", f"expected a loss and details, got {str(loss)[:40]}, {str(details)[:40]}")
    words = {str(key)[:40]: row[key] for key in (*counts, "loss")}
    shown = ["".join(letter if letter.isprintable() else "?" for letter in str(each)[:300]) for each in details]
    return {
        **words,
        "refused": _short(row["refused"]),
        "limited": _short(row["limited"]),
        "details": shown[:MOST_DETAILS],
    }


def _short(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by reason, no more than there are reasons."""
    return {str(reason)[:40]: count for reason, count in list(counts.items())[:MOST_DETAILS]}


def _measured(body: Mapping[str, Any], most: int) -> Array:
    """float64 [n, 2], of at most so many updates, not negative and finite. Raises Refused."""
    found = body.get("measured")
    if not (isinstance(found, np.ndarray) and found.dtype == np.float64 and found.ndim == 2 and found.shape[1] == 2):
        raise Refused("payload", "expected norms and weights, float64 [n, 2]")
    if len(found) > most or not (np.isfinite(found) & (found >= 0)).all():
        raise Refused("payload", f"expected finite norms and weights from 0 of at most {most} updates")
    return found


def _mean(pairs: Iterable[tuple[float | None, int]]) -> float | None:
    """The weighted mean of the values that are told."""
    told = [(value, weight) for value, weight in pairs if value is not None and weight]
    weight = sum(weight for _, weight in told)
    return math.fsum(value * count for value, count in told) / weight if told else None
