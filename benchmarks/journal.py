"""Figures saved as they are measured, so that a stopped benchmark continues where it ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lite_runtime.errors import MsedgeError

__all__ = ["Journal", "TimeIsUp"]


class TimeIsUp(MsedgeError):
    """The time limit is reached; all measured figures are saved."""


class Journal:
    """A file of lines: first the conditions, then one line per key with its figures.

    `conditions`: everything that figures depend on (machine, versions, settings). A file with other conditions is
    refused, because its figures do not belong to this run. `minutes`: no new measurement starts after this time.
    Without a path nothing is saved.
    """

    def __init__(self, path: Path | None, conditions: Mapping[str, Any], *, minutes: float | None = None) -> None:
        self._path, self._held = path, dict[str, Any]()
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._file = None
        wanted = json.loads(json.dumps(conditions))
        if path is None:
            return
        whole = self._read(path, wanted)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "r+" if path.exists() else "w", encoding="utf-8")  # noqa: SIM115
        self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
        if not whole:
            self._line({"conditions": wanted})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, *key: object, measure: Callable[[], Any]) -> Any:
        """The figures under `key`: saved ones, or those that `measure` returns now, in JSON's types.

        Raises TimeIsUp instead of measuring once the time has passed.
        """
        name = "\t".join(map(str, key))
        if name not in self._held:
            if self._end is not None and time.monotonic() > self._end:
                done = f"{len(self._held)} measurements are in {self._path}" if self._path else "nothing was saved"
                raise TimeIsUp(f"the time limit is reached; {done}. Run the same command again to measure the rest")
            self._held[name] = json.loads(json.dumps(measure(), default=_scalar))
            self._line({"key": name, "figures": self._held[name]})
        return self._held[name]

    def remove(self) -> None:
        """Delete the file: its figures are published, and the next run measures anew."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    def _line(self, what: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(what) + "\n")
            self._file.flush()

    def _read(self, path: Path, wanted: Mapping[str, Any]) -> int:
        """Read the figures of an existing file; return the size of its complete lines in bytes."""
        if not path.exists():
            return 0
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.decode().splitlines()]
            if not lines:
                return 0
            found = dict(lines[0]["conditions"])
            self._held = {line["key"]: line["figures"] for line in lines[1:]}
        except (ValueError, KeyError, TypeError) as error:
            raise MsedgeError(f"{path} is not a journal of benchmark figures ({error}); name another file") from error
        odd = [name for name in {**found, **wanted} if found.get(name) != wanted.get(name)]
        if odd:
            raise MsedgeError(
                f"{path} was measured under other conditions ({', '.join(odd)}); delete it, or name another file"
            )
        return len(whole)


def _scalar(value: Any) -> Any:
    """NumPy's scalars and arrays as JSON's types."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"expected figures and text, got {type(value).__name__}")
