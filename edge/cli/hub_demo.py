"""`msedge hub demo`: a fleet that notices a change, learns from it together, and updates itself, with a live view."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import console, emit, say, table

if TYPE_CHECKING:
    from edge.demo.updates.conduct import Outcome, View

__all__ = ["demo"]


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE.npz", help="Windows of UCI HAR; default: digits.")
    ] = None,
    devices: Annotated[int, typer.Option("--devices", metavar="N", min=6, help="How many devices there are.")] = 100,
    processes: Annotated[int, typer.Option("--processes", metavar="N", min=1, help="That they share.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter phases, for few devices.")] = False,
    keep: Annotated[Path | None, typer.Option("--keep", metavar="DIR", help="Keep all files there.")] = None,
    as_json: Json = False,
) -> None:
    """A fleet learns and updates itself, on real data: hub, loop and devices, with the real protocols.

    A sensor's axis flips on a third of the devices. What they tell changes; the loop notices, has the devices learn a
    new version together, judges and signs it, tries it on a canary and, when a person approves, gives it to all. Exit
    code 1 unless all devices get it, the changed ones have their accuracy again, and personal heads keep 95 % of their
    gain.
    """
    from edge.demo.updates.conduct import QUICK, Pace, conduct

    begun = perf_counter()
    with _folder(keep) as folder, _live(as_json) as show:
        found = conduct(folder, devices, data and data.resolve(), QUICK if quick else Pace(), processes, say, show)
    seconds = perf_counter() - begun
    if as_json:
        emit({**found.as_dict(), "wall_seconds": round(seconds, 1)})
    else:
        _print(found, seconds)
    if not found.ok:
        raise typer.Exit(CHECK_FAILED)


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep.resolve()
        return
    with TemporaryDirectory(prefix="msedge-hub-demo-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def _live(as_json: bool) -> Iterator[Callable[[View], None]]:
    """Shows views on stderr: as a table that changes on a terminal, else a line when something has changed."""
    out = console(stderr=True)
    if not out.is_terminal or as_json:
        last: list[str] = [""]

        def line(view: View) -> None:
            words = _words(view)
            if words != last[0]:
                last[0] = words
                say(f"       {words}")

        yield line
        return
    from rich.live import Live

    with Live(console=out, refresh_per_second=4, transient=True) as live:
        yield lambda view: live.update(_table(view))


def _words(view: View) -> str:
    """The view in one line, with what changes seldom."""
    versions = ", ".join(f"{name or 'none'} on {count}" for name, count in sorted(view.versions.items()))
    parts = [versions or "no device yet"]
    if view.watching.get("reference"):
        parts.append(f"{view.watching['windows']} windows, evidence {view.watching['evidence']:.3g}")
    if view.loop.get("step"):
        parts.append(f"loop: {view.loop['step']}{' waits for a person' if view.loop['status'] == 'waits' else ''}")
    return "; ".join(parts)


def _table(view: View) -> Any:
    rows = table(view.phase, "", "")
    rows.add_row("devices by version", ", ".join(f"{name or 'none'}: {count}" for name, count in view.versions.items()))
    watching = view.watching
    if "bound" in watching:
        evidence = f"{watching['evidence']:.3g} of {watching['bound']:.4g} after {watching['windows']} windows"
        rows.add_row("evidence of a change", f"{evidence}{', which is an alarm' if watching['alarm'] else ''}")
        far = sorted(watching["streams"].items(), key=lambda item: -item[1]["distance"])[:3]
        rows.add_row("farthest from the reference", ", ".join(f"{name} {one['distance']:.2f}" for name, one in far))
    loop = view.loop
    rows.add_row("the loop", f"{loop.get('step') or loop.get('outcome') or 'watches'}"
                 f"{', waits for a person' if loop.get('status') == 'waits' else ''}")  # fmt: skip
    for one in view.rollouts:
        counts = f"{one['good']} good, {one['bad']} bad, {one['open']} open"
        rows.add_row(f"rollout of {one['plan']['version']}", f"{one['status']} at {one['percent']:g} %: {counts}")
    return rows


def _print(found: Outcome, seconds: float) -> None:
    heads = ("at first", "after the change", "updated")
    rows = table(f"{found.devices} devices, {found.scene}: mean accuracy", "", *heads, right=heads)
    for words, which, changes in (
        ("changed devices, own heads", "own", True),
        ("changed devices, common version", "common", True),
        ("other devices, own heads", "own", False),
        ("other devices, common version", "common", False),
    ):
        stages = (found.before, found.changed, found.after)
        rows.add_row(words, *(f"{found.mean(stage, which, changes):.3f}" for stage in stages))
    console().print(rows)
    alarms = f"one false alarm a month of {found.bound:.0f} windows at most, {found.false_alarms} here"
    late = f"{found.promised} at the latest at a distance of {found.distance:.2f}"
    print(f"noticed after {found.windows} windows, {found.examples} examples ({late}); {alarms}")
    print(
        f"personal heads have {found.kept:.0%} (standard error {found.kept_error:.0%}) of the gain that they had at "
        f"first, {found.against_fresh:.0%} of what heads fitted anew would have; {found.recovered:.0%} "
        f"(standard error {found.recovered_error:.0%}) of the lost accuracy is back"
    )
    made = found.cycle.get("results", {}).get("sign", {}).get("version")
    print(f"version {made} on {found.updated} of {found.devices} devices")
    print(", ".join(f"{name} {took:g} s" for name, took in found.seconds.items()))
    print(f"{'all checks passed' if found.ok else 'NOT good enough'}; the demo took {seconds:.0f} s")
