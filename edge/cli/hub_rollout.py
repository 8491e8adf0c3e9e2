"""What people ask a hub that serves: rollouts and devices."""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import quote, urlencode

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.hub_serve import date
from edge.cli.options import Json
from edge.cli.output import console, emit, table
from lite_runtime.errors import MsedgeError

if TYPE_CHECKING:
    from cloud.hub.client import Client

__all__ = ["COMMANDS", "HERE", "ROLLOUT", "At", "Authority", "TokenFile", "Why", "ask", "client"]

At: TypeAlias = Annotated[
    str, typer.Option("--hub", metavar="URL", envvar="MSEDGE_HUB", help="The hub, such as https://hub.example.org.")
]
TokenFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--token", metavar="FILE", help="A file with your token; default: the variable MSEDGE_HUB_TOKEN."),
]
Authority: TypeAlias = Annotated[
    Path | None, typer.Option("--authority", metavar="CA.pem", help="Of the hub's certificate; default: the system's.")
]
Which: TypeAlias = Annotated[str, typer.Argument(metavar="ROLLOUT", help="Its id, or how it begins.")]
Why: TypeAlias = Annotated[str, typer.Option("--why", metavar="TEXT", help="For the audit log.")]
HERE = "http://127.0.0.1:8643"


def ask(
    at: str, token: Path | None, authority: Path | None, method: str, path: str, body: Any = None
) -> dict[str, Any]:  # fmt: skip
    """A hub's answer. Raises MsedgeError if it refuses, or is not there."""
    with contextlib.closing(client(at, token, authority)) as hub:
        return hub.json(method, path, body)


def client(at: str, token: Path | None, authority: Path | None) -> Client:
    """The hub, with somebody's token. Raises MsedgeError."""
    from cloud.hub.client import Client, checked_token, token_in

    where = "MSEDGE_HUB_TOKEN"
    if token is not None:
        return Client(at, token_in(token), authority)
    if not (words := os.environ.get(where, "").strip()):
        raise MsedgeError(f"expected your token in --token FILE or {where}, got none; msedge hub token add")
    return Client(at, checked_token(words, where), authority)


def start(
    plan: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="The rollout's plan; options below replace its keys.")
    ] = None,
    application: Annotated[str | None, typer.Option("--application", metavar="APP", help="The application.")] = None,
    version: Annotated[str | None, typer.Option("--version", metavar="VERSION", help="The version.")] = None,
    channel: Annotated[str | None, typer.Option("--channel", metavar="NAME", help="The channel that lists it.")] = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="P,P,…", help="Percent of the cohort; default: 1,5,25,100.")
    ] = None,
    cohort: Annotated[
        list[str] | None,
        typer.Option("--cohort", metavar="KEY=PATTERN", help="Devices with this attribute; repeatable."),
    ] = None,
    soak: Annotated[float | None, typer.Option("--soak", metavar="SECONDS", help="Least time of a step.")] = None,
    patience: Annotated[
        float | None, typer.Option("--patience", metavar="SECONDS", help="After which a step is decided somehow.")
    ] = None,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Over other rollouts.")] = None,
    hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Begin to roll a version out, in steps, stopped by its canary if devices do badly."""
    made: dict[str, Any] = {}
    if plan is not None:
        try:
            made = tomllib.loads(plan.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
            raise MsedgeError(f"{str(plan)!r}: expected a plan in TOML: {problem}") from None
    given = {"application": application, "version": version, "channel": channel, "soak": soak, "patience": patience,
             "priority": priority}  # fmt: skip
    made |= {name: value for name, value in given.items() if value is not None}
    if steps is not None:
        try:
            made["steps"] = [float(part) for part in steps.split(",")]
        except ValueError:
            raise typer.BadParameter(f"expected numbers such as 1,5,100, got {steps!r}", param_hint="--steps") from None
    patterns: dict[str, list[str]] = {}
    for word in cohort or ():
        key, mark, pattern = word.partition("=")
        if not mark:
            raise typer.BadParameter(f"expected KEY=PATTERN, got {word!r}", param_hint="--cohort")
        patterns.setdefault(key, []).append(pattern)
    made |= {"cohort": patterns} if patterns else {}
    _tell(ask(hub, token, authority, "POST", "/v1/rollouts", made), as_json)


def pause(
    rollout: Which, why: Why = "", hub: At = HERE, token: TokenFile = None, authority: Authority = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Let no further device take the version."""
    _tell(ask(hub, token, authority, "POST", _path(rollout, "pause"), {"why": why}), as_json)


