"""`msedge convert`: a source model to one bundle, with the report of what was done to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edge.cli.options import InputShapes, Json, read_shapes
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from converter import Conversion

__all__ = ["convert"]


def convert(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="out.mslite", help="The bundle to write.")],
    quantize: Annotated[
        Literal["none", "fp16"], typer.Option("--quantize", help="fp16: half the space for weights, sums in float32.")
    ] = "none",
    input_shape: InputShapes = None,
    as_json: Json = False,
) -> None:
    """Convert a model to a bundle."""
    shapes = read_shapes(input_shape)
    from converter import convert as run

    say(f"converting {model}")
    conversion = run(model, output=output, quantize=quantize, input_shapes=shapes or None)
    if as_json:
        emit({"output": str(output), **conversion.report.as_dict()})
    else:
        _print(model, output, conversion)


def _print(model: Path, output: Path, conversion: Conversion) -> None:
    report, out = conversion.report, console()
    rows = table("", "", "", fold=("",))
    rows.show_header, rows.box = False, None
    share = f"{report.bundle_bytes / report.source_bytes:.0%} of {model.name}'s" if report.source_bytes else "new"
    rows.add_row("bundle", f"{output}, {bytes_text(report.bundle_bytes)} ({share} {bytes_text(report.source_bytes)})")
    weights = ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in report.weight_bytes.items())
    rows.add_row("weights", weights + f"; {report.kept_float32} too large for float16" * bool(report.kept_float32))
    before, after = sum(report.ops_before.values()), sum(report.ops_after.values())
    rows.add_row("operators", f"{before} of opset {report.source_opset} became {after}")
    rows.add_row("rewrites", ", ".join(f"{name} {count}" for name, count in report.rewrites().items()) or "none")
    slow = ", ".join(f"{op} {count}" for op, count in report.reference_ops.items())
    rows.add_row("native", f"{report.coverage:.0%} of operators" + f"; by reference: {slow}" * bool(slow))
    rows.add_row("golden", report.golden)
    rows.add_row("took", seconds_text(report.seconds))
    out.print(rows)
    print(f"next: msedge verify {model} {output}")
