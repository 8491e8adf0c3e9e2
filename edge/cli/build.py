"""`msedge build`: a folder that runs a bundle on a target without msedge: in a page, in Node, in C, in firmware."""

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
            "--target",
            metavar="NAME",
            help="wasm32: browsers and Node; cortex-m4, -m7, -m55: firmware; a target of docs/targets.md: a C library.",
        ),
    ],
    signature: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A signature to build; repeatable. By default all.")
    ] = None,
    input_shape: InputShapes = None,
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of a microcontroller, for memory and stack: 65536, 64K, 1M.")
    ] = None,
    federated: Annotated[
        bool, typer.Option("--federated", help="wasm32: add what a page needs to be a device of a federated run.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build a model ahead of time: its programs, its kernels, and a JavaScript module, a C library or firmware.

    The folder needs nothing else. Operators without a kernel and control flow are refused by name; so are open sizes,
    except a batch, which is 1 unless --input-shape says otherwise (--input-shape train_step/x=8,10 for one signature).
    """
    shapes, limit = read_shapes(input_shape), _size(ram) if ram is not None else None
    from converter.ahead import build as run

    more: dict[str, bytes] = {}
    if federated:
        from federated.web import modules

        if target != "wasm32":
            raise typer.BadParameter("only used with --target wasm32", param_hint="--federated")
        if lacking := sorted({"gradients", "evaluate"} - set(signature or ("gradients", "evaluate"))):
            raise typer.BadParameter(f"needs --signature {lacking[0]} as well", param_hint="--federated")
        more = modules()
    made = run(bundle, output, target, signatures=signature or (), shapes=shapes, more=more, ram=limit)
    if as_json:
        emit({**made._asdict(), "ram": made.ram and {**made.ram._asdict(), "total": made.ram.total}})
        return
    sizes = ", ".join(f"{name} {bytes_text(size)}" for name, size in made.files.items())
    print(f"{made.folder}: {sizes}")
    for name, inputs in made.signatures.items():
        print(f"{name}: " + ", ".join(f"{key} {list(shape)}" for key, shape in inputs.items()))
    print(
        f"{made.steps} steps, {len(made.kernels)} kernels ({bytes_text(made.kernels_gzip)} gzipped), "
        f"{bytes_text(made.arena_bytes)} of arena, {bytes_text(made.state_bytes)} of state"
    )
    if made.ram is not None:
        parts = ", ".join(f"{bytes_text(size)} of {name}" for name, size in made.ram._asdict().items())
        print(f"RAM: {bytes_text(made.ram.total)} ({parts})")
    say(f"next:  see {output / 'README.md'}")


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def _size(text: str) -> int:
    """`64K` -> 65536; wrong usage is reported in typer's way."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or unit not in _UNITS:
        raise typer.BadParameter(f"expected a number of bytes, as 65536, 64K or 1M, got {text!r}", param_hint="--ram")
    return int(number) * _UNITS[unit]
