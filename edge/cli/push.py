"""`msedge push`: store a bundle in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli.options import Bundle, Json
from edge.cli.output import emit, say

__all__ = ["push"]


def push(
    bundle: Bundle,
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="oci://HOST/PATH:TAG, or s3://BUCKET/…/NAME/VERSION/model.mslite."),
    ],
    version: Annotated[
        int, typer.Option("--version", metavar="N", min=0, help="The model's version; default: the tag, else 1.")
    ] = 0,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="The model's configuration (config.toml).")
    ] = None,
    credentials: Annotated[
        Path | None, typer.Option("--credentials", metavar="FILE", help="As repository.credentials of a gateway.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Store a bundle where `msedge serve` finds it: in an OCI registry, or in S3-compatible storage."""
    from edge.gateway.sources.credentials import Credentials
    from edge.gateway.sources.publishing import push as stored

    found = stored(bundle, address, version=version, config=config, credentials=Credentials.of_file(credentials or ""))
    if as_json:
        emit(found)
    else:
        say(f"stored {bundle} at {address}{' as ' + found['manifest'] if 'manifest' in found else ''}")
