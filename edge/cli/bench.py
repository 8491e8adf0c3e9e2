"""`msedge bench`: how fast, against whom, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.options import BackendName, InputShapes, Json, Seed, Threads, read_shapes
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edge.contest import Contest, Entry
    from lite_runtime.session import Row

__all__ = ["bench"]


def bench(
    model: Annotated[Path, typer.Argument(metavar="M", help="A bundle, or an ONNX model to convert in memory.")],
    against: Annotated[
        str, typer.Option("--against", metavar="PEERS", help="Runtimes to compare with, comma-separated: onnxruntime.")
    ] = "",
    source: Annotated[
        Path | None, typer.Option("--source", metavar="MODEL.onnx", help="What the peers run when M is a bundle.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=3, metavar="N", help="Turns each contender takes.")] = 25,
    profile: Annotated[bool, typer.Option("--profile", help="Also the time of every operator.")] = False,
    seed: Seed = 0,
    input_shape: InputShapes = None,
    threads: Threads = 1,
    backend: BackendName = "auto",
    as_json: Json = False,
) -> None:
    """Time a model, alone or against its peers.

    Contenders take turns in one process and ratios are paired by turn.
    """
    shapes = read_shapes(input_shape)
    peers = [name for name in against.split(",") if name]
    from edge.contest import PEERS, contest

    for name in peers:
        if name not in PEERS:
            raise typer.BadParameter(f"expected {', '.join(PEERS)}, got {name!r}", param_hint="--against")
    say(f"timing {model.name}{''.join(f' against {name}' for name in peers)}, {_threads(threads)}")
    result = contest(
        model, against=peers, source=source, threads=threads, backend=backend, shapes=shapes, seed=seed, rounds=rounds
    )
    steps = result.runtime.profile(result.inputs) if profile else []
    if as_json:
        emit({**result.as_dict(), "profile": [row._asdict() for row in steps]})
    else:
        _print(result, steps)


def _print(result: Contest, steps: Sequence[Row]) -> None:
    out = console()
    figures = ("median", "first", "load", "ratio", "spread", "differs")
    rows = table(f"{result.model}, {_threads(result.threads)}", "runtime", *figures, right=figures)
    for e in result.entries:
        times = (seconds_text(e.timing.median), seconds_text(e.timing.first), seconds_text(e.load))
        rows.add_row(e.name, *times, *_against(e))
    if len(result.entries) > 1:
        rows.caption = "ratio: peer's time over ours, median of paired turns; spread: middle half"
        rows.caption_justify = "left"
    out.print(rows)
    cost = result.cost
    native = f"{cost.steps} native steps for {cost.native} operators"
    slow = f", {len(cost.reference)} by reference: {', '.join(sorted(set(cost.reference)))}" * bool(cost.reference)
    print(f"arena {bytes_text(cost.arena_bytes)}, {native}{slow}")
    if steps:
        out.print(_profile(steps))


def _profile(steps: Sequence[Row]) -> RenderableType:
    total = sum(row.seconds for row in steps)
    rows = table(
        "where the time goes", "operators", "kernel", "time", "share", "", right=("time", "share"), fold=("operators",)
    )
    for row in sorted(steps, key=lambda r: -r.seconds):
        share = row.seconds / total
        rows.add_row(row.node, row.kernel, seconds_text(row.seconds), f"{share:.1%}", "█" * round(20 * share))
    rows.caption = f"{len(steps)} steps, {seconds_text(total)} one by one; a whole run has no gaps between them"
    rows.caption_justify = "left"
    return rows


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _against(entry: Entry) -> tuple[str, str, str]:
    if entry.ratio is None:
        return "", "", ""
    r = entry.ratio
    return f"{r.median:.2f}", f"{r.low:.2f}–{r.high:.2f}", f"{entry.difference:.1e}"
