"""Which token follows: from logits to a token, by pure functions.

Equal logits, options, seed and position give the same token on every machine: uniform numbers come from a counter-based
generator (Philox, Salmon et al. 2011), ties go to the lower id, and the exponential and all sums are made of IEEE
additions and multiplications of float64 in a fixed order. Where float32 gives the same token for certain (`estimates`),
these are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.language.estimates import COLUMNS, estimated

__all__ = ["ACCEPT", "DRAFT", "TOKEN", "Candidates", "LogProbability", "Sampling", "Seen", "candidates", "checked"]
__all__ += ["choose", "draw", "likely", "log_probabilities", "prepared", "total", "uniform"]

TOKEN, ACCEPT, DRAFT = 0, 1, 2
"""What a uniform number is drawn for: a token, the acceptance of a proposed token, a proposal."""
_LEAST = -40.0
"""Logits that are further below the greatest one are never drawn: even 100,000 such tokens together have a probability
below 1e-12."""
_MANY = 2048
"""Values from which on estimates are faster than exact weights."""


class Sampling(NamedTuple):
    """How tokens are chosen. They are applied in this order: logit bias, penalties, temperature, top-k, min-p, top-p.

    temperature: 0 is greedy, the token of the greatest logit. top_k: only so many of the most probable tokens; 0: all.
    top_p: only the most probable tokens whose probabilities together reach this (Holtzman et al. 2020). min_p: only
    tokens of at least this share of the greatest probability (Nguyen et al. 2024). repetition_penalty: logits of tokens
    of the text so far are divided by this if positive, multiplied if negative (Keskar et al. 2019); presence_penalty
    and frequency_penalty: subtracted once, and for each time, from logits of tokens of the answer so far. logit_bias:
    added to logits, by id; -inf excludes a token. seed: of random numbers, 0 to 2^64 - 1.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = MappingProxyType({})
    seed: int = 0


_RANGES = {
    "temperature": (0.0, 100.0),
    "top_k": (0, 1 << 31),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "seed": (0, (1 << 64) - 1),
}
_WHOLE = ("top_k", "seed")


def checked(sampling: Sampling, vocabulary: int) -> Sampling:
    """The options, if each is in its range; raises InputError otherwise."""
    for name, (least, most) in _RANGES.items():
        value = getattr(sampling, name)
        kind = "a whole number" if name in _WHOLE else "a number"
        right = isinstance(value, int) or (name not in _WHOLE and isinstance(value, float))
        if not right or isinstance(value, bool) or not least <= value <= most:
            raise InputError(f"{name}: expected {kind} from {least} to {most}, got {value!r}")
    if not isinstance(sampling.logit_bias, Mapping):
        raise InputError(f"logit_bias: expected numbers by token id, got {type(sampling.logit_bias).__name__}")
    for token, bias in sampling.logit_bias.items():
        if type(token) is not int or not 0 <= token < vocabulary:
            raise InputError(f"logit_bias: expected token ids from 0 to {vocabulary - 1}, got {token!r}")
        if not isinstance(bias, int | float) or isinstance(bias, bool) or math.isnan(bias) or bias == math.inf:
            raise InputError(f"logit_bias: expected a finite number or -inf for token {token}, got {bias!r}")
    return sampling


