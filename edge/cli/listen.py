"""`msedge listen`: a federated run on devices that check in over HTTPS, browsers among them."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.federate import refuse_for, show, show_other
from edge.cli.fleet_live import live
from edge.cli.options import Json
from edge.cli.output import emit, say

if TYPE_CHECKING:
    from federated.transport.checkin.server import Listening

__all__ = ["listen"]


def listen(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The run's configuration, as of msedge federate.")
    ] = None,
    tokens: Annotated[
        Path, typer.Option("--tokens", metavar="FILE", help="The devices that may check in; made by --add-device.")
    ] = ...,  # type: ignore[assignment]
    address: Annotated[
        str, typer.Option("--address", metavar="HOST:PORT", help="Where to listen; port 0 is a free one.")
    ] = "127.0.0.1:8470",
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--tls", metavar="CERT.pem KEY.pem", help="The server's certificate and key."),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="A page whose script may check in; may be repeated."),
    ] = None,
    heartbeat: Annotated[
        float,
        typer.Option(
            "--heartbeat", metavar="SECONDS", min=0.1, help="A device that is silent for three of these is gone."
        ),
    ] = 10.0,
    add_device: Annotated[
        str | None, typer.Option("--add-device", metavar="NAME", help="Add a device and print its new token; no run.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="out.html", help="Write a report of the run as a page.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from state.checkpoint.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model on devices that ask for work over HTTPS: processes with Python, and web pages.

    A device is started with: python -m federated.transport.checkin.device URL TOKEN-FILE device=NAME …
    """
    if add_device is not None:
        if config is not None:
            raise typer.BadParameter("not used with --add-device; omit it", param_hint="CONFIG.toml")
        _add(add_device, tokens, as_json)
        return
    if config is None:
        raise typer.BadParameter(
            "expected a configuration; msedge federate --init prints a template", param_hint="CONFIG.toml"
        )
    if report is not None and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(report.parent)!r}; create it first", param_hint="--report")
    from federated.transport.checkin.server import Listening

    certificate, key = map(str, tls or ("", ""))
    where = Listening(address, str(tokens), certificate, key, tuple(origin or ()), heartbeat=heartbeat)
    _run(config, where, resume, report, as_json)


def _add(device: str, tokens: Path, as_json: bool) -> None:
    from federated.transport.checkin.tokens import add

    token = add(tokens, device)
    if as_json:
        emit({"device": device, "token": token, "tokens": str(tokens)})
    else:
        say(f"added {device} to {tokens}; its token, which is shown only now:")
        print(token)


def _run(config: Path, where: Listening, resume: bool, page: Path | None, as_json: bool) -> None:
    from federated.config import read
    from federated.run import opened, report, run
    from federated.runs import of_file
    from federated.transport.checkin.server import listen as listening

    begun = perf_counter()

    def told(url: str) -> None:
        say(f"devices check in at {url}")

    if (other := of_file(config)) is not None:
        refuse_for(other, resume, page)
        with listening(where, told) as exchange:
            made = other.conduct(exchange, resume=resume)
        show_other(other, made | {"wall_seconds": perf_counter() - begun}, as_json)
        return
    words = read(config)
    _, start = opened(words)
    with listening(where, told) as exchange, live(words.rounds.count) as watch:
        federation = run(words, start, exchange, resume=resume, watch=watch)
    show(report(federation) | {"wall_seconds": perf_counter() - begun}, page, as_json)
