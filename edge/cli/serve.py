"""`msedge serve`: serve models over HTTP and gRPC; `msedge token`: manage the tokens of its clients."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.errors import CHECK_FAILED, COULD_NOT_RUN
from edge.cli.options import Json
from edge.cli.output import console, emit, say, table
from lite_runtime.errors import MsedgeError

if TYPE_CHECKING:
    from edge.gateway.operate.settings import Settings

__all__ = ["add", "listed", "revoke", "serve"]

Tokens = Annotated[Path, typer.Option("--tokens", metavar="FILE", help="The file that access.tokens names.")]
_TOKENS = Path("tokens.json")


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL…]",
            help="M.mslite, an ensemble's file, NAME=FILE, a folder of models, or a registry (http(s)://…, oci://…,"
            " s3://…). Any setting that --print-config shows can be given as --SECTION-KEY VALUE.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="HOST", help="Address to listen on; default: 127.0.0.1.")
    ] = None,
    port: Annotated[
        str | None, typer.Option("--port", metavar="PORT", help="Port to listen on; 0: any free port; default: 8000.")
    ] = None,
    grpc_port: Annotated[
        str | None,
        typer.Option("--grpc-port", metavar="PORT", help="Port for gRPC, such as 8001; 0: any; default: none."),
    ] = None,
    threads: Annotated[
        str | None, typer.Option("--threads", metavar="N", help="Threads that compute; 0: one per processor.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings; default: msedge.toml or pyproject.toml here."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings, and where each comes from, and exit.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Serve models over HTTP and gRPC (Open Inference Protocol 2), with dynamic batching.

    A setting is taken from the command line, else from a variable MSEDGE_SERVE_…, else from the file, else it has its
    default. After SIGTERM the accepted requests are answered before the server exits; exit code 1 if that took too
    long.
    """
    begun = perf_counter()
    settings = _settings(models or [], {"host": host, "port": port, "grpc.port": grpc_port, "threads": threads}, config)
    if print_config:
        from edge.gateway.operate.sources import print_config as text

        print(text(settings), end="")
        return
    if not settings.models:
        raise typer.BadParameter(
            "expected a bundle, a folder of models or a registry, got none; try `msedge serve model.mslite`",
            param_hint="MODEL",
        )
    plain = settings.logs.format == "text"
    _look(settings)
    import asyncio

    from edge.gateway.http.serving import serve as run

    def ready(address: str, grpc: str = "") -> None:
        seconds = perf_counter() - begun
        if as_json:
            emit({"address": address, **({"grpc": grpc} if grpc else {}), "seconds": seconds})
            sys.stdout.flush()
        if plain:  # otherwise the log has a line about it: every line on stderr is an object
            if grpc:
                say(f"gRPC at {grpc}")
            say(f"serving at {address} after {seconds:.2f} s; {address}/docs to try it, {address}/status to watch it")
            _tell_of_kernels()

    try:
        answered = asyncio.run(run(settings, ready))
    except MsedgeError as error:
        if plain:
            raise
        told = {"level": "error", "event": "the gateway cannot start", "reason": str(error)}
        print(json.dumps(told), file=sys.stderr)
        raise typer.Exit(COULD_NOT_RUN) from None
    if not answered:
        raise typer.Exit(CHECK_FAILED)


def _look(settings: Settings) -> None:
    """Report empty folders. Raises GatewayError for a missing folder of adapters, and for a missing store, which would
    otherwise be created empty."""
    from edge.gateway.errors import GatewayError

    store = settings.personal.store
    if store and not Path(store).is_file():
        raise GatewayError(
            500, f"personal.store: expected the file that a federated run's `[sync] store` names, got none at {store!r}"
        )
    adapters = settings.language.adapters
    if adapters and not Path(adapters).is_dir():
        raise GatewayError(500, f"language.adapters: expected a folder MODEL/NAME.msstate, got none at {adapters!r}")
    for text in settings.models if settings.logs.format == "text" else ():
        if Path(text).is_dir() and not os.listdir(text):
            say(f"{text}: no models yet; add NAME.mslite or NAME/1/model.mslite to this folder")


