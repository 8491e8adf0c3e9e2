"""Files in a load request: `"file:1/model.mslite": "<base64>"`, with paths as in a model's folder. Over gRPC, they are
bytes."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.models.names import shown
from edge.gateway.sources.listing import BUNDLE, CONFIG, ENSEMBLES, FILES

__all__ = ["PREFIX", "files_of", "unpack"]

PREFIX = "file:"
_PATH = re.compile(rf"^(?:(?:[1-9][0-9]{{0,17}}/)?(?:{'|'.join(map(re.escape, FILES))})|{re.escape(CONFIG)})\Z")


def files_of(parameters: Mapping[str, Any]) -> dict[str, bytes]:
    """The files among a load request's parameters, by path. Raises GatewayError (400)."""
    return {
        key.removeprefix(PREFIX): _content(key, value) for key, value in parameters.items() if key.startswith(PREFIX)
    }


def _content(key: str, value: Any) -> bytes:
    if not _PATH.match(key.removeprefix(PREFIX)):
        text = f"expected {PREFIX}VERSION/{BUNDLE} or {PREFIX}{CONFIG}, or an ensemble's {PREFIX}VERSION/{ENSEMBLES[0]}"
        raise GatewayError(400, f"{shown(key)}: {text}")
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise GatewayError(400, f"{shown(key)}: expected base64, got {shown(value)}")


def unpack(name: str, files: Mapping[str, bytes]) -> TemporaryDirectory[str]:
    """Write the files as a model's folder into a new temporary folder, which the caller removes."""
    folder: TemporaryDirectory[str] = TemporaryDirectory(prefix="msedge-")
    try:
        for path, content in files.items():
            target = Path(folder.name, name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        folder.cleanup()
        raise GatewayError(503, f"cannot save the files of model {name!r}: {error.strerror}") from None
    return folder