class Seen:
    """The text before a token, which penalties look at: the prompt's tokens, and the answer's. Tokens are counted as
    they come, so that the time of the next one does not grow with the text."""

    def __init__(self, prompt: Items[int] = (), answer: Items[int] = ()) -> None:
        self.prompt, self.answer = prompt, list[int]()
        ids, counts = np.unique(np.asarray(prompt, np.int64), return_counts=True)
        self._places = {token: place for place, token in enumerate(ids.tolist())}
        self._counts = np.stack([ids, counts, np.zeros_like(ids)])
        for token in answer:
            self.add(token)

    def add(self, token: int) -> None:
        """A token of the answer."""
        place = self._places.setdefault(token, len(self._places))
        if place == self._counts.shape[1]:
            self._counts = np.concatenate([self._counts, np.zeros((3, place + 64), np.int64)], axis=1)
        self._counts[0, place] = token
        self._counts[1:, place] += 1
        self.answer.append(token)

    def cut(self, length: int) -> None:
        """Forget the answer's tokens after the first `length`."""
        for token in self.answer[length:]:
            self._counts[1:, self._places[token]] -= 1
        del self.answer[length:]

    def after(self, length: int) -> list[int]:
        """The tokens of the text after the first `length`."""
        return [*self.prompt[length:], *self.answer[max(length - len(self.prompt), 0) :]]

    def counts(self) -> Array:
        """Different tokens of the text, how often each is there, and how often in the answer: int64 [3, n]. Also tokens
        that were forgotten may be among them, with counts of zero."""
        return self._counts[:, : len(self._places)]


def prepared(logits: Array, sampling: Sampling, seen: Seen | None = None, allowed: Array | None = None) -> Array:
    """Logits float32 [vocabulary] with bias and penalties, -inf where `allowed` (bool [vocabulary]) is False.

    The result may be `logits` itself. Raises MsedgeError if a logit is not a number, or if no token is allowed.
    """
    made = logits
    plain = sampling.repetition_penalty == 1 and not sampling.presence_penalty and not sampling.frequency_penalty
    if sampling.logit_bias or not plain or allowed is not None:
        made = logits.copy()
    if sampling.logit_bias:
        ids = np.fromiter(sampling.logit_bias, np.int64)
        made[ids] += np.fromiter(sampling.logit_bias.values(), np.float32)
    if not plain and seen is not None:
        _penalise(made, sampling, seen)
    if allowed is not None:
        made[~allowed] = -np.inf
    greatest = made.max()
    if not np.isfinite(greatest):
        what = "no token is allowed" if greatest == -np.inf else f"the model computed logits of {greatest}"
        raise MsedgeError(f"cannot choose a token: {what}")
    return made


def _penalise(logits: Array, sampling: Sampling, seen: Seen) -> None:
    tokens, text, answer = seen.counts()
    if sampling.repetition_penalty != 1:
        ids = tokens[text > 0]
        values, penalty = logits[ids], np.float32(sampling.repetition_penalty)
        logits[ids] = np.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids, counts = tokens[answer > 0], answer[answer > 0]
        logits[ids] -= (sampling.presence_penalty + sampling.frequency_penalty * counts).astype(np.float32)


class Candidates(NamedTuple):
    """Tokens that may follow: ids int64 [n], and their weights float64 [n], which add up to total (not to 1)."""

    ids: Array
    weights: Array
    total: float

    def probability(self, token: int) -> float:
        """The probability of one token."""
        (at,) = np.nonzero(self.ids == token)
        return float(self.weights[at[0]]) / self.total if len(at) else 0.0


class _Values(NamedTuple):
    """Logits of tokens that may follow, so far as single logits tell: ids int64 [n], None if they are all; values
    float32 [n], the greatest of them, and 1 / temperature."""

    ids: Array | None
    values: Array
    greatest: float
    scale: float

    def named(self, places: Array) -> Array:
        """The ids of values at these places."""
        return places if self.ids is None else self.ids[places]


def _values(logits: Array, sampling: Sampling) -> _Values:
    ids, values = None, logits
    if 0 < sampling.top_k < len(logits):
        ids = likely(logits, sampling.top_k)
        values = logits[ids]
    scale = 1 / max(sampling.temperature, 1e-6)
    floor = max(_LEAST, math.log(sampling.min_p) - 1e-6) if sampling.min_p else _LEAST
    greatest = float(values.max())
    least = np.float32(greatest + floor / scale)
    if values.min() < least:
        (kept,) = np.nonzero(values >= least)
        ids, values = kept if ids is None else ids[kept], values[kept]
    return _Values(ids, values, greatest, scale)


