"""The smallest, fastest mix of precisions that meets an accuracy budget, found by measurement.

A node that is too inaccurate as an integer node is moved up in two steps, which cost speed first and size last: (1) it
keeps its weights as integers and computes in float, (2) it becomes float completely. In the modes that store only
weights, (1) is eight bits instead of four.

1. Quantise everything. If that meets the budget, done.
2. Rank nodes by the noise that each adds alone (`sensitivity.measure`); by bisection, find the shortest prefix of that
   ranking whose step (1) meets the budget.
3. If step (1) for all nodes does not meet it, the weights are the cause: the shortest prefix of a ranking by weights
   alone goes to step (2), and the prefix for (1) is searched again with those nodes in float.
4. Quantise the repaired nodes again one by one, the least harmful first, while the budget is met.

Bisection assumes that more repairs lose less accuracy, which noise may violate in places; but every mix that is
returned was itself measured. Nothing is random; the same data gives the same mix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.quantize.accuracy.metrics import Evaluator
from converter.quantize.accuracy.sensitivity import Progress, Sensitivity, Variant, Variants, measure
from converter.quantize.calibration.data import Samples
from converter.quantize.options import Options
from converter.quantize.rounding.weights import places

__all__ = ["LEAST_GAIN", "Budget", "Found", "search", "shortest", "stored_bytes"]

LEAST_GAIN = 0.25
"""Share of the size gain that a mix must keep: one that keeps less is hardly a quantised model."""
_WON_BACK = 48
"""The most nodes that are tried again, with one evaluation each."""


@dataclass(frozen=True)
class Budget:
    """How much worse the metric may become: `amount` in its unit, or as a part of the float model's score if
    `relative`."""

    amount: float
    relative: bool = False

    @classmethod
    def parse(cls, text: str | float, share: bool) -> Budget:
        """ "0.5%": half a point of a metric that is a `share` (top-1, …), else half a percent of the float score.
        A plain number is in the metric's own unit. Raises QuantizeError for anything else, negative ones included."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
        if found is None:
            raise QuantizeError(
                f"accuracy budget: expected a number like 0.005 or a percentage like 0.5%, got {text!r}"
            )
        amount = float(found[1])
        return cls(amount / 100, not share) if found[2] else cls(amount)

    def limit(self, base: float) -> float:
        """The largest allowed drop from a float score of `base`."""
        return self.amount * abs(base) if self.relative else self.amount


@dataclass(frozen=True)
class Found:
    """A mix that meets the budget."""

    variant: Variant
    """The quantised model and the record of its quantisation."""
    score: float
    base: float
    """The float model's score."""
    drop: float
    limit: float
    float_bytes: int
    """Bytes of the float model's constants."""
    full_bytes: int
    """Bytes of the constants with everything quantised."""
    bytes: int
    reference: ir.Model
    """The float model the mix was made from: equalised, so that layers can be compared with it."""
    ranking: tuple[Sensitivity, ...]
    """Empty where everything could be quantised."""
    trials: int
    """The number of mixes measured."""

    @property
    def gain(self) -> float:
        """The share of the savings of full quantisation that this mix keeps."""
        return _gain(self.float_bytes, self.full_bytes, self.bytes)


def search(
    model: ir.Model,
    options: Options,
    samples: Samples | None,
    evaluate: Evaluator,
    budget: Budget,
    *,
    least_gain: float = LEAST_GAIN,
    progress: Progress | None = None,
    threads: int = 0,
) -> Found:
    """The cheapest mix of precisions of `model` (IR after `converter.pass_lists.PREPARE`, not changed) that loses no
    more than `budget` by `evaluate`, whose reference must be the same float model.

    Raises QuantizeError if no mix that keeps `least_gain` of the size gain meets the budget. The error says how close
    the search came and which nodes cost most.
    """
    return _Search(model, options, samples, evaluate, budget, least_gain, progress, threads).run()


