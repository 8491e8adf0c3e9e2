"""The smallest mix of 4- and 8-bit matrices whose perplexity is within a budget, found by measurement.

1. Everything as rounded by `gptq`. If that meets the budget, done.
2. Units are the products of one role in a quarter of the layers, and each product outside the layers. Every unit alone
   gets 8 bits; units are ranked by how much perplexity that wins on a part of the text of calibration, for each byte
   that it costs.
3. By bisection, the shortest prefix of that ranking is found with which the held-out text meets the budget.

8-bit matrices are rounded without data. Bisection assumes that more of them lose less, which noise may violate in
places; but the mix that is returned was itself measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from converter.errors import QuantizeError
from converter.frontends.decoders import Blocked, Matrix, Rounded
from converter.frontends.decoders.rounding import quantized
from converter.quantize.accuracy.budget import Budget, shortest
from converter.quantize.language.gptq import Calibrated, mix_of
from converter.quantize.language.parts import Parts
from converter.quantize.language.texts import Windows
from converter.quantize.state import Progress
from lite_runtime.graph import Array

__all__ = ["Mix", "Unit", "mixed"]

_PARTS = 4
"""Groups of layers."""
_RANKED = 4
"""Windows on which units are ranked."""


@dataclass(frozen=True)
class Unit:
    """Products that get the same bits."""

    name: str
    products: tuple[str, ...]
    bytes: int
    """What 8 bits cost in addition."""
    first: int
    """The first layer that changes; -1: the embedding."""
    gain: float = 0.0
    """By how much perplexity falls if this unit alone has 8 bits, on windows of calibration."""


@dataclass(frozen=True)
class Mix:
    """What was found: matrices by products, perplexity on held-out text, the ranking, and mixes measured."""

    made: Mapping[str, Matrix]
    perplexity: float
    limit: float
    ranking: tuple[Unit, ...]
    trials: int

    def facts(self, found: Calibrated) -> dict[str, Any]:
        """For the report: what changes in `Calibrated.facts`, the budget, and what units win."""
        base = found.perplexity["float"]
        return {
            "perplexity": {**found.perplexity, "mix": self.perplexity}, "mix": mix_of(self.made, found.products),
            "budget": {"limit": self.limit, "lost": self.perplexity - base, "trials": self.trials},
            "ranking": [{"unit": u.name, "gain": u.gain, "bytes": u.bytes} for u in self.ranking],
        }  # fmt: skip


def mixed(parts: Parts, windows: Windows, found: Calibrated, budget: Budget, progress: Progress | None = None) -> Mix:
    """The smallest mix that meets the budget. Raises QuantizeError if none does."""
    base, score = found.perplexity["float"], found.perplexity["gptq"]
    allowed = budget.limit(base)
    if score - base <= allowed:
        return Mix(found.made, score, allowed, (), 0)
    ranking = _ranked(parts, windows, found, progress)
    scores: dict[int, float] = {0: score}

    def holds(count: int) -> bool:
        if count not in scores:
            if progress is not None:
                progress("mixes of precisions", len(scores), 0)
            scores[count] = _measured(parts, windows.held, _with(found, ranking[:count]))
        return scores[count] - base <= allowed

    count = shortest(len(ranking), holds)
    if count is None:
        best = min(scores.values())
        raise QuantizeError(
            f"the accuracy budget cannot be met: perplexity may be {allowed:.4g} above the float model's {base:.4g}, "
            f"and with 8 bits everywhere it is {best:.4g}; allow more, or keep products in float (keep_float)"
        )
    return Mix(_with(found, ranking[:count]), scores[count], allowed, tuple(ranking), len(ranking) + len(scores) - 1)


def _ranked(parts: Parts, windows: Windows, found: Calibrated, progress: Progress | None) -> list[Unit]:
    text = windows.calibration[:: -(-len(windows.calibration) // _RANKED)]
    units, ranked = _units(found, parts.decoder.layers), list[Unit]()
    base, before = _walked(parts, text, found, {unit.first for unit in units})
    for i, unit in enumerate(units):
        if progress is not None:
            progress("sensitivity", i, len(units))
        score = _measured(parts, text, _with(found, [unit]), before.get(unit.first))
        ranked.append(replace(unit, gain=base - score))
    return sorted(ranked, key=lambda unit: -unit.gain / unit.bytes)


def _walked(
    parts: Parts, text: Array, found: Calibrated, wanted: set[int]
) -> tuple[float, Mapping[int, tuple[int, Array]]]:
    """Perplexity as rounded, and h in front of these layers."""
    rounded, layers = _of(found.made), parts.decoder.layers
    h, before = parts.embed(text, rounded), dict[int, tuple[int, Array]]()
    for i in range(layers):
        if i in wanted:
            before[i] = i, h.copy()
        parts.forward(i, h, rounded)
    before[layers] = layers, h
    return parts.perplexity(text, h, rounded), before


def _units(found: Calibrated, layers: int) -> list[Unit]:
    """All products of 4 bits."""
    groups: dict[str, list[str]] = {}
    for name, matrix in found.made.items():
        if isinstance(matrix, Blocked) and matrix.bits == 4:
            groups.setdefault(_unit(name, layers), []).append(name)
    return [
        Unit(
            unit, tuple(names), sum(prod(found.products[name].shape) // 2 for name in names),
            min(_layer(name, layers) for name in names),
        )
        for unit, names in groups.items()
    ]  # fmt: skip


def _layer(product: str, layers: int) -> int:
    return {"embedding": -1, "logits": layers}[product] if "." not in product else int(product.split(".")[1])


def _unit(product: str, layers: int) -> str:
    """A product's unit: "down, layers 0 to 7"."""
    if "." not in product:
        return product
    _, i, role = product.split(".")
    share = max(1, -(-layers // _PARTS))
    first = int(i) // share * share
    return f"{role}, layers {first} to {min(first + share, layers) - 1}"


def _with(found: Calibrated, units: Sequence[Unit]) -> Mapping[str, Matrix]:
    """What was rounded, these units with 8 bits."""
    wide = {name: quantized(found.products[name], 8) for unit in units for name in unit.products}
    return {**found.made, **wide}


def _of(made: Mapping[str, Matrix]) -> Rounded:
    return lambda product, matrix: made.get(product, matrix)


def _measured(
    parts: Parts, windows: Array, made: Mapping[str, Matrix], before: tuple[int, Array] | None = None
) -> float:
    return parts.measured(windows, _of(made), before)
