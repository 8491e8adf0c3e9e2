"""`msedge explain`: which elements of a sample made a model answer as it did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli import explain_options as option
from edge.cli.options import Json, Seed
from edge.cli.output import console, emit, say, table, visible
from edge.cli.run import keep, read_inputs, split_input

if TYPE_CHECKING:
    from edge.measuring.explain import Asked, Explained
    from edge.measuring.tokens import Words
    from lite_runtime.explaining import Subject
    from lite_runtime.graph import Array

__all__ = ["explain"]

_SHOWN = 4096
"""Larger explanations are not printed by --json; --save writes them to a file."""
_NAMES = 1 << 20
"""The most characters of a file of names."""


def explain(
    model: option.Model,
    inputs: option.Inputs = None,
    method: option.Method = None,
    row: option.Row = 0,
    target: option.Target = None,
    twin: option.Twin = None,
    compare: option.Compare = False,
    output: option.Page = None,
    save: option.Save = None,
    kind: option.Kind = None,
    given: option.Given = None,
    scores: option.Scores = None,
    position: option.Position = None,
    text: option.Text = None,
    tokenizer: option.Tokenizer = None,
    baseline: option.Baseline = None,
    size: option.Size = None,
    superpixels: option.Superpixels = None,
    steps: option.Steps = 50,
    rule: option.Rule = "gauss_legendre",
    samples: option.Samples = None,
    layer: option.Layer = "",
    rules: option.Rules = "composite",
    rows: option.Rows = None,
    seconds: option.Seconds = None,
    names: option.Names = None,
    classes: option.Classes = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Explain one answer of a model: which elements of the sample raised or lowered the score.

    A bundle is explained as it is deployed by occlusion, rise and kernel_shap, which need its predictions alone. Other
    methods need a gradient: of the bundle's signature `explain` (msedge convert --explainable), of a float bundle's
    graph (needs the extra cloud), or of the float model that --float names.
    """
    from edge.measuring.explain import opened
    from edge.measuring.tokens import words_of
    from lite_runtime.explaining import Limits, wish_for

    arrays = read_inputs([_named(file) for file in inputs or ()])
    words, labels = words_of(model, tokenizer), _lines(classes)
    ids = None if text is None else _encoded(text, words)
    sample, held, given = _sample(arrays, given, row, ids)
    if position is None:
        position = -1 if ids is None else len(ids) - 1
    models = opened(
        model, twin, method or (), given=given, output=scores, held=held, position=position, layer=layer, rules=rules
    )
    sample = sample if ids is None else _filled(sample, models.deployed)
    wish = wish_for(
        models.deployed, sample, kind=kind, size=size, baselines=[_baseline(text) for text in baseline or ("zero",)],
        superpixel_count=superpixels, steps=steps, samples=samples, rule=rule, seed=seed,
    )  # fmt: skip
    found = models.run(
        sample, wish, method or (), target, compare=compare, limits=Limits(rows, seconds),
        tell=lambda name: say(f"asking for {name}"),
    )  # fmt: skip
    known = _lines(names)
    if words is not None and wish.layout.kind == "text":
        known = known or [words.word(number) for number in found.sample.reshape(-1).tolist()]
    if save is not None:
        keep(save, {one.explanation.method: one.explanation.attributions for one in found.asked})
        say(f"saved in {save}")
    if output is not None:
        _write_page(output, found, known, labels)
    emit(_told(found, known, labels, output)) if as_json else _print(found, known, labels)


def _named(text: str) -> tuple[str, Path]:
    """A file alone is the only input."""
    return ("", Path(text)) if "=" not in text and text.endswith(".npy") else split_input(text)


def _encoded(text: str, words: Words | None) -> list[int]:
    from lite_runtime.errors import ExplainError

    if words is None:
        raise ExplainError("--text needs a tokenizer, and the model has none; give --tokenizer, or ids with --input")
    if not (found := words.ids(text)):
        raise ExplainError("--text: expected at least one token, got none")
    return found


def _filled(ids: Array, subject: Subject) -> Array:
    """The ids of a text with 0 behind them up to the model's length."""
    import numpy as np

    from lite_runtime.errors import ExplainError

    if len(subject.shape) != 1 or subject.dtype.kind not in "iu":
        raise ExplainError(
            f"--text: expected a model of token ids [rows, length], got {subject.dtype}{list(subject.shape)}"
        )
    if len(ids) > subject.shape[0]:
        raise ExplainError(f"--text: expected {subject.shape[0]} tokens at most, got {len(ids)}")
    return np.pad(ids, (0, subject.shape[0] - len(ids))).astype(subject.dtype)


