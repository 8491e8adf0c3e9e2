"""The adapters of people: files in a folder, read when a request names one, and again when a file has changed."""

from __future__ import annotations

import os
import stat
from _thread import allocate_lock
from collections import OrderedDict
from pathlib import Path
from typing import Any

from edge.gateway.errors import GatewayError
from edge.gateway.models.names import is_name, shown
from lite_runtime.errors import MsedgeError
from lite_runtime.language.adapters import Adapter
from lite_runtime.language.engine import Engine

__all__ = ["Adapters", "parted"]

_SUFFIX = ".msstate"
_OVERHEAD = 1 << 20
"""Bytes that a file may have besides its numbers."""

Stamp = tuple[int, int, int]


def parted(name: str) -> tuple[str, str | None]:
    """The model and the adapter that a request's `model` names: MODEL, or MODEL:ADAPTER. Names of models have no
    colon."""
    model, colon, adapter = name.partition(":")
    return model, adapter if colon else None


class Adapters:
    """A folder with a folder for each model, MODEL/NAME.msstate. Files are read whole, not mapped: one that somebody
    shortens meanwhile is refused by its digests. Safe to call from several threads."""

    def __init__(self, folder: str, most: int) -> None:
        """folder: "" for none. most: files whose contents are kept."""
        self._folder, self._most = folder, most
        self._read: OrderedDict[Path, tuple[Stamp, str, Adapter]] = OrderedDict()
        """By path: what the file was, the bundle whose adapter it is, and its contents; the least recently used
        first."""
        self._lock = allocate_lock()

    def names(self, model: str) -> list[str]:
        """The adapters of a model, by their files; these are not read."""
        if not self._folder:
            return []
        try:
            with os.scandir(Path(self._folder, model)) as found:
                files = [entry.name for entry in found if entry.name.endswith(_SUFFIX) and entry.is_file()]
        except OSError:
            return []
        return sorted(name for file in files if is_name(name := file.removesuffix(_SUFFIX)))

    def load(self, model: str, name: str, engine: Engine) -> Adapter:
        """The adapter with that name. Raises GatewayError: 404 if there is none, 422 for a file that is damaged, or of
        another model."""
        path = Path(self._folder, model, name + _SUFFIX)
        if not self._folder or not is_name(name):
            raise _unknown(model, name)
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                of = os.fstat(file.fileno())
                stamp, digest = (of.st_mtime_ns, of.st_size, of.st_ino), engine.model.bundle.digest
                with self._lock:
                    kept = self._read.get(path)
                known = kept is not None and kept[:2] == (stamp, digest)
                adapter = kept[2] if kept is not None and known else _checked(file, of, engine)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise _unknown(model, name) from None
        except (OSError, MsedgeError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise GatewayError(422, f"adapter {name!r} of model {model!r} cannot be used: {reason}") from None
        with self._lock:
            self._read[path] = stamp, digest, adapter
            self._read.move_to_end(path)
            while len(self._read) > self._most:
                self._read.popitem(last=False)
        return adapter


def _checked(file: Any, of: os.stat_result, engine: Engine) -> Adapter:
    """The adapter in an open file, which fits the engine's model."""
    if engine.layout is None:
        raise GatewayError(422, "this model takes no adapters; convert it with adapters (--lora)")
    most = engine.bytes_per_adapter + _OVERHEAD
    if not stat.S_ISREG(of.st_mode) or of.st_size > most:
        raise GatewayError(422, f"expected a regular file of at most {most} bytes")
    adapter = Adapter.load(file.read(most + 1))
    engine.check(adapter)
    adapter.digest  # noqa: B018 - computed here, not in the thread that runs the model
    return adapter


def _unknown(model: str, name: str) -> GatewayError:
    return GatewayError(404, f"unknown adapter {shown(name)} of model {model!r:.80}")
