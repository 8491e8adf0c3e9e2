"""Where product code may use `assert`: never to check data, and elsewhere only to narrow a type.

`python -O` compiles no assert, so what one checks must hold whatever a file, a message, a user or a model says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("cloud", "converter", "edge", "federated", "lite_runtime", "msedge.py")
# What reads files and messages, or decides what may be run: no assert at all.
NONE = (
    "converter/frontends/tflite/",
    "edge/gateway/operate/",
    "edge/gateway/protocol/",
    "federated/",
    "lite_runtime/_files.py",
    "lite_runtime/bundle/",
    "lite_runtime/graph/",
    "lite_runtime/learning/",
    "lite_runtime/native/",
    "lite_runtime/running/kept.py",
)


def found_in(word: bytes) -> Iterator[tuple[str, ast.Module]]:
    """The product's files in which a word stands, parsed."""
    for name in PRODUCT:
        there = ROOT / name
        for path in sorted(there.rglob("*.py")) if there.is_dir() else [there]:
            text = path.read_bytes()
            if word in text:
                yield path.relative_to(ROOT).as_posix(), ast.parse(text)


@cache
def asserts() -> tuple[tuple[str, ast.Assert], ...]:
    """Every assert of the product, with the file it is in. Whole trees would stay in memory."""
    found = ((path, node) for path, tree in found_in(b"assert") for node in ast.walk(tree))
    return tuple((path, node) for path, node in found if isinstance(node, ast.Assert))


def narrows(test: ast.expr) -> bool:
    """Whether a condition only says what type a name has: `x is not None`, `isinstance(x, T)`, several, or negated."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(map(narrows, parts))
        case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
            return narrows(call)
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return named(left)
        case ast.Call(func=ast.Name(id="isinstance"), args=[first, _], keywords=[]):
            return named(first)
    return False


def named(value: ast.expr) -> bool:
    """A name, or what a chain of names and indices leads to: nothing is called."""
    return not any(isinstance(inner, ast.Call | ast.Await | ast.NamedExpr) for inner in ast.walk(value))


def test_code_that_checks_data_has_no_assert() -> None:
    assert [f"{path}:{node.lineno}" for path, node in asserts() if path.startswith(NONE)] == []
    for start in NONE:
        assert (ROOT / start).exists(), f"{start} is gone: name its successor"


def test_asserts_only_narrow_types() -> None:
    found = [f"{path}:{node.lineno}: {ast.unparse(node)}" for path, node in asserts() if not narrows(node.test)]
    assert found == []


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("x is not None", True),
        ("x.y[0] is not None and isinstance(z, int | str)", True),
        ("not isinstance(x, Operand)", True),
        ("x", False),
        ("x == MAGIC", False),
        ("len(x) == 3", False),
        ("x is not None or y is not None", False),
        ("read() is not None", False),
        ("(x := read()) is not None", False),
        ("not x", False),
        ("x is not y", False),
        ("all(o is not None for o in x)", False),
    ],
)
def test_narrowing_is_distinguished_from_checking(text: str, fine: bool) -> None:
    assert narrows(ast.parse(text, mode="eval").body) is fine


def test_nothing_depends_on_whether_asserts_are_compiled() -> None:
    found = ((path, node) for path, tree in found_in(b"__debug__") for node in ast.walk(tree))
    assert [path for path, node in found if isinstance(node, ast.Name) and node.id == "__debug__"] == []
