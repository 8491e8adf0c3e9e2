"""A language model's matrices rounded to blocks by GPTQ (Frantar et al., 2022), with a text of the user's.

Layer by layer: the float layer, given what the rounded layers before it computed, shows what its products read; the
sums of these rows' outer products tell which errors cancel (`rounding.gptq`). Scales are those of rounding without
data; columns are rounded in the order of their strength, which blocks with scales of their own allow. Then the rounded
layer computes what the next one reads. In memory are one layer, its sums (8 k^2 bytes for each width k, in diagonal
blocks of at most `_MOST`), h of all windows, and what has been rounded. Windows are run three times: for the largest
inputs, for the sums on the grid that these determine, and through the rounded layer.

The embedding is rounded without data, also where it is the matrix of the logits: the rows of a table are not summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from converter.frontends.decoders import Blocked, Dense, LanguageModel, Matrix, Rounded, Settings
from converter.frontends.decoders.building import INPUTS
from converter.frontends.decoders.rounding import BLOCK
from converter.frontends.decoders.weights import packed
from converter.quantize.calibration import exact
from converter.quantize.language.parts import Part, Parts, dense
from converter.quantize.language.texts import Windows
from converter.quantize.rounding.gptq import round_layer
from converter.quantize.rounding.weights import Bits
from converter.quantize.state import Progress
from lite_runtime.graph import Array

__all__ = ["Calibrated", "calibrated", "mix_of"]

_MOST = 4096
"""Columns whose errors compensate one another, at most."""
_NEVER = np.float32(1e30)
"""The scale of a block of zeros while it is rounded: every number becomes 0."""


@dataclass(frozen=True)
class Calibrated:
    """What was rounded, by the names of products, and perplexities on text that was held out."""

    made: Mapping[str, Matrix]
    perplexity: Mapping[str, float]
    """"float", "plain" (rounded without data) and "gptq"."""
    products: Mapping[str, Dense]
    """All matrices that could be rounded."""

    def facts(self) -> dict[str, Any]:
        """For the report: perplexities, and how many products of each role have how many bits."""
        return {"perplexity": dict(self.perplexity), "mix": mix_of(self.made, self.products)}


def mix_of(made: Mapping[str, Matrix], products: Mapping[str, Dense]) -> dict[str, dict[str, int]]:
    """By role, the number of products by precision: "w4", "w8" or "float"."""
    found: dict[str, dict[str, int]] = {}
    for name, matrix in products.items():
        held, role = made.get(name, matrix), name.rpartition(".")[2]
        kind = f"w{held.bits}" if isinstance(held, Blocked) else "float"
        counts = found.setdefault(role, {})
        counts[kind] = counts.get(kind, 0) + 1
    return found


def calibrated(
    model: LanguageModel, settings: Settings, windows: Windows, progress: Progress | None = None
) -> Calibrated:
    """The matrices that `settings` round."""
    parts, made, plain = Parts(model, settings, windows.length), dict[str, Matrix](), dict[str, Matrix]()
    every = dict(parts.products())

    def rounded(product: str, matrix: Dense) -> Matrix:
        return made.get(product, matrix)

    def simply(product: str, matrix: Dense) -> Matrix:
        if product not in plain:
            plain[product] = settings.rounded(product, matrix)
        return plain[product]

    ways = {"float": dense, "plain": simply, "gptq": rounded}
    if "embedding" in every:
        made["embedding"] = simply("embedding", every["embedding"])
    h = parts.embed(windows.calibration, rounded)
    held = {name: parts.embed(windows.held, way) for name, way in ways.items()}
    for i in range(parts.decoder.layers):
        if progress is not None:
            progress("quantise: layer", i, parts.decoder.layers)
        products = parts.products(i)
        every |= products
        made |= _layer(parts, i, products, simply, h)
        parts.forward(i, h, rounded)
        for name, way in ways.items():
            parts.forward(i, held[name], way)
    if "logits" in every:
        made |= _products(parts.norm(), {"logits": every["logits"]}, {"logits": ""}, simply, h)
    found = {name: parts.perplexity(windows.held, held[name], way) for name, way in ways.items()}
    return Calibrated(made, found, every)


def _layer(parts: Parts, i: int, products: Mapping[str, Dense], plain: Rounded, h: Array) -> dict[str, Matrix]:
    """A layer's matrices, with h (windows, length, width) before it."""
    reads = {name: f"layer.{i}.{INPUTS[name.rpartition('.')[2]]}" for name in products}
    seen = {INPUTS[name.rpartition(".")[2]]: matrix.shape[1] for name, matrix in products.items()}
    return _products(parts.layer(i, dense, seen), products, reads, plain, h)


