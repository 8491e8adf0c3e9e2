"""Methods by gradients for texts: with respect to the vectors of the tokens, as one figure a token.

Slopes become the length of a token's gradient (Li et al. 2016, "Visualizing and Understanding Neural Models in NLP"),
contributions the sum over its vector (as Captum's LayerIntegratedGradients does), so that what they add up to stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lite_runtime.explaining.explanation import Explanation
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["explained"]


def explained(
    subject: Subject, x: Array, baselines: Array, ask: Callable[[Subject, Array, Array], Explanation], *, slopes: bool
) -> Explanation:
    """The explanation of token ids (*shape) by a method that `ask` runs: of a subject, a sample (*shape, width) and
    baselines (count, *shape, width). slopes: whether its attributions are changes for each unit."""
    assert subject.embedding is not None, "as available() says"
    x = subject.checked(x)
    inner = subject.embedding.around(x).within(subject.left)
    vectors = subject.embedding.vectors(np.concatenate([x[None], baselines]))
    found = ask(inner, vectors[0], vectors[1:])
    subject.asked += inner.asked
    each = np.linalg.norm(found.attributions, axis=-1) if slopes else found.attributions.sum(-1)
    settings: dict[str, Any] = {**found.settings, "per token": "length" if slopes else "sum"}
    return replace(found, attributions=each, settings=settings)
