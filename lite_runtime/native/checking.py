"""Checks that a kernel reads the words of its step as they are declared, by its source, when it is imported.

Every word is read through an accessor (`ptr`, `nth`, `num`, `real`, `tail` of `native/simd.py`) by a name from the
declaration: `num(step, GEMM.rows)`, also with an offset, `num(step, POOL.size + axis)`. Helpers that receive the step
are checked as well; branches that are never taken because of a factory's constants are not. Only compiling needs this.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from types import FunctionType
from typing import Any

from lite_runtime.steps.declaration import (
    FLAGS,
    INTEGER,
    KERNEL,
    LENGTH,
    OPERAND,
    REAL,
    TAIL,
    Named,
    Step,
    fields_of,
    owner_of,
)

__all__ = ["check"]

_KINDS: Mapping[str, Collection[str]] = {
    "ptr": {OPERAND},
    "nth": {OPERAND},
    "num": {INTEGER, TAIL},
    "real": {REAL},
    "tail": {TAIL},
}
"""The kind of word that each accessor reads."""
_HEADER = {"KERNEL": KERNEL, "LENGTH": LENGTH, "FLAGS": FLAGS}


def check(kernel: FunctionType, step: type[Step], accessors: Mapping[str, Any], unread: Collection[str] = ()) -> None:
    """Raise TypeError if `kernel` or a helper reads a word that `step` does not declare or declares with another kind,
    or reads one without a name; if a declared word is never read and not in `unread`; or if `unread` names a word that
    is read."""
    read: set[str] = set()
    seen: set[Any] = set()
    waiting: list[FunctionType] = [kernel]
    while waiting:
        function = waiting.pop()
        if function.__code__ not in seen:
            seen.add(function.__code__)
            reader = _Reader(function, step, accessors)
            read |= reader.read
            waiting += reader.helpers
    allowed, missed = set(unread), set(step.layout.by_name) - read
    where = f"{kernel.__module__}.{kernel.__qualname__}"
    if missed - allowed:
        raise TypeError(
            f"{where} does not read {_list(missed - allowed)} of {step.__name__}; read them, or name them in unread="
        )
    if allowed - missed:
        raise TypeError(f"{where} names {_list(allowed - missed)} in unread=, which {step.__name__} lacks or it reads")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


class _Reader:
    """The words that one function reads of its step, and the helpers to which it passes the step."""

    def __init__(self, function: FunctionType, step: type[Step], accessors: Mapping[str, Any]) -> None:
        self._function, self._step, self._accessors = function, step, accessors
        self.read: set[str] = set()
        self.helpers: list[FunctionType] = []
        self._named: set[ast.Attribute] = set()
        nodes = list(self._live(_definition(function)))
        for call in (n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)):
            self._call(call)
        for inner in nodes:
            if isinstance(inner, ast.Attribute) and inner not in self._named and self._is_word(inner):
                raise self._wrong(inner, "is no argument of ptr, nth, num, real or tail")
            if isinstance(inner, ast.Subscript) and _is_step(inner.value) and not self._is_row(inner.slice):
                raise self._wrong(inner, "reads a word by its place; read it by name, with ptr, nth, num, real or tail")

    def _wrong(self, node: ast.expr, what: str) -> TypeError:
        code = self._function.__code__
        return TypeError(f"{code.co_filename}:{node.lineno}: {ast.unparse(node)} {what} ({self._step.__name__})")

    def _value(self, name: str) -> Any:
        """The value of a name in the function: a closed-over or a global value; None for a local variable."""
        code = self._function.__code__
        if name in code.co_freevars:
            cells = self._function.__closure__ or ()
            return cells[code.co_freevars.index(name)].cell_contents
        return None if name in code.co_varnames else self._function.__globals__.get(name)

    def _live(self, node: ast.AST) -> Iterator[ast.AST]:
        """A node and all nodes below it, without branches that constants of the function exclude, as Numba does."""
        yield node
        inner = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.If) and (holds := self._holds(node.test)) is not None:
            inner = [node.test, *(node.body if holds else node.orelse)]
        for child in inner:
            yield from self._live(child)

    def _holds(self, test: ast.expr) -> bool | None:
        """Whether a condition on names that are not variables is true; None for any other condition."""
        match test:
            case ast.Name(name):
                value = self._value(name)
                return None if value is None else bool(value)
            case ast.Compare(ast.Name(left), [ast.Eq()], [ast.Name(right)]):
                values = self._value(left), self._value(right)
                return None if None in values else bool(values[0] == values[1])
        return None

    def _names(self, node: ast.expr) -> Iterator[tuple[ast.Attribute, Named]]:
        """The words named below a node."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
                value = self._value(inner.value.id)
                if isinstance(value, Named):
                    yield inner, value

    def _is_word(self, node: ast.Attribute) -> bool:
        found = [named for attribute, named in self._names(node) if attribute is node]
        if found and node.attr not in fields_of(found[0]):
            raise self._wrong(node, f"is declared nowhere; there are {', '.join(fields_of(found[0]))}")
        return bool(found) and owner_of(found[0]) is not None

    def _is_row(self, index: ast.expr) -> bool:
        """Whether an expression is a word of the header or an offset from the start of a tail's row."""
        if isinstance(index, ast.Name):
            return index.id in _HEADER and self._value(index.id) == _HEADER[index.id]
        return any(owner_of(named) is None for _, named in self._names(index))

    def _call(self, call: ast.Call) -> None:
        value = self._value(call.func.id) if isinstance(call.func, ast.Name) else None
        name = next((name for name, accessor in self._accessors.items() if accessor is value), None)
        if value is None:
            return
        if name is not None:
            self._access(name, call)
        elif any(_is_step(argument) for argument in call.args):
            helper = getattr(value, "py_func", value)
            if isinstance(helper, FunctionType):
                self.helpers.append(helper)

    def _access(self, name: str, call: ast.Call) -> None:
        """Check a call of an accessor."""
        found = [(node, named) for node, named in self._names(call.args[-1]) if owner_of(named) is not None]
        if len(found) != 1:
            raise self._wrong(call, "names no word" if not found else "names more than one word")
        node, named = found[0]
        self._named.add(node)
        self._is_word(node)
        field, own = fields_of(named)[node.attr], self._step.layout.by_name.get(node.attr)
        if own is None or (field.kind, field.word, field.length) != (own.kind, own.word, own.length):
            raise self._wrong(call, f"reads word {field.word}, which is not {node.attr}")
        if field.kind not in _KINDS[name]:
            raise self._wrong(call, f"reads {'an' if field.kind[0] in 'io' else 'a'} {field.kind} as by {name}")
        self.read.add(node.attr)


def _is_step(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "step"


def _definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    try:
        return _definitions(code.co_filename)[code.co_name, code.co_firstlineno]
    except (KeyError, OSError):
        raise TypeError(f"{function.__qualname__}: its source is not in {code.co_filename}; kernels need it") from None


@cache
def _definitions(path: str) -> Mapping[tuple[str, int], ast.FunctionDef]:
    """Functions of a file by name and first line, decorators included."""
    with open(path, encoding="utf-8") as file:
        nodes = ast.walk(ast.parse(file.read(), path))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {(f.name, min([f.lineno, *(d.lineno for d in f.decorator_list)])): f for f in functions}
