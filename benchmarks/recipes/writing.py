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
    "FURTHER", "TASKS", "Run", "Task", "beside", "decoded", "first_sentence", "own_name", "parts", "scored", "source",
    "tokenizer_of", "written", "written_of",
]  # fmt: skip

Run: TypeAlias = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Score: TypeAlias = Callable[[Sequence[str], Sequence[str]], float]
_BEAMS = 4


@dataclass(frozen=True)
class Task:
    """A recipe that writes: its pairs, its figure, further figures, and what is written without a model: a function of
    (a text, what belongs to the most similar training text)."""

    pairs: str
    unit: str
    figure: Score
    further: Mapping[str, Score]
    baselines: Mapping[str, Callable[[str, str], str]]


def first_sentence(text: str, near: str) -> str:
    """The first sentence of a docstring (lead-1), behind the signature."""
    return text.partition("). ")[2].partition(". ")[0]


def own_name(text: str, near: str) -> str:
    """The name before a docstring, in words."""
    return text.partition(" (")[0]


TASKS: Mapping[str, Task] = MappingProxyType(
    {
        "summaries": Task(
            "docstrings", "ROUGE-L", scores.rouge_longest, {"ROUGE-1": scores.rouge},
            {"first sentence": first_sentence, "name": own_name, "most similar": lambda text, near: near},
        ),
        "messages": Task(
            "messages", "chrF", scores.chrf, {"exact": scores.exact},
            {"untranslated": lambda text, near: text, "most similar": lambda text, near: near},
        ),
    }
)  # fmt: skip

FURTHER = frozenset(name for task in TASKS.values() for name in task.further)
"""Names of further figures."""


def tokenizer_of(folder: Path, name: str) -> Tokenizer:
    """The tokenizer beside `NAME.json`."""
    return Tokenizer.from_bytes((folder / f"{name}.tokenizer").read_bytes())


def source(text: Sequence[int], other: Sequence[int], length: int, near: int) -> Array:
    """What a model reads, int32 [near + 1 + length]: the ids `other` of what belongs to a similar text, a start token,
    and a text's ids; each is cut, or has padding behind it. Only the text [length] where `near` is 0."""
    ahead = [*_filled(other, near), texts.START] if near else []
    return np.array([*ahead, *_filled(text, length)], np.int32)


def _filled(ids: Sequence[int], length: int) -> list[int]:
    return [*ids[:length], *[texts.PAD] * (length - len(ids))]


def parts(rows: Array) -> tuple[Array, Array]:
    """(texts' ids, the ids of what belongs to a similar text) of rows that `source` made."""
    starts = np.flatnonzero(rows[:1] == texts.START)
    near = int(starts[0]) if len(starts) else 0
    return rows[:, near + 1 if near else 0 :], rows[:, :near]


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
    wanted, (given, near) = decoded(tokenizer, labels), (decoded(tokenizer, rows) for rows in parts(inputs["x"]))
    found = {name: score(made, wanted) for name, score in task.further.items()}
    for name, baseline in task.baselines.items():
        simple = [baseline(*each) for each in zip(given, near, strict=True)]
        found[name] = task.figure(simple, wanted)
        found |= {f"{name}, {other}": score(simple, wanted) for other, score in task.further.items()}
    return found
