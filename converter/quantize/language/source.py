"""What a language model's file says its logits are: every matrix widened to float32, float32 activations and caches,
computed by the NumPy reference. What a bundle of it is compared with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from converter import frontends
from converter.errors import ConvertError
from converter.frontends.decoders import Blocked, Dense, LanguageModel, Matrix, Settings
from converter.quantize.language.parts import Parts, dense
from lite_runtime.graph import Array

__all__ = ["Wide", "opened"]


def opened(source: str | os.PathLike[str], context: int) -> Wide:
    """The model in a file or folder, whose texts have at most `context` tokens. Raises ConvertError if it is no
    language model."""
    loaded = frontends.load(source, language=Settings(activations="float32", context=context, cache="float32"))
    if not isinstance(loaded.decoder, LanguageModel):
        raise ConvertError(f"{source}: expected a language model, which the bundle is, got {loaded.format}")
    return Wide(loaded.decoder)


class Wide:
    """A model in float32. In memory are one layer at a time, and the activations of all windows."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = replace(model, tensors={name: _widened(matrix) for name, matrix in model.tensors.items()})

    def logits(self, windows: Array) -> Iterator[Array]:
        """Of tokens (windows, length), one window after the other: (length, vocabulary), which the next overwrites."""
        parts = Parts(self.model, Settings(activations="float32", cache="float32"), windows.shape[1], "reference")
        h = parts.embed(windows, dense)
        for i in range(parts.decoder.layers):
            parts.forward(i, h, dense)
        return parts.logits(h, dense)


def _widened(matrix: Matrix) -> Dense:
    return matrix if isinstance(matrix, Dense) else Dense(matrix.name, matrix.shape, _Rows(matrix), matrix.stored)


class _Rows:
    """Rows of a matrix in blocks as float32."""

    def __init__(self, matrix: Blocked) -> None:
        self._matrix = matrix

    def __call__(self, begin: int, end: int) -> Array:
        matrix = self._matrix
        wide = matrix.q(begin, end).reshape(end - begin, -1, matrix.block).astype(np.float32)
        wide -= np.float32(matrix.zero_point)
        wide *= matrix.scales()[begin:end].astype(np.float32)[..., None]
        if matrix.offsets is not None:
            wide += matrix.offsets()[begin:end].astype(np.float32)[..., None]
        made: Array = wide.reshape(end - begin, matrix.shape[1])
        return made
