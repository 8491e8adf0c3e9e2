"""A request for vectors of texts, from arrival to reply, on the event loop's thread."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job, nobody
from edge.gateway.language.arrival import Arrival
from edge.gateway.language.body import EMBEDDINGS, MOST_INPUTS, ParameterError, read
from edge.gateway.language.embedder import VECTORS, Embedder, packed
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from edge.gateway.operate.statistics import ModelStatistics
from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.language.embedding.model import EmbeddingModel

__all__ = ["Embedding"]

_DIGITS = 24
"""Bytes of a number in JSON, at most."""


class _Wanted(NamedTuple):
    """A request, checked: token ids of texts, numbers of a vector, and whether vectors are written in base64."""

    texts: list[list[int]]
    dimensions: int
    base64: bool


class Embedding(Arrival):
    """One request: call `begin`, then `whole`, and in any case `end`."""

    _job: Job | None = None

    async def begin(self, given: Mapping[str, Any]) -> None:
        """Accept the request with that body. Raises GatewayError: 400, 401, 403, 404, 413, 429, 503, 504."""
        served, gateway = await self._routed(given), self._gateway
        embedder = served.embedder
        assert embedder is not None
        wanted = self._wanted = await gateway.aside(partial(_wanted, model=embedder.embedding), given)
        most = gateway.settings.limits.reply
        if len(wanted.texts) * wanted.dimensions * (16 / 3 if wanted.base64 else _DIGITS) > most:
            raise GatewayError(413, f"the reply could be larger than {most} bytes; ask for fewer texts at a time")
        self._answer: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        job = Job(
            packed(wanted.texts), len(wanted.texts), self._answer.set_result, arrived=self._arrived,
            priority=served.config.priority, deadline=self._ask.deadline,
        )  # fmt: skip
        gateway.scheduler.submit(job, embedder)
        self._job, self._embedder = job, embedder

    async def whole(self) -> dict[str, Any]:
        """See `Arrival`."""
        job, wanted, served = await self._answer, self._wanted, self._served
        if job.error is not None:
            raise job.error
        assert job.outputs is not None and served is not None
        vectors = job.outputs[VECTORS]
        data = await self._gateway.aside(partial(_written, self._embedder, wanted), vectors)
        tokens = sum(map(len, wanted.texts))
        return {
            "object": "list", "data": data, "model": served.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }  # fmt: skip

    def end(self, status: int) -> None:
        """See `Arrival`."""
        if self._job is not None:
            self._job.finish = nobody
            if status != 200:
                self._gateway.scheduler.cancel(self._job)
        super().end(status)

    def _record(self, statistics: ModelStatistics, now: float) -> None:
        assert self._job is not None
        statistics.record(self._job, now)

    def _refusal(self, served: Serving) -> str:
        if isinstance(served, Served) and served.embedder is not None:
            return ""
        chats = isinstance(served, Served) and served.language is not None
        other = "/v1/chat/completions" if chats else f"/v2/models/{served.name}/infer"
        return f"is not an embedding model; ask it at {other}"


def _wanted(given: Mapping[str, Any], model: EmbeddingModel) -> _Wanted:
    """What a body asks for. Raises ParameterError (400)."""
    found = read(given, EMBEDDINGS, "input")
    text = found["input"]
    texts = text if isinstance(text, list) and not isinstance(text[0], int) else [text]
    if len(texts) > MOST_INPUTS:
        raise ParameterError("input", f"input: expected at most {MOST_INPUTS} texts, got {len(texts)}")
    dimensions = found.get("dimensions", model.dimensions)
    if dimensions > model.dimensions:
        text = f"dimensions: expected at most {model.dimensions}, which this model has, got {dimensions}"
        raise ParameterError("dimensions", text)
    try:
        made = [list(model.checked(model.tokens(one) if isinstance(one, str) else one)) for one in texts]
    except InputError as error:
        code = "context_length_exceeded" if "tokens, got" in str(error) else "invalid_value"
        raise ParameterError("input", f"input: {error}", code) from None
    return _Wanted(made, dimensions, found.get("encoding_format") == "base64")


def _written(embedder: Embedder, wanted: _Wanted, vectors: Array) -> list[dict[str, Any]]:
    """The vectors as the reply's data."""
    if wanted.dimensions < vectors.shape[1]:
        vectors = embedder.embedding.shortened(vectors, wanted.dimensions)
    rows = [b64encode(row).decode() for row in vectors.astype("<f4")] if wanted.base64 else vectors.tolist()
    return [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
