"""The methods by name, with what each needs, and settings that fit a sample where none are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lite_runtime.errors import ExplainError
from lite_runtime.explaining.baselines import baseline
from lite_runtime.explaining.embedded import explained
from lite_runtime.explaining.explanation import Explanation
from lite_runtime.explaining.integrated import Rule, integrated_gradients
from lite_runtime.explaining.kernel_shap import kernel_shap
from lite_runtime.explaining.layout import Kind, Layout, blocks, layout_of, superpixels
from lite_runtime.explaining.occlusion import occlusion
from lite_runtime.explaining.rise import rise
from lite_runtime.explaining.saliency import input_x_gradient, saliency
from lite_runtime.explaining.smooth import smoothgrad
from lite_runtime.explaining.subject import Subject
from lite_runtime.graph import Array

__all__ = ["METHODS", "Method", "Wish", "available", "run", "wish_for"]


@dataclass(frozen=True)
class Wish:
    """Settings of all methods for one sample; each takes those that it has."""

    layout: Layout
    baselines: Array
    """(count, *shape) in the sample's type; methods with one baseline take the first."""
    parts: Array
    """(*shape): what is removed or kept together."""
    size: int | None = None
    """Of parts and windows along the places; None: by the kind."""
    steps: int = 50
    samples: int | None = None
    """Rows of methods that draw; None: 32 for smoothgrad, 1000 for others, more if there are many parts."""
    rule: Rule = "gauss_legendre"
    level: float = 0.15
    seed: int = 0

    def samples_or(self, usual: int) -> int:
        """The samples asked for, or as many as is usual."""
        return usual if self.samples is None else self.samples


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    run: Callable[[Any, Array, int, Wish], Explanation]
    needs: str
    """"scores", "gradient", or "graph": the inside of the model."""
    slopes: bool = False
    """Whether attributions are changes for each unit of an element; otherwise they are contributions."""


def _window(wish: Wish) -> tuple[int, ...]:
    return wish.layout.part_sizes(wish.size)


def _shap(subject: Subject, x: Array, target: int, wish: Wish) -> Explanation:
    count = int(wish.parts.max()) + 1
    samples = wish.samples_or(max(1000, 4 * count))
    return kernel_shap(
        subject, x, target, baseline=wish.baselines[0], parts=wish.parts, samples=samples, seed=wish.seed
    )


METHODS: Mapping[str, Method] = {
    "saliency": Method(lambda s, x, target, wish: saliency(s, x, target), "gradient", slopes=True),
    "input_x_gradient": Method(lambda s, x, target, wish: input_x_gradient(s, x, target), "gradient"),
    "integrated_gradients": Method(
        lambda s, x, target, wish: integrated_gradients(
            s, x, target, baselines=wish.baselines, steps=wish.steps, rule=wish.rule
        ),
        "gradient",
    ),
    "smoothgrad": Method(
        lambda s, x, target, wish: smoothgrad(
            s, x, target, samples=wish.samples_or(32), level=wish.level, seed=wish.seed
        ),
        "gradient",
        slopes=True,
    ),
    "occlusion": Method(
        lambda s, x, target, wish: occlusion(s, x, target, baseline=wish.baselines[0], window=_window(wish)), "scores"
    ),
    "rise": Method(
        lambda s, x, target, wish: rise(
            s, x, target, baseline=wish.baselines[0], layout=wish.layout, masks=wish.samples_or(1000), seed=wish.seed
        ),
        "scores",
    ),
    "kernel_shap": Method(_shap, "scores"),
}  # fmt: skip


def wish_for(
    subject: Subject, x: Array, *, kind: Kind | None = None, size: int | None = None, baselines: Any = ("zero",),
    superpixel_count: int | None = None, **settings: Any,
) -> Wish:  # fmt: skip
    """The settings for a sample. size: of parts and windows along the places. baselines: names, numbers or arrays of
    `baselines.baseline`. superpixel_count: parts of an image by colour, about so many. Raises ExplainError for what
    does not fit."""
    x = subject.checked(x)
    layout = layout_of(subject.shape, subject.dtype, kind)
    if size is not None and size < 1:
        raise ExplainError(f"size: expected 1 or more, got {size}")
    if not len(baselines):
        raise ExplainError("baselines: expected at least one, got none")
    if superpixel_count is not None and superpixel_count < 2:
        raise ExplainError(f"superpixels: expected 2 or more, got {superpixel_count}")
    parts = (
        blocks(layout.shape, layout.part_sizes(size))
        if superpixel_count is None
        else superpixels(x, layout, superpixel_count)
    )
    return replace(
        Wish(layout, np.stack([baseline(x, layout, how) for how in baselines]), parts, size), **settings
    )  # fmt: skip


def available(subject: Subject, table: Mapping[str, Method] = METHODS) -> tuple[str, ...]:
    """The methods that fit a model: those by gradients need a gradient by floats, or by the vectors of token ids."""
    may = {"scores"}
    if subject.embedding is not None:
        may |= {"gradient", *({"graph"} if subject.embedding.has_steps else ())}
    elif subject.has_gradient and subject.dtype.kind == "f":
        may |= {"gradient", *({"graph"} if subject.has_steps else ())}
    return tuple(name for name, method in table.items() if method.needs in may)


def run(
    subject: Subject,
    x: Array,
    method: str,
    wish: Wish,
    target: int | None = None,
    table: Mapping[str, Method] = METHODS,
) -> Explanation:
    """One explanation; target None: the output with the highest score. Raises ExplainError for a method that does not
    fit the model, with those that do."""
    if method not in table:
        raise ExplainError(f"method: expected one of {', '.join(table)}, got {method!r}")
    if method not in available(subject, table):
        left = ", ".join(available(subject, table))
        why = "its input is not of floats" if subject.dtype.kind != "f" else "it only predicts"
        if subject.has_gradient and subject.dtype.kind == "f":
            why = "its steps cannot be looked at"
        raise ExplainError(f"{subject.name}: {method} needs the {table[method].needs}, and {why}; {left} remain")
    row = table[method]
    if target is None:
        target = int(subject.scores(subject.checked(x)[None])[0].argmax())
    number = subject.target(target)
    if subject.embedding is None or row.needs == "scores":
        return row.run(subject, x, number, wish)
    return explained(
        subject, x, wish.baselines, lambda s, x, base: row.run(s, x, number, replace(wish, baselines=base)),
        slopes=row.slopes,
    )  # fmt: skip
