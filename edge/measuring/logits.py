"""How like one another the logits of two language models are: a bundle's, and those of what it was made of.

Windows of a text go through both. What counts depends on what a bundle keeps. With float32 activations its logits are
the source's but for the order of sums, so the largest difference is bounded. With activations of 8 bits, one number
that is rounded the other way moves everything behind it: single logits say little. Then the divergence of the two
distributions (Kullback-Leibler, nats a token) is bounded: it is the rise of the logarithm of perplexity on text that
the source itself would write, without the noise that some other text adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.language.engine import Engine, Part

if TYPE_CHECKING:
    from lite_runtime import Model
    from lite_runtime.bundle import Bundle

__all__ = ["DIVERGENCE", "SHARE", "Likeness", "compared", "logits_of", "most_nats", "most_share"]

SHARE = {"float32": 1e-3, "float16": 2e-3}
"""By caches, the allowed difference of logits as a share of their range, with activations of float32. Over 1,536
tokens, SmolLM2's differ by up to 1.5e-6 and 9e-4."""
DIVERGENCE = {"none": 0.01, "w8": 0.02, "w4": 0.5}
"""Allowed divergence in nats by quantisation mode. 0.01 is one percent of perplexity: 8-bit activations cost SmolLM2
0.003. The logarithm of its perplexity rises by 0.25 with 4 bits without data, by 0.15 with GPTQ; another model's logits
are several nats off."""
_ERRORS = 2
"""Standard errors of the mean by which the perplexities of a text may be apart beyond that."""


@dataclass(frozen=True)
class Likeness:
    """Of all positions of all windows."""

    tokens: int
    share: float
    """The largest difference of two logits, divided by the range of the expected ones of its window."""
    agreement: float
    """The share of positions with the same greatest token."""
    divergence: float
    """Kullback-Leibler divergence from the expected distribution, in nats, on average."""
    expected: float
    """Perplexity of the text by the expected logits."""
    perplexity: float
    """Perplexity by the others."""
    error: float
    """The standard error of the difference of the two perplexities' logarithms."""

    @property
    def rise(self) -> float:
        """By which share the perplexity is higher than expected."""
        return math.expm1(math.log(self.perplexity) - math.log(self.expected))

    def within(self, share: float) -> bool:
        """Whether no logit differs by more than this share of the range."""
        return self.share <= share

    def alike(self, nats: float) -> bool:
        """Whether divergence, and the logarithm of the perplexity beyond what a text of this length tells, differ by at
        most this."""
        apart = math.log(self.perplexity) - math.log(self.expected)
        return self.divergence <= nats and apart <= nats + _ERRORS * self.error


def most_nats(held: Bundle) -> float:
    """The allowed divergence of a bundle's logits from its source's."""
    return DIVERGENCE.get(_mode(held), DIVERGENCE["w4"])


def most_share(held: Bundle) -> float | None:
    """The allowed difference of a bundle that computes its source's numbers, but for the order of sums and caches of
    float16; None for others."""
    about = held.metadata["language"]
    if about.get("activations") != "float32" or _mode(held) != "none":
        return None
    return SHARE.get(str(about.get("cache")))


def _mode(held: Bundle) -> str:
    options = held.provenance.get("options")
    return str(options.get("mode", "none")) if isinstance(options, Mapping) else "none"


def logits_of(model: Model, windows: Array) -> Iterator[Array]:
    """A bundle's logits (length, vocabulary) of each window of tokens (windows, length). Raises InputError for a bundle
    without a language model."""
    engine = Engine(model, windows.shape[1], 0)
    for window in windows:
        sequence = engine.start()
        yield engine.run([Part(sequence, window.tolist(), len(window))])[0]
        engine.end(sequence)


def compared(windows: Array, found: Iterable[Array], expected: Iterable[Array]) -> Likeness:
    """found and expected: logits (length, vocabulary) of each window. Raises InputError for other shapes, and for
    logits that are not finite."""
    share, same, nats, surprises = 0.0, 0, 0.0, list[Array]()
    for window, a, b in zip(windows, found, expected, strict=True):
        if a.shape != b.shape:
            raise InputError(f"expected logits of shape {list(b.shape)}, got {list(a.shape)}")
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise InputError("expected logits that are finite, got infinity or NaN; the model or the bundle is damaged")
        share = max(share, float(np.abs(a - b).max()) / max(float(np.ptp(b)), 1e-30))
        same += int((a.argmax(-1) == b.argmax(-1)).sum())
        ours, theirs = _logarithms(a), _logarithms(b)
        nats += float((np.exp(theirs) * (theirs - ours)).sum())
        at = np.arange(len(window) - 1), window[1:]
        surprises.append(np.stack([-ours[at], -theirs[at]]))
    both = np.concatenate(surprises, axis=1)
    tokens, apart = windows.size, both[0] - both[1]
    error = float(apart.std() / math.sqrt(apart.size))
    most = np.exp(np.minimum(both.mean(axis=1), 700.0))
    return Likeness(tokens, share, same / tokens, max(nats / tokens, 0.0), float(most[1]), float(most[0]), error)


def _logarithms(logits: Array) -> Array:
    """Of probabilities, float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide
