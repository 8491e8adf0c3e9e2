"""`msedge keygen` and `msedge sign`: keys, and signatures in bundles."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Bundle, Json
from edge.cli.output import emit, say

__all__ = ["keygen", "sign"]


def keygen(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the key, such as release-2026.")],
    days: Annotated[
        float | None, typer.Option("--days", metavar="N", help="Days until it is not trusted any more; default: never.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", metavar="DIR", help="Where to write the files.")] = Path(),
    as_json: Json = False,
) -> None:
    """Make a pair of keys (Ed25519): NAME.key signs bundles and stays secret, NAME.pub is what gateways trust."""
    import time

    from edge.gateway.models.names import is_name
    from lite_runtime._files import write_atomically
    from lite_runtime.bundle import keys, signing

    if not is_name(name):
        raise typer.BadParameter("expected letters, digits and _ . - alone", param_hint="NAME")
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    for path in (private, public):
        if os.path.lexists(path):
            raise keys.TrustError(f"{str(path)!r} exists; give the new key another name")
    secret, shown = signing.new_key(name, float("inf") if days is None else time.time() + 86_400 * days)
    write_atomically(private, secret, mode=0o600)
    write_atomically(public, shown, mode=0o644)
    key = keys.public_key(public).key
    if as_json:
        emit({"name": name, "private": str(private), "public": str(public), "key": key})
    else:
        say(f"wrote {private} (secret) and {public}: {keys.short(key)}")


def sign(
    bundle: Bundle,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="The private key that `msedge keygen` made.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="The only name to serve it under; default: any.")
    ] = "",
    version: Annotated[
        int, typer.Option("--version", metavar="N", min=0, help="The only version to serve it as; default: any.")
    ] = 0,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all signatures instead.")] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there; default: into the bundle.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Sign a bundle, beside the signatures that it has. Its digest stays the same."""
    from lite_runtime import bundle as bundles
    from lite_runtime._files import write_atomically
    from lite_runtime.bundle import keys, signatures, signing
    from lite_runtime.errors import BundleError

    if remove == (key is not None):
        raise typer.BadParameter("expected --key FILE, or --remove", param_hint="--key")
    with open(bundle, "rb") as file:  # not mapped: it may be replaced
        data = file.read()
    made = signing.signed(data, key, model=model, version=version) if key else signing.with_signatures(data, [])
    write_atomically(output or bundle, made, BundleError)
    held = bundles.opened(made)
    names = [keys.short(one.key) for one in signatures.signatures_of(held)]
    if as_json:
        emit({"file": str(output or bundle), "digest": held.digest, "signatures": names})
    else:
        say(f"{output or bundle}: {'signed by ' + ', '.join(names) if names else 'not signed'}")
