"""What a device tells about its work, if its owner agrees: counted here, kept while it is offline, sent in batches.

Everything is in one file of bounded size, which is replaced as a whole: a device that is switched off loses what it
counted since the last `flush`, and a batch whose answer was lost is sent again as it was.

Private telemetry (local differential privacy): of each class histogram the shares are sent, not the counts, with
Gaussian noise that is added on the device (`federated.privacy`). An account says how many batches the epsilon pays for;
then nothing more is sent. Counters and sketches are left out, as their size alone tells something.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from edge.agent.errors import AgentError
from federated.privacy import FlatClip, GaussianNoise, NoiseSource, SecureSource, noise_for
from lite_runtime._files import write_atomically
from lite_runtime.updates import fields
from lite_runtime.updates.release import may_name
from lite_runtime.updates.sketch import Sketch
from lite_runtime.updates.telemetry import (
    LARGEST,
    MOST_CLASSES,
    MOST_COUNTERS,
    MOST_LABELS,
    MOST_SKETCHES,
    Batch,
    Part,
    packed,
    read_batch,
    written,
)

__all__ = ["OTHER", "Private", "Telemetry"]

OTHER = "other"
"""The label of classes for which there is no room."""
_ROOM = 1 << 17
"""Bytes of parts in one batch; the hub takes more."""


class Sends(Protocol):
    """What hands batches in: `edge.agent.conversation.Conversation`."""

    def telemetry(self, batch: bytes) -> None:
        """Raises RefusedError, LaterError."""
        ...


class Private(NamedTuple):
    """Noise on the device. epsilon, delta: of all `batches` together. labels: of each class histogram, all that exist:
    which ones were seen would tell something too."""

    epsilon: float
    delta: float
    batches: int
    labels: Mapping[str, Sequence[str]]


class _Counts:
    """What was counted of one version since the last flush."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self.sketches: dict[str, Sketch] = {}
        self.classes: dict[str, dict[str, float]] = {}


