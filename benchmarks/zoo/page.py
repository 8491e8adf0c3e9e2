"""docs/models.json and docs/models.md: what public models gave."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.zoo.compare import ABSOLUTE, LARGE, RELATIVE, RESULTS, Outcome
from benchmarks.zoo.listing import KINDS, Entry
from edge.cli.output import plain
from edge.measuring.rounding import TRIES
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["page", "read", "write"]

_BEGIN = f"""# Public models

Each model was made by others and is published. `msedge convert` converted it with default settings; msedge and the
runtime of its format ran it on the same inputs, each model in a process of its own.

- The peer of `.onnx` is ONNX Runtime with its optimisations on and with kernels that compute what ONNX defines, as in
  `msedge verify`; the peer of `.tflite` is LiteRT with its default delegate, without it where that refuses the model.
- Every size of inputs has five runs: two random ones, the lowest values (zeros for reals), the highest (a normal
  distribution times {LARGE:g} for reals), a random one. State of streaming models continues from run to run.
- *equal*: every element of a real output differs by at most {RELATIVE:g} of the output's range, or by {ABSOLUTE:.1e};
  one of float16 by one unit in the last place; 8- and 16-bit integers differ by at most one step (one element in a
  thousand by more); wider integers, Booleans and text are the same. An output's range is that of the random runs, or of
  the compared run if that is larger. One and two threads gave the same bits.
- *rounding*: an output did not, but the peer alone moves by half as much, or more, where its real inputs change by at
  most {ABSOLUTE:.1e} of their value ({TRIES} random changes of every run), or where its optimisations or its delegate
  are off (LiteRT's optimised kernels, where it has no delegate for the model); of integers, in half as many elements.
  A model that rounds to integers turns such a change into a whole step.
- *differs*: an output did not, and by more than that; *refused*: the converter refused the model with a clear error;
  *failed*: anything else.
- The error is relative to the range of an output, in steps for integers. Native: the share of the nodes that native
  kernels ran. Convert: the time of the conversion, on a machine that does other work too.

`python -m benchmarks.zoo fetch --models DIR` downloads the models of `benchmarks/zoo/models.json` and checks their
digests; licences are those that packages or repositories state. `python -m benchmarks.zoo run --models DIR --docs docs`
makes this page and `models.json` again.
"""


def read(folder: Path) -> dict[str, Outcome]:
    """The results in models.json, by the names of models."""
    path = folder / "models.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return {name: _outcome(row) for name, row in rows.items()}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MsedgeError(f"{path}: expected results that `run` wrote: {error}") from error


def _outcome(row: Mapping[str, Any]) -> Outcome:
    error = math.inf if row["error"] is None else row["error"]  # JSON has no infinity
    return Outcome(**{**row, "reference": tuple(row["reference"]), "error": error})


def write(folder: Path, models: Sequence[Entry], results: Mapping[str, Outcome]) -> None:
    """Write both files. Raises MsedgeError if a model has no result."""
    held = {name: asdict(outcome) for name, outcome in results.items()}
    text = page(models, results)
    figures = json.dumps(plain(held), indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / "models.json", (figures + "\n").encode())
    write_atomically(folder / "models.md", text.encode())


def page(models: Sequence[Entry], results: Mapping[str, Outcome]) -> str:
    """The page as Markdown. Raises MsedgeError if a model has no result."""
    lacking = [entry.name for entry in models if entry.name not in results]
    if lacking:
        raise MsedgeError(f"no result of {', '.join(lacking)}; run them first")
    parts = [_BEGIN, _summary(models, results), _all(models, results), _misses(models, results)]
    return "\n".join(part for part in parts if part)


def _summary(models: Sequence[Entry], results: Mapping[str, Outcome]) -> str:
    lines = ["| kind | models | " + " | ".join(RESULTS) + " | all native |", "| --- |" + " ---: |" * (len(RESULTS) + 2)]
    for kind in (*(k for k in KINDS if any(e.kind == k for e in models)), "all"):
        chosen = [results[entry.name] for entry in models if kind in (entry.kind, "all")]
        counts = [sum(one.result == result for one in chosen) for result in RESULTS]
        native = sum(one.share == 1 for one in chosen)
        lines.append(f"| {kind} | {len(chosen)} | " + " | ".join(map(str, counts)) + f" | {native} |")
    equal = sum(results[entry.name].result == "equal" for entry in models)
    text = f"{equal} of {len(models)} models are equal ({equal / len(models):.1%})."
    if rounded := sum(results[entry.name].result == "rounding" for entry in models):
        text += f" With those that differ by rounding: {equal + rounded} ({(equal + rounded) / len(models):.1%})."
    lines += ["", text, ""]
    return "\n".join(lines)


def _all(models: Sequence[Entry], results: Mapping[str, Outcome]) -> str:
    lines = [
        "## Every model", "",
        "| model | kind | source | licence | peer | result | worst error | native | not native | convert |",
        "| --- | --- | --- | --- | --- | --- | ---: | ---: | --- | ---: |",
    ]  # fmt: skip
    for entry in models:
        row = results[entry.name]
        ran = bool(row.runs)
        cells = (
            entry.name, entry.kind, entry.source, entry.licence or "not stated", entry.peer, row.result, _figure(row),
            f"{row.share:.0%}" if ran else "", ", ".join(row.reference), f"{row.seconds:.2f} s" if row.seconds else "",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def _figure(row: Outcome) -> str:
    if not row.runs:
        return ""
    return f"{row.error:.2g}" if math.isfinite(row.error) else "not comparable"


def _misses(models: Sequence[Entry], results: Mapping[str, Outcome]) -> str:
    missed = [entry for entry in models if results[entry.name].result != "equal"]
    if not missed:
        return ""
    lines = ["## Why models are not equal", ""]
    for entry in missed:
        row = results[entry.name]
        found = " ".join(row.where.split()).replace("<", "&lt;")
        lines += [f"- **{entry.name}** {row.result}: {entry.note or 'not explained yet.'} Measured: {found}"]
    return "\n".join([*lines, ""])
