"""The passive party: it has features and a part of the model, no labels, and answers the active party's messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.privacy.noise import NoiseSource, SecureSource
from federated.tree import Array
from federated.vertical import checkpoint
from federated.vertical.config import Party
from federated.vertical.matching import Matcher
from federated.vertical.messages import VERSION, Reply, floats, read, rows_of
from federated.vertical.party import Schedule, Table, Trained, ordered, table_of, trained_of
from federated.vertical.protection import Guard
from lite_runtime.errors import MsedgeError

__all__ = ["Passive"]

KEPT = 2


@dataclass
class Common:
    """The common rows: which of this party's they are, in the order of their identifiers, and what was sent of each."""

    own: Array
    guard: Guard


class Passive:
    """One run after another. `ended`: whether the active party said that the run is over."""

    def __init__(self, party: Party, source: NoiseSource | None = None) -> None:
        if party.role != "passive":
            raise FederatedError(f"vertical.role: expected passive, got {party.role}")
        self.party, self._source = party, source or SecureSource()
        self.table: Table = table_of(party)
        self.part: Trained = trained_of(party)
        self._check()
        self.ended = False
        self._run, self._number, self._asked, self._last = "", -1, b"", b""
        self._matcher: Matcher | None = None
        self._seen: Array = np.zeros((0, 32), np.uint8)
        self._common: Common | None = None
        self._schedule: Schedule | None = None
        self._words: Mapping[str, Any] = {}
        self._open: tuple[int, Array, tuple[int, ...]] | None = None
        """The step whose gradient is awaited, its rows, the shape of their results."""

    def answer(self, message: bytes) -> bytes:
        """The reply. Raises FederatedError only for bytes that are not a message at all."""
        meta, _ = unpack(message)
        same = {"version": VERSION, **{key: meta.get(key) for key in ("run", "number")}}
        try:
            words, body = read(message)
            digest = sha256(message).digest()
            if digest == self._asked:
                return self._last
            if words["kind"] != "hello" and (words["run"], words["number"]) != (self._run, self._number + 1):
                raise FederatedError(
                    f"expected message {self._number + 1} of run {self._run or 'none'}, got {words['number']} of "
                    f"{words['run'][:40]!r}: this party was restarted, or serves another run; continue with --resume"
                )
            reply, content = _KINDS[words["kind"]](self, words, body)
        except MsedgeError as error:
            return pack({**same, "kind": "refusal", "why": str(error)[:500]}, {})
        made = pack({**same, **reply}, content)
        self._run, self._number, self._asked, self._last = words["run"], words["number"], digest, made
        return made

    def hello(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """A run begins, or continues."""
        most = self.party.learning.most_epochs
        if not 1 <= words["epochs"] <= most:
            raise FederatedError(f"learning.most_epochs: expected 1 to {most}, got {words['epochs']}")
        if not (words["batch"] >= 1 and 0 <= words["test"] < 1 and words["seed"] >= 0):
            raise FederatedError(f"hello: expected a batch, a share and a seed, got {str(dict(words))[:200]}")
        self._words, self._open, self._schedule, self.ended = words, None, None, False
        if words["resume"] >= 0:
            self._restore(words["resume"])
        else:
            self.part = trained_of(self.party)
            self._matcher, self._common = Matcher(self.table.identifiers), None
        size = len(self._common.own) if self._common is not None else 0
        return {"kind": "hello", "size": size}, {}

    def match(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Hide the other party's points once more, and this party's."""
        if self._matcher is None:
            raise FederatedError("match: expected a run that begins, got one that continues")
        points = body.get("points")
        if not isinstance(points, np.ndarray) or points.ndim != 2:
            raise FederatedError("match: expected points")
        if not self.party.match.least <= len(points) <= self.party.match.most:
            raise FederatedError(
                f"match: expected {self.party.match.least} to {self.party.match.most} identifiers, got {len(points)}"
            )
        self._seen = self._matcher.again(points)
        return {"kind": "match"}, {"again": self._seen, "points": self._matcher.hidden()}

    def matched(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Which of this party's rows are common."""
        again = body.get("again")
        if self._matcher is None or not isinstance(again, np.ndarray):
            raise FederatedError("matched: expected this party's points, after the other party's")
        own = ordered(self.table, self._matcher.matched(again, self._seen))
        if len(own) != words["size"] or not len(own):
            size = words["size"]
            raise FederatedError(f"matched: expected {size} common rows, like the active party, got {len(own)}")
        self._common = Common(own, self._guard(np.zeros(len(own), np.int64)))
        self._matcher = None
        return {"kind": "matched", "size": len(own)}, {}

    def step(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Learn from the gradient of the step before, and compute the results of the next rows."""
        self._learn(body)
        rows, schedule = rows_of(body, len(self._rows.own)), self._scheduled()
        if not 1 <= words["step"] <= schedule.steps or not np.array_equal(rows, schedule.batch_of(words["step"])):
            raise FederatedError(f"step {words['step']}: expected the rows that follow from the seed, got others")
        values = self._leaving(rows)
        self._open = words["step"], rows, values.shape
        return {"kind": "values"}, {"values": values}

    def values(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """The results of rows that are not trained on. What is learned before them comes with them."""
        self._learn(body)
        rows = rows_of(body, len(self._rows.own))
        if not np.isin(rows, self._scheduled().parts[1]).all():
            raise FederatedError("values: expected rows to test with, got others")
        return {"kind": "values"}, {"values": self._leaving(rows)}

    def keep(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Write a checkpoint, if this party keeps any."""
        self._learn(body)
        if self.party.state.checkpoint:
            self._save(words["step"])
        return {"kind": "kept"}, {}

    def _save(self, step: int) -> None:
        meta = {"rows": self.table.digest, "words": dict(self._words)}
        tree = {"own": self._rows.own, "sent": self._rows.guard.sent, **self.part.state()}
        checkpoint.save(self.party, step, meta, tree, newest=KEPT)

    def end(self, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Write this party's part of the model."""
        self._learn(body)
        if self.party.report.bundle:
            self.part.write(self.party.path(self.party.report.bundle))
        self.ended = True
        return {"kind": "ended", "protection": dict(self._rows.guard.told())}, {}

    @property
    def _rows(self) -> Common:
        if self._common is None:
            raise FederatedError("expected the common rows to be known; match them first")
        return self._common

    def _scheduled(self) -> Schedule:
        if self._schedule is None:
            words = self._words
            size = len(self._rows.own)
            self._schedule = Schedule(size, words["test"], words["batch"], words["epochs"], words["seed"])
        return self._schedule

    def _leaving(self, rows: Array) -> Array:
        """The results of common rows, protected."""
        return self._rows.guard.leaving(self._computed(self.table.at(self._rows.own[rows])), rows)

    def _learn(self, body: Mapping[str, Any]) -> None:
        """A step from the gradient of the loss with respect to the results that were sent last."""
        if self._open is None:
            if "slopes" in body:
                raise FederatedError("slopes: expected none, since no step is open")
            return
        _, rows, shape = self._open
        slopes = floats(body, "slopes", shape)
        gradient, _ = self.part.learner.slopes(self.part.params, Batch(self.table.at(self._rows.own[rows]), slopes))
        self.part.step(gradient)
        self._open = None

    def _guard(self, sent: Array) -> Guard:
        return Guard(self.party.protect, sent, self._source)

    def _restore(self, step: int) -> None:
        _, words, body = checkpoint.load(self.party, step)
        same = ("epochs", "batch", "seed", "test")
        if words["rows"] != self.table.digest or any(words["words"][key] != self._words[key] for key in same):
            raise FederatedError("checkpoint: expected the rows and the settings that the run began with, got others")
        self.part.restore(body)
        # What was sent after the newest checkpoint is lost with it: no more than once of each row.
        _, _, newest = checkpoint.load(self.party)
        self._matcher, self._common = None, Common(body["own"], self._guard(newest["sent"] + 1))
        self._save(step)

    def _check(self) -> None:
        """Raises FederatedError for a bundle with another loss: its gradient would not be that of the common model."""
        rows = self.table.at(np.arange(1))
        result = self._computed(rows)
        wrong = self.part.learner.classifies
        if not wrong:
            found, _ = self.part.learner.slopes(self.part.params, Batch(rows, np.zeros_like(result)))
            wrong = float(found.loss) != 0
        if wrong:
            raise FederatedError("vertical.bundle: expected a model converted with --loss inner_product, got another")

    def _computed(self, inputs: Mapping[str, Array]) -> Array:
        """The result of this party's part of the model."""
        found = self.part.learner.outputs(self.part.params, inputs)
        if len(found) != 1:
            raise FederatedError(f"vertical.bundle: expected a model with one result, got {', '.join(found)}")
        return next(iter(found.values()))


_KINDS: Mapping[str, Callable[[Passive, Mapping[str, Any], Mapping[str, Any]], Reply]] = {
    "hello": Passive.hello,
    "match": Passive.match,
    "matched": Passive.matched,
    "step": Passive.step,
    "values": Passive.values,
    "keep": Passive.keep,
    "end": Passive.end,
}
