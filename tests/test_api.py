"""The public API: its page is up to date, docstrings name raised errors, documents and examples use nothing else."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests import api_page

ROOT = Path(__file__).parents[1]
OURS = ("msedge", "lite_runtime", "converter", "federated", "cloud", "edge")
NOT_SAID = frozenset({"AttributeError", "NotImplementedError", "StopIteration"})
"""What Python's own protocols raise needs no words."""


def test_the_page_is_up_to_date() -> None:
    assert api_page.PAGE.read_text(encoding="utf-8") == api_page.page(), "run python -m tests.api_page --update"


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Public functions, and public methods of public classes, by name."""
    for module in api_page.MODULES:
        for name, what in api_page.public(module):
            if inspect.isfunction(what):
                yield f"{module}.{name}", what
            elif inspect.isclass(what):
                for each, member in api_page.methods(what):
                    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                    yield f"{module}.{name}.{each}", function


def raised(function: Callable[..., Any]) -> set[str]:
    """The errors that a function raises itself, by name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            what = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            if isinstance(what, ast.Name) and what.id.endswith("Error"):
                found.add(what.id)
    return found - NOT_SAID


def test_everything_public_has_a_docstring() -> None:
    bare = [name for name, function in callables() if not (function.__doc__ or "").strip()]
    assert bare == []


def test_raised_errors_are_documented() -> None:
    silent = {
        name: sorted(errors)
        for name, function in callables()
        if (errors := raised(inspect.unwrap(function))) and not re.search(r"\b[Rr]aise", function.__doc__ or "")
    }
    assert silent == {}


def code() -> Iterator[tuple[str, str]]:
    """Python that users read: fenced blocks of the documents, and the examples."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if path != api_page.PAGE:
            blocks = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE)
            yield from ((f"{path.relative_to(ROOT)}#{i}", block) for i, block in enumerate(blocks))
    for path in sorted((ROOT / "examples").rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def _names(module: str) -> tuple[str, ...]:
    return tuple(import_module(module).__all__)


@pytest.mark.parametrize(("where", "text"), [pytest.param(*each, id=each[0]) for each in code()])
def test_documents_and_examples_use_public_names(where: str, text: str) -> None:
    strange = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            public = node.module in api_page.MODULES
            names = _names(node.module) if public and node.module else ()
            strange += [f"{node.module}.{alias.name}" for alias in node.names if alias.name not in names]
        elif isinstance(node, ast.Import):
            ours = [alias.name for alias in node.names if alias.name.partition(".")[0] in OURS]
            strange += [name for name in ours if name not in api_page.MODULES]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in OURS:
            strange += {f"{node.value.id}.{node.attr}"} - {f"{node.value.id}.{n}" for n in _names(node.value.id)}
    assert strange == [], f"{where} uses names that are not public; see docs/api.md"


def test_public_names_are_not_modules_by_accident() -> None:
    modules = [f"{m}.{n}" for m in api_page.FRONTS for n, what in api_page.public(m) if isinstance(what, ModuleType)]
    assert modules == ["msedge.data", "msedge.zoo", "cloud.data", "cloud.engine", "cloud.train", "cloud.zoo"]
