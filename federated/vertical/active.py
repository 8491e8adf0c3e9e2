"""The active party: it has the labels, its own features, and the rest of the model, and leads the run."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.evaluation import told as loss_told
from federated.learner import Batch
from federated.privacy.noise import NoiseSource, SecureSource
from federated.tree import Array
from federated.vertical import checkpoint
from federated.vertical.config import Party
from federated.vertical.matching import Matcher
from federated.vertical.messages import Reply, answer, ask, floats
from federated.vertical.party import Schedule, Table, Trained, ordered, table_of, trained_of
from federated.vertical.protection import Guard, randomised

__all__ = ["Active"]

Watch = Callable[[dict[str, Any]], None]
TRIES = 3
"""How often a message is sent, should the connection fail."""
TEST = 4096
"""The most rows that are tested at once."""


class Active:
    """A run. `send`: carries a message to the passive party and returns its answer."""

    def __init__(self, party: Party, send: Callable[[bytes], bytes], source: NoiseSource | None = None) -> None:
        if party.role != "active":
            raise FederatedError(f"vertical.role: expected active, got {party.role}")
        self.party, self._send, self._source = party, send, source or SecureSource()
        self.table: Table = table_of(party)
        self.part: Trained = trained_of(party)
        self.result = self._result()
        """The name of the input that is the other part's result."""
        self.run, self.step, self._number = secrets.token_hex(8), 0, 0
        self.rows: list[dict[str, Any]] = []
        self.losses: list[float] = []
        """Of the steps of this epoch."""
        self.bytes_up = self.bytes_down = 0
        self.slopes: Array | None = None
        """What is to be sent of the last step."""

    def _result(self) -> str:
        """Raises FederatedError unless the bundle and the data fit each other."""
        slopes, held = self.part.learner.slope_names, set(self.table.inputs)
        if len(slopes) != 1:
            raise FederatedError(
                f"vertical.bundle: expected one input with slopes, got {', '.join(slopes) or 'none'}; convert the "
                "model with --slopes for the input that is the passive party's result"
            )
        if 0 in self.part.learner.input_shape(slopes[0])[1:]:
            raise FederatedError(f"vertical.bundle: expected an input {slopes[0]!r} of known size for each row")
        if slopes[0] in held:
            raise FederatedError(f"data.file: expected no array {slopes[0]!r}, which the passive party computes")
        return slopes[0]

    def begin(self) -> None:
        """Agree on the run, and on the common rows."""
        self._hello(-1)
        matcher = Matcher(self.table.identifiers)
        hidden = matcher.hidden()
        _, body = self._ask("match", {}, {"points": hidden})
        again, points = (_points(body, name) for name in ("again", "points"))
        if not self.party.match.least <= len(points) <= self.party.match.most:
            raise FederatedError(
                f"match: expected {self.party.match.least} to {self.party.match.most} identifiers, got {len(points)}"
            )
        other = matcher.again(points)
        own = ordered(self.table, matcher.matched(again, other))
        if not len(own):
            raise FederatedError("match: expected common identifiers, got none; both must write them in the same way")
        self._ask("matched", {"size": len(own)}, {"again": other})
        self._common(own, np.zeros(len(own), np.int64), None)
        self._keep()

    def resume(self) -> None:
        """Continue from the checkpoint. Raises FederatedError without one that both parties have."""
        step, words, body = checkpoint.load(self.party)
        if words["rows"] != self.table.digest:
            raise FederatedError("checkpoint: expected the rows that the run began with, got others")
        self.run, self.step, self.rows = str(words["run"]), step, list(words["told"])
        self.losses = list(words["losses"])
        self.part.restore(body)
        # What was sent after the checkpoint is lost with it: no more than once of each row.
        self._common(body["own"], body["sent"] + 1, body["labels"])
        found = self._hello(step)
        if (size := found.get("size")) != len(self.own):
            raise FederatedError(f"the passive party: expected {len(self.own)} common rows, got {size!r:.40}")
        self._save()

    def train(self, watch: Watch = lambda row: None) -> None:
        """All steps, with an evaluation after each epoch."""
        while self.step < self.schedule.steps:
            self.losses.append(self._step(self.step + 1))
            last = self.step % self.schedule.steps_an_epoch == 0
            if last:
                row = {"epoch": self.step // self.schedule.steps_an_epoch, "step": self.step,
                       "loss": loss_told(float(np.mean(self.losses))), **self._test()}  # fmt: skip
                self.rows.append(row)
                self.losses = []
                watch(row)
            if last or self.step % self.party.state.every == 0:
                self._keep()

    def end(self) -> dict[str, Any]:
        """Both parties write their part of the model; returns the report."""
        words, _ = self._ask("end", {}, self._learned())
        if self.party.report.bundle:
            self.part.write(self.party.path(self.party.report.bundle))
        protect = self.party.protect
        noise = self.guard.epsilon()
        bounds = [each for each in (noise, protect.labels_epsilon or None) if each is not None]
        return {
            "run": self.run,
            "common": len(self.own),
            "trained_on": len(self.schedule.parts[0]),
            "steps": self.step,
            "rows": self.rows,
            "labels": {**self.guard.told(), "randomised": protect.labels_epsilon, "epsilon": min(bounds, default=None)},
            "results": words.get("protection"),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def _step(self, number: int) -> float:
        rows = self.schedule.batch_of(number)
        _, body = self._ask("step", {"step": number}, {"rows": rows, **self._learned()})
        values = floats(body, "values", (len(rows), *self.shape))
        inputs = {**self.table.at(self.own[rows]), self.result: values}
        gradient, slopes = self.part.learner.slopes(self.part.params, Batch(inputs, self.labels[rows]))
        self.part.step(gradient)
        # Clipping is about the gradient of each example's own loss; the loss is the mean over the batch.
        self.slopes = self.guard.leaving(slopes[self.result], rows, 1 / len(rows))
        self.step = number
        return float(gradient.loss)

    def _test(self) -> dict[str, Any]:
        """Loss and accuracy on rows that are not trained on; labels as they are."""
        rows, loss, correct, examples = self.schedule.parts[1], 0.0, 0, 0
        for begin in range(0, len(rows), TEST):
            part = rows[begin : begin + TEST]
            _, body = self._ask("values", {}, {"rows": part, **self._learned()})
            inputs = {**self.table.at(self.own[part]), self.result: floats(body, "values", (len(part), *self.shape))}
            found = self.part.learner.evaluate(self.part.params, Batch(inputs, self._true(part)))
            loss += float(found.loss)
            correct += int(found.correct)
            examples += int(found.examples)
        if not examples:
            return {"test_loss": None, "test_accuracy": None}
        accuracy = correct / examples if self.part.learner.classifies or correct else None
        return {"test_loss": loss_told(loss / examples), "test_accuracy": accuracy}

    def _true(self, rows: Array) -> Array:
        labels = self.table.labels
        if labels is None:
            raise FederatedError("expected labels at the active party")
        return labels[self.own[rows]]

    def _learned(self) -> dict[str, Array]:
        """The gradient of the last step, if it has not been sent."""
        slopes, self.slopes = self.slopes, None
        return {} if slopes is None else {"slopes": slopes}

    def _common(self, own: Array, sent: Array, labels: Array | None) -> None:
        """The common rows are known. `labels`: those that are trained with, from a checkpoint."""
        self.own, self.guard = own, Guard(self.party.protect, sent, self._source)
        words = self.party.learning
        self.schedule = Schedule(len(own), self.party.data.test, words.batch, words.epochs, words.seed)
        if labels is None:
            labels = self._true(np.arange(len(own)))
            if self.party.protect.labels_epsilon:
                labels = randomised(labels, self.party.protect.labels_epsilon, np.random.default_rng())
        self.labels = labels

    def _keep(self) -> None:
        """Checkpoints of both parties, the passive one's first."""
        if not self.party.state.checkpoint:
            return
        self._ask("keep", {"step": self.step}, self._learned())
        self._save()

    def _save(self) -> None:
        meta = {"run": self.run, "rows": self.table.digest, "told": self.rows, "losses": self.losses}
        body = {"own": self.own, "sent": self.guard.sent, "labels": self.labels, **self.part.state()}
        checkpoint.save(self.party, self.step, meta, body)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the passive party's result for one row."""
        return self.part.learner.input_shape(self.result)[1:]

    def _hello(self, resume: int) -> dict[str, Any]:
        words, test = self.party.learning, float(self.party.data.test)
        asked = {"epochs": words.epochs, "batch": words.batch, "seed": words.seed, "test": test, "resume": resume}
        self._number = 0
        found, _ = self._ask("hello", asked, {})
        return found

    def _ask(self, kind: str, words: Mapping[str, Any], body: Mapping[str, Any]) -> Reply:
        """Send a message until it is answered; one that has been answered already is answered the same again."""
        self._number += 1
        message = ask(kind, self.run, self._number, words, body)
        for tried in range(1, TRIES + 1):
            try:
                reply = self._send(message)
                break
            except FederatedError:
                if tried == TRIES:
                    raise
        self.bytes_down, self.bytes_up = self.bytes_down + len(message), self.bytes_up + len(reply)
        return answer(reply, _REPLIES.get(kind, kind), self.run, self._number)


def _points(body: Mapping[str, Any], name: str) -> Array:
    found = body.get(name)
    if not isinstance(found, np.ndarray):
        raise FederatedError(f"the passive party: expected points named {name!r}")
    return found


_REPLIES = {"step": "values", "keep": "kept", "end": "ended"}
"""The kind of answer, if it has another name."""
