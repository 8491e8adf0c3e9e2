"""Computes vectors of texts for the scheduler: a job is a request, its rows are texts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from time import perf_counter

import numpy as np

from edge.gateway.batching.cost import Cost
from edge.gateway.batching.runner import LADDER, LONG
from edge.gateway.job import Job
from lite_runtime import Model
from lite_runtime.graph import Array
from lite_runtime.language.embedding.model import EmbeddingModel
from lite_runtime.language.embedding.recipe import KEY

__all__ = ["VECTORS", "Embedder", "embedder_of", "packed"]

VECTORS = "vectors"
"""The name of a job's output, float32 [texts, dimensions]."""
_IDS, _COUNTS = "ids", "counts"
USUAL = 16
"""Tokens of the texts that batches are timed with before the first request."""


def packed(texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    """Token ids of texts as the inputs of a job: all of them, and how many each text has."""
    counts = np.array([len(ids) for ids in texts], np.int64)
    return {_IDS: np.concatenate([np.asarray(ids, np.int64) for ids in texts]), _COUNTS: counts}


class Embedder:
    """The runner of an embedding model, see `Runner`.

    Texts of all jobs of a batch are computed together, by length (`lite_runtime.language.embedding.groups`), so a
    batch has no size of its own that would be compiled. What the scheduler knows of its cost is measured with texts
    of `USUAL` tokens; the level of that is corrected by every batch.
    """

    def __init__(self, model: EmbeddingModel, *, name: str, version: str, limit: int) -> None:
        self.key, self.model, self.limit, self.cost = f"{name}/{version}/embeddings/texts", name, limit, Cost()
        self.embedding = model
        self.tokens = 0
        """Tokens of texts that were computed."""

    def run(self, jobs: Sequence[Job]) -> None:
        """See `Runner`."""
        begun = perf_counter()
        texts = [ids for job in jobs for ids in _texts(job)]
        for job in jobs:
            job.begun, job.batch = begun, len(texts)
        try:
            vectors = self.embedding.vectors(texts)
        except Exception as error:  # request: the error becomes the answer of one job, each of several is tried alone
            for job in jobs:
                if len(jobs) > 1:
                    self.run((job,))
                else:
                    job.outputs, job.error = None, error
                    job.computed = job.done = perf_counter()
            return
        now = perf_counter()
        for job, (begin, end) in zip(jobs, pairwise(accumulate((job.rows for job in jobs), initial=0)), strict=True):
            job.outputs, job.computed, job.done = {VECTORS: vectors[begin:end]}, now, now
        self.tokens += sum(map(len, texts))
        self._observe(len(texts), now - begun)

    def warm(self, seconds: float = 5.0) -> None:
        """See `Runner`."""
        end = perf_counter() + seconds
        text = [0] * min(USUAL, self.embedding.recipe.tokens)
        for size in (size for size in LADDER if size <= self.limit):
            self.embedding.vectors([text] * size)
            begun = perf_counter()
            self.embedding.vectors([text] * size)
            now = perf_counter()
            self.cost.observe(size, now - begun)
            if 2 * (now - begun) > LONG or now > end:
                return

    def _observe(self, rows: int, seconds: float) -> None:
        """Record a batch as one of the largest timed size that it fills."""
        size = max([size for size in self.cost.sizes if size <= rows], default=1)
        self.cost.observe(size, seconds * size / rows)


def _texts(job: Job) -> list[list[int]]:
    ids = job.inputs[_IDS].tolist()
    return [ids[begin:end] for begin, end in pairwise(accumulate(job.inputs[_COUNTS].tolist(), initial=0))]


def embedder_of(model: Model, name: str, version: str, limit: int) -> Embedder | None:
    """The runner of a version that is being loaded; None unless it is an embedding model. limit: texts of a batch."""
    if KEY not in model.bundle.metadata:
        return None
    made = Embedder(EmbeddingModel(model), name=name, version=version, limit=limit)
    made.warm()
    return made
