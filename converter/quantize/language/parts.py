"""Runs a language model part by part over windows of tokens, so that one layer's weights are in memory at a time.

The parts are planned and computed as the whole is: same graph, same kernels, same order of sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from converter.frontends.decoders import Dense, LanguageModel, Rounded, Settings, Tensors
from converter.frontends.decoders.building import embedding_to_ir, head_to_ir, layer_to_ir, norm_to_ir
from converter.lowering import halve_weights, in_panels, lower, narrow_products, pack_narrow
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.language.engine import KEYS, VALUES
from lite_runtime.language.pages import needed
from lite_runtime.running import session

__all__ = ["Part", "Parts", "dense"]

Part = Callable[[Array], Mapping[str, Array]]
"""A part that is ready: tokens or h of one window to its outputs by name, which the next call overwrites."""
_THREADS = 16


def dense(product: str, matrix: Dense) -> Dense:
    """No rounding."""
    return matrix


class Parts:
    """A model for windows of `length` tokens, computed by `backend`."""

    def __init__(self, model: LanguageModel, settings: Settings, length: int, backend: str = "auto") -> None:
        self._model, self._settings, self._length, self._backend = model, settings, length, backend
        self.decoder = replace(model.decoder, context=length)

    def embed(self, windows: Array, rounded: Rounded) -> Array:
        """h (windows, length, width) of tokens (windows, length)."""
        run = self._ready(embedding_to_ir(self.decoder, self._tensors(rounded)))
        return np.stack([next(iter(run(window).values())).copy() for window in windows])

    def layer(self, i: int, rounded: Rounded, seen: Mapping[str, int] = MappingProxyType({})) -> Part:
        """Layer i, whose first output is h behind it; `seen`: values of `building.INPUTS` that are outputs too."""
        settings = self._settings
        cache = settings.kept(self._model.tensors.values())
        return self._ready(layer_to_ir(self.decoder, self._tensors(rounded), i, settings.activations, seen, cache))

    def norm(self) -> Part:
        """What the product for logits reads."""
        return self._ready(norm_to_ir(self.decoder, self._tensors(dense)))

    def products(self, i: int | None = None) -> Mapping[str, Dense]:
        """The matrices of a layer, or of the embedding and logits, that can be rounded, by the names of products."""
        tensors = self._tensors(dense)
        if i is not None:
            layer_to_ir(self.decoder, tensors, i)
        else:
            embedding_to_ir(self.decoder, tensors)
            head_to_ir(self.decoder, tensors)
        return tensors.products

    def forward(self, i: int, h: Array, rounded: Rounded) -> None:
        """Replace h (windows, length, width) by what layer i makes of it."""
        run = self.layer(i, rounded)
        for window in h:
            window[...] = next(iter(run(window).values()))

    def logits(self, h: Array, rounded: Rounded) -> Iterator[Array]:
        """Of each window, (length, vocabulary), with h behind the last layer; the next one overwrites it."""
        run = self._ready(head_to_ir(self.decoder, self._tensors(rounded), self._settings.activations))
        return (next(iter(run(x).values())) for x in h)

    def perplexity(self, windows: Array, h: Array, rounded: Rounded) -> float:
        """Of tokens (windows, length), with h behind the last layer; the first token of a window is given."""
        found = self.logits(h, rounded)
        total = sum(_surprise(logits[:-1], ids[1:]) for ids, logits in zip(windows, found, strict=True))
        return float(np.exp(min(total / (len(windows) * (self._length - 1)), 700.0)))

    def measured(self, windows: Array, rounded: Rounded, before: tuple[int, Array] | None = None) -> float:
        """Perplexity of the whole model. `before`: a layer, and h in front of it, which is not computed again."""
        first, h = (0, self.embed(windows, rounded)) if before is None else (before[0], before[1].copy())
        for i in range(first, self.decoder.layers):
            self.forward(i, h, rounded)
        return self.perplexity(windows, h, rounded)

    def _tensors(self, rounded: Rounded) -> Tensors:
        return Tensors(self._model.tensors, self._model.names, rounded, self._model.ignored)

    def _ready(self, model: ir.Model) -> Part:
        from converter.pass_lists import REST, optimize, upgraded  # imported here, since it imports quantisation

        optimize(upgraded(model), REST)
        graph = in_panels(narrow_products(halve_weights(pack_narrow(lower(model)), lossless=True).graph))
        threads = min(os.cpu_count() or 1, _THREADS)
        loaded = session.load(bundle.write(None, {"predict": graph}), threads=threads, backend=self._backend)
        first, *others = loaded.inputs()
        pages = needed(self._length)
        small = {
            "cumulative_sequence_length": np.array([0, self._length], np.int32),
            "past_seqlens": np.zeros(1, np.int32),
            "block_table": np.arange(pages, dtype=np.int32)[None],
        }
        shapes = {
            first.name: (self._length, *_sizes(first.shape)[1:]),
            **{v.name: (pages, *_sizes(v.shape)[1:]) for v in others if v.name.startswith((KEYS, VALUES))},
            **{v.name: small[v.name].shape for v in others if v.name in small},
        }
        binding = loaded.bind(shapes)
        for value in others:
            if value.name in small:
                binding.inputs[value.name][...] = small[value.name]

        def run(x: Array) -> Mapping[str, Array]:
            binding.inputs[first.name][...] = x
            binding()
            return binding.outputs

        return run


def _sizes(shape: object) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else 0 for size in shape) if isinstance(shape, tuple) else ()


def _surprise(logits: Array, tokens: Array) -> float:
    """The sum of -log p over tokens (n,), each by its row of logits (n, vocabulary)."""
    top = logits.max(axis=-1).astype(np.float64)
    sums = np.exp(logits - top[:, None].astype(np.float32)).sum(axis=-1, dtype=np.float64)
    return float((top + np.log(sums) - logits[np.arange(len(tokens)), tokens]).sum())
