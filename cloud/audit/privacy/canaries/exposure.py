"""What a language model knows by heart: the exposure of a secret, and its extraction.

Carlini, Liu, Erlingsson, Kos and Song, "The Secret Sharer: Evaluating and Testing Unintended Memorization in Neural
Networks", USENIX Security 2019. A secret of random symbols behind a known prefix is put in the training text; its
exposure is log2 of how many secrets there are less log2 of its rank among them by the model's likelihood. By chance it
is 1.44 on average; an exposure near log2 of all secrets means that it can be extracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.engine import EngineFunction, lower
from cloud.errors import AuditError

__all__ = ["Exposure", "Speaker", "exposure", "extract"]

ROWS = 256


@dataclass(frozen=True)
class Exposure:
    """A secret's exposure, in bits."""

    sampled: float
    """By the rank among random secrets: at most log2 of their number plus one."""
    fitted: float
    """By a skew normal distribution of their losses, for ranks beyond the sample; at most `bits`."""
    rank: int
    """Among the random secrets and the secret itself, from 1."""
    bits: float
    """log2 of the number of possible secrets."""
    loss: float
    """Negative log likelihood of the secret behind its prefix, nats."""


class Speaker:
    """A language model as `cloud.zoo.transformer` makes it: `x` (rows, length) int32 to logits (rows, length,
    vocabulary), each of the next token. Raises AuditError for another."""

    def __init__(self, model: ir.Model) -> None:
        import jax

        function: EngineFunction = lower(model)
        spec = function.inputs[0]
        if len(function.inputs) != 1 or spec.dtype.kind != "i" or len(spec.shape or ()) != 2:
            raise AuditError(f"expected a model of tokens (rows, length), got {[one.name for one in function.inputs]}")
        size = (spec.shape or ())[1]
        self.length = size if isinstance(size, int) else 0
        self._kind, name, output = spec.dtype, spec.name, function.outputs[0].name
        weights = function.params, function.state
        run = jax.jit(lambda w, x: jax.nn.log_softmax(function.apply(w[0], w[1], {name: x})[0][output], axis=-1))
        self._compiled, self._weights = run, weights

    def next(self, texts: np.ndarray) -> np.ndarray:
        """Log chances (rows, vocabulary) of the token behind texts (rows, n) of ids. Raises AuditError for
        texts longer than the model takes."""
        return self._logs(texts)[:, texts.shape[1] - 1]

    def losses(self, texts: np.ndarray, begin: int) -> np.ndarray:
        """Negative log likelihoods (rows,) of texts (rows, n) from position `begin` on, given what is before.
        Raises AuditError for a prefix that is empty or the whole text, and for texts longer than the model takes."""
        texts = np.asarray(texts)
        if not 0 < begin < texts.shape[1]:
            raise AuditError(f"expected a prefix of 1 to {texts.shape[1] - 1} tokens, got {begin}")
        logs = self._logs(texts)[:, begin - 1 : texts.shape[1] - 1]
        each = np.take_along_axis(logs, texts[:, begin:, None].astype(np.int64), 2)
        return np.asarray(-each[..., 0].sum(1))

    def _logs(self, texts: np.ndarray) -> np.ndarray:
        if self.length and texts.shape[1] > self.length:
            raise AuditError(f"expected texts of at most {self.length} tokens, got {texts.shape[1]}")
        wide = np.zeros((len(texts), max(self.length, texts.shape[1])), self._kind)
        wide[:, : texts.shape[1]] = texts  # attention is causal: what comes behind changes nothing
        parts = []
        for start in range(0, len(wide), ROWS):
            part = wide[start : start + ROWS]
            filled = np.concatenate([part, np.repeat(part[:1], min(ROWS, len(wide)) - len(part), axis=0)])
            parts.append(np.asarray(self._compiled(self._weights, filled))[: len(part)])
        return np.concatenate(parts)


def exposure(
    model: Speaker, prefix: Sequence[int], secret: Sequence[int], alphabet: Sequence[int], *, samples: int = 2048,
    seed: int = 0,
) -> Exposure:  # fmt: skip
    """The exposure of `secret`, token ids, behind `prefix`, each of whose symbols could have been any of `alphabet`.

    samples: random secrets that it is compared with. Raises AuditError for a secret of other symbols, and texts that
    are too long for the model.
    """
    letters, own = np.unique(np.asarray(alphabet)), np.asarray(secret)
    if len(letters) < 2 or not len(own) or not np.isin(own, letters).all() or samples < 2:
        raise AuditError("expected a secret of the alphabet's symbols, at least 2 of those, and 2 samples")
    rng = np.random.default_rng(seed)
    drawn = letters[rng.integers(0, len(letters), (samples, len(own)))]
    drawn = drawn[(drawn != own).any(1)]
    texts = np.concatenate([own[None], drawn])
    texts = np.concatenate([np.broadcast_to(np.asarray(prefix), (len(texts), len(prefix))), texts], 1)
    found = model.losses(texts, len(prefix))
    rank, bits = 1 + int((found[1:] < found[0]).sum()), len(own) * float(np.log2(len(letters)))
    return Exposure(
        float(np.log2(len(found)) - np.log2(rank)), min(bits, _fitted(found[1:], float(found[0]))), rank, bits,
        float(found[0]),
    )  # fmt: skip


def _fitted(losses: np.ndarray, loss: float) -> float:
    """-log2 of the share of secrets with at most this loss (the paper's section 4.4)."""
    from scipy.stats import skewnorm  # a second of every start if it were imported at once

    shape: Any = skewnorm.fit(losses.astype(np.float64))
    return float(-skewnorm.logcdf(loss, *shape) / np.log(2))


def extract(
    model: Speaker, prefix: Sequence[int], length: int, alphabet: Sequence[int], *, beam: int = 32
) -> np.ndarray:
    """The `length` symbols of `alphabet` behind `prefix` that the model finds likeliest, by beam search, int64
    (length,). Raises AuditError for texts that are too long for the model."""
    if length < 1 or beam < 1:
        raise AuditError(f"expected a length and a beam of at least 1, got {length} and {beam}")
    letters = np.unique(np.asarray(alphabet))
    texts, scores = np.asarray(prefix, np.int64)[None], np.zeros(1)
    for _ in range(length):
        all_scores = scores[:, None] + model.next(texts)[:, letters]
        best = np.argsort(-all_scores, axis=None, kind="stable")[:beam]
        rows, columns = np.unravel_index(best, all_scores.shape)
        texts = np.concatenate([texts[rows], letters[columns, None]], 1)
        scores = all_scores[rows, columns]
    return np.asarray(texts[0, len(prefix) :])
