"""`msedge teach`: a language model learns an adapter from texts or conversations."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.options import Bundle, Json, Seed, Threads
from edge.cli.output import bytes_text, emit, say

if TYPE_CHECKING:
    from lite_runtime.learning.texts import Example, Learning, Row

__all__ = ["teach"]

_CACHES = 16
"""Positions of the caches for answers, which are not needed here."""


def teach(
    bundle: Bundle,
    examples: Annotated[
        Path,
        typer.Argument(
            metavar="EXAMPLES",
            help="A text (.txt), or JSON lines with `messages`, with `prompt` and `completion`, or with `text`.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The adapter to write (.msstate).")],
    adapter: Annotated[
        Path | None, typer.Option("--adapter", metavar="FILE", help="Continue with this adapter of the same bundle.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="How often all examples are read.")] = 2,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", metavar="RATE", help="By default the bundle's.")
    ] = None,
    length: Annotated[
        int, typer.Option("--length", min=1, metavar="N", help="The most tokens of a row; long texts become rows.")
    ] = 256,
    batch: Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Rows of a step.")] = 1,
    teacher: Annotated[
        Path | None,
        typer.Option(
            "--teacher", metavar="OLD.mslite", help="Learn what this model, with --teacher-adapter, would have written."
        ),
    ] = None,
    teacher_adapter: Annotated[
        Path | None, typer.Option("--teacher-adapter", metavar="FILE", help="The teacher's adapter.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Learn from texts or conversations, on this machine: an adapter for a bundle that was converted with --lora.

    The bundle's weights stay as they are. Of conversations, answers are learned. `msedge chat --adapter` and `msedge
    serve` use the result. After an update of the bundle, --teacher OLD.mslite --teacher-adapter FILE carries an adapter
    over: the new bundle learns what the old one, with its adapter, finds most probable in the same examples.
    """
    from lite_runtime.language import Adapter, LanguageModel
    from lite_runtime.learning.texts import Learning, examples_of

    if teacher_adapter is not None and teacher is None:
        raise typer.BadParameter("only used with --teacher; it is missing", param_hint="--teacher-adapter")
    model = LanguageModel.load(bundle, positions=_CACHES, threads=threads)
    begin = None if adapter is None else Adapter.load(adapter)
    learning = Learning(model, adapter=begin, learning_rate=learning_rate, length=length, batch=batch, seed=seed)
    found = examples_of(examples)
    rows = learning.rows(found)
    _need_folder(output)
    if teacher is not None:
        rows = _taught(learning, found, teacher, teacher_adapter, threads)
    before = learning.loss(rows)
    say(f"{len(found)} examples, {sum(row.counted for row in rows)} tokens to learn; perplexity {_perplexity(before)}")
    losses = _learn(learning, rows, epochs)
    after = learning.loss(rows)
    learning.adapter().save(output)
    size = output.stat().st_size
    if as_json:
        emit(
            {
                "output": str(output), "bytes": size, "examples": len(found), "steps": len(losses), "losses": losses,
                "perplexity_before": _exponential(before), "perplexity_after": _exponential(after),
            }
        )  # fmt: skip
        return
    print(f"{output}: {bytes_text(size)}, perplexity of the examples {_perplexity(before)} -> {_perplexity(after)}")
    print(f"talk to it:  msedge chat {bundle} --adapter {output}")


def _need_folder(output: Path) -> None:
    """Make the folder of what is written at the end. Raises MsedgeError before anything is learned."""
    from lite_runtime.errors import MsedgeError

    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MsedgeError(f"cannot make the folder of {output}: {error.strerror or error}; choose another") from None


def _learn(learning: Learning, rows: list[Row], epochs: int) -> list[float]:
    """All steps, with a line that says how far they are."""
    losses, spent = list[float](), 0.0
    for step in learning.steps(rows, epochs):
        losses.append(step.loss)
        spent += step.seconds
        left = spent / step.number * (step.of - step.number)
        line = f"step {step.number} of {step.of}, loss {step.loss:.3f}, {left:.0f} s left"
        if sys.stderr.isatty():
            print(f"\r{line:<60}", end="\n" if step.number == step.of else "", file=sys.stderr, flush=True)
        elif step.number == step.of or step.number % max(1, step.of // 10) == 0:
            say(line)
    return losses


def _taught(
    learning: Learning, examples: list[Example], teacher: Path, adapter: Path | None, threads: int
) -> list[Row]:
    from lite_runtime.language import Adapter, LanguageModel

    model = LanguageModel.load(teacher, positions=max(_CACHES, learning.length), threads=threads)
    return learning.taught_by(model, None if adapter is None else Adapter.load(adapter), examples)


def _exponential(loss: float) -> float:
    return math.exp(min(loss, 700.0))


def _perplexity(loss: float) -> str:
    return f"{_exponential(loss):.3g}"
