"""`msedge build`: a folder that runs a bundle on a target without msedge: in a web page, in Node, in a C program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Bundle, InputShapes, Json, read_shapes
from edge.cli.output import bytes_text, emit, say

__all__ = ["build"]


def build(
    bundle: Bundle,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write.")],
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="NAME", help="wasm32: browsers and Node; a target of docs/targets.md: a C library."
        ),
    ],
    signature: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A signature to build; repeatable. By default all.")
    ] = None,
    input_shape: InputShapes = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="wasm32: add what a page needs to be a device of a federated run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build a model ahead of time: its programs, the kernels that it uses, and a JavaScript module or a C library.

    The folder needs nothing else. Operators without a kernel and control flow are refused by name; so are open sizes,
    except a batch, which is 1 unless --input-shape says otherwise (--input-shape train_step/x=8,10 for one signature).
    """
    shapes = read_shapes(input_shape)
    from converter.ahead import build as run

    more: dict[str, bytes] = {}
    if federated:
        from federated.web import modules

        if target != "wasm32":
            raise typer.BadParameter("only used with --target wasm32", param_hint="--federated")
        if lacking := sorted({"gradients", "evaluate"} - set(signature or ("gradients", "evaluate"))):
            raise typer.BadParameter(f"needs --signature {lacking[0]} as well", param_hint="--federated")
        more = modules()
    made = run(bundle, output, target, signatures=signature or (), shapes=shapes, more=more)
    if as_json:
        emit(made._asdict())
        return
    sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in made.files.items())
    print(f"{made.folder}: {sizes}")
    for name, inputs in made.signatures.items():
        print(f"{name}: " + ", ".join(f"{key} {list(shape)}" for key, shape in inputs.items()))
    print(
        f"{made.steps} steps, {len(made.kernels)} kernels ({bytes_text(made.kernels_gzip)} gzipped), "
        f"{bytes_text(made.arena_bytes)} of arena, {bytes_text(made.state_bytes)} of state"
    )
    say(f"next:  see {output / 'README.md'}")
