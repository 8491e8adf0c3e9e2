"""What hides single rows in what leaves a party: clipping and noise with an account per row, and randomised labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from federated.errors import FederatedError
from federated.privacy.accountant import Accountant
from federated.privacy.noise import NoiseSource, SecureSource
from federated.tree import Array
from federated.vertical.config import Protect

__all__ = ["Guard", "randomised"]


@dataclass
class Guard:
    """`sent`: how often something of each row has left (int64 [rows]); the account is that of the row sent most often.

    Two tables are neighbours if they differ in one row, whose clipped values are at most 2 clip apart.
    """

    words: Protect
    sent: Array
    source: NoiseSource = field(default_factory=SecureSource)

    def leaving(self, values: Array, rows: Array, scale: float = 1.0) -> Array:
        """Values (float32 [n, ...]) of rows (int64 [n], each once), as they may leave. `scale`: what they are times
        the values that `clip` is about. Raises FederatedError if that would exceed `most_epsilon`."""
        self._charge(rows)
        if not self.words.clip:
            return values
        flat = values.reshape(len(values), -1).astype(np.float64) / scale
        norms = np.linalg.norm(flat, axis=1, keepdims=True)
        flat *= np.divide(self.words.clip, norms, out=np.ones_like(norms), where=norms > self.words.clip)
        if self.words.multiplier:
            flat += 2 * self.words.clip * self.words.multiplier * self.source.normal(flat.size).reshape(flat.shape)
        return (flat * scale).astype(np.float32).reshape(values.shape)

    def _charge(self, rows: Array) -> None:
        if len(np.unique(rows)) != len(rows):
            raise FederatedError("protect: expected each row once in a batch, got one twice")
        after = self.sent.copy()
        after[rows] += 1
        limit = self.words.most_epsilon
        if limit and (cost := self._cost(int(after.max(initial=0)))) > limit:
            raise FederatedError(
                f"protect.most_epsilon: expected what is sent of a row to cost at most {limit:g}, got {cost:.3g} with "
                "what is next; train fewer epochs, or allow more"
            )
        self.sent = after

    def epsilon(self) -> float | None:
        """What has been sent of the row that was sent most often; None without noise."""
        cost = self._cost(int(self.sent.max(initial=0)))
        return cost if math.isfinite(cost) else None

    def _cost(self, times: int) -> float:
        if not self.words.multiplier:
            return math.inf
        return Accountant().charge(self.words.multiplier, rounds=times).epsilon(self.words.delta) if times else 0.0

    def told(self) -> Mapping[str, float | int | None]:
        """For the report."""
        most = int(self.sent.max(initial=0))
        return {"clip": self.words.clip, "multiplier": self.words.multiplier, "delta": self.words.delta,
                "times": most, "epsilon": self.epsilon()}  # fmt: skip


def randomised(labels: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """Labels (integers [n], classes from 0) by randomised response over the classes that occur: each stays with
    probability e^epsilon / (e^epsilon + classes - 1), and is another one at random otherwise. Everything computed from
    them is then epsilon-private with respect to a label (Ghazi et al., "Deep Learning with Label Differential Privacy",
    NeurIPS 2021, algorithm 1). Raises FederatedError for labels that are not classes."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise FederatedError(f"protect.labels_epsilon: expected classes [n], got {labels.dtype} {list(labels.shape)}")
    classes = np.unique(labels)
    if len(classes) < 2:
        return labels.copy()
    stays = 1 / (1 + (len(classes) - 1) * math.exp(-epsilon))
    places = np.searchsorted(classes, labels)
    moved = (places + rng.integers(1, len(classes), len(labels))) % len(classes)
    return classes[np.where(rng.random(len(labels)) < stays, places, moved)].astype(labels.dtype)
