"""The commands of `msedge agent` by the standard library: `python -m edge.agent.command`, and what a zipapp runs.

Exit codes: 0 success, 1 a check failed, 2 wrong usage, 3 could not run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["main"]

CHECK_FAILED, COULD_NOT_RUN = 1, 3


def _run(given: argparse.Namespace) -> None:
    from edge.agent.command.starting import event_line, event_text, until_ended

    show: Callable[[Any], str] = event_line if given.json else event_text
    until_ended(_read(given), lambda event: print(show(event), flush=True))


def _enrol(given: argparse.Namespace) -> None:
    from edge.agent.command.starting import enrolled

    config = _read(given)
    device = enrolled(config, given.token)
    told = {"device": device, "hub": config.agent.hub}
    print(json.dumps(told) if given.json else f"enrolled as {device} at {config.agent.hub}")


def _once(given: argparse.Namespace) -> int:
    from edge.agent.command.starting import looked

    return _shown(looked(_read(given), given.wait, _say), given)


def _import(given: argparse.Namespace) -> int:
    from edge.agent.command.starting import imported

    return _shown(imported(_read(given), given.folder, given.wait, _say), given)


def _status(given: argparse.Namespace) -> None:
    from edge.agent.command.starting import state_of

    _shown(state_of(_read(given)), given)


def _rollback(given: argparse.Namespace) -> int:
    from edge.agent.command.starting import opened

    with opened(_read(given), _say) as agent:
        agent.start()
        agent.rollback(given.application, given.reason)
        return _shown(agent.status(), given)


def _again(given: argparse.Namespace) -> int:
    from edge.agent.command.starting import opened

    with opened(_read(given), _say) as agent:
        agent.start()
        agent.again(given.application, given.version)
        return _shown(agent.status(), given)


def _init(given: argparse.Namespace) -> None:
    from edge.agent.config import TEMPLATE

    print(TEMPLATE, end="")


def _read(given: argparse.Namespace) -> Any:
    from edge.agent.config import read

    return read(given.config)


def _say(event: Any) -> None:
    from edge.agent.command.starting import event_text

    print(event_text(event), file=sys.stderr, flush=True)


def _shown(state: dict[str, Any], given: argparse.Namespace) -> int:
    from edge.agent.command.starting import failed, state_text

    if given.json:
        print(json.dumps(state, indent=2))
        return CHECK_FAILED if failed(state) else 0
    for name, one in state["applications"].items():
        versions = ("-" if one[key] is None else one[key]["version"] for key in ("running", "previous", "coming"))
        word = state_text(one)
        print("{}: runs {}, before {}, comes {}".format(name, *versions) + (f": {word}" if word else ""))
    if state["trouble"]:
        print(f"trouble: {state['trouble']}")
    return CHECK_FAILED if failed(state) else 0


_WAIT = {"metavar": "SECONDS", "type": float, "help": "go on until updates have ended, at most so long"}
_APPLICATION = ("application", {"help": "as in the configuration"})
Option = tuple[str, dict[str, Any]]
COMMANDS: Mapping[str, tuple[Callable[[argparse.Namespace], int | None], str, Sequence[Option]]] = {
    "init": (_init, "print a template of the configuration", ()),
    "enrol": (
        _enrol, "make this device known to its hub, once",
        [("token", {"type": Path, "help": "a file with the token that works once"})],
    ),
    "run": (_run, "keep the applications up to date until the process is ended", ()),
    "once": (_once, "look for new versions once", [("--wait", {**_WAIT, "default": 0.0})]),
    "status": (_status, "show what runs and what comes; an agent may run meanwhile", ()),
    "import": (
        _import, "take updates from a folder instead of the network",
        [("folder", {"type": Path, "help": "a copy of the repository"}), ("--wait", {**_WAIT, "default": 3600.0})],
    ),
    "rollback": (
        _rollback, "return to the version before",
        [_APPLICATION, ("--reason", {"default": "somebody asked for it", "help": "why: it is reported"})],
    ),
    "again": (
        _again, "let versions be tried again that failed here",
        [_APPLICATION, ("version", {"nargs": "?", "default": "", "help": "default: all that were refused"})],
    ),
}  # fmt: skip
"""By name: what it does, its help, its own arguments."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="msedge-agent", description="Keep applications on this device up to date.")
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    for name, (call, words, options) in COMMANDS.items():
        one = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        one.set_defaults(call=call)
        if name != "init":
            one.add_argument("config", type=Path, metavar="AGENT.toml", help="the configuration")
            one.add_argument("--json", action="store_true", help="print JSON; of run, an event a line")
        for flag, about in options:
            one.add_argument(flag, **about)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit code."""
    from lite_runtime.errors import MsedgeError

    parser = _parser()
    given = parser.parse_args(words)
    if given.version:
        from edge.agent.machine import Machine

        print(Machine().facts(".").runtime)
        return 0
    if given.command is None:
        parser.print_help()
        return 2
    try:
        return given.call(given) or 0
    except MsedgeError as problem:
        print(f"error: {problem}", file=sys.stderr)
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        print(f"error: {where}{problem.strerror or problem}", file=sys.stderr)
    except ModuleNotFoundError as problem:
        print(f"error: expected the package {problem.name}, got none; install it", file=sys.stderr)
    return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