def _sample(
    arrays: dict[str, Array], given: str | None, row: int, ids: list[int] | None
) -> tuple[Array, dict[str, Array], str | None]:
    """The sample, the values of other inputs, and the name of the explained one if it was named. ids: of a text, which
    is the sample."""
    import numpy as np

    from lite_runtime.errors import ExplainError

    if ids is not None:
        if given in arrays:
            raise ExplainError(f"expected the values of {given} by --text or --input, got both")
        return np.array(ids), {key: _row(key, array, row)[None] for key, array in arrays.items()}, given
    if not arrays:
        raise ExplainError("expected a sample: --input FILE.npy, or --text")
    if len(arrays) > 1 and given is None:
        raise ExplainError(f"expected --explain with one of {', '.join(arrays)}, as there are several inputs")
    name = given if given in arrays else next(iter(arrays)) if len(arrays) == 1 else None
    if name is None:
        raise ExplainError(f"--explain: expected one of {', '.join(arrays)}, got {given!r}")
    rows = {key: _row(key, array, row) for key, array in arrays.items()}
    others = {key: value[None] for key, value in rows.items() if key != name}
    return rows[name], others, name or None


def _row(name: str, array: Array, row: int) -> Array:
    from lite_runtime.errors import ExplainError

    if not array.ndim or row >= len(array):
        raise ExplainError(f"--row: expected a row of {name or 'the sample'} {list(array.shape)}, got {row}")
    found: Array = array[row]
    return found


def _baseline(text: str) -> Any:
    """A name, a number, or the array of a file."""
    try:
        return float(text)
    except ValueError:
        pass
    return next(iter(read_inputs([("", Path(text))]).values())) if text.endswith(".npy") else text


def _lines(path: Path | None) -> list[str]:
    from lite_runtime.errors import ExplainError

    if path is None:
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(_NAMES + 1)
    if len(text) > _NAMES:
        raise ExplainError(f"{path}: expected names, one a line, of {_NAMES} characters at most")
    return text.splitlines()


def _write_page(path: Path, found: Explained, names: Sequence[str], classes: Sequence[str]) -> None:
    from edge.pages.explain_page import explain_page
    from lite_runtime._files import write_atomically
    from lite_runtime.errors import MsedgeError

    write_atomically(path, explain_page(found, names, classes).encode(), MsedgeError)
    say(f"page: {path}")


def _told(found: Explained, names: Sequence[str], classes: Sequence[str], page: Path | None) -> dict[str, Any]:
    text = found.wish.layout.kind == "text"
    return {
        "model": found.model, "kind": found.wish.layout.kind, "shape": found.sample.shape, "target": found.target,
        "class": classes[found.target] if found.target < len(classes) else None, "scores": found.scores,
        "tokens": names if text and found.sample.size <= _SHOWN else None,
        "methods": {one.explanation.method: _facts(one) for one in found.asked}, "left_out": found.left_out,
        "page": page and str(page),
    }  # fmt: skip


def _facts(one: Asked) -> dict[str, Any]:
    made, told = one.explanation, one.faithful
    faithful = None if told is None else {
        "insertion": told.curves.insertion_area, "deletion": told.curves.deletion_area, "infidelity": told.infidelity,
        "sensitivity": told.sensitivity,
    }  # fmt: skip
    small = made.attributions.size <= _SHOWN
    return {
        "explains": one.model, "score": made.score, "rows": made.rows, "seconds": made.seconds,
        "settings": made.settings, "sum": made.attributions.sum(), "base": made.base, "completeness_error": made.gap,
        "faithful": faithful, "attributions": made.attributions if small else None,
    }  # fmt: skip


def _print(found: Explained, names: Sequence[str], classes: Sequence[str]) -> None:
    from edge.cli.heat import drawn

    out = console()
    name = visible(classes[found.target]) if found.target < len(classes) else f"output {found.target}"
    print(f"{found.model}: {name}, score {found.scores[found.target]:.4g}")
    for one in found.asked:
        made = one.explanation
        print(f"\n{made.method}: {one.model}")
        for line in drawn(found.sample, made.attributions, found.wish.layout, names, colour=out.is_terminal):
            out.print(line)
    heads = ["method", "rows", "took", "sum", "completeness error"]
    more = ["insertion", "deletion", "infidelity", "sensitivity"] if any(one.faithful for one in found.asked) else []
    rows = table("", *heads, *more, right=(*heads[1:], *more))
    for one in found.asked:
        rows.add_row(*_cells(one, bool(more)))
    out.print(rows)
    for method, why in found.left_out.items():
        say(f"left out: {method}: {why}")


def _cells(one: Asked, compared: bool) -> list[str]:
    made, told = one.explanation, one.faithful
    cells = [made.method, str(made.rows), f"{made.seconds:.3g} s", f"{made.attributions.sum():.4g}"]
    cells.append("–" if made.gap is None else f"{made.gap:.2g}")
    if compared and told is not None:
        cells += [f"{v:.3f}" for v in (told.curves.insertion_area, told.curves.deletion_area, told.infidelity)]
        cells.append("–" if told.sensitivity is None else f"{told.sensitivity:.3f}")
    return cells
