"""`msedge search`: a network for a device, found by its accuracy and by what it costs there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli.options import Json
from edge.cli.output import emit, say

__all__ = ["search"]


def search(
    path: Annotated[Path | None, typer.Argument(metavar="TASK.toml", help="A search's file: docs/search.md.")] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="NAME",
            help="host: this machine, by measured steps; or a target of docs/targets.md, by the planner's estimates.",
        ),
    ] = "host",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the search in [search] folder.")] = False,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FILE", help="The store of runs; default: that of this user.")
    ] = None,
    template: Annotated[bool, typer.Option("--template", help="Print a file to start from.")] = False,
    as_json: Json = False,
) -> None:
    """Search a network that is as accurate as a reference and meets a budget of latency, file and memory on a device.

    Trains the reference, a supernet and the best few networks; for tables and series also boosted trees, for forecasts
    a linear one, which are the result where they are better. The result is a bundle, recorded as a run with its
    lineage, and a page with all candidates. A search that was interrupted ends with the same result by --resume.
    """
    if template:
        from cloud.search.task import TEMPLATE

        print(TEMPLATE)
        return
    if path is None:
        raise typer.BadParameter("expected a search's file; --template prints one", param_hint="TASK.toml")
    from cloud import search as package
    from cloud.track.store import default_path
    from edge.pages.front_page import front_page
    from lite_runtime._files import write_atomically

    found = package.search(path, device, resume=resume, store=runs or default_path(), say=say)
    page = Path(found.folder) / "front.html"
    write_atomically(page, front_page(found.body, f"Search of {path.name}").encode())
    if as_json:
        keys = ("device", "seconds", "limits", "figure", "naive", "reference", "found", "plain", "verdict")
        emit({**{key: found.body[key] for key in keys if key in found.body},
              "candidates": len(found.body["candidates"]), "bundle": found.bundle, "onnx": found.onnx,
              "page": str(page), "run": found.run})  # fmt: skip
        return
    for name, row in (("reference", found.body["reference"]), ("found", found.body["found"])):
        print(_line(name, row, found.body["figure"]))
    for name, error in found.body["naive"].items():
        print(f"naive forecast, {name}: RMSE {error:.4f} in spreads of the training part")
    if found.body.get("verdict"):
        print(found.body["verdict"])
    print(f"{found.bundle}\n{page}")
    if found.run:
        say(f"next:  msedge runs lineage {found.bundle}")


def _line(name: str, row: dict[str, Any], figure: str) -> str:
    from cloud.search.goal import told

    measured = f", measured {row['measured'] * 1e6:.1f}" if "measured" in row else ""
    more = "".join(f", {key} {value:.4g}" for key, value in row.get("facts", {}).items())
    return (
        f"{name}: {row.get('text', row.get('name'))}: {told(figure, row['test'])} on the test part{more}, "
        f"{row['cost']['seconds'] * 1e6:.1f} µs predicted{measured}, {row['cost']['file_bytes']} bytes of file, "
        f"{row['cost']['arena_bytes']} of arena"
    )
