"""The rules of the operators: one module per family, one function per rule. `register` fills the table of rules."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

__all__ = ["register"]


def register() -> None:
    """Import every module of this package; their rules register themselves."""
    for module in sorted(iter_modules(__path__), key=lambda found: found.name):
        import_module(f"{__name__}.{module.name}")
