"""Frozen records: their constructor takes the annotated fields and nothing else, and they cannot be changed."""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from lite_runtime import frozen
from lite_runtime.frozen import Frozen
from lite_runtime.graph import Graph, Node


class Point(Frozen):
    x: int
    y: int = 2

    @cached_property
    def total(self) -> int:
        return self.x + self.y


class Named(Point):
    name: str = ""


def test_fields_by_position_and_by_name() -> None:
    assert Point(1) == Point(1, 2) == Point(x=1, y=2) == Point(1, y=2) and Point(1) != Point(2)
    assert Point(1).total == 3 and repr(Point(1)) == "Point(x=1, y=2)"
    assert Named(1, 3, "p").replace(y=4) == Named(1, 4, "p") and Named(1) != Point(1)


@pytest.mark.parametrize(
    ("values", "named", "text"),
    [
        ((), {}, "missing x"),
        ((), {"y": 1}, "missing x"),
        ((1, 2, 3), {}, "got 3 values"),
        ((1,), {"z": 1}, "got z as well"),
        ((1,), {"x": 1}, "got x twice"),
        ((1, 2), {"y": 1, "z": 1}, "got z as well"),
    ],
)
def test_wrong_arguments_are_named(values: tuple[Any, ...], named: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Point(*values, **named)


def test_instances_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match=r"make another with \.replace\(x=…\)"):
        point.x = 2
    with pytest.raises(AttributeError, match="Point is frozen"):
        del point.x
    with pytest.raises(TypeError, match="unhashable"):
        hash(point)


def test_a_class_without_fields_of_its_own_has_its_parents() -> None:
    class Lazy(Graph):
        def __init__(self) -> None:
            self.__dict__.update(inputs=(), outputs=())

        def __getattr__(self, name: str) -> Any:
            return f"made {name}"

    assert Lazy().nodes == "made nodes" and Lazy().name == "made name"  # type: ignore[comparison-overlap]
    assert Node("Relu", ("x",), ("y",)).name == ""


class Span(frozen.NamedTuple):
    start: int
    stop: int = 9
    name: str | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start


class TypingSpan(typing.NamedTuple):
    start: int
    stop: int = 9
    name: str | None = None


def test_named_tuples_behave_as_those_of_typing() -> None:
    ours, theirs = Span(1, name="a"), TypingSpan(1, name="a")
    assert ours == theirs == (1, 9, "a") and hash(ours) == hash(theirs) and ours < (2,)
    assert ours.start == 1 and ours.size == 8 and ours[-1] == "a" and len(ours) == 3
    assert repr(ours) == repr(theirs).replace("TypingSpan", "Span")
    assert ours._asdict() == theirs._asdict() and Span._make([1, 2, "b"]) == TypingSpan._make([1, 2, "b"])
    assert ours._replace(stop=4) == theirs._replace(stop=4) and type(ours._replace(stop=4)) is Span
    for name in ("_fields", "_field_defaults", "__match_args__"):
        assert getattr(Span, name) == getattr(TypingSpan, name)
    shown = [[(p.name, p.default) for p in inspect.signature(c).parameters.values()] for c in (Span, TypingSpan)]
    assert shown[0] == shown[1]
    assert typing.get_type_hints(Span) == typing.get_type_hints(TypingSpan)
    assert copy.deepcopy(ours) == ours and type(pickle.loads(pickle.dumps(ours))) is Span
    match ours:
        case Span(start, stop, name=name):
            assert (start, stop, name) == (1, 9, "a")
    with pytest.raises(AttributeError):
        ours.start = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ours.other = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Span(), "missing start"),  # type: ignore[call-arg]
        (lambda: Span(1, 2, "a", 4), "got 4 values"),  # type: ignore[call-arg]
        (lambda: Span(1, start=2), "got start twice"),  # type: ignore[misc]
        (lambda: Span(1, end=2), "got end as well"),  # type: ignore[call-arg]
        (lambda: Span(1, 2, "a", end=2), "got end as well"),  # type: ignore[call-arg]
        (lambda: Span(1)._replace(end=2), "got end as well"),
        (lambda: Span._make([1, 2, "a", 4]), "got 4 values"),
    ],
)
def test_named_tuples_with_wrong_fields_are_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_named_tuple_classes_that_typing_refuses_are_refused() -> None:
    with pytest.raises(TypeError, match="a field without a default follows"):
        type(frozen.NamedTuple)("Bad", (frozen.NamedTuple,), {"__annotations__": {"a": "int", "b": "int"}, "a": 1})
    with pytest.raises(TypeError, match="derive it from NamedTuple alone"):
        type(frozen.NamedTuple)("Worse", (Span,), {"__annotations__": {"more": "int"}})
