"""`msedge cut`: a model in two parts, for two parties that hold different inputs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Json
from edge.cli.output import emit, say

__all__ = ["cut"]


def cut(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `msedge convert` reads.")],
    inputs: Annotated[
        list[str], typer.Option("--input", metavar="NAME", help="An input that the first part has; repeatable.")
    ],
    first: Annotated[Path, typer.Option("--first", metavar="FIRST.onnx", help="Where the first part is written.")],
    rest: Annotated[Path, typer.Option("--rest", metavar="REST.onnx", help="Where the rest is written.")],
    at: Annotated[
        list[str] | None,
        typer.Option("--at", metavar="VALUE", help="Values where to cut; default: where the two parts meet."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Cut a model in two: the part that depends on some inputs alone, and the rest, which reads its result.

    Two organisations with different features of the same people train such a model with `msedge vertical`.
    """
    from converter import cut as run
    from converter import to_ir
    from converter.export import onnx_bytes
    from lite_runtime._files import write_atomically

    parts = run(to_ir(model), inputs, at or ())
    borders = [str(value.name) for value in parts[0].graph.outputs]
    read = [str(value.name) for value in parts[1].graph.inputs]
    for part, path in zip(parts, (first, rest), strict=True):
        write_atomically(path, onnx_bytes(part))
    if as_json:
        emit({"first": str(first), "rest": str(rest), "results": borders, "inputs": read})
        return
    print(f"{first}: {', '.join(inputs)} -> {', '.join(borders)}")
    print(f"{rest}: {', '.join(read)}")
    say(f"convert them with --trainable: {first} with --loss inner_product, {rest} with --slopes {borders[0]}")
