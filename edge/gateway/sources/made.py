"""The sources of models that the settings name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from edge.gateway.models.names import is_name
from edge.gateway.operate.settings import REMOTE, Settings
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.catalogue import Catalogue
from edge.gateway.sources.credentials import Credentials
from edge.gateway.sources.index import Index
from edge.gateway.sources.listing import Files, Folder, Source
from edge.gateway.sources.oci import Oci
from edge.gateway.sources.registry import Registry
from edge.gateway.sources.s3 import S3
from edge.gateway.sources.web import Web

__all__ = ["catalogue_of", "sources_of"]

MOST_BUNDLE = 4 << 30
"""Largest bundle in bytes."""


def _index(url: str, web: Web, name: str) -> Catalogue:
    return Index(url, web)


_CATALOGUES: Mapping[str, Callable[[str, Web, str], Catalogue]] = {
    "http": _index,
    "https": _index,
    "oci": Oci,
    "s3": lambda url, web, name: S3(url, web.credentials, web.timeout),
}


def catalogue_of(text: str, web: Web) -> Catalogue | None:
    """The catalogue at an address, or at NAME=oci://…; None for a path. Raises GatewayError (400) for a wrong one."""
    name, mark, rest = text.partition("=")
    name, url = (name, rest) if mark and is_name(name) and rest.startswith("oci://") else ("", text)
    scheme = url.partition("://")[0]
    return _CATALOGUES[scheme](url, web, name) if url.startswith(REMOTE) else None


def sources_of(settings: Settings) -> list[Source]:
    """Registries, folders, and the bundles that are named one by one. Raises GatewayError for addresses and a file of
    credentials that are wrong."""
    words = settings.repository
    web = Web(Credentials.of_file(words.credentials))
    cache = Cache(words.cache or os.path.join(_cache(), "models"), words.cache_bytes)
    most = min(MOST_BUNDLE, words.cache_bytes or MOST_BUNDLE)
    found: list[Source] = []
    files: list[str] = []
    for text in settings.models:
        catalogue = catalogue_of(text, web)
        if catalogue is not None:
            found.append(Registry(catalogue, cache, most=most, patience=web.patience))
        elif Path(text).is_dir():
            found.append(Folder(text))
        else:
            files.append(text)
    return [*found, Files(files)] if files else found


def _cache() -> str:
    from lite_runtime.native.build import cache_folder

    return str(cache_folder())
