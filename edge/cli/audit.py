"""`msedge audit`: what a deployed model is like before it ships, and whether it keeps stated limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Bundle, Json
from edge.cli.output import console, emit, say, table

if TYPE_CHECKING:
    from cloud.audit.audit import Audit
    from cloud.audit.files.limits import Limit

__all__ = ["audit"]

KindName = Literal["image", "sound", "spectrogram", "series", "table"]


def audit(
    bundle: Bundle,
    data: Annotated[
        Path, typer.Option("--data", metavar="TEST.npz", help="Examples: arrays x, y, and columns such as device.")
    ],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="audit.html", help="Write the page.")] = None,
    float_model: Annotated[
        Path | None,
        typer.Option("--float", metavar="FLOAT.onnx", help="The model before quantising, .onnx or .mslite."),
    ] = None,
    members: Annotated[
        Path | None, typer.Option("--members", metavar="TRAIN.npz", help="Examples that the model was trained on.")
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option("--federation", metavar="RUN.toml", help="The run that trains it, to measure its own protection."),
    ] = None,
    limits: Annotated[
        Path | None, typer.Option("--limits", metavar="LIMITS.toml", help="Limits: [limits] of figures.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="NAME>=X", help="A limit, such as 'accuracy.accuracy>=0.9'; repeatable."),
    ] = None,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="Time for all sections.")] = 300.0,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="SECTION", help="This section alone; repeatable.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="SECTION", help="Leave this section out; repeatable.")
    ] = None,
    kind: Annotated[KindName | None, typer.Option("--kind", help="What inputs are; default: by their shape.")] = None,
    span: Annotated[
        str | None, typer.Option("--range", metavar="LOW,HIGH", help="The range of inputs; default: the data's.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", metavar="E", help="How far attacks change a value, in its units.")
    ] = None,
    x: Annotated[str, typer.Option("--x", metavar="NAME", help="The array of inputs.")] = "x",
    y: Annotated[str, typer.Option("--y", metavar="NAME", help="The array of classes.")] = "y",
    classes: Annotated[
        str | None, typer.Option("--classes", metavar="A,B,…", help="A name for each class, in order.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Decides what is drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure a bundle before it ships: accuracy by group and slice, calibration, corruptions, attacks, what quantising
    changed, and what the messages of a federated round give back; on the device runtime, as it will run.

    Exit code 1: a limit is broken, or its figure could not be measured in the time.
    """
    from cloud.audit.audit import audit as measured
    from cloud.audit.audit import chosen
    from cloud.audit.files.opening import Settings, open_subject

    stated = _limits(limits, limit or [])
    parts = chosen(only or (), without or ())
    settings = Settings(
        twin=float_model, members=members, federation=federation, kind=kind, span=_span(span), epsilon=epsilon,
        seed=seed, x=x, y=y, classes=tuple(classes.split(",")) if classes else (),
    )  # fmt: skip
    subject, notes = open_subject(bundle, data, settings)
    found = measured(subject, parts=parts, limits=stated, budget=budget, notes=notes, progress=say)
    if output is not None:
        from edge.pages.audit_page import audit_page
        from lite_runtime._files import write_atomically

        write_atomically(output, audit_page(found).encode())
        say(f"{output}: written")
    if as_json:
        emit(found.as_data())
    else:
        _print(found)
    if not found.held:
        raise typer.Exit(CHECK_FAILED)


def _limits(path: Path | None, texts: list[str]) -> list[Limit]:
    from cloud.audit.files.limits import parsed_limit, read_limits

    return [*(read_limits(path) if path is not None else []), *map(parsed_limit, texts)]


def _span(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected LOW,HIGH, got {text!r}", param_hint="--range") from None
    return low, high


def _print(found: Audit) -> None:
    from edge.pages.audit_page import figure_text

    rows = table("", "figure", "value", "meaning", right=("value",), fold=("figure", "meaning"))
    for section in found.sections:
        for name, value in section.figures.items():
            figure = f"{section.name}.{name}"
            rows.add_row(figure, figure_text(value, name in section.shares), found.meanings.get(figure, ""))
    console().print(rows)
    for section in found.sections:
        for text in section.warnings:
            print(f"finding: {section.name}: {text}")
        for text in section.undone:
            print(f"not done: {section.name}: {text}")
    for verdict in found.verdicts:
        words = "not measured" if verdict.value is None else f"{verdict.value:.6g}"
        print(f"{'held' if verdict.held else 'BROKEN'}: {verdict.limit.figure} {words}, limit {verdict.limit.text}")
