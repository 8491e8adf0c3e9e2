"""Vectors of sentences beside ONNX Runtime, in turns in one process:

    python -m benchmarks.embeddings MODEL.onnx tokenizer.json TEXTS [--threads 1,2] [--batch 32] [--quantize w8]

TEXTS is a file of paragraphs. Both are given the same token ids and make the same vectors; the lowest cosine is shown.
ONNX Runtime runs the batch padded to its longest text (`onnxruntime`), and each text by itself, without padding
(`onnxruntime, one by one`), with pooling in NumPy. Ours is once given that very array (`msedge, padded`), and once the
texts (`msedge`), which it groups by length.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from converter import Embedding, convert
from edge.measuring.measure import interleave, ratio
from edge.peers.oracle import Oracle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.language import EmbeddingModel
from lite_runtime.language.embedding.recipe import POOLINGS

__all__ = ["contenders"]

OURS, PADDED, PEER, SINGLY = "msedge", "msedge, padded", "onnxruntime", "onnxruntime, one by one"


def contenders(model: EmbeddingModel, oracle: Oracle, texts: Sequence[Sequence[int]]) -> dict[str, Callable[[], Array]]:
    """By name, what computes the vectors of these token ids."""

    def states(texts: Sequence[Sequence[int]], run: Callable[..., dict[str, Array]]) -> Array:
        """Vectors by one run of a graph over all texts."""
        given = _padded(model, texts)
        found, pool = run(given)[model.recipe.output], POOLINGS[model.recipe.pooling]
        made = [pool(one if found.ndim == 2 else one[: len(ids)]) for one, ids in zip(found, texts, strict=True)]
        vectors = np.stack(made)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if model.recipe.normalize else vectors

    def singly() -> Array:
        return np.concatenate([states([ids], oracle.run) for ids in texts])

    return {
        PEER: partial(states, texts, oracle.run), PADDED: partial(states, texts, model.model.run),
        SINGLY: singly, OURS: partial(model.vectors, texts),
    }  # fmt: skip


def _padded(model: EmbeddingModel, texts: Sequence[Sequence[int]]) -> dict[str, Array]:
    length = max(map(len, texts))
    ids, mask = np.zeros((2, len(texts), length), np.int64)
    for row, one in enumerate(texts):
        ids[row, : len(one)], mask[row, : len(one)] = one, 1
    places = np.broadcast_to(np.arange(length), ids.shape).copy()
    given = {"ids": ids, "mask": mask, "types": np.zeros_like(ids), "positions": places}
    return {name: given[role] for role, name in model.recipe.inputs.items()}


def _sentences(path: Path, count: int) -> list[str]:
    parts = [part.replace("\n", " ") for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    if len(parts) < count:
        raise MsedgeError(f"{path}: expected {count} paragraphs, got {len(parts)}")
    return parts[:count]


def main(arguments: Sequence[str]) -> int:
    """Print a table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--quantize", default="none")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    made = convert(given.model, embedding=Embedding(given.tokenizer), quantize=given.quantize).bundle
    for threads in map(int, given.threads.split(",")):
        model = EmbeddingModel.load(made, threads=threads)
        texts = [model.tokens(one) for one in _sentences(given.texts, given.batch)]
        calls = contenders(model, Oracle(given.model, threads=threads, exact=False), texts)
        want, found = calls[PEER](), calls[OURS]()
        cosines = (want * found).sum(1) / np.linalg.norm(want, axis=1) / np.linalg.norm(found, axis=1)
        counts = f"{sum(map(len, texts))} tokens of {len(texts)} texts, the longest {max(map(len, texts))}"
        print(f"\n{threads} threads, {counts}; lowest cosine {cosines.min():.7f}\n")
        print("| | ms | texts/s | times onnxruntime (quartiles) |\n|---|---|---|---|")
        timings = interleave(calls, rounds=given.rounds, seconds=60)
        for name, timing in timings.items():
            beside = ratio(timing, timings[PEER])
            share = f"{beside.median:.2f} ({beside.low:.2f} to {beside.high:.2f})"
            print(f"| {name} | {1e3 * timing.median:.0f} | {len(texts) / timing.median:.1f} | {share} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
