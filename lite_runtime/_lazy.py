"""Public names of a package, each imported on first access."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy"]


def lazy(package: str, homes: Mapping[str, str], extra: str = "", why: str = "") -> Callable[[str], Any]:
    """A package's `__getattr__`. homes: where each public name is defined: "module", "module:name there", or a
    submodule.

    extra, why: the optional dependencies that these modules need, and their purpose: if one is not installed,
    MissingExtraError says how to install it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers {', '.join(sorted(homes))}")
        home, _, there = homes[name].partition(":")
        try:
            module = import_module(home)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if not extra or not missing or missing == package.partition(".")[0]:
                raise
            from lite_runtime.errors import MissingExtraError

            raise MissingExtraError(missing, extra, why) from error
        value = module if home == f"{package}.{name}" else getattr(module, there or name)
        setattr(sys.modules[package], name, value)
        return value

    return get