def resume(
    rollout: Which, why: Why = "", hub: At = HERE, token: TokenFile = None, authority: Authority = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Go on with a rollout that paused."""
    _tell(ask(hub, token, authority, "POST", _path(rollout, "resume"), {"why": why}), as_json)


def abort(
    rollout: Which, why: Why = "",
    keep: Annotated[bool, typer.Option("--keep", help="Devices that have the version keep it.")] = False,
    hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False,
) -> None:  # fmt: skip
    """End a rollout, also a completed one; devices return to the version that they had before."""
    body = {"why": why, "back": not keep}
    _tell(ask(hub, token, authority, "POST", _path(rollout, "abort"), body), as_json)


def listed(hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False) -> None:
    """Show all rollouts, the newest first."""
    found = ask(hub, token, authority, "GET", "/v1/rollouts")
    if as_json:
        emit(found)
        return
    rows = table("", "rollout", "status", "percent", "devices", "good", "bad", "open", "returning", "reason",
                 right=("percent", "devices", "good", "bad", "open", "returning"), fold=("reason",))  # fmt: skip
    for one in found["rollouts"]:
        numbers = (one["members"], one["good"], one["bad"], one["open"], one["returning"])
        rows.add_row(one["id"], one["status"], f"{one['percent']:g}", *map(str, numbers), one["reason"])
    console().print(rows)


def show(
    rollout: Which, hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False
) -> None:
    """Show one rollout: its state, what was decided, and why. Exit code 1 if it was aborted."""
    found = ask(hub, token, authority, "GET", _path(rollout))
    if as_json:
        emit(found)
    else:
        _tell(found, False)
        for event in found["decisions"]:
            print(f"  {date(event['time'])}  {event['kind']:10} {event['by']}: {event['text']}")
    if found["status"] == "aborted":
        raise typer.Exit(CHECK_FAILED)


def devices(
    device: Annotated[str | None, typer.Argument(metavar="[DEVICE]", help="One device, with its events.")] = None,
    block: Annotated[bool, typer.Option("--block", help="Refuse this device from now on.")] = False,
    unblock: Annotated[bool, typer.Option("--unblock", help="Let this device come again.")] = False,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="Replace the device's labels; repeatable.")
    ] = None,
    hub: At = HERE, token: TokenFile = None, authority: Authority = None, as_json: Json = False,
) -> None:  # fmt: skip
    """Show the fleet, or one device; block it, or label it."""
    if device is None:
        if block or unblock or label:
            raise typer.BadParameter("expected a device to change, got none", param_hint="DEVICE")
        _show_fleet(_all(hub, token, authority), as_json)
        return
    change: dict[str, Any] = {"state": "blocked" if block else "active"} if block or unblock else {}
    if label:
        pairs = [word.partition("=") for word in label]
        if wrong := [key for key, mark, _ in pairs if not mark]:
            raise typer.BadParameter(f"expected KEY=VALUE, got {wrong[0]!r}", param_hint="--label")
        change["labels"] = {key: value for key, _, value in pairs}
    method, body = ("POST", change) if change else ("GET", None)
    found = ask(hub, token, authority, method, f"/v1/fleet/devices/{quote(device, safe='')}", body)
    if as_json:
        emit(found)
        return
    print(f"{found['id']}  {found['state']}  seen {date(found['seen']) if found['seen'] else 'never'}")
    for name, one in ((found["report"] or {}).get("applications") or {}).items():
        trial = f", {one['trial']} on trial" if one["trial"] else ""
        print(f"  {name}: {one['version'] or 'none'}{trial}")
    for name, kind in found["rollouts"].items():
        print(f"  rollout {name}: {kind}")
    for event in found["events"]:
        print(f"  {date(event['time'])}  {event['kind']} {event['application']} {event['version']} {event['text']}")


def _all(hub: str, token: Path | None, authority: Path | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while True:
        after = urlencode({"after": found[-1]["id"] if found else "", "most": 1000})
        page = ask(hub, token, authority, "GET", f"/v1/fleet/devices?{after}")["devices"]
        found += page
        if len(page) < 1000:
            return found


def _show_fleet(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        emit({"devices": found})
        return
    rows = table("", "device", "state", "seen", "applications", fold=("applications",))
    for one in found:
        there = ((one["report"] or {}).get("applications") or {}).items()
        words = ", ".join(f"{name} {part['trial'] or part['version']}" for name, part in there)
        rows.add_row(one["id"], one["state"], date(one["seen"]) if one["seen"] else "never", words)
    console().print(rows)


def _path(rollout: str, order: str = "") -> str:
    return f"/v1/rollouts/{quote(rollout, safe='')}{'/' if order else ''}{order}"


def _tell(found: dict[str, Any], as_json: bool) -> None:
    """One rollout in a line."""
    if as_json:
        emit(found)
        return
    why = f" ({found['reason']})" if found["reason"] else ""
    print(
        f"{found['id']}  {found['status']}{why}: {found['members']} devices within {found['percent']:g} %, "
        f"{found['good']} good, {found['bad']} bad, {found['open']} open, {found['returning']} returning"
    )


COMMANDS: dict[str, Callable[..., None]] = {"devices": devices}
ROLLOUT: dict[str, Callable[..., None]] = {
    "start": start,
    "pause": pause,
    "resume": resume,
    "abort": abort,
    "list": listed,
    "show": show,
}
