"""The commands, in the order of a model's life. Importing this module imports typer and nothing heavier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

from edge.cli import (
    adapter,
    agent,
    audit,
    bench,
    build,
    chat,
    cluster,
    convert,
    cut,
    demo,
    doctor,
    explain,
    federate,
    hub,
    hub_loop,
    hub_rollout,
    hub_serve,
    inspect,
    label,
    listen,
    personal,
    plan,
    push,
    run,
    runs,
    search,
    serve,
    sign,
    teach,
    train,
    tune,
    verify,
    vertical,
)
from edge.cli.errors import guarded

__all__ = ["app"]

_COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "tune": tune.tune,
    "search": search.search,
    "plan": plan.plan,
    "convert": convert.convert,
    "build": build.build,
    "cut": cut.cut,
    "inspect": inspect.inspect,
    "run": run.run,
    "chat": chat.chat,
    "teach": teach.teach,
    "adapter": adapter.adapter,
    "verify": verify.verify,
    "audit": audit.audit,
    "explain": explain.explain,
    "bench": bench.bench,
    "federate": federate.federate,
    "listen": listen.listen,
    "vertical": vertical.vertical,
    "keygen": sign.keygen,
    "sign": sign.sign,
    "push": push.push,
    "serve": serve.serve,
    "doctor": doctor.doctor,
    "demo": demo.demo,
}

# Plain help and errors: typer's rich ones would import rich before anything is printed.
app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Plain(typer.core.TyperCommand):
    """A command with plain help text: typer puts rich's escapes before the brackets of defaults, which are removed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help into a click formatter."""
        super().format_help(ctx, formatter)
        formatter.buffer = [part.replace("\\[", "[") for part in formatter.buffer]


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(version("msedge"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train, convert, run and serve one ONNX graph, from cloud to device.

    Exit codes: 0 success, 1 a check failed, 2 wrong usage, 3 could not run.
    """


_OPEN: dict[str, dict[str, Any]] = {"serve": {"ignore_unknown_options": True}}
"""Settings of commands that parse further flags themselves."""

for _name, _function in _COMMANDS.items():
    app.command(_name, cls=_Plain, context_settings=_OPEN.get(_name))(guarded(_function))

_token = typer.Typer(help="Manage the tokens of a gateway's clients.", no_args_is_help=True, rich_markup_mode=None)
_TOKEN: dict[str, Callable[..., None]] = {"add": serve.add, "revoke": serve.revoke, "list": serve.listed}
for _name, _function in _TOKEN.items():
    _token.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_token, name="token")

_personal = typer.Typer(
    help="Show and delete the personal versions that a federated run stored.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
_PERSONAL: dict[str, Callable[..., None]] = {
    "list": personal.listed,
    "forget": personal.forget,
    "expire": personal.expire,
}
for _name, _function in _PERSONAL.items():
    _personal.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_personal, name="personal")

_label = typer.Typer(
    help="Choose the examples whose labels would teach a model most, and collect the labels.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
for _name, _function in label.COMMANDS.items():
    _label.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_label, name="label")

_hub = typer.Typer(
    help="Keep the signed repository from which a fleet updates itself, and serve the fleet.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
for _name, _function in {
    **hub.COMMANDS, **hub_serve.COMMANDS, **hub_rollout.COMMANDS, **hub_loop.COMMANDS,
}.items():  # fmt: skip
    _hub.command(_name, cls=_Plain)(guarded(_function))
_GROUPS: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "loop": ("Learn from a fleet, and give it what was learned.", hub_loop.LOOP),
    "rollout": ("Roll a version out to a fleet, in steps.", hub_rollout.ROLLOUT),
    "token": ("Manage the tokens of people and of new devices.", hub_serve.TOKEN),
}
for _group, (_help, _commands) in _GROUPS.items():
    _sub = typer.Typer(help=_help, no_args_is_help=True, rich_markup_mode=None)
    for _name, _function in _commands.items():
        _sub.command(_name, cls=_Plain)(guarded(_function))
    _hub.add_typer(_sub, name=_group)
app.add_typer(_hub, name="hub")

_runs = typer.Typer(help="Show the runs that `msedge train` recorded.", no_args_is_help=True, rich_markup_mode=None)
_RUNS: dict[str, Callable[..., None]] = {
    "list": runs.listed,
    "show": runs.show,
    "compare": runs.compare,
    "lineage": runs.lineage,
    "page": runs.page,
    "watch": runs.watch,
    "export": runs.export,
}
for _name, _function in _RUNS.items():
    _runs.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_runs, name="runs")

_cluster = typer.Typer(
    help="Plan, simulate and run several jobs on one cluster.", no_args_is_help=True, rich_markup_mode=None
)
for _name, _function in cluster.COMMANDS.items():
    _cluster.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_cluster, name="cluster")

_agent = typer.Typer(
    help="Keep applications on this device up to date, with a way back.", no_args_is_help=True, rich_markup_mode=None
)
_AGENT: dict[str, Callable[..., None]] = {
    "init": agent.init,
    "enrol": agent.enrol,
    "run": agent.run,
    "once": agent.once,
    "status": agent.status,
    "import": agent.import_folder,
    "rollback": agent.rollback,
    "again": agent.again,
}
for _name, _function in _AGENT.items():
    _agent.command(_name, cls=_Plain)(guarded(_function))
app.add_typer(_agent, name="agent")
