"""`msedge run`: run a bundle on given or random inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.options import BackendName, Bundle, Custom, InputShapes, Json, Threads, read_shapes
from edge.cli.output import console, emit, plain, say, shape_text, table

if TYPE_CHECKING:
    from lite_runtime.graph import Array, Value

__all__ = ["keep", "read_inputs", "run", "split_input"]

_SHOWN = 1000
"""Larger outputs are not printed by --json; -o writes them to a file."""


def run(
    bundle: Bundle,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE.npy", help="An input, or FILE.npz with several; repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="out.npz", help="Save the outputs, by name.")
    ] = None,
    random: Annotated[
        int | None, typer.Option("--random", metavar="SEED", help="Generate missing inputs at random.")
    ] = None,
    signature: Annotated[str, typer.Option("--signature", help="The bundle's signature to run.")] = "predict",
    input_shape: InputShapes = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FILE", help="Initial state, saved by an earlier run.")
    ] = None,
    save_state: Annotated[
        Path | None, typer.Option("--save-state", metavar="FILE", help="Save the state after the run.")
    ] = None,
    threads: Threads = 1,
    backend: BackendName = "auto",
    custom: Custom = None,
    as_json: Json = False,
) -> None:
    """Run a bundle once and show its outputs."""
    shapes = read_shapes(input_shape)
    files = [split_input(text) for text in inputs or ()]
    import lite_runtime

    model = lite_runtime.load(bundle, threads=threads, backend=backend, state=state)
    given = read_inputs(files)
    if not given:
        _refuse_language(bundle, model.inputs(signature))
    if random is not None:
        given = _made_up(model.inputs(signature), shapes, random) | given
    outputs = _flat(model.run(given, signature))
    if save_state is not None:
        model.save_state(save_state)
        say(f"state saved in {save_state}")
    if output is not None:
        keep(output, outputs)
        say(f"saved in {output}")
    if as_json:
        emit({"outputs": {name: _describe(array) for name, array in outputs.items()}, "file": output and str(output)})
    else:
        _print(outputs)


def _refuse_language(bundle: Path, inputs: Sequence[Value]) -> None:
    """Refuse to make up the inputs of a language model: pages and positions must fit together."""
    from lite_runtime.errors import MsedgeError
    from lite_runtime.language.engine import takes_tokens

    if takes_tokens(inputs):
        raise MsedgeError(f"this bundle holds a language model; talk to it: msedge chat {bundle}")


def split_input(text: str) -> tuple[str, Path]:
    """`x=x.npy` -> ("x", x.npy); `all.npz` -> ("", all.npz)."""
    name, equals, path = text.partition("=")
    if not equals and not text.endswith(".npz"):
        raise typer.BadParameter(f"expected NAME=FILE.npy or FILE.npz, got {text!r}", param_hint="--input")
    return (name, Path(path)) if equals else ("", Path(text))


def read_inputs(files: Sequence[tuple[str, Path]]) -> dict[str, Array]:
    """The arrays of all files by name. Raises InputError for files that do not fit."""
    from edge.measuring.samples import read_arrays
    from lite_runtime.errors import InputError

    given: dict[str, Array] = {}
    for name, path in files:
        arrays = read_arrays(path)
        if not name:
            given.update(arrays)
        elif len(arrays) == 1:
            given[name] = next(iter(arrays.values()))
        else:
            raise InputError(
                f"{path}: expected one array for {name!r}, got {', '.join(arrays)}; give all with -i {path}"
            )
    return given


def _made_up(values: Sequence[Value], shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Array]:
    import numpy as np

    from edge.measuring.samples import draw

    return draw(values, np.random.default_rng(seed), shapes)


def _flat(outputs: Mapping[str, Array | list[Array]]) -> dict[str, Array]:
    """Outputs with sequences split: element i of `y` becomes `y.i`."""
    flat: dict[str, Array] = {}
    for name, value in outputs.items():
        flat.update({f"{name}.{i}": v for i, v in enumerate(value)} if isinstance(value, list) else {name: value})
    return flat


def keep(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz."""
    from lite_runtime._arrays import packed_arrays
    from lite_runtime._files import write_atomically

    write_atomically(path, packed_arrays(arrays))


def _describe(array: Array) -> dict[str, object]:
    return {
        "dtype": str(array.dtype),
        "shape": array.shape,
        "values": plain(array) if array.size <= _SHOWN else None,
        **_span(array),
    }


def _span(array: Array) -> dict[str, object]:
    if array.size == 0 or array.dtype.kind not in "biuf":
        return {"min": None, "max": None}
    return {"min": array.min().item(), "max": array.max().item()}


def _print(outputs: Mapping[str, Array]) -> None:
    names = ("output", "dtype", "shape", "min", "max", "begins")
    rows = table("", *names, right=("min", "max"), fold=("output", "begins"))
    for name, array in outputs.items():
        span = _span(array)
        head = "  ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in array.ravel()[:4].tolist())
        rows.add_row(name, str(array.dtype), shape_text(array.shape), *(_figure(span[k]) for k in ("min", "max")), head)
    console().print(rows)


def _figure(value: object) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