def _tell_of_kernels() -> None:
    """Warn if models run on NumPy."""
    from edge.extras import pip_line
    from lite_runtime.native.build import available
    from lite_runtime.native.target import host

    if not available():
        fix = pip_line("jit") if host() else "there are none for this processor yet"
        say(f"warning: no native kernels; models run on NumPy, several times slower: {fix}")


class _NoSuchOption(typer.BadParameter):
    """An unknown option, reported as typer reports those of other commands."""

    def format_message(self) -> str:
        """The message without "Invalid value"."""
        return self.message


def _settings(words: Sequence[str], flags: dict[str, str | None], config: Path | None) -> Settings:
    """The effective settings. words: models and further flags from the command line."""
    from edge.gateway.operate.sources import entries, resolve

    known = {entry.flag: name for name, entry in entries().items()}
    models: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            models.append(word)
            continue
        flag, given, value = word.partition("=")
        if flag not in known:
            close = get_close_matches(flag, known, 1)
            fix = f"did you mean {close[0]}?" if close else "--print-config shows all settings"
            raise _NoSuchOption(f"No such option: {flag}; {fix}")
        found = value if given else next(rest, None)
        if found is None:
            raise typer.BadParameter(f"expected a value: {entries()[known[flag]].expected}", param_hint=flag)
        flags[known[flag]] = found
    told: dict[str, object] = {**flags, "models": tuple(models) or None}
    return resolve(told, file=config)


def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token's owner.")],
    scope: Annotated[
        list[str], typer.Option("--scope", metavar="SCOPE", help="Allows infer, manage or metrics; repeatable.")
    ] = ["infer"],  # noqa: B006 # typer's way
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", help="Days until it expires; default: never.")
    ] = None,
    model: Annotated[
        list[str], typer.Option("--model", metavar="NAME", help="A model it may use, * and ? allowed; repeatable.")
    ] = ["*"],  # noqa: B006 # typer's way
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="A device it stands for, * and ? allowed; repeatable."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="N", help="Requests per second; default: any number.")
    ] = None,
    tokens: Tokens = _TOKENS,
    as_json: Json = False,
) -> None:
    """Create a token and print it. It is shown only once: the file stores only its hash."""
    from edge.gateway.access.tokens import add as make

    token = make(tokens, name, scope, days=days, models=model, devices=device or (), rate=rate)
    if as_json:
        emit({"name": name, "scopes": scope, "models": model, "devices": device or [], "rate": rate, "token": token})
    else:
        print(token)
        say(f"allows {', '.join(scope)} at a gateway with --access-tokens {tokens}; it is not shown again")


def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token's owner.")],
    tokens: Tokens = _TOKENS,
) -> None:
    """Revoke a token; gateways notice within two seconds."""
    from edge.gateway.access.tokens import revoke as remove

    remove(tokens, name)
    say(f"the token of {name} is no longer valid")


def listed(tokens: Tokens = _TOKENS, as_json: Json = False) -> None:
    """List the tokens: owners, scopes, expiry."""
    from datetime import UTC, datetime

    from edge.gateway.access.tokens import listed as read

    found = read(tokens)
    if as_json:
        emit({"tokens": [{
            "name": t.name, "scopes": sorted(t.scopes), "models": t.models, "devices": t.devices, "rate": t.rate,
            "end": t.end,
        } for t in found]})  # fmt: skip
        return
    rows = table("", "name", "scopes", "models", "devices", "per second", "valid until")
    for token in found:
        end = "" if token.end == float("inf") else datetime.fromtimestamp(token.end, UTC).date().isoformat()
        rate = "" if token.rate is None else f"{token.rate:g}"
        words = (token.scopes, token.models, token.devices)
        rows.add_row(token.name, *(", ".join(sorted(of)) for of in words), rate, end)
    console().print(rows)
