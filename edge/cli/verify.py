"""`msedge verify`: is the bundle the model it was made from? Element by element against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import BackendName, InputShapes, Json, Seed, Threads, read_shapes
from edge.cli.output import console, emit, say, shape_text, table

if TYPE_CHECKING:
    from edge.parity import Difference, Divergence
    from lite_runtime.graph import Array, Value

__all__ = ["verify"]


def verify(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The ONNX model the bundle was made from.")],
    bundle: Annotated[Path, typer.Argument(metavar="M.mslite", help="The bundle.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE.npz", help="Inputs by name; random ones without it.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, metavar="K", help="How many runs at most.")] = 3,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="Largest difference allowed, relative to an output's range.")
    ] = 1e-4,
    seed: Seed = 0,
    input_shape: InputShapes = None,
    threads: Threads = 1,
    backend: BackendName = "auto",
    as_json: Json = False,
) -> None:
    """Compare a bundle with its source, element by element.

    Where they differ, names the first operator that does; exit code 1.
    """
    shapes = read_shapes(input_shape)
    import lite_runtime
    from edge.oracle import Oracle
    from edge.parity import compare_all, first_divergence, worst

    model = lite_runtime.load(bundle, threads=threads, backend=backend)
    oracle = Oracle(source, threads=threads)
    runs = _inputs(data, model.inputs("predict"), seed, shapes, samples)
    compared = []
    for number, inputs in enumerate(runs, 1):
        say(f"run {number} of {len(runs)}")
        compared.append(compare_all(model.run(inputs), oracle.run(inputs)))
    rows = worst(compared)
    failed = next((i for i, run in enumerate(compared) if not all(d.within(tolerance) for d in run)), None)
    divergence = None
    if failed is not None:
        say("they differ; looking for the first operator where they do")
        divergence = first_divergence(
            oracle.model, model.bundle.signatures["predict"], runs[failed], tolerance, threads=threads, backend=backend
        )
    if as_json:
        emit(_as_json(rows, tolerance, len(runs), failed is None, divergence))
    else:
        _print(rows, tolerance, len(runs), failed is None, divergence)
    if failed is not None:
        raise typer.Exit(CHECK_FAILED)


def _inputs(
    data: Path | None, values: Sequence[Value], seed: int, shapes: Mapping[str, Sequence[int]], count: int
) -> Sequence[dict[str, Array]]:
    import numpy as np

    from edge.samples import draw, read_arrays, samples_in

    if data is not None:
        return list(islice(samples_in(read_arrays(data), values), count))
    rng = np.random.default_rng(seed)
    return [draw(values, rng, shapes) for _ in range(count)]


def _as_json(
    rows: Sequence[Difference], tolerance: float, runs: int, same: bool, divergence: Divergence | None
) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "same": same,
        "tolerance": tolerance,
        "runs": runs,
        "outputs": [asdict(row) for row in rows],
        "first_divergence": divergence and asdict(divergence),
    }


def _print(rows: Sequence[Difference], tolerance: float, runs: int, same: bool, divergence: Divergence | None) -> None:
    shown = table(
        "", "output", "dtype", "shape", "max |difference|", "of range", "", right=("max |difference|", "of range"),
        fold=("output", ""),
    )  # fmt: skip
    for row in rows:
        verdict = "ok" if row.within(tolerance) else f"differs at {list(row.at)} {row.why}".rstrip()
        shown.add_row(row.name, row.dtype, shape_text(row.shape), f"{row.largest:.3g}", f"{row.relative:.2g}", verdict)
    console().print(shown)
    verdict = "equal within" if same else "DIFFERENT by more than"
    print(f"{verdict} {tolerance:g} of each output's range, over {runs} run{'s' * (runs != 1)}")
    if divergence is not None:
        found = divergence.difference
        origin = f"{divergence.source_op} {divergence.source_node}".strip()
        print(f"first difference: {found.name!r}, {found.why or f'{found.relative:.2g} of its range'}")
        print(f"  made by {origin} in the source, by {divergence.lite_node} in the bundle")
        print(f"  values both share that agree: {divergence.agreeing}")
    elif not same:
        print("no value that both graphs share differs by that much: it builds up, or begins where a name is lost")
