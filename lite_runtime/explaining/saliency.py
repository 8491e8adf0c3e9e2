"""Saliency: the gradient of the score, and the gradient times the input.

Simonyan et al. 2013, "Deep Inside Convolutional Networks"; Shrikumar et al. 2016, "Not Just a Black Box".
"""

from __future__ import annotations

from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["input_x_gradient", "saliency"]


def saliency(subject: Subject, x: Array, target: int, *, absolute: bool = False) -> Explanation:
    """The gradient of an output's score with respect to a sample (*shape), or its magnitude."""
    x = subject.checked(x)
    with Making(subject, "saliency", target) as making:
        slope = subject.gradient(x[None], target)[0]
        score = subject.scores(x[None])[0, target]
        return making.done(abs(slope) if absolute else slope, score, absolute=absolute)


def input_x_gradient(subject: Subject, x: Array, target: int) -> Explanation:
    """The gradient times the sample (*shape): for a linear model, what each element adds to the score."""
    x = subject.checked(x)
    with Making(subject, "input_x_gradient", target) as making:
        slope = subject.gradient(x[None], target)[0]
        return making.done(slope * x, subject.scores(x[None])[0, target])
