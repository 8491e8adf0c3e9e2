"""Storing a bundle in a registry, for `msedge push`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from hashlib import file_digest
from io import BufferedReader
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import parse_config
from edge.gateway.models.names import shown, version_of
from edge.gateway.sources.credentials import Credentials
from edge.gateway.sources.oci import Oci, Reference
from edge.gateway.sources.s3 import S3
from edge.gateway.sources.web import Web
from lite_runtime import bundle

__all__ = ["push"]


def push(
    path: str | os.PathLike[str],
    address: str,
    *,
    version: int = 0,
    config: str | os.PathLike[str] | None = None,
    credentials: Credentials | None = None,
) -> dict[str, Any]:
    """Store a bundle at oci://HOST/PATH:TAG, or s3://BUCKET/…/NAME/VERSION/model.mslite.

    version: of the model, if the address does not say it; 0: 1. config: a file like `config.toml`, stored with it.
    Returns the bundle's digest, and the manifest's in an OCI registry. Raises GatewayError, and BundleError for a file
    that is no bundle.
    """
    web = Web(credentials or Credentials())
    digest = bundle.opened(path).digest
    settings = _configured(config)
    with open(path, "rb") as file:
        stored = _oci if address.startswith("oci://") else _s3
        return {"address": address, "digest": digest, **stored(file, address, version, settings, web)}


def _oci(file: BufferedReader, address: str, version: int, config: Mapping[str, Any], web: Web) -> dict[str, Any]:
    tag = Reference.of(address).tag
    if not tag or ":" in tag:
        raise GatewayError(400, f"expected an address with a tag, such as {address.partition('@')[0]}:1")
    found = file_digest(file, "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    return {"manifest": Oci(address, web).push(size, found, file, config, version or version_of(tag) or 1)}


def _s3(file: BufferedReader, address: str, version: int, config: Mapping[str, Any], web: Web) -> dict[str, Any]:
    if not address.startswith("s3://") or not address.endswith(".mslite"):
        raise GatewayError(400, f"expected an address oci://… or s3://….mslite, got {shown(address)}")
    if version or config:
        raise GatewayError(400, "of s3://… the path says the version, and the configuration is an object of its own,"
                           " NAME/config.toml; leave out --version and --config")  # fmt: skip
    folder, _, name = address.rpartition("/")
    S3(folder, web.credentials, web.timeout).put(name, file)
    return {}


def _configured(path: str | os.PathLike[str] | None) -> Mapping[str, Any]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except ValueError as error:
        raise GatewayError(400, f"{os.fspath(path)!r}: expected TOML: {str(error)[:200]}") from None
    parse_config(found, os.fspath(path))
    return found