def candidates(logits: Array, sampling: Sampling) -> Candidates:
    """What `draw` draws from, given prepared logits float32 [vocabulary]. With temperature 0 it is one token."""
    if sampling.temperature == 0:
        return Candidates(np.asarray([logits.argmax()]), np.ones(1), 1.0)
    return _candidates(_values(logits, sampling), sampling)


def _candidates(found: _Values, sampling: Sampling) -> Candidates:
    if sampling.top_p < 1 and not sampling.min_p and len(found.values) >= _MANY:
        places, weights = _nucleus(found, sampling.top_p)
        return Candidates(found.named(places), weights, total(weights))
    values, weights = found.values, _exp(found.values, found.greatest, found.scale)
    ids = found.named(np.arange(len(weights)))
    if sampling.min_p:
        kept = weights >= sampling.min_p * weights.max()
        ids, values, weights = ids[kept], values[kept], weights[kept]
    if sampling.top_p < 1:
        order = _descending(values)
        order = order[: _reaching(weights[order].cumsum(), sampling.top_p * total(weights))]
        ids, weights = ids[order], weights[order]
    return Candidates(ids, weights, total(weights))


def likely(values: Array, count: int) -> Array:
    """Indices int64 of the `count` greatest values, the greatest first, equal ones by index."""
    if count >= len(values):
        return _descending(values)
    columns = 4 * count
    if len(values) >= 4 * columns:  # `count` columns reach this bound, so values below it are not among the greatest
        greatest = values[: len(values) // columns * columns].reshape(-1, columns).max(axis=0)
        (found,) = np.nonzero(values >= np.partition(greatest, columns - count)[columns - count])
        if len(found) < len(values):
            chosen: Array = found[likely(values[found], count)]
            return chosen
    bound = np.partition(values, len(values) - count)[len(values) - count]
    (above,) = np.nonzero(values > bound)
    (equal,) = np.nonzero(values == bound)
    found = np.concatenate([above, equal[: count - len(above)]])
    chosen = found[_descending(values[found])]
    return chosen


def _descending(values: Array) -> Array:
    """Indices int64 of all values, the greatest first, equal ones by index."""
    if len(values) < _MANY or values.dtype != np.float32:
        return np.argsort(-values, kind="stable")
    bits = (0 - values).view(np.int32)  # 0 has one sign, so that zeros are equal
    keys: Array = (bits ^ (bits >> 31 & 0x7FFFFFFF)).astype(
        np.int64
    ) << 32  # the order of floats: half of argsort's time
    keys |= np.arange(len(keys))
    keys.sort()
    keys &= 0xFFFFFFFF
    return keys


def _nucleus(found: _Values, top_p: float) -> tuple[Array, Array]:
    """Places int64 of the greatest values until their weights reach a share of all, at least one; these weights."""
    values, greatest, scale = found.values, found.greatest, found.scale
    estimate = estimated(values, greatest, scale)
    spare = (1 - top_p) * estimate.total - 2 * estimate.error
    if spare > 0:  # all weights below this share of it are not needed: together they are less
        (places,) = np.nonzero(values >= np.float32(greatest + math.log(spare / len(values)) / scale))
        places = places[_descending(values[places])]
    else:
        places = _descending(values)
    weights = _exp(values[places], greatest, scale)
    sums = weights.cumsum()
    count = _reaching(sums, top_p * (estimate.total - estimate.error))
    if sums[count - 1] < top_p * (estimate.total + estimate.error):  # it is not certain where they are reached
        count = _reaching(sums, top_p * total(_exp(values, greatest, scale)))
    return places[:count], weights[:count]


def _reaching(sums: Array, wanted: float) -> int:
    """How many of the first weights reach `wanted`, given their sums, or all."""
    return min(int(sums.searchsorted(wanted)) + 1, len(sums))


def _columns(weights: Array) -> Array:
    """Weights by columns [rows, COLUMNS], zeros behind the last."""
    made = np.zeros((-(-len(weights) // COLUMNS), COLUMNS))
    made.reshape(-1)[: len(weights)] = weights
    return made


def total(weights: Array) -> float:
    """The sum of weights float64 [n], in the order in which `draw` adds them."""
    return float(_columns(weights).sum(axis=0).cumsum()[-1])


def draw(found: Candidates, number: float) -> int:
    """The token that a uniform number in [0, 1) selects: first a column of the weights, then a row in it."""
    columns = _columns(found.weights)
    sums = columns.sum(axis=0).cumsum()
    column = _place(sums, number * found.total)
    before = float(sums[column - 1]) if column else 0.0
    row = _place(columns[:, column].cumsum(), number * found.total - before)
    return int(found.ids[row * COLUMNS + column])


def _place(sums: Array, target: float) -> int:
    """The first place whose sum is greater than `target`; the last place with a weight, if rounding leaves none."""
    at = int(np.searchsorted(sums, target, side="right"))
    return at if at < len(sums) else int(np.searchsorted(sums, sums[-1]))


def uniform(seed: int, position: int, purpose: int = TOKEN) -> float:
    """The uniform number in [0, 1) of a seed, a position in the text and a purpose."""
    raw = np.random.Philox(key=seed, counter=[position, purpose, 0, 0]).random_raw()
    return float(raw >> 11) * 2.0**-53


def choose(logits: Array, sampling: Sampling, position: int) -> int:
    """The token at a position of a text, given prepared logits float32 [vocabulary]."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    number, found = uniform(sampling.seed, position), _values(logits, sampling)
    if sampling.top_p == 1 and not sampling.min_p and len(found.values) >= _MANY:
        place = estimated(found.values, found.greatest, found.scale).drawn(number)
        if place is not None:
            return place if found.ids is None else int(found.ids[place])
    return draw(_candidates(found, sampling), number)


class LogProbability(NamedTuple):
    """The natural logarithm of a token's probability, and of the most probable tokens', as (id, logarithm)."""

    token: int
    value: float
    top: tuple[tuple[int, float], ...]


def log_probabilities(logits: Array, token: int, count: int) -> LogProbability:
    """By the model's own distribution: logits float32 [vocabulary] without temperature, bias or penalties."""
    values = logits.astype(np.float64)
    values -= values.max()
    total = math.log(float(np.exp(values).cumsum()[-1]))
    top = likely(logits, count) if count else ()
    return LogProbability(token, float(values[token]) - total, tuple((int(i), float(values[i]) - total) for i in top))


# -- the exponential ---------------------------------------------------------------------------------------------------

_BITS = 11
"""The fraction of a power of two is looked up to so many bits; a polynomial of degree three computes the rest."""


def _powers() -> Array:
    """2^(i / 2^_BITS), from square roots, which IEEE 754 defines to the last bit."""
    made = np.ones(1 << _BITS)
    root = 2.0
    for bit in range(_BITS - 1, -1, -1):
        root = math.sqrt(root)
        made[np.arange(len(made)) >> bit & 1 == 1] *= root
    return made


_POWERS = _powers()
_STEP = math.log(2) / (1 << _BITS)
_BLOCK = 8192
"""Values whose arrays stay in a cache: 49,152 at once take five times as long."""


def _exp(values: Array, greatest: float, scale: float) -> Array:
    """e^((values - greatest) * scale) as float64, with a relative error below 1e-13, for values float32 [n] up to
    `greatest`; the same bits on every machine, which numpy.exp, made for each instruction set, does not promise."""
    made = np.empty(len(values))
    for start in range(0, len(values), _BLOCK):
        x = values[start : start + _BLOCK].astype(np.float64)
        x -= greatest
        x *= scale
        steps = np.rint(x * (1 / _STEP))
        x -= steps * _STEP
        number = steps.astype(np.int64)
        result = made[start : start + _BLOCK]
        np.multiply(x, 1 / 6, out=result)
        result += 0.5
        result *= x
        result += 1.0
        result *= x
        result += 1.0
        np.take(_POWERS, number & (1 << _BITS) - 1, out=x)
        result *= x
        result.view(np.int64)[...] += number >> _BITS << 52
    return made
