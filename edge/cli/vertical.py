"""`msedge vertical`: two parties with different features of the same people train one model."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.options import Json
from edge.cli.output import bytes_text, emit, say, seconds_text

if TYPE_CHECKING:
    from federated.transport.channel import Tls

__all__ = ["vertical"]

_TLS = ("authority", "certificate", "key")


def vertical(
    config: Annotated[Path, typer.Argument(metavar="PARTY.toml", help="This party's file.")],
    simulate: Annotated[
        Path | None,
        typer.Option("--simulate", metavar="OTHER.toml", help="Both parties in this process: the other one's file."),
    ] = None,
    connect: Annotated[
        str | None, typer.Option("--connect", metavar="ADDRESS", help="The active party: where the other listens.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="ADDRESS", help="The passive party: HOST:PORT, or the path of a socket."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option("--authority", metavar="CA.crt", help="Authority of the other party's certificate."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option("--certificate", metavar="OWN.crt", help="This party's certificate.")
    ] = None,
    key: Annotated[Path | None, typer.Option("--key", metavar="OWN.key", help="The key of that certificate.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="The active party: continue from state.checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Train one model at two parties that hold different features of the same people, one of them the labels.

    The parties find their common people without showing each other the others, then each trains its part of the model;
    results and gradients of rows pass between them. `msedge cut` makes the two parts.
    """
    from federated.vertical.config import read

    if sum(way is not None for way in (simulate, connect, listen)) != 1:
        raise typer.BadParameter("expected exactly one of --simulate, --connect and --listen")
    if listen is not None and resume:
        raise typer.BadParameter("the active party decides; omit it", param_hint="--resume")
    tls = _tls({"authority": authority, "certificate": certificate, "key": key}, simulate is None)
    party = read(config)
    if listen is not None:
        from federated.vertical.run import listen as serve

        serve(party, listen, tls, lambda address: say(f"listening at {address}"))
        return
    from federated.vertical import run

    begun = perf_counter()
    if simulate is not None:
        report = run.simulate(party, read(simulate), _show, resume=resume)
    else:
        report = run.connect(party, str(connect), tls, _show, resume=resume)
    made = report | {"wall_seconds": perf_counter() - begun}
    if as_json:
        emit(made)
    else:
        _print(made)


def _tls(given: dict[str, Path | None], used: bool) -> Tls | None:
    from federated.transport.channel import Tls

    there = {name: str(path) for name, path in given.items() if path is not None}
    if there and not used:
        raise typer.BadParameter("not used with --simulate; omit it", param_hint=f"--{next(iter(there))}")
    if there and (missing := [name for name in _TLS if name not in there]):
        raise typer.BadParameter(f"expected --{missing[0]} too", param_hint=f"--{next(iter(there))}")
    return Tls(**there) if there else None


def _show(row: dict[str, Any]) -> None:
    say(f"epoch {row['epoch']}: loss {_number(row['loss'])}, {_tested(row)}")


def _tested(row: dict[str, Any]) -> str:
    found = {"loss": row["test_loss"], "accuracy": row["test_accuracy"]}
    said = [f"{name} {_number(value)}" for name, value in found.items() if value is not None]
    return f"rows not trained on: {', '.join(said) or 'none'}"


def _number(value: float | None) -> str:
    return "diverged" if value is None else f"{value:.4f}"


def _print(made: dict[str, Any]) -> None:
    last = made["rows"][-1] if made["rows"] else None
    print(
        f"{made['common']} common rows, {made['steps']} steps in {seconds_text(made['wall_seconds'])}; "
        f"{bytes_text(made['bytes_up'])} up, {bytes_text(made['bytes_down'])} down"
    )
    if last is not None:
        print(_tested(last))
    for what, told in (("labels", made["labels"]), ("results", made["results"] or {})):
        if (epsilon := told.get("epsilon")) is not None:
            print(f"{what}: epsilon {epsilon:.3g} per row")
