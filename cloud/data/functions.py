"""User functions: their names in a file, their fingerprints, and calls whose errors say where they failed."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloud.data.transforms import Transform
from cloud.errors import DataError

__all__ = ["Function", "found", "named"]


@dataclass(frozen=True)
class Function:
    """A callable and where a new process finds it, "module:name"; "" for lambdas and nested functions."""

    call: Callable[..., Any]
    name: str

    @property
    def transform(self) -> Transform | None:
        """The transform that it is, if it is one."""
        held: object = self.call
        return held if isinstance(held, Transform) else None

    @property
    def shown(self) -> str:
        """Its name in messages."""
        if self.transform is not None:
            return self.transform.shown
        return self.name or str(getattr(self.call, "__qualname__", type(self.call).__qualname__))

    @property
    def fingerprint(self) -> str:
        """Changes with its name and its code, but not with its closure or the functions it calls."""
        if self.transform is not None:
            return repr(self.transform)
        code = getattr(self.call, "__code__", None)
        body = (code.co_code, [c for c in code.co_consts if isinstance(c, int | float | str | bytes)]) if code else ""
        return f"{self.shown}#{hashlib.blake2b(repr(body).encode(), digest_size=8).hexdigest()}"

    def to_name(self) -> str:
        """Its "module:name"; DataError if it has none."""
        if not self.name:
            raise DataError(
                f"{self.shown} cannot be written to a file: expected a function at the top level of a module, got a "
                "lambda or a nested function; define it with `def` in a module that can be imported"
            )
        return self.name


def named(function: Callable[..., Any] | str) -> Function:
    """A function, or "module:name" of one."""
    if isinstance(function, str):
        return found(function)
    if not callable(function):
        raise DataError(f"expected a function or 'module:name', got {type(function).__name__}")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "") or "?"
    there: Any = sys.modules.get(module or "")
    for part in name.split("."):
        there = getattr(there, part, None)
    return Function(function, f"{module}:{name}" if there is function and module != "__main__" else "")


def found(name: str) -> Function:
    """The function at "module:name"; its module is imported, so load pipelines only from trusted sources."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise DataError(f"expected a function as 'module:name', got {name!r}")
    try:
        there: Any = importlib.import_module(module)
        for part in path.split("."):
            there = getattr(there, part)
    except (ImportError, AttributeError) as problem:
        raise DataError(f"no function {name!r}: {problem}; is its module on sys.path?") from problem
    if not callable(there):
        raise DataError(f"expected a function at {name!r}, got {type(there).__name__}")
    return Function(there, name)
