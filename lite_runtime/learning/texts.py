"""A language model learns from texts on the device: an adapter beside its weights, which stay as they are.

    learning = Learning(model, learning_rate=1e-3)
    for step in learning.steps(["A text.", conversation]):
        print(step.loss)
    learning.adapter().save("me.msstate")

Of a text every token is learned, of a conversation those of its answers. Low-rank adapters: Hu et al., 2021; beside
weights of 4 bits: Dettmers et al., 2023, "QLoRA".
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.language import prompts
from lite_runtime.language.adapters import Adapter, layout
from lite_runtime.language.engine import Part
from lite_runtime.language.generation import LanguageModel
from lite_runtime.language.kept import common

__all__ = ["Batch", "Example", "Learning", "Row", "Step", "examples_of"]

Example = str | Items[Mapping[str, Any]]
"""A text, or a conversation whose answers are to be learned."""
_UNCOUNTED = -1
_ROUNDED = 32
"""Lengths of batches are multiples of this, so that few are planned."""
_RATE = "hyper/learning_rate"


class Row(NamedTuple):
    """Tokens, and for each the one that follows, or -1 where it is not to be learned."""

    tokens: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def counted(self) -> int:
        """Labels that are learned."""
        return sum(label != _UNCOUNTED for label in self.labels)


class Batch(NamedTuple):
    """What a step reads: int32 and int64 [rows, length]."""

    input_ids: Array
    labels: Array


class Step(NamedTuple):
    """A step that was made. number: from 1 to `of`. loss: before the step, per token that is learned, in nats. tokens:
    those that were learned. seconds: what it took."""

    number: int
    of: int
    epoch: int
    loss: float
    tokens: int
    seconds: float


class Learning:
    """An adapter in the making. The model can answer meanwhile, without what is being learned."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        adapter: Adapter | None = None,
        learning_rate: float | None = None,
        length: int = 256,
        batch: int = 1,
        seed: int = 0,
    ) -> None:
        """adapter: where to begin; by default where the bundle begins, with an adapter that changes nothing.
        learning_rate: by default the bundle's. length: most tokens of a row. batch: rows of a step. seed: of the order
        of rows. Raises InputError for a bundle that does not learn and for settings out of their range."""
        if layout(model.about) is None or "train_step" not in model.engine.model.signatures:
            raise InputError("this bundle does not learn; convert the model with adapters (--lora 8)")
        if learning_rate is not None and not 0 < learning_rate < float("inf"):
            raise InputError(f"learning_rate: expected a positive number, got {learning_rate}")
        for name, value in (("length", length), ("batch", batch)):
            if type(value) is not int or value < 1:
                raise InputError(f"{name}: expected a whole number from 1 on, got {value!r}")
        self.model, self._run = model, model.engine.model
        self.length, self.batch, self.seed = min(length, model.engine.context), batch, seed
        self._run.reset_state()
        if adapter is not None:
            self._begin_with(adapter)
        if learning_rate is not None:
            self._run.load_state_dict({_RATE: np.asarray(learning_rate, np.float32)}, strict=False)

    def rows(self, examples: Items[Example]) -> list[Row]:
        """What is learned from examples: pieces of texts of up to `length` tokens, and of conversations the last tokens
        up to each answer. Raises InputError for an example that is neither, and if nothing is left to learn."""
        found = [row for number, example in enumerate(examples) for row in self._rows(example, number)]
        if not any(row.counted for row in found):
            raise InputError("expected something to learn: texts of two tokens or more, or conversations with answers")
        return [row for row in found if row.counted]

    def steps(self, examples: Items[Example] | Items[Row], epochs: int = 1) -> Iterator[Step]:
        """Learn from all examples, `epochs` times in new orders; a step is made when the next item is asked for. Raises
        InputError like `rows`, MsedgeError if the loss is no number any more."""
        rows = self._of(examples)
        if type(epochs) is not int or epochs < 1:
            raise InputError(f"epochs: expected a whole number from 1 on, got {epochs!r}")
        batches = -(-len(rows) // self.batch)
        return self._steps(rows, epochs, batches)

    def loss(self, examples: Items[Example] | Items[Row]) -> float:
        """The mean loss of the tokens that would be learned, in nats; its exponential is the perplexity."""
        total, count = 0.0, 0
        for batch in self._batches(self._of(examples)):
            found = self._run.run(batch._asdict(), "evaluate")
            total += float(found["loss"]) * int(found["examples"])
            count += int(found["examples"])
        return total / count

    def adapter(self) -> Adapter:
        """What was learned so far. Raises InputError if it is not finite."""
        made = self._current()
        made.flat(self.model.about)
        return made

    def taught_by(self, teacher: LanguageModel, adapter: Adapter | None, examples: Items[Example]) -> list[Row]:
        """The examples' rows with the tokens that another model of the same tokenizer finds most probable as what is to
        be learned (Kim & Rush, 2016): how an adapter of an older model goes over to this one. Raises InputError for a
        teacher of another vocabulary, and for an adapter that is not its own."""
        if teacher.about["vocabulary"] != self.model.about["vocabulary"]:
            raise InputError("expected a teacher with the same vocabulary, got one of another")
        slot = -1 if adapter is None else teacher.engine.attach(adapter)
        try:
            return [self._taught(teacher, slot, row) for row in self.rows(examples)]
        finally:
            if slot >= 0:
                teacher.engine.detach(slot)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _of(self, examples: Items[Any]) -> list[Row]:
        if all(isinstance(example, Row) for example in examples) and examples:
            return list(examples)
        return self.rows(examples)

    def _rows(self, example: Example, number: int) -> list[Row]:
        if isinstance(example, str):
            return self._of_text(prompts.of_text(self.model.words(), example))
        if not isinstance(example, list | tuple):
            raise InputError(f"example {number}: expected a text or a list of messages, got {type(example).__name__}")
        answers = [i for i, message in enumerate(example) if _role(message) == "assistant"]
        return [self._of_answer(example[: i + 1]) for i in answers]

    def _of_text(self, tokens: list[int]) -> list[Row]:
        """Pieces that follow one another; the last token of a piece is the first of the next one."""
        pieces = [tokens[i : i + self.length + 1] for i in range(0, max(1, len(tokens) - 1), self.length)]
        return [Row(tuple(piece[:-1]), tuple(piece[1:])) for piece in pieces if len(piece) > 1]

    def _of_answer(self, messages: Items[Mapping[str, Any]]) -> Row:
        """A conversation that ends with an answer; of a long one, the end."""
        about, words = self.model.about, self.model.words()
        before = prompts.of_messages(about, words, messages[:-1])
        whole = prompts.of_messages(about, words, messages, answered=True)
        begin = common(before, whole)
        labels = [_UNCOUNTED] * max(0, begin - 1) + whole[max(1, begin) :]
        return Row(tuple(whole[:-1][-self.length :]), tuple(labels[-self.length :]))

    def _taught(self, teacher: LanguageModel, slot: int, row: Row) -> Row:
        sequence = teacher.engine.start(slot)
        try:
            (logits,) = teacher.run([Part(sequence, row.tokens, len(row.tokens))])
        finally:
            teacher.engine.end(sequence)
        best = logits.argmax(-1).tolist()
        labels = (b if label != _UNCOUNTED else label for b, label in zip(best, row.labels, strict=True))
        return Row(row.tokens, tuple(labels))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _steps(self, rows: list[Row], epochs: int, batches: int) -> Iterator[Step]:
        random, number = np.random.default_rng(self.seed), 0
        for epoch in range(1, epochs + 1):
            order = random.permutation(len(rows))
            for batch in self._batches([rows[i] for i in order]):
                begin = time.perf_counter()
                loss = float(self._run.run(batch._asdict(), "train_step")["loss"])
                number += 1
                if not np.isfinite(loss):
                    raise MsedgeError(
                        f"the loss of step {number} is {loss}: the learning rate is too high; begin with a lower one"
                    )
                tokens, seconds = int((batch.labels != _UNCOUNTED).sum()), time.perf_counter() - begin
                yield Step(number, epochs * batches, epoch, loss, tokens, seconds)

    def _batches(self, rows: list[Row]) -> Iterator[Batch]:
        for begin in range(0, len(rows), self.batch):
            some = rows[begin : begin + self.batch]
            longest = max(len(row.tokens) for row in some)
            shape = self.batch, min(self.model.engine.context, -(-longest // _ROUNDED) * _ROUNDED)
            made = Batch(np.zeros(shape, np.int32), np.full(shape, _UNCOUNTED, np.int64))
            for i, row in enumerate(some):
                made.input_ids[i, : len(row.tokens)] = row.tokens
                made.labels[i, : len(row.labels)] = row.labels
            yield made

    # -- state ---------------------------------------------------------------------------------------------------------

    def _current(self) -> Adapter:
        """What was learned so far, finite or not."""
        return Adapter.of_state(self._run.state_dict(), self.model.about, self.model.digest)

    def _begin_with(self, adapter: Adapter) -> None:
        """Begin with an adapter; further ranks begin as those of the bundle do."""
        self.model.engine.check(adapter)
        first = dict(self._current().arrays)
        for name, value in adapter.arrays.items():
            if name.endswith(".lora_a"):
                first[name] = np.concatenate([value, first[name][:, value.shape[1] :]], axis=1)
            else:
                first[name] = np.concatenate([value, first[name][len(value) :]])
        self._run.load_state_dict(first, strict=False)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


# -- examples in files -------------------------------------------------------------------------------------------------


def examples_of(path: Path) -> list[Example]:
    """The examples in a file: one text, or in .jsonl one example a line. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: expected UTF-8, got other bytes at {error.start}; convert the file") from None
    if path.suffix not in (".jsonl", ".json"):
        return [text]
    return [_example(line, f"{path}, line {i}") for i, line in enumerate(text.splitlines(), 1) if line.strip()]


def _example(line: str, where: str) -> Example:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        held = None
    for names, made in _FORMS.items():
        if isinstance(held, dict) and set(names) <= set(held):
            example: Example = made(*(held[name] for name in names))
            return example
    raise InputError(
        f"{where}: expected an object with messages, with prompt and completion, or with text; see docs/language.md"
    )


_FORMS: dict[tuple[str, ...], Any] = {
    ("messages",): lambda messages: messages,
    ("prompt", "completion"): lambda prompt, completion: [
        {"role": "user", "content": prompt}, {"role": "assistant", "content": completion}
    ],
    ("text",): lambda text: text,
}  # fmt: skip
"""What an object of a line may hold, and the example that it is."""
