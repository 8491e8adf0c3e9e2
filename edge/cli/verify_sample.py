"""`msedge verify` of a bundle alone: what this machine computes beside the golden sample that the bundle holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.output import console, emit, say, shape_text, table
from lite_runtime.errors import InputError

if TYPE_CHECKING:
    from edge.measuring.parity import Difference

__all__ = ["verify_sample"]

_Row = tuple[str, str, "Difference"]
"""Backend, signature, output."""


def verify_sample(bundle: Path, threads: int, backend: str, tolerance: float | None, as_json: bool) -> None:
    """Run a bundle's golden samples, natively (if this machine can) and by the NumPy reference, or by one backend that
    was chosen, and print how far off each output is. Exit code 1 if one differs by more than is allowed."""
    from lite_runtime.bundle import read
    from lite_runtime.running.golden import tolerance_of

    held = read(bundle)
    if not held.golden:
        raise InputError(
            f"{bundle}: this bundle holds no golden sample; give its source as well: msedge verify SOURCE {bundle}"
        )
    allowed = tolerance_of(held) if tolerance is None else tolerance
    rows = [row for name in _backends(backend) for row in _rows(bundle, name, threads)]
    same = all(row.within(allowed) for *_, row in rows)
    if as_json:
        emit({"same": same, "tolerance": allowed, "outputs": [_as_json(*row) for row in rows]})
    else:
        _print(rows, allowed)
        verdict = "equal within" if same else "DIFFERENT by more than"
        print(f"{verdict} {allowed:g} of each output's range, golden sample of {', '.join(held.golden)}")
    if not same:
        raise typer.Exit(CHECK_FAILED)


def _backends(wanted: str) -> Sequence[str]:
    from lite_runtime.native import build

    if wanted != "auto":
        return (wanted,)
    return ("native", "reference") if build.available() else ("reference",)


def _rows(bundle: Path, backend: str, threads: int) -> Iterator[_Row]:
    import lite_runtime
    from edge.measuring.parity import compare_all
    from lite_runtime.running.golden import sampled

    say(f"golden sample, {backend}")
    model = lite_runtime.load(bundle, threads=threads, backend=backend)
    for name, got, expected in sampled(model, model.signatures):
        for row in compare_all(got, expected, steps=1):
            yield backend, name, row


def _as_json(backend: str, signature: str, row: Difference) -> dict[str, Any]:
    from dataclasses import asdict

    return {"backend": backend, "signature": signature, **asdict(row)}


def _print(rows: Sequence[_Row], allowed: float) -> None:
    shown = table(
        "", "backend", "signature", "output", "dtype", "shape", "max |difference|", "of range", "",
        right=("max |difference|", "of range"), fold=("output", ""),
    )  # fmt: skip
    for backend, signature, row in rows:
        verdict = "ok" if row.within(allowed) else f"differs at {list(row.at)} {row.why}".rstrip()
        figures = f"{row.largest:.3g}", f"{row.relative:.2g}"
        shown.add_row(backend, signature, row.name, row.dtype, shape_text(row.shape), *figures, verdict)
    console().print(shown)
