"""Vectors of texts: texts that mean about the same have vectors of about the same direction.

    model = EmbeddingModel.load("model.mslite", threads=2)
    vectors = model.embed(["How warm is it?", "What is the temperature?"])      # float32 [2, dimensions]
    vectors @ vectors.T                                                         # cosines, if vectors have length 1

`recipe` says what makes a vector of a text, `groups` which texts share a run.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence as Items
from threading import RLock
from typing import Any

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.language.embedding.groups import Group, Sizes
from lite_runtime.language.embedding.recipe import KEY, POOLINGS, Recipe, recipe_of
from lite_runtime.language.tokenizers import SECTION, Tokenizer
from lite_runtime.running import session as running
from lite_runtime.running.executor import Binding

__all__ = ["EmbeddingModel"]

KINDS = 64
"""Sizes of runs that stay planned."""
TINY = 1e-12
"""Shorter vectors are divided by this, as torch.nn.functional.normalize does."""
_MEASURING = "DynamicQuantizeLinear"
"""An operator that takes one range from all texts of a run, unless it is told to keep rows apart: then each text gets a
run of its own."""


class EmbeddingModel:
    """A model that turns texts into vectors, and its tokenizer. Safe to call from several threads: runs exclude each
    other."""

    def __init__(self, model: running.Model) -> None:
        """Raises InputError for a bundle without an embedding model, BundleError for a damaged one."""
        self.model = model
        about = model.bundle.metadata.get(KEY)
        self.recipe: Recipe = recipe_of(about, model.inputs(), model.outputs())
        try:
            self.tokenizer = Tokenizer.from_bytes(model.bundle.section(SECTION))
        except KeyError:
            raise InputError("this bundle has no tokenizer; convert the model again with its tokenizer.json") from None
        self.digest = model.bundle.digest
        self._sizes, self._lock = _sizes(model, self.recipe), RLock()
        self._bindings: OrderedDict[tuple[int, int], Binding] = OrderedDict()

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes | memoryview, **settings: Any) -> EmbeddingModel:
        """Open a bundle; see `lite_runtime.load` for threads and other settings."""
        return cls(running.load(source, **settings))

    @property
    def dimensions(self) -> int:
        """Numbers in a vector."""
        return self.recipe.dimensions

    def tokens(self, text: str) -> list[int]:
        """The ids that the model reads for a text: those of its beginning if it has more than `recipe.tokens`. Raises
        InputError for anything but valid Unicode text."""
        if not isinstance(text, str):
            raise InputError(f"expected a text, got {type(text).__name__}")
        return self.tokenizer.encode(self.recipe.prompt + text, limit=self.recipe.tokens)

    def embed(self, texts: Items[str] | Items[Items[int]], *, dimensions: int | None = None) -> Array:
        """The vectors of texts, or of the token ids of texts: float32 [texts, dimensions].

        Texts that are too long are cut off (`tokens`); token ids are used as they are. dimensions: only so many of the
        first numbers, of length 1 again if the model's vectors have that: for models that were trained so (Matryoshka).
        Each vector depends on its own text only, but for the last bits of float32 numbers. Raises InputError for other
        values, before anything is computed.
        """
        if isinstance(texts, str | bytes):
            raise InputError(f"expected a list of texts, got {type(texts).__name__}; put it into a list")
        width = self._width(dimensions)
        made = self.vectors([self.tokens(one) if isinstance(one, str) else one for one in texts])
        return made if width == self.dimensions else self.shortened(made, width)

    def vectors(self, tokens: Items[Items[int]]) -> Array:
        """The vectors of texts as token ids. Raises InputError as `checked`."""
        checked = [self.checked(ids) for ids in tokens]
        made = np.empty((len(checked), self.dimensions), np.float32)
        for group in self._sizes.groups([len(ids) for ids in checked]):
            with self._lock:
                self._run(group, [checked[i] for i in group.members], made)
        return self._normalized(made)

    def shortened(self, vectors: Array, dimensions: int) -> Array:
        """The first numbers of vectors that this model has made. Raises InputError for more than there are."""
        return self._normalized(vectors[:, : self._width(dimensions)].copy())

    def checked(self, ids: Items[int]) -> Items[int]:
        """The ids of a text. Raises InputError for none, too many, and for ids that the tokenizer does not have."""
        most, known = self.recipe.tokens, len(self.tokenizer)
        if not isinstance(ids, list | tuple):
            raise InputError(f"expected texts, or lists of token ids, got {type(ids).__name__}")
        if not 0 < len(ids) <= most:
            raise InputError(f"expected a text of 1 to {most} tokens, got {len(ids)}")
        if not all(type(token) is int and 0 <= token < known for token in ids):
            raise InputError(f"expected token ids from 0 to {known - 1}")
        return ids

    def _width(self, dimensions: int | None) -> int:
        if dimensions is None:
            return self.dimensions
        if type(dimensions) is not int or not 0 < dimensions <= self.dimensions:
            raise InputError(f"dimensions: expected a number from 1 to {self.dimensions}, got {dimensions!r}")
        return dimensions

    def _normalized(self, vectors: Array) -> Array:
        """The same array, its rows divided by their length if the recipe says so."""
        if self.recipe.normalize:
            vectors /= np.maximum(np.sqrt(np.einsum("td,td->t", vectors, vectors)), TINY)[:, None]
        return vectors

    def _run(self, group: Group, texts: Items[Items[int]], made: Array) -> None:
        """Compute a group's vectors into the rows of `made`. Rows without a text repeat the last one, so that no row
        holds values that texts do not have."""
        binding = self._binding(group.rows, group.length)
        given = {role: binding.inputs[name] for role, name in self.recipe.inputs.items()}
        for array in given.values():
            array[...] = 0
        if "positions" in given:
            given["positions"][...] = np.arange(group.length)
        for row in range(group.rows):
            ids = texts[min(row, len(texts) - 1)]
            given["ids"][row, : len(ids)] = ids
            given["mask"][row, : len(ids)] = 1
        binding()
        found, pool = binding.outputs[self.recipe.output], POOLINGS[self.recipe.pooling]
        for row, (number, ids) in enumerate(zip(group.members, texts, strict=True)):
            states = found[row] if found.ndim == 2 else found[row, : len(ids)]
            made[number] = pool(states)

    def _binding(self, rows: int, length: int) -> Binding:
        key = rows, length
        if key in self._bindings:
            self._bindings.move_to_end(key)
        else:
            self._bindings[key] = self.model.bind(dict.fromkeys(self.recipe.inputs.values(), key))
            while len(self._bindings) > KINDS:
                self._bindings.popitem(last=False)
        return self._bindings[key]


def _sizes(model: running.Model, recipe: Recipe) -> Sizes:
    """The sizes that the graph allows. Raises InputError if it has no room for a text."""
    shapes = [value.shape or (None, None) for value in model.inputs()]
    rows, lengths = ([size for shape in shapes if isinstance(size := shape[axis], int)] for axis in (0, 1))
    if any(length < recipe.tokens for length in lengths):
        raise InputError(f"expected inputs of {recipe.tokens} tokens, got {min(lengths)}; convert the model again")
    mixes = any(
        node.op == _MEASURING and not node.attrs.get("kept") for node in model.bundle.signatures["predict"].nodes
    )
    return Sizes(recipe.tokens, rows[0] if rows else 1 if mixes else None, lengths[0] if lengths else None)