def _products(
    run: Part, products: Mapping[str, Dense], reads: Mapping[str, str], plain: Rounded, h: Array
) -> dict[str, Matrix]:
    """Matrices by what `run` shows of their inputs, those that `plain` rounds, with its scales; `reads`: the outputs by
    product, "" for the only one."""
    chosen = {name: (matrix, plain(name, matrix)) for name, matrix in products.items()}
    first = {name: (matrix, done) for name, (matrix, done) in chosen.items() if isinstance(done, Blocked)}
    if not first:
        return {}
    sums = _sums(run, {reads[name]: matrix.shape[1] for name, (matrix, _) in first.items()}, h)
    made: dict[str, Matrix] = {}
    rows = sorted((reads[name], done.bits, name) for name, (_, done) in first.items())
    for (value, bits), group in groupby(rows, lambda row: row[:2]):
        names = [name for *_, name in group]
        done = _rounded([first[name] for name in names], 4 if bits == 4 else 8, sums[value])
        made |= zip(names, done, strict=True)
    return made


def _sums(run: Part, widths: Mapping[str, int], h: Array) -> dict[str, list[exact.Gram]]:
    """By value, sums of outer products of its rows, in diagonal blocks."""

    def of(found: Mapping[str, Array], name: str) -> Array:
        return found[name] if name else next(iter(found.values()))

    largest = {name: np.zeros(width, np.float32) for name, width in widths.items()}
    for window in h:
        found = run(window)
        for name, top in largest.items():
            np.maximum(top, np.abs(of(found, name)).max(axis=0), out=top)
    spans = {name: [(a, min(a + _MOST, width)) for a in range(0, width, _MOST)] for name, width in widths.items()}
    grams = {name: [exact.Gram(largest[name][a:b]) for a, b in own] for name, own in spans.items()}
    for window in h:
        found = run(window)
        for name, own in spans.items():
            for (a, b), gram in zip(own, grams[name], strict=True):
                gram.add(of(found, name)[:, a:b])
    return grams


def _rounded(matrices: Sequence[tuple[Dense, Blocked]], bits: Bits, grams: Sequence[exact.Gram]) -> list[Blocked]:
    """Matrices that read the same value, with how each is rounded without data: rounded together."""
    scales = [plain.scales() for _, plain in matrices]
    steps = np.concatenate(scales).astype(np.float32).T  # (blocks, outputs of all)
    steps[steps == 0] = _NEVER
    weight = np.concatenate([matrix.array() for matrix, _ in matrices]).T
    values, done = np.empty(weight.shape, np.int8), 0
    for gram in grams:
        end = done + len(gram.mean)
        own = steps[done // BLOCK : end // BLOCK]
        groups = np.arange(end - done) // BLOCK
        (values[done:end],), _ = round_layer(
            weight[None, done:end], gram.matrix[None], groups, bits=bits, scales=own[None]
        )
        done = end
    ends = np.cumsum([matrix.shape[0] for matrix, _ in matrices])[:-1]
    return [
        _blocked(matrix, bits, part.T, table)
        for (matrix, _), part, table in zip(matrices, np.split(values, ends, axis=1), scales, strict=True)
    ]


def _blocked(matrix: Dense, bits: Bits, values: Array, scales: Array) -> Blocked:
    """Integers (n, k) and their scales (n, blocks) as a matrix; 4-bit ones are held two in a byte."""
    half, (n, k) = 1 << bits - 1, matrix.shape
    held = packed((values.astype(np.int16) + half).astype(np.uint8), bits)

    def integers(begin: int, end: int) -> Array:
        part = held[begin:end]
        return part if bits == 8 else np.stack([part & 15, part >> 4], axis=-1).reshape(end - begin, k)

    return Blocked(matrix.name, (n, k), bits, BLOCK, half, integers, lambda: scales, None, True, matrix.stored)