def stored_bytes(model: ir.Model) -> int:
    """Bytes of all constants in use; two 4-bit numbers per byte."""
    read = {id(v) for node in build.nodes(model) for v in node.inputs if v is not None}
    total = 0
    for graph in build.graphs(model):
        for value in graph.initializers.values():
            if id(value) in read and value.const_value is not None:
                total += -(-value.const_value.size * value.const_value.dtype.bitwidth // 8)
    return total


def _gain(float_bytes: int, full_bytes: int, size: int) -> float:
    return (float_bytes - size) / (float_bytes - full_bytes) if float_bytes > full_bytes else 1.0


@dataclass(frozen=True)
class _Mix:
    """Nodes that are not fully quantised, by their step."""

    floats: frozenset[str] = frozenset()
    weights: frozenset[str] = frozenset()


class _Search:
    def __init__(
        self,
        model: ir.Model,
        options: Options,
        samples: Samples | None,
        evaluate: Evaluator,
        budget: Budget,
        least_gain: float,
        progress: Progress | None,
        threads: int,
    ) -> None:
        # means are corrected once a mix is found; correcting every mix would cost a hundred times as much
        self._options, self._correct = options, options.static and options.bias_correction
        self._variants = Variants(model, replace(options, bias_correction=False), samples, threads=threads)
        self._evaluate, self._progress = evaluate, progress
        self._limit = budget.limit(evaluate.base)
        self._least_gain = least_gain
        self._nodes = list(self._variants.nodes())
        self._drops: dict[_Mix, float] = {}
        self._ranking: tuple[Sensitivity, ...] = ()
        self._float_bytes = stored_bytes(self._variants.reference)
        self._full_bytes = stored_bytes(self._make(_Mix()).model)

    def run(self) -> Found:
        mix = _Mix()
        if not self._holds(mix):
            self._ranking = tuple(measure(self._variants, self._evaluate, self._progress))
            mix = self._won_back(self._repaired([s.name for s in self._ranking]))
        return self._finished(mix)

    # steps

    def _repaired(self, order: Sequence[str]) -> _Mix:
        """The shortest prefixes of the rankings that meet the budget; raises QuantizeError if none does."""
        every = frozenset(order)
        if not order or not self._variants.steps_to_weights or not self._holds(_Mix(weights=every)):
            blamed = self._by_weights(order)
            count = shortest(len(blamed), lambda n: self._holds(_split(blamed, n, every)))
            if count is None:
                raise QuantizeError(self._unreachable())
            floats = frozenset(blamed[:count])
        else:
            floats = frozenset()
        if not self._variants.steps_to_weights:
            return _Mix(floats)
        rest = [name for name in order if name not in floats]
        found = shortest(len(rest), lambda n: self._holds(_Mix(floats, frozenset(rest[:n]))))
        return _Mix(floats, frozenset(rest if found is None else rest[:found]))

    def _by_weights(self, order: Sequence[str]) -> list[str]:
        """Nodes by the noise of their weights alone, per byte that float weights would cost; the worst first."""
        ranked = self._ranking
        if self._variants.steps_to_weights:
            ranked = tuple(measure(self._variants, self._evaluate, self._progress, weights=True))
        size = {build.title(n): sum(w.size for *_, w in places(n, 0)) for n in build.nodes(self._variants.reference)}
        worth = {s.name: s.noise / max(size[s.name], 1) for s in ranked}
        return sorted(order, key=lambda name: -worth[name])

    def _won_back(self, mix: _Mix) -> _Mix:
        rank = {s.name: index for index, s in enumerate(self._ranking)}
        repaired = sorted(mix.floats | mix.weights, key=lambda name: -rank[name])[:_WON_BACK]
        for done, name in enumerate(repaired):
            self._report("winning back", done, len(repaired))
            for better in self._higher(mix, name):
                if self._holds(better):
                    mix = better
                    break
        return mix

    def _higher(self, mix: _Mix, name: str) -> list[_Mix]:
        """The mixes in which `name` is closer to full quantisation, the closest first."""
        whole = _Mix(mix.floats - {name}, mix.weights - {name})
        if name in mix.floats and self._variants.steps_to_weights:
            return [whole, _Mix(whole.floats, whole.weights | {name})]
        return [whole]

    def _finished(self, mix: _Mix) -> Found:
        variant, drop = self._make(mix), self._drops[mix]
        if self._correct:
            corrected = self._make(mix, bias_correction=True)
            better = self._drop(corrected.model)
            if better <= self._limit:
                variant, drop = corrected, better
        size = stored_bytes(variant.model)
        if _gain(self._float_bytes, self._full_bytes, size) < self._least_gain:
            raise QuantizeError(self._unreachable())
        sign = -1 if self._evaluate.metric.higher else 1
        return Found(
            variant,
            self._evaluate.base + sign * drop,
            self._evaluate.base,
            drop,
            self._limit,
            self._float_bytes,
            self._full_bytes,
            size,
            self._variants.reference,
            self._ranking,
            len(self._drops),
        )

    # measuring

    def _make(self, mix: _Mix, *, bias_correction: bool = False) -> Variant:
        floats, weights = ([n for n in self._nodes if n in names] for names in (mix.floats, mix.weights))
        return self._variants.make(float_nodes=floats, weight_nodes=weights, bias_correction=bias_correction)

    def _holds(self, mix: _Mix) -> bool:
        if mix not in self._drops:
            self._report("measuring mixes", len(self._drops), 0)
            self._drops[mix] = self._drop(self._make(mix).model)
        return self._drops[mix] <= self._limit

    def _drop(self, model: ir.Model) -> float:
        return self._evaluate.metric.drop(self._evaluate.base, self._evaluate(model))

    def _report(self, what: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(what, done, total)

    def _unreachable(self) -> str:
        metric, base = self._evaluate.metric, self._evaluate.base
        kept = {
            mix: drop
            for mix, drop in self._drops.items()
            if _gain(self._float_bytes, self._full_bytes, stored_bytes(self._make(mix).model)) >= self._least_gain
        }
        nearest = min(kept.values())
        costly = ", ".join(f"{s.name} ({s.op}, {s.snr:.1f} dB alone)" for s in self._ranking[:3])
        return (
            f"the accuracy budget cannot be met: {metric.name} may be {self._limit:.4g} worse than the float model's "
            f"{base:.4g}, and of {len(self._drops)} mixes measured the best that keeps {self._least_gain:.0%} of "
            f"the size gain is {nearest:.4g} worse. Most expensive: {costly or 'no single node'}. Give a larger "
            "budget, calibration data like the evaluation data, mode int16x8, or train with quantisation in the loop"
        )


def _split(blamed: Sequence[str], count: int, every: frozenset[str]) -> _Mix:
    floats = frozenset(blamed[:count])
    return _Mix(floats, every - floats)


def shortest(count: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest n in 0..count with holds(n), by bisection; None if holds(count) is false."""
    if not holds(count):
        return None
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return high
