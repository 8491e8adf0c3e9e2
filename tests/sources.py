"""What the source files import and define. Each is parsed once a worker; the syntax trees of all would take 200 MB."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("edge", "cloud", "federated", "converter", "lite_runtime")
"""From the top: each may import those after it."""


@dataclass(frozen=True)
class Import:
    """`import a, b`: the names alone. `from .module import a, b`: module, names, and one level."""

    line: int
    module: str | None
    names: tuple[str, ...]
    level: int
    at_once: bool
    """Whether importing the file runs it: it is in no function and not under `if TYPE_CHECKING`."""
    is_from: bool

    def modules(self) -> tuple[str, ...]:
        """The modules it names. Relative imports stay in their layer: none."""
        if not self.is_from:
            return self.names
        return (self.module,) if self.module and not self.level else ()


@dataclass(frozen=True)
class Source:
    """One file, by its path from the root."""

    path: str
    imports: tuple[Import, ...]
    functions: tuple[tuple[str, int], ...]
    """Name and number of lines, at any level of nesting."""


def statements(body: list[ast.stmt], at_once: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement at any level of nesting, and whether it runs when the module is imported."""
    for node in body:
        yield node, at_once
        now = at_once and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        now = now and not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for field in node._fields:
            inner = getattr(node, field)
            if not isinstance(inner, list) or not inner:
                continue
            if isinstance(inner[0], ast.stmt):
                yield from statements(inner, now)
            elif isinstance(inner[0], ast.excepthandler | ast.match_case):
                for part in inner:
                    yield from statements(part.body, now)


def parsed(text: str | bytes, path: str = "") -> Source:
    """The facts about a module's text."""
    imports, functions = [], []
    for node, at_once in statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            imports.append(Import(node.lineno, None, tuple(a.name for a in node.names), 0, at_once, False))
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            imports.append(Import(node.lineno, node.module, names, node.level, at_once, True))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return Source(path, tuple(imports), tuple(functions))


@cache
def sources(layer: str) -> tuple[Source, ...]:
    """Every file of a layer."""
    # A tree is freed before the next one is made: Python's collector would only look at its nodes.
    enabled = gc.isenabled()
    gc.disable()
    try:
        paths = sorted((ROOT / layer).rglob("*.py"))
        return tuple(parsed(path.read_bytes(), path.relative_to(ROOT).as_posix()) for path in paths)
    finally:
        if enabled:
            gc.enable()
