"""The shape of the code: no import cycles, packages of limited size, functions that fit on two screens.

Run with `-s` to see the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

import pytest

from tests.sources import LAYERS, ROOT, Source
from tests.sources import sources as sources_of

MOST_MODULES, MOST_LINES = 15, 80
REGISTRIES = {
    "cloud/engine/lowering": "JAX lowerings, a family of operators a file",
    "converter/frontends/tflite/ops": "TensorFlow Lite's operators, a family a file",
    "converter/ir/grad": "differentiation rules, a family a file",
    "converter/passes": "passes, one a file",
    "edge/cli": "commands, one a file",
    "federated/algorithms": "algorithms, a paper a file",
    "lite_runtime/kernels": "kernel families, one a file",
    "lite_runtime/operators": "records of operators, a family a file",
    "lite_runtime/ops": "inference and binding rules, a family a file",
    "lite_runtime/reference": "definitions of operators, a family a file",
    "lite_runtime/steps": "declarations of kernels' steps, a family a file",
}
"""Folders that hold one file a thing of a kind, as many as there are."""
GENERATORS = "lite_runtime/kernels/"
"""Kernels and what generates them: loops that a compiler unrolls are written out, and may be longer."""


@cache
def sources() -> Mapping[str, Source]:
    """Every module of the five packages, by its dotted name."""
    return {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source
        for layer in LAYERS
        for source in sources_of(layer)
    }


def imports(name: str) -> Iterator[str]:
    """The modules of ours that a module imports: at its top, inside functions, and for types alone."""
    for one in sources()[name].imports:
        if not one.is_from:
            yield from (imported for imported in one.names if imported in sources())
        elif one.module and not one.level:
            for imported in one.names:
                inner = f"{one.module}.{imported}"
                yield from (each for each in (inner if inner in sources() else one.module,) if each in sources())


@cache
def graph() -> Mapping[str, frozenset[str]]:
    return {name: frozenset(imports(name)) - {name} for name in sources()}


def cycles(edges: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Sets of two or more modules that import one another (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            part, stack[at:] = stack[at:], []
            if len(part) > 1:
                found.append(sorted(part))

    for name in edges:
        if name not in index:
            visit(name)
    return found


def test_imports_between_layers() -> None:
    between = Counter(
        (name.partition(".")[0], other.partition(".")[0]) for name, others in graph().items() for other in others
    )
    for (one, other), count in sorted(between.items()):
        print(f"{one:>12} -> {other:<12} {count:4}")
    assert [pair for pair in between if LAYERS.index(pair[0]) > LAYERS.index(pair[1])] == []


def test_no_cycles() -> None:
    """Imports inside functions and for types alone count as well."""
    found = cycles(graph())
    print(f"{len(graph())} modules, {sum(map(len, graph().values()))} imports, {len(found)} cycles")
    assert found == []


def test_a_cycle_would_be_found() -> None:
    edges = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("b"), "d": frozenset("a")}
    assert cycles(edges) == [["b", "c"]]


PORTABLE = ("bundle", "graph", "operators", "ops", "planning", "reference", "steps")
"""The packages of lite_runtime that plan for machines other than the one they run on."""


@pytest.mark.parametrize("package", PORTABLE)
def test_the_portable_part_touches_no_memory(package: str) -> None:
    """No ctypes, no mmap, nothing of this machine: neither its native code nor what runs on it."""
    prefix = f"lite_runtime.{package}"
    own = {name: source for name, source in sources().items() if f"{name}.".startswith(f"{prefix}.")}
    libraries = [
        (name, imported)
        for name, source in own.items()
        for one in source.imports
        for imported in ([one.module] if one.is_from else one.names)
        if imported in ("ctypes", "mmap")
    ]
    machine = ("lite_runtime.native", "lite_runtime.running", "lite_runtime.learning")
    assert libraries == []
    assert [(name, other) for name in own for other in graph()[name] if other.startswith(machine)] == []


def test_packages_can_be_surveyed() -> None:
    folders = (source.path.rpartition("/") for source in sources().values())
    count = Counter(folder for folder, _, name in folders if name != "__init__.py")
    for folder, modules in count.most_common(12):
        print(f"{modules:4} {folder}")
    assert {folder: n for folder, n in count.items() if n > MOST_MODULES and folder not in REGISTRIES} == {}


@pytest.mark.parametrize("folder", sorted(REGISTRIES))
def test_registries_are_there(folder: str) -> None:
    assert (ROOT / folder / "__init__.py").is_file()


def test_functions_fit_on_two_screens() -> None:
    lengths = [
        (lines, f"{source.path}:{name}") for source in sources().values() for name, lines in source.functions
    ]
    outside = sorted((each for each in lengths if not each[1].startswith(GENERATORS)), reverse=True)
    for lines, where in outside[:8]:
        print(f"{lines:4} {where}")
    assert [each for each in outside if each[0] > MOST_LINES] == []