class Telemetry:
    """The file at `path`; `enabled` is the owner's word, and without it nothing is counted, kept or sent.

    most: bytes of the file; the oldest parts are dropped first. source: of the noise. Raises AgentError for a file that
    is damaged, and for a name that a message cannot have.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        enabled: bool = False,
        most: int = 1 << 18,
        private: Private | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        self._path, self.enabled, self._most, self._private = Path(path), enabled, most, private
        self._source = source or SecureSource()
        self._open: dict[tuple[str, str], _Counts] = {}
        self._begun = 0.0
        self._noise: float | None = None
        self._serial, self._spent, self.dropped, self._pending, self._queue = _read(self._path)

    # -- counting

    def count(self, application: str, version: str, name: str, number: int = 1) -> None:
        """Count something that happened. Raises AgentError for a number below 0."""
        if number < 0:
            raise AgentError(f"telemetry, {name}: expected a number from 0 on, got {number}")
        if found := self._of(application, version, name):
            _room_for(found.counters, name, MOST_COUNTERS)
            found.counters[name] = min(found.counters.get(name, 0) + number, LARGEST)

    def value(self, application: str, version: str, name: str, value: float) -> None:
        """Count a value: the milliseconds of an inference ("latency_ms"), a feature of an input, a score."""
        if found := self._of(application, version, name):
            _room_for(found.sketches, name, MOST_SKETCHES)
            found.sketches.setdefault(name, Sketch()).add(value)

    def seen(self, application: str, version: str, name: str, label: str) -> None:
        """Count a class: the answer of a model, or the bin of an input. What is beyond 255 labels counts as OTHER."""
        if found := self._of(application, version, name):
            if not may_name(label):
                raise AgentError(f"telemetry, {name}: expected a label of a-z 0-9 . _ -, got {label!r}")
            _room_for(found.classes, name, MOST_CLASSES)
            counts = found.classes.setdefault(name, {})
            label = label if label in counts or len(counts) < MOST_LABELS - 1 else OTHER
            counts[label] = counts.get(label, 0) + 1

    def _of(self, application: str, version: str, name: str) -> _Counts | None:
        if not self.enabled:
            return None
        if not may_name(name):
            raise AgentError(f"telemetry: expected a name of a-z 0-9 . _ -, got {name!r}")
        return self._open.setdefault((application, version), _Counts())

    # -- keeping and sending

    def flush(self, now: float) -> None:
        """Put what was counted into the file. now: seconds since 1970. Raises AgentError if it cannot be written."""
        if not self.enabled or not self._open:
            return
        for (application, version), one in self._open.items():
            sketches = {name: packed(sketch) for name, sketch in one.sketches.items()}
            part = Part(application, version, self._begun or now, now, one.counters, sketches, one.classes)
            self._queue.append(fields.plain(part))
        self._open, self._begun = {}, now
        self._store()

    def send(self, hub: Sends) -> int:
        """Send what is in the file; returns how many batches. Raises RefusedError, LaterError: what was not taken
        stays."""
        sent = 0
        while self.enabled and (self._pending is not None or self._queue):
            if self._pending is None and not self._prepare():
                break
            assert self._pending is not None
            hub.telemetry(json.dumps(self._pending).encode())
            self._pending = None
            self._store()
            sent += 1
        return sent

    @property
    def left(self) -> int | None:
        """How many private batches may still be sent; None: any number, as nothing is private."""
        return None if self._private is None else max(0, self._private.batches - self._spent)

    def _prepare(self) -> bool:
        """The next batch from the queue, stored before it is sent; False if the account is spent."""
        if self.left == 0:
            self._queue = []
            self._store()
            return False
        rows: list[dict[str, Any]] = []
        size = 0
        while self._queue and (not rows or size + len(json.dumps(self._queue[0])) <= _ROOM):
            size += len(json.dumps(self._queue[0]))
            rows.append(self._queue.pop(0))
        self._serial += 1
        plain = {"protocol": fields.PROTOCOL, "serial": self._serial, "parts": rows}
        made = read_batch(json.dumps(plain).encode())
        if self._private is not None:
            self._spent += 1
            made = self._noisy(made, self._private)
        self._pending = json.loads(written(made))
        self._store()
        return True

    def _noisy(self, batch: Batch, private: Private) -> Batch:
        """All class histograms of a batch as one vector of norm 1 at most, with noise: of the version that was counted
        last, as each further one would cost as much again."""
        if self._noise is None:
            self._noise = noise_for(private.epsilon, private.delta, rounds=private.batches)
        mechanism = GaussianNoise(FlatClip(1.0), self._noise, "local")
        application, version = max(batch.parts, key=lambda part: part.ended)[:2]
        scale = math.sqrt(len(private.labels))
        shares = {name: _shares(batch, application, version, name, labels) for name, labels in private.labels.items()}
        clipped = mechanism.clip({name: one / scale for name, one in shares.items()}).tree
        noisy: Any = mechanism.of_device(clipped, self._source)
        classes = {
            name: {label: float(value) * scale for label, value in zip(labels, noisy[name], strict=True)}
            for name, labels in private.labels.items()
        }
        begun, ended = min(part.begun for part in batch.parts), max(part.ended for part in batch.parts)
        part = Part(application, version, begun, ended, classes=classes)
        return Batch(batch.serial, (part,), private.epsilon, private.delta)

    def _store(self) -> None:
        while len(words := self._words()) > self._most and self._queue:
            self._queue.pop(0)
            self.dropped += 1
        write_atomically(self._path, words, AgentError, mode=0o600)

    def _words(self) -> bytes:
        state = {"serial": self._serial, "spent": self._spent, "dropped": self.dropped, "pending": self._pending,
                 "queue": self._queue}  # fmt: skip
        return json.dumps(state, separators=(",", ":")).encode()


def _room_for(held: Mapping[str, Any], name: str, most: int) -> None:
    if name not in held and len(held) >= most:
        raise AgentError(f"telemetry: expected at most {most} names of one kind for a version, got {name!r} too")


def _shares(batch: Batch, application: str, version: str, name: str, labels: Sequence[str]) -> Any:
    """float64 [labels]: how often each was seen, as shares of 1; zeros if none was."""
    found = np.zeros(len(labels))
    for part in batch.parts:
        if (part.application, part.version) == (application, version):
            counts = part.classes.get(name, {})
            found += [counts.get(label, 0.0) for label in labels]
    return found / max(found.sum(), 1.0)


def _read(path: Path) -> tuple[int, int, int, dict[str, Any] | None, list[dict[str, Any]]]:
    if not path.exists():
        return 0, 0, 0, None, []
    try:
        found = json.loads(path.read_bytes())
        serial, spent, dropped = (int(found[key]) for key in ("serial", "spent", "dropped"))
        pending, queue = found["pending"], list(found["queue"])
        for rows, number in ((queue, 1), ([] if pending is None else pending["parts"], serial or 1)):
            read_batch(json.dumps({"protocol": fields.PROTOCOL, "serial": number, "parts": rows[:256]}).encode())
    except (OSError, ValueError, KeyError, TypeError, RecursionError, fields.ProtocolError) as problem:
        raise AgentError(f"{str(path)!r}: expected kept telemetry, got a damaged file ({problem}); remove it") from None
    return serial, spent, dropped, pending, queue
