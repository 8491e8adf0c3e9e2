"""Frozen records: their constructor takes the annotated fields and nothing else, and they cannot be changed."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import pytest

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
