"""`msedge hub loop`: from what devices tell to a new version; `msedge hub approve`: people's part in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.hub_demo import demo
from edge.cli.hub_rollout import HERE, At, Authority, TokenFile, Why, ask
from edge.cli.hub_serve import date
from edge.cli.options import Json
from edge.cli.output import emit, say
from lite_runtime.errors import MsedgeError

__all__ = ["COMMANDS", "LOOP"]

File: TypeAlias = Annotated[
    Path, typer.Argument(metavar="LOOP.toml", help="The loop's plan; `msedge hub loop init` prints a template.")
]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="LOOP", help="The loop's name.")]


def init() -> None:
    """Print a template of a loop's plan."""
    from cloud.hub.loop.plan import TEMPLATE

    print(TEMPLATE, end="")


def run(
    plan: File,
    cycles: Annotated[
        int, typer.Option("--cycles", metavar="N", min=0, help="End after N cycles; 0: go on until it is stopped.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Watch what devices tell; learn, judge, sign and roll out when it has changed. May be killed and started again at
    any moment. Exit code 1 if the last of --cycles failed."""
    import signal
    import threading

    from cloud.hub.loop.plan import read_plan
    from cloud.hub.loop.runner import Runner, client_of

    words, stop = read_plan(plan), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with contextlib.closing(client_of(words)) as hub, contextlib.closing(Runner(words, hub, say, stop)) as runner:
        found = runner.run(cycles)
    if as_json:
        emit(found.data())
    else:
        _tell({"name": words.loop.name, **found.data()})
    if cycles and found.outcome == "failed":
        raise typer.Exit(CHECK_FAILED)


def status(
    plan: Annotated[
        Path | None, typer.Argument(metavar="[LOOP.toml]", help="One loop, with what it watches; default: all loops.")
    ] = None,
    hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Show what loops do, what they wait for, and how their last cycles ended."""
    if plan is None:
        found = ask(hub, token, authority, "GET", "/v1/loops")
        if as_json:
            emit(found)
        for one in () if as_json else found["loops"]:
            _tell(one)
        return
    from cloud.hub.loop.plan import read_plan
    from cloud.hub.loop.runner import client_of
    from cloud.hub.loop.watching import Watcher

    words = read_plan(plan)
    with contextlib.closing(client_of(words)) as there:
        one = there.json("GET", f"/v1/loops/{words.loop.name}")
        watched = Watcher(words, there).data()
    if as_json:
        emit({**one, "watching": watched})
        return
    _tell(one)
    for event in one["log"]:
        print(f"  {date(event['time'])}  {event['kind']:9} {event['step']:8} {event['by']}: {event['text']}")
    _tell_watched(watched)


def approve(
    loop: Name,
    reject: Annotated[bool, typer.Option("--reject", help="Instead, end the cycle.")] = False,
    step: Annotated[str, typer.Option("--step", metavar="STEP", help="The step; default: the one that waits.")] = "",
    why: Why = "", hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Let a step of a loop begin that waits for a person."""
    path = f"/v1/loops/{quote(loop, safe='')}"
    if not step:
        found = ask(hub, token, authority, "GET", path)
        if found["status"] != "waits":
            raise MsedgeError(f"{loop}: expected a step that waits for a person, got none; it is {found['status']}")
        step = found["step"]
    body = {"step": step, "why": why}
    found = ask(hub, token, authority, "POST", f"{path}/{'reject' if reject else 'approve'}", body)
    if as_json:
        emit(found)
    else:
        _tell(found)


def lineage(
    plan: File,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="That the loop made.")],
    as_json: Json = False,
) -> None:
    """Show what a version was learned from, by the document whose digest its signed release has, and which devices run
    it."""
    from cloud.hub.loop.doing import releases_of
    from cloud.hub.loop.lineage import of_version
    from cloud.hub.loop.plan import read_plan
    from cloud.hub.loop.runner import client_of

    words = read_plan(plan)
    with contextlib.closing(client_of(words)) as hub:
        found = of_version(words, releases_of(words), hub, version)
    if as_json:
        emit(found)
        return
    print(json.dumps({**found["document"], "devices": len(found["document"].get("devices", ()))}, indent=1))
    for device, one in found["document"].get("devices", {}).items():
        print(f"learned from {device}: {one.get('examples', 0)} examples with SHA-256 {one.get('data') or 'not told'}")
    print(f"runs on {len(found['runs'])} devices: {', '.join(found['runs'])}")


def _tell(one: dict[str, Any]) -> None:
    """One loop in a line or two."""
    where = f"{one['step']} waits for a person: msedge hub approve {one['name']}" if one["status"] == "waits" else (
        one["step"] or "watches")  # fmt: skip
    last = f"; the last cycle {one['outcome']}{': ' if one['reason'] else ''}{one['reason']}" if one["outcome"] else ""
    cause = f" ({one['cause'].get('text', '')})" if one["number"] else ""
    print(f"{one['name']}: cycle {one['number']}{cause}: {where}{last if one['status'] == 'idle' else ''}")
    for trouble in one["troubles"]:
        print(f"  trouble: {trouble}")


def _tell_watched(one: dict[str, Any]) -> None:
    if "bound" not in one:
        return
    print(f"watches {one['version'] or 'no version yet'}: evidence {one['evidence']:.3g} of {one['bound']:.4g} after "
          f"{one['windows']} windows; the reference has {one['reference']:.0f} examples")  # fmt: skip
    for name, stream in one["streams"].items():
        print(f"  {name}: distance {stream['distance']:.3f}, evidence {stream['evidence']:.3g}")


COMMANDS: dict[str, Callable[..., None]] = {"approve": approve, "demo": demo}
LOOP: dict[str, Callable[..., None]] = {"init": init, "run": run, "status": status, "lineage": lineage}
