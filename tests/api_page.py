"""docs/api.md: the public names of every package, with signatures and docstrings.

python -m tests.api_page            prints the page
python -m tests.api_page --update   writes it
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
FRONTS = ("msedge", "lite_runtime", "converter", "federated", "cloud", "edge")
MODULES = (
    *FRONTS, "lite_runtime.active", "lite_runtime.calibration", "lite_runtime.explaining", "lite_runtime.language",
    "converter.ir.dropout", "cloud.audit", "cloud.audit.attacks", "cloud.audit.audit", "cloud.audit.corruptions",
    "cloud.audit.files", "cloud.audit.privacy.attributes", "cloud.audit.privacy.canaries",
    "cloud.audit.privacy.inversion", "cloud.audit.privacy.membership", "cloud.audit.smoothing",
    "cloud.audit.straight_through", "cloud.audit.victim", "cloud.data",
    "cloud.engine", "cloud.explain", "cloud.train", "cloud.train.optim", "cloud.zoo", "edge.agent",
)  # fmt: skip
"""Modules whose `__all__` is public; all other modules are internal."""
HEAD = """# Public API

<!-- Written by `python -m tests.api_page --update`; do not edit. -->

Public are the names on this page, imported from the modules named here. Everything else is internal: it can be
imported, and it may change without notice. `msedge` offers what most programs need; the packages offer the rest.
Importing any of them loads nothing heavy.
"""


def public(module: str) -> Iterator[tuple[str, Any]]:
    """The public names of a module and their values, in order."""
    front = import_module(module)
    for name in sorted(front.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)):
        yield name, getattr(front, name)


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """A class's own public methods and properties."""
    for name, member in vars(cls).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, (property, classmethod))):
            yield name, member


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD]
    seen: dict[int, str] = {}
    for module in MODULES:
        summary = (import_module(module).__doc__ or "").strip().split("\n")[0]
        parts.append(f"## `{module}`\n\n{summary}\n")
        for name, what in public(module):
            if not isinstance(what, ModuleType) and module != "msedge":
                seen.setdefault(id(what), module)
            parts.append(_entry(module, name, what))
    return "\n".join(parts)


def _entry(module: str, name: str, what: Any) -> str:
    if isinstance(what, ModuleType):
        return f"### `{name}`\n\nThe module `{what.__name__}`, below.\n"
    home = _front_of(what, name)
    if module == "msedge" and home:
        return f"- `{name}`: {_first(what)} See [`{home}`](#{home})."
    lines = [f"### `{name}`", ""]
    if callable(what) and not (inspect.isclass(what) and issubclass(what, Exception)):
        lines += ["```python", f"{name}{_signature(what)}", "```", ""]
    lines += [_text(what), ""]
    if inspect.isclass(what) and not issubclass(what, Exception):
        for each, member in methods(what):
            lines += [f"- `{each}{'' if isinstance(member, property) else '()'}`: {_first(member)}"]
        lines.append("")
    return "\n".join(lines)


def _front_of(what: Any, name: str) -> str:
    for front in FRONTS[1:]:
        if name in import_module(front).__all__ and getattr(import_module(front), name) is what:
            return front
    return ""


def _signature(what: Any) -> str:
    try:
        text = str(inspect.signature(what))
    except (TypeError, ValueError):
        return "(...)"
    text = re.sub(r"<function (?:\w+\.)*<lambda>[^>]*>|<factory>", "...", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", re.sub(r" at 0x[0-9a-f]+", "", text))


def _text(what: Any) -> str:
    text = inspect.getdoc(what) if callable(what) or inspect.isclass(what) else None
    return text or f"A constant of type `{type(what).__name__}`."


def _first(what: Any) -> str:
    text = inspect.getdoc(what.fget if isinstance(what, property) else what) or ""
    return " ".join(text.split("\n\n")[0].split())


if __name__ == "__main__":
    if "--update" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
