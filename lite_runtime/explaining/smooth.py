"""SmoothGrad: the mean gradient over noisy copies of the sample.

Smilkov et al. 2017, "SmoothGrad: Removing Noise by Adding Noise"; the mean of squares is Hooker et al. 2019's.
"""

from __future__ import annotations

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["smoothgrad"]


def smoothgrad(
    subject: Subject, x: Array, target: int, *, samples: int = 32, level: float = 0.15, squares: bool = False,
    seed: int = 0, noise: Array | None = None,
) -> Explanation:  # fmt: skip
    """The mean gradient, or the mean of squared gradients, over copies of a sample (*shape) with normal noise.

    level: the noise's standard deviation as a share of the sample's range. noise: (samples, *shape), used as it is
    instead. Raises ExplainError for counts below 1 and noise of another shape.
    """
    x = subject.checked(x)
    if noise is None and (samples < 1 or not 0 <= level < np.inf):
        raise ExplainError(f"expected at least 1 sample and a level of 0 or more, got {samples} and {level}")
    if noise is not None and (noise.shape[1:] != x.shape or not len(noise)):
        raise ExplainError(f"noise: expected shape [samples, *{list(x.shape)}], got {list(noise.shape)}")
    samples = samples if noise is None else len(noise)
    subject.needs(samples + 1, f"smoothgrad with {samples} samples", "use fewer samples")
    deviation, random = level * (float(x.max() - x.min()) or 1.0), np.random.default_rng(seed)
    with Making(subject, "smoothgrad", target) as making:
        total = np.zeros(x.shape)
        for start in range(0, samples, subject.rows_at_once):
            rows = min(subject.rows_at_once, samples - start)
            if noise is None:
                some = random.standard_normal((rows, *x.shape), np.float32) * deviation
            else:
                some = noise[start : start + rows]
            slopes = subject.gradient(x + some, target)
            total += (slopes**2 if squares else slopes).sum(0)
        score = subject.scores(x[None])[0, target]
        return making.done(total / samples, score, samples=samples, level=level, squares=squares, seed=seed)
