"""A white box whose scores are the deployed file's and whose gradients are its float twin's.

Rounding has no gradient. The straight-through estimator (Bengio, Leonard and Courville 2013, arXiv 1308.3432) passes
over it; as a way to attack what has no gradient it is the backward pass differentiable approximation of Athalye,
Carlini and Wagner, "Obfuscated Gradients Give a False Sense of Security", ICML 2018, arXiv 1802.00420, section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cloud.audit.victim import Array, Victim, WhiteBox
from cloud.errors import AuditError
from lite_runtime.calibration.scores import are_probabilities

__all__ = ["StraightThrough"]

_SUM = 0.02
"""How far from 1 the sum of probabilities may be: those of 8 bits."""
_LEAST = np.float32(1 / 1024)
"""What a probability that was rounded to 0 counts as."""


class StraightThrough(WhiteBox):
    """Attacks by gradients on `file` itself: they see its answers, and go where its float twin's gradients point.

    Raises AuditError for a twin of other shapes."""

    def __init__(self, file: Victim, twin: WhiteBox) -> None:
        if (file.shape, file.classes) != (twin.shape, twin.classes):
            raise AuditError(
                f"{twin.name}: expected inputs {list(file.shape)} and {file.classes} classes, as {file.name} has, got "
                f"{list(twin.shape)} and {twin.classes}"
            )
        super().__init__(file.name, twin._forward, twin._weights, file.shape, file.classes, twin.function)
        self._file, self._twin, self.rounds = file, twin, file.rounds
        tried = file.logits(np.random.default_rng(0).random((4, *file.shape), np.float32))
        self._probabilities = are_probabilities(tried, _SUM)

    @property
    def any_size(self) -> bool:
        """See `Victim`."""
        return self._twin.any_size

    def linearised(self, x: Array) -> tuple[Array, Callable[[Array], Array]]:
        """The file's scores, and the twin's gradients. See `WhiteBox`."""
        self.counted(len(x))
        return self._scores(x), self._twin.linearised(x)[1]

    def _scores(self, x: Array) -> Array:
        scores = self._file.logits(x)
        return np.log(np.maximum(scores, _LEAST)) if self._probabilities else scores
