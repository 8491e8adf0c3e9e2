"""Questions: what a device contributes to a sum, how large that can be, and how it leaves the device.

A contribution is a vector of real numbers on a grid of multiples of `step`, sent as integers: sums of integers do not
depend on the order of devices, and are the same with and without masks. The device computes the bound of its
contribution from the question itself, so a server cannot understate it.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta

from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack
from federated.messages.transforms import Privacy
from federated.privacy.noise import NoiseSource
from federated.tables import Reader, Table, Whole
from federated.tree import Array

__all__ = ["MOST_EXAMPLES", "Asked", "Feature", "Question", "answer_dtype", "answer_limit", "question_digest"]

READ = Reader(FederatedError, "docs/federated-analytics.md has an example")
MOST_EXAMPLES = 1_000_000
"""The most examples of a device that count, if the question sets no limit."""
MOST_ELEMENTS = 1 << 24
"""The most elements of a contribution."""
_INTEGER = 2**31 - 1


class Question(Table, frozen=True):
    """What devices are asked. Subclasses are rows of `federated.analytics.registry.QUESTIONS`."""

    reader: ClassVar[Reader] = READ
    signed: ClassVar[bool] = False
    """Whether elements may be negative."""

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """The names of the arrays that it is about; (): all."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of elements of a contribution."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """The largest Euclidean norm of a contribution; infinity if nothing limits it."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """The largest magnitude of an element."""

    @abstractmethod
    def of(self, data: Batch, arrays: Mapping[str, Array], rng: np.random.Generator) -> Array:
        """A device's contribution: float64 [size], within `bound` and `largest`. `arrays` come with the question.

        Raises FederatedError if the device lacks the feature, or if the arrays do not fit.
        """


class Feature(Question, frozen=True):
    """A question about one feature: the array `feature` (or the labels, as "labels"), and one of its columns.

    weight "devices": each device counts 1, divided equally among its examples. "examples": each example counts 1; at
    most `most` examples of a device count, drawn at random (0: up to MOST_EXAMPLES, which no noise can hide).
    """

    feature: str = "x"
    column: Whole = 0
    weight: Literal["devices", "examples"] = "devices"
    most: Annotated[int, Meta(ge=0, le=MOST_EXAMPLES)] = 0

    @property
    def features(self) -> tuple[str, ...]:
        """The one."""
        return (self.feature,)

    @property
    def whole(self) -> float:
        """The largest weight of a device."""
        return 1.0 if self.weight == "devices" else float(self.most or MOST_EXAMPLES)

    @property
    def limited(self) -> bool:
        """Whether a device's weight has a limit that noise can hide."""
        return self.weight == "devices" or self.most > 0

    def values(self, data: Batch, rng: np.random.Generator) -> tuple[Array, Array]:
        """The feature of the examples that count [n], and their weights (float64 [n]). NaN is left out."""
        found = data.labels if self.feature == "labels" else data.inputs.get(self.feature)
        if found is None:
            raise FederatedError(
                f"analytics.feature: expected one of labels, {', '.join(sorted(data.inputs))}, got {self.feature!r}"
            )
        rows = np.asarray(found).reshape(len(found), -1)
        if self.column >= rows.shape[1]:
            raise FederatedError(
                f"analytics.column: expected at most {rows.shape[1] - 1} in {self.feature!r}, got {self.column}"
            )
        values = rows[:, self.column]
        if values.dtype.kind == "f":
            values = values[~np.isnan(values)]
        most = self.most or MOST_EXAMPLES
        if self.weight == "examples" and len(values) > most:
            values = values[np.sort(rng.choice(len(values), most, replace=False))]
        each = 1.0 / max(1, len(values)) if self.weight == "devices" else 1.0
        return values, np.full(len(values), each)

    def numbers(self, data: Batch, rng: np.random.Generator) -> tuple[Array, Array]:
        """`values` of a feature of numbers, as float64."""
        values, weights = self.values(data, rng)
        if values.dtype.kind not in "fiub":
            raise FederatedError(f"analytics.feature: expected numbers in {self.feature!r}, got {values.dtype}")
        return values.astype(np.float64), weights


@dataclass(frozen=True)
class Asked:
    """A question as a device receives it, with the privacy that is offered."""

    question: Question
    arrays: Mapping[str, Array]
    step: float
    devices: int
    privacy: Privacy
    multiplier: float

    @classmethod
    def of(cls, question: Question, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> Asked:
        """Raises FederatedError for fields that a server must not send."""
        step, devices, multiplier = meta["step"], meta["devices"], meta["multiplier"]
        if not (0 < step < 1e30 and 1 <= devices < 1 << 31 and 0 <= multiplier < 1e6):
            raise FederatedError(f"question: expected a step, devices and a multiplier, got {step}, {devices}, "
                                 f"{multiplier}")  # fmt: skip
        if not 1 <= question.size <= MOST_ELEMENTS:
            raise FederatedError(f"question: expected 1 to {MOST_ELEMENTS} elements, got {question.size}")
        words = {"noise": meta["noise"], "secure": meta["secure"], "model": meta["threat"]}
        noisy = meta["noise"] != "none"
        if noisy and not math.isfinite(question.bound):
            raise FederatedError("question: expected contributions of bounded norm with noise, got no bound")
        bound = question.bound if math.isfinite(question.bound) else 0.0
        privacy = Privacy.of({**words, "clip": bound, "multiplier": multiplier if noisy else 0.0})
        return cls(question, arrays, float(step), devices, privacy, float(multiplier))

    def vector(self, data: Batch, rng: np.random.Generator, source: NoiseSource) -> Array:
        """The contribution as it leaves: multiples of the step, int32 or int64 [size], with the device's own noise if
        any."""
        question, found = self.question, self.question.of(data, self.arrays, rng)
        fits = found.shape == (question.size,) and bool(np.isfinite(found).all())
        if not fits or float(np.linalg.norm(found)) > question.bound * (1 + 1e-9):
            raise FederatedError("question: expected a finite contribution within its bound; the data do not fit it")
        if self.privacy.noise == "local":
            found = found + 2 * self.multiplier * question.bound * source.normal(question.size)
        limit = answer_limit(question, self.step, self.privacy.noise, self.multiplier)
        if self.privacy.secure and limit * self.devices > _INTEGER:
            raise FederatedError(
                f"question: expected sums of {self.devices} devices below 2^31, got contributions of up to {limit}"
            )
        return np.rint(found / self.step).clip(-limit, limit).astype(answer_dtype(limit))


def answer_dtype(limit: int) -> type[np.signedinteger[Any]]:
    """The dtype of an answer with integers up to this magnitude."""
    return np.int32 if limit <= _INTEGER else np.int64


def answer_limit(question: Question, step: float, noise: str, multiplier: float) -> int:
    """The largest magnitude of an integer in an answer; room for six deviations of a device's own noise."""
    room = 12 * multiplier * question.bound if noise == "local" else 0.0
    return int(np.ceil((question.largest + room) / step * (1 - 1e-12)))


def question_digest(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """A digest (32 bytes) of what is asked: the same for all devices of a sum, whatever the run and its number."""
    words = {key: meta[key] for key in _ASKED}
    return sha256(json.dumps(words, sort_keys=True).encode() + b"\0" + pack({}, {"arrays": arrays})).digest()


_ASKED = ("question", "step", "devices", "noise", "secure", "threat", "multiplier", "seed")
