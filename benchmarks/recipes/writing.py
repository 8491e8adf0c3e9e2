"""Recipes whose models write texts: what a model writes of the test's texts, beside what needs no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from benchmarks.recipes import scores, texts
from lite_runtime.graph import Array
from lite_runtime.language import Tokenizer
from lite_runtime.language.encoder_decoder import write

__all__ = [
    "FURTHER", "TASKS", "Run", "Task", "beside", "decoded", "encoded", "first_sentence", "from_memory", "scored",
    "tokenizer_of", "written", "written_of",
]  # fmt: skip

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Score: TypeAlias = Callable[[Sequence[str], Sequence[str]], float]
_BEAMS = 4


@dataclass(frozen=True)
class Task:
    """A recipe that writes: its pairs, its figure, further figures, and what is written without a model: a function of
    (the test's texts, the training pairs)."""

    pairs: str
    unit: str
    figure: Score
    further: Mapping[str, Score]
    baselines: Mapping[str, Callable[[Sequence[str], Sequence[texts.Pair]], list[str]]]


def first_sentence(given: Sequence[str], known: Sequence[texts.Pair]) -> list[str]:
    """The first sentence of each text (lead-1)."""
    return [text.partition(". ")[0] for text in given]


def _same(given: Sequence[str], known: Sequence[texts.Pair]) -> list[str]:
    return list(given)


def from_memory(given: Sequence[str], known: Sequence[texts.Pair]) -> list[str]:
    """What belongs to the training text that shares most pieces of three characters with each, over all that both have:
    a translation memory."""
    held: dict[str, list[int]] = {}
    sizes = np.zeros(len(known))
    for i, (text, _) in enumerate(known):
        pieces = _pieces(text)
        sizes[i] = len(pieces)
        for piece in pieces:
            held.setdefault(piece, []).append(i)
    rows, found = {piece: np.array(places) for piece, places in held.items()}, []
    for text in given:
        pieces = _pieces(text)
        shared = np.zeros(len(known))
        for piece in pieces & rows.keys():
            shared[rows[piece]] += 1
        found.append(known[int((shared / (sizes + len(pieces) - shared)).argmax())][1])
    return found


def _pieces(text: str) -> set[str]:
    whole = f" {text.lower()} "
    return {whole[i : i + 3] for i in range(len(whole) - 2)}


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "summaries": Task(
            "docstrings", "ROUGE-L", scores.rouge_longest, {"ROUGE-1": scores.rouge},
            {"first sentence": first_sentence, "most similar": from_memory},
        ),
        "messages": Task(
            "messages", "chrF", scores.chrf, {"exact": scores.exact},
            {"untranslated": _same, "most similar": from_memory},
        ),
    }
)  # fmt: skip

FURTHER = frozenset(name for task in TASKS.values() for name in task.further)
"""Names of further figures."""


def tokenizer_of(folder: Path, name: str) -> Tokenizer:
    """The tokenizer beside `NAME.json`."""
    return Tokenizer.from_bytes((folder / f"{name}.tokenizer").read_bytes())


def encoded(tokenizer: Tokenizer, text: str, length: int) -> Array:
    """The ids of a text, int32 [length]: what is longer is cut, padding is behind what is shorter."""
    ids = tokenizer.encode(text, special=False, add=False)[:length]
    return np.array(ids + [texts.PAD] * (length - len(ids)), np.int32)


def decoded(tokenizer: Tokenizer, rows: Array) -> list[str]:
    """The texts of ids [n, length], each up to its end."""
    ends = [int(np.argmax(np.append(row, texts.END) == texts.END)) for row in rows]
    return [tokenizer.decode([int(i) for i in row[:end] if i > texts.END]) for row, end in zip(rows, ends, strict=True)]


def written(run: Run, tokenizer: Tokenizer, source: Array, length: int, beams: int = _BEAMS) -> list[str]:
    """What a model writes of sources [n, source length], by beam search."""
    made = write(
        lambda x, target: run({"x": x, "target": target})["logits"], source, length, start=texts.START, end=texts.END,
        beams=beams,
    )  # fmt: skip
    return decoded(tokenizer, made)


def written_of(recipe: str, folder: Path, run: Run, inputs: Mapping[str, Array], labels: Array) -> list[str]:
    """What a model writes of a recipe's test."""
    return written(run, tokenizer_of(folder, TASKS[recipe].pairs), inputs["x"], labels.shape[1])


def scored(recipe: str, folder: Path, made: Sequence[str], labels: Array) -> float:
    """The recipe's figure of written texts."""
    task = TASKS[recipe]
    return task.figure(made, decoded(tokenizer_of(folder, task.pairs), labels))


def beside(
    recipe: str, folder: Path, inputs: Mapping[str, Array], labels: Array, made: Sequence[str]
) -> dict[str, float]:  # fmt: skip
    """Further figures by name: of what the model wrote, and of what needs no model. `inputs`, `labels`: the test's."""
    task = TASKS[recipe]
    tokenizer = tokenizer_of(folder, task.pairs)
    wanted, given = decoded(tokenizer, labels), decoded(tokenizer, inputs["x"])
    found = {name: score(made, wanted) for name, score in task.further.items()}
    known, _ = texts.read(folder, task.pairs)
    for name, baseline in task.baselines.items():
        simple = baseline(given, known)
        found[name] = task.figure(simple, wanted)
        found |= {f"{name}, {other}": score(simple, wanted) for other, score in task.further.items()}
    return found
