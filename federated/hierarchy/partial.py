"""What a server knows of the updates of its devices, and hands up: one sum, whatever the number of devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.exact import Digits, ExactSum
from federated.tree import Array

__all__ = ["Partial"]


@dataclass
class Partial:
    """The sum [size + 1] of updates times their weights, and of the weights, last (None: an algorithm without
    updates), over `devices` of the `there` that could have taken part. `within`: how many updates were within the
    clipping bound; `stretch`: by how much the grid of a secure sum may have lengthened an update."""

    total: ExactSum | None
    devices: int
    there: int
    within: float = 0.0
    stretch: float = 1.0

    def merge(self, other: Partial) -> None:
        """Add what another server hands up."""
        if self.total is not None and other.total is not None:
            self.total.merge(other.total)
        self.devices += other.devices
        self.there += other.there
        self.within += other.within
        self.stretch = max(self.stretch, other.stretch)

    @property
    def weight(self) -> float:
        """The sum of the weights."""
        return 0.0 if self.total is None else float(self.total.value()[-1])

    @property
    def pull(self) -> float:
        """The Euclidean norm of the sum: weight times the norm of the mean."""
        return 0.0 if self.total is None else float(np.linalg.norm(self.total.value()[:-1]))

    def scaled(self, elements: float, weight: float) -> Partial:
        """The same with the sum of updates and that of weights multiplied, in float64."""
        if self.total is None or elements == weight == 1:
            return self
        made = ExactSum(self.total.size)
        made.add(self.total.value() * np.append(np.full(self.total.size - 1, elements), weight))
        return Partial(made, self.devices, self.there, self.within, self.stretch)

    def packed(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Fields and arrays of a message."""
        words = {"devices": self.devices, "there": self.there, "within": self.within, "stretch": self.stretch}
        if self.total is None:
            return {**words, "lowest": 0}, {}
        lowest, digits, negative = self.total.digits()
        return {**words, "lowest": lowest}, {"digits": digits, "negative": negative}

    @classmethod
    def of(cls, words: Mapping[str, Any], arrays: Mapping[str, Any], size: int) -> Partial:
        """From a message, with a sum of `size` elements (0: none). Raises FederatedError for anything that no server
        could hand up."""
        match words:
            case {
                "devices": int(devices),
                "there": int(there),
                "lowest": int(lowest),
                "within": float(within),
                "stretch": float(stretch),
            } if 0 <= devices <= there < 1 << 31 and 0 <= within <= devices and 1 <= stretch < math.inf:
                pass
            case _:
                got = {key: words.get(key) for key in ("devices", "there", "lowest", "within", "stretch")}
                raise FederatedError(f"partial sum: expected devices among those there, got {got}"[:300])
        if not size:
            return cls(None, devices, there, within, stretch)
        digits, negative = arrays.get("digits"), arrays.get("negative")
        if not (isinstance(digits, np.ndarray) and isinstance(negative, np.ndarray)):
            raise FederatedError("partial sum: expected arrays digits and negative")
        total = ExactSum.of(Digits(lowest, digits, negative))
        value = total.value()
        if total.size != size or not np.isfinite(value).all() or (value[-1] > 0) != (devices > 0) or value[-1] < 0:
            raise FederatedError(f"partial sum: expected {size} finite numbers and a weight for {devices} devices, got "
                                 f"{total.size} and {value[-1:].tolist()}")  # fmt: skip
        return cls(total, devices, there, within, stretch)
