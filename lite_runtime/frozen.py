"""Frozen records and named tuples whose classes cost a start almost nothing.

`Frozen` is what type checkers see as a frozen dataclass. The module `dataclasses` takes 1.5 ms to import, and each
class that it makes another 0.5 ms. `NamedTuple` is what they see as `typing.NamedTuple`, and its instances behave as
those do. `typing` compiles every annotation and `collections` evaluates the source of a constructor: a million
instructions or 0.25 ms for each class, 46 of which are made by a start that plans. Neither generates code here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

__all__ = ["Frozen", "NamedTuple"]


@dataclass_transform(frozen_default=True)
class Frozen:
    """Instances cannot be changed and are equal to instances of the same class with equal fields.

    A subclass annotates its fields in order; a class attribute with a field's name is its default. Fields are stored in
    `__dict__`, so that `functools.cached_property` works.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        own = tuple(cls.__annotations__)
        cls._fields = (*cls._fields, *own)
        cls._defaults = {**cls._defaults, **{name: cls.__dict__[name] for name in own if name in cls.__dict__}}
        for name in cls._defaults.keys() & own:
            delattr(cls, name)  # so that the instance's value is found, or `__getattr__` is called

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        given = {**dict(zip(fields, values, strict=False)), **named}
        held = self.__dict__
        held.update(self._defaults)
        held.update(given)
        if len(held) != len(fields) or len(given) != len(values) + len(named):
            raise TypeError(f"{type(self).__name__} takes {', '.join(fields)}; {_mistake(fields, values, named, held)}")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: make another with .replace({name}=…)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self._fields)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields)
        return f"{type(self).__name__}({shown})"

    def replace(self, **changes: Any) -> Self:
        """A copy that differs in these fields."""
        return type(self)(**{name: getattr(self, name) for name in self._fields} | changes)


def _mistake(
    fields: tuple[str, ...], values: tuple[Any, ...], named: Mapping[str, Any], held: Mapping[str, Any]
) -> str:
    """Describes what is wrong with a constructor's arguments."""
    if len(values) > len(fields):
        return f"got {len(values)} values"
    unknown = [name for name in named if name not in fields]
    if unknown:
        return f"got {', '.join(unknown)} as well"
    twice = [name for name in fields[: len(values)] if name in named]
    if twice:
        return f"got {', '.join(twice)} twice"
    return f"missing {', '.join(name for name in fields if name not in held)}"


if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from _collections import _tuplegetter

    class _Named(type):
        """Makes the class of one named tuple from its annotations."""

        def __new__(meta, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
            """Every annotation is a field; a class attribute of a field's name is its default."""
            if bases != (tuple,) and bases != (NamedTuple,):
                raise TypeError(f"{name} derives from {bases}; derive it from NamedTuple alone")
            fields = tuple(space.get("__annotations__", ()))
            defaults = {field: space[field] for field in fields if field in space}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one of {', '.join(defaults)}")
            getters = {field: _tuplegetter(at, "") for at, field in enumerate(fields)}
            own = {"__slots__": (), "_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            return super().__new__(meta, name, bases, space | getters | own)

        @property
        def __signature__(cls) -> Any:
            """What `inspect.signature` shows."""
            from inspect import Parameter, Signature

            kind, default = Parameter.POSITIONAL_OR_KEYWORD, cls._field_defaults
            return Signature(
                [
                    Parameter(field, kind, default=default.get(field, Parameter.empty), annotation=annotation)
                    for field, annotation in cls.__annotations__.items()
                ]
            )

    class NamedTuple(tuple, metaclass=_Named):
        """A tuple whose items have the names of the class's annotations."""

        def __new__(cls, *values: Any, **named: Any) -> Self:
            """Takes the fields by position or by name.

            Raises:
                TypeError: a field is missing, unknown or given twice.
            """
            fields = cls._fields
            if named or len(values) != len(fields):
                given = dict(zip(fields, values, strict=False)) | named
                held = cls._field_defaults | given
                if len(held) != len(fields) or len(given) != len(values) + len(named):
                    mistake = _mistake(fields, values, named, held)
                    raise TypeError(f"{cls.__name__} takes {', '.join(fields)}; {mistake}")
                values = [held[field] for field in fields]
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Self:
            return cls(*values)

        def _replace(self, **changes: Any) -> Self:
            return type(self)(**self._asdict() | changes)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            shown = ", ".join(f"{field}={value!r}" for field, value in self._asdict().items())
            return f"{type(self).__name__}({shown})"
