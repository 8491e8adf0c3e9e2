"""How a kernel's step is declared: one class, used by binders, by kernels and by everything that displays a program.

    @step("gemm.f32_transpose")
    class F32Transpose(Step):
        a: In
        out: Out
        batches: int  # matrices
        rows: int  # of a

A binder creates an instance with every field by name; the planner writes it as words. A kernel reads the words by the
same names: `A = named(F32Transpose)`, then `ptr(step, bases, A.a)`, `num(step, A.rows)`. The record is

    word 0    index of the kernel in the program's table
    word 1    length of the record in words
    word 2    flags (`planning/plan.py`)
    word 3…   operands in the order of the class, two words each: base, byte offset
    then      numbers in the order of the class: an integer is a word, a float the bits of a float32

Fields of a base class come before those of its subclass. Annotations define the kind of a field:

    In, Out, InOut    an operand that the kernel reads, writes, or both; `In | None` may be left out (base and offset 0)
    Scratch           an operand whose contents are undefined before and after the step
    Ins               any number of operands that the kernel reads; the record then has no fixed length, and the
                      positions of numbers count from the first of them
    int, float        a number
    Three             three integers: depth, height, width
    tuple[…, ...]     a tail: any number of integers, or of rows of integers (`Row`); it ends the record, except for
                      integers after it, whose positions count from the record's end: -1 is the last word

Imported when a model is planned: the layout of a class is computed on first use.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from operator import index, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

from lite_runtime.steps.operand import Operand

__all__ = [
    "FLAGS",
    "HEAD",
    "INTEGER",
    "KERNEL",
    "LENGTH",
    "OPERAND",
    "REAL",
    "TAIL",
    "Field",
    "Gaps",
    "In",
    "InOut",
    "Ins",
    "Layout",
    "Named",
    "Out",
    "Picks",
    "Row",
    "Scratch",
    "Step",
    "Three",
    "declared",
    "fields_of",
    "named",
    "owner_of",
    "row",
    "step",
]

KERNEL, LENGTH, FLAGS, HEAD = 0, 1, 2, 3
"""Positions of the words before a record's operands, and the number of these words."""

In: TypeAlias = Operand
Out: TypeAlias = Operand
InOut: TypeAlias = Operand
Scratch: TypeAlias = Operand
Ins: TypeAlias = tuple[Operand, ...]
Three: TypeAlias = tuple[int, int, int]

OPERAND, INTEGER, REAL, TAIL = "operand", "integer", "real", "tail"
"""Kinds of fields."""
_ROLES = {"In": "read", "Out": "written", "InOut": "read and written", "Scratch": "scratch", "Ins": "read"}
_NUMBERS = {"int": (INTEGER, 1), "Three": (INTEGER, 3), "float": (REAL, 1)}
_RESERVED = frozenset({"counts", "gaps", "kernel", "kernels", "layout", "numbers", "operands", "picks", "replace"})
"""Names that `Step` itself uses."""


class Field:
    """A declared field: `word` is its position in the record (for an operand, that of its base); `length`: words or
    operands, 0 for any number; `row`: the annotation's name for the rows of a tail."""

    __slots__ = ("kind", "length", "name", "optional", "role", "row", "word")

    def __init__(
        self, name: str, kind: str, word: int, length: int = 1, role: str = "", optional: bool = False, row: str = ""
    ) -> None:
        self.name, self.kind, self.word, self.length = name, kind, word, length
        self.role, self.optional, self.row = role, optional, row


class Gaps:
    """A result that a kernel can write with gaps between its rows: the names of the operand, of the integers for the
    distance in elements between rows and for the number of batches (which must be one), and of an operand that must be
    left out ("": none)."""

    __slots__ = ("absent", "batches", "operand", "row")

    def __init__(self, operand: str, row: str, batches: str, absent: str = "") -> None:
        self.operand, self.row, self.batches, self.absent = operand, row, batches, absent


class Picks:
    """An operand of which a step reads only a part: for estimates of its time. `like`: the operand whose size in bytes
    is an upper bound for that part; "" if the operations count it."""

    __slots__ = ("like", "operand")

    def __init__(self, operand: str, like: str = "") -> None:
        self.operand, self.like = operand, like


_REAL, _WORD = struct.Struct("<f"), struct.Struct("<I")


def _bits(value: float) -> int:
    """The bits of the nearest float32."""
    try:
        packed = _REAL.pack(value)
    except OverflowError:  # struct refuses numbers that round to infinity
        packed = _REAL.pack(float("inf") if value > 0 else float("-inf"))
    bits: int = _WORD.unpack(packed)[0]
    return bits


_ENCODERS: Mapping[str, Callable[[Any], int]] = {"int": index, "float": _bits}


class Layout:
    """The fields of a step class in the order of the record, operands first. Values needed to create a step are
    computed here; positions of words on demand."""

    def __init__(self, owner: type[Step]) -> None:
        self.owner = owner
        annotations: dict[str, str] = {}
        for base in reversed(owner.__mro__[:-2]):  # without Step and object
            annotations.update(base.__annotations__)
        self._operands = {n: a for n, a in annotations.items() if a.removesuffix(" | None") in _ROLES}
        self._numbers = {n: a for n, a in annotations.items() if n not in self._operands}
        self.first = len(self._operands)
        """Number of operand fields."""
        self.names = (*self._operands, *self._numbers)
        self.places = {name: i for i, name in enumerate(self.names)}
        self.pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = itemgetter(*self.names)
        if len(self.names) == 1:  # itemgetter gives no tuple
            self.pick = lambda given: (given[self.names[0]],)
        self.fixed = "Ins" not in self._operands.values()
        """Whether operands and numbers have fixed positions."""
        self.counts: Mapping[str, str] = dict(owner.counts)
        self.tails = tuple(name for name, a in self._numbers.items() if a.startswith("tuple["))
        encoders = [_ENCODERS.get(a) for a in self._numbers.values()]
        self.scalars = tuple(encode for encode in encoders if encode is not None)
        """Functions that convert each number to a word, if each number is one word; otherwise none."""
        if len(self.scalars) < len(encoders):
            self.scalars = ()

    @cached_property
    def operands(self) -> tuple[Field, ...]:
        """The fields that are operands."""
        return tuple(_operand(n, a, HEAD + 2 * i) for i, (n, a) in enumerate(self._operands.items()))

    @cached_property
    def numbers(self) -> tuple[Field, ...]:
        """The fields that are not operands."""
        return tuple(_numbered(self._numbers, HEAD + 2 * self.first if self.fixed else 0))

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """All fields. Raises TypeError if the class refers to fields that it does not have."""
        owner = self.owner
        fields = {field.name: field for field in (*self.operands, *self.numbers)}
        facts = [fact for fact in (owner.gaps, owner.picks) if fact is not None]
        named = {getattr(fact, name) for fact in facts for name in fact.__slots__} | set(self.counts.values())
        named.discard("")
        if unknown := named.difference(fields):
            raise TypeError(f"{owner.__name__}: gaps, picks and counts name no fields: {', '.join(sorted(unknown))}")
        if uncounted := set(self.tails).difference(self.counts):
            raise TypeError(f"{owner.__name__}: expected counts to name the integer for {', '.join(sorted(uncounted))}")
        if taken := _RESERVED.intersection(fields):
            raise TypeError(f"{owner.__name__}: {', '.join(sorted(taken))} cannot be a field's name; Step uses it")
        return fields

    def refusal(self, given: Iterable[str]) -> str:
        """Describes what is wrong with these names of fields."""
        missing = [name for name in self.names if name not in given]
        other = [name for name in given if name not in self.places]
        found = [f"{what} {', '.join(names)}" for what, names in (("without", missing), ("with", other)) if names]
        return f"{self.owner.__name__} was made {' and '.join(found)}; its fields are {', '.join(self.names)}"


def _operand(name: str, annotation: str, word: int) -> Field:
    kind = annotation.removesuffix(" | None")
    return Field(name, OPERAND, word, 0 if kind == "Ins" else 1, _ROLES[kind], kind != annotation)


def _numbered(annotations: Mapping[str, str], word: int) -> Iterator[Field]:
    """Fields of numbers from `word` on. After a tail: counted from the end."""
    names = list(annotations)
    tails = [i for i, name in enumerate(names) if annotations[name].startswith("tuple[")]
    for i, name in enumerate(names):
        if i in tails:
            yield Field(name, TAIL, word, 0, row=annotations[name].removeprefix("tuple[").partition(",")[0])
            continue
        try:
            kind, count = _NUMBERS[annotations[name]]
        except KeyError:
            raise TypeError(f"{name}: {annotations[name]} is not a valid annotation of a step's field") from None
        yield Field(name, kind, i - len(names) if tails and i > tails[-1] else word, count)
        word += count


class _Declared(type):
    """The metaclass of steps: instances have no dictionary, the layout is computed on first access."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Declared:
        namespace.setdefault("__slots__", ())
        namespace["_layout"] = None
        return super().__new__(cls, name, bases, namespace)

    @property
    def layout(cls) -> Layout:
        """The fields and their positions."""
        if cls._layout is None:  # type: ignore[has-type]
            cls._layout = Layout(cls)  # type: ignore[arg-type]
        made: Layout = cls._layout
        return made


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Step(metaclass=_Declared):
    """A step of a program whose operands have no addresses yet. Subclasses are declarations; instances are created with
    fields by name only and are immutable. Raises TypeError for a field that is missing or unknown."""

    __slots__ = ("_values",)
    kernels: ClassVar[tuple[str, ...]] = ()
    """"family.name" of the kernels that read this step."""
    gaps: ClassVar[Gaps | None] = None
    picks: ClassVar[Picks | None] = None
    counts: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(Tail, or field of its rows that is a tuple; the integer that holds its number of entries)."""

    def __init__(self, **given: Any) -> None:
        layout = type(self).layout
        try:
            values = layout.pick(given)
        except KeyError:
            raise TypeError(layout.refusal(given)) from None
        if len(values) != len(given):
            raise TypeError(layout.refusal(given))
        object.__setattr__(self, "_values", values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed; `replace` makes another step")

    def __repr__(self) -> str:
        fields = zip(type(self).layout.names, self._values, strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in fields)})"

    if not TYPE_CHECKING:  # type checkers know the fields by their annotations, and would accept any name here

        def __getattr__(self, name):
            layout = type(self).layout
            if name not in layout.places:
                raise AttributeError(f"{type(self).__name__} has no field {name}; it has {', '.join(layout.names)}")
            return self._values[layout.places[name]]

    @property
    def operands(self) -> tuple[Operand | None, ...]:
        """The operands in the order of the record."""
        layout = type(self).layout
        given = self._values[: layout.first]
        if layout.fixed:
            return given
        lists = ((value,) if field.length else value for value, field in zip(given, layout.operands, strict=True))
        return tuple(operand for some in lists for operand in some)

    def numbers(self) -> list[int]:
        """The words after the operands. Raises TypeError for a value that is not an integer where one is declared."""
        layout = type(self).layout
        values = self._values[layout.first :]
        if layout.scalars:
            return [encode(value) for encode, value in zip(layout.scalars, values, strict=True)]
        words: list[int] = []
        for field, value in zip(layout.numbers, values, strict=True):
            words += _flat(value) if field.length != 1 else (_bits(value) if field.kind is REAL else index(value),)
        for tail in layout.tails:
            count = layout.counts[tail]
            if len(getattr(self, tail)) != getattr(self, count):
                raise TypeError(f"{self!r}: expected {count} to be the number of {tail}")
        return words

    def kernel(self, name: str | None = None) -> str:
        """The kernel that runs it: `name`, one of the declaration's; optional if there is only one. Raises TypeError
        for another name, or for none if there are several."""
        kernels = type(self).kernels
        if name in kernels or (name is None and len(kernels) == 1):
            return name or kernels[0]
        raise TypeError(f"{type(self).__name__}: expected one of the kernels {', '.join(kernels)}, got {name}")

    def replace(self, **changes: Any) -> Step:
        """The same step with other values of some fields."""
        fields = dict(zip(type(self).layout.names, self._values, strict=True))
        return type(self)(**{**fields, **changes})

    _values: ClassVar[tuple[Any, ...]]


def _flat(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield index(value)


@dataclass_transform(frozen_default=True)
class Row(tuple[Any, ...]):
    """A row of a tail: integers, or tuples of integers, in the order of a subclass's annotations. Not a NamedTuple:
    these take ten times as long to define, at every start that plans. Raises TypeError for another number of values."""

    __slots__ = ()

    def __new__(cls, *values: Any) -> Row:
        """A row of these values."""
        if len(values) != len(cls.__annotations__):
            raise TypeError(f"{cls.__name__}: expected {', '.join(cls.names())}, got {len(values)} values")
        return tuple.__new__(cls, values)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the values."""
        return tuple(cls.__annotations__)


# -- kernels and their declarations ------------------------------------------------------------------------------------

_S = TypeVar("_S", bound=Step)
_BY_KERNEL: dict[str, type[Step]] = {}


def step(*kernels: str) -> Callable[[type[_S]], type[_S]]:
    """Declare the decorated class as the step of these kernels, each "family.name"."""

    def declare(owner: type[_S]) -> type[_S]:
        owner.kernels = kernels
        for kernel in kernels:
            if kernel in _BY_KERNEL:
                raise TypeError(f"{kernel} is declared by {_BY_KERNEL[kernel].__name__} and by {owner.__name__}")
            _BY_KERNEL[kernel] = owner
        return owner

    return declare


def declared(kernel: str) -> type[Step]:
    """The declaration of a kernel's step. Raises KeyError for a kernel without one."""
    from importlib import import_module

    import_module(f"{__package__}.{kernel.partition('.')[0]}")
    return _BY_KERNEL[kernel]


class Named:
    """The positions of a declaration's words as integer attributes. Kernels hold one as a constant."""

    def __init__(self, name: str, owner: type[Step] | None, fields: Iterable[Field]) -> None:
        self._name, self._owner = name, owner
        self._fields = {field.name: field for field in fields}
        self.__dict__.update({field.name: field.word for field in self._fields.values()})

    def __getattr__(self, name: str) -> int:
        raise AttributeError(f"{self._name} declares no {name}; its words are {', '.join(self._fields)}")


def owner_of(places: Named) -> type[Step] | None:
    """The step that declares these words; None for those of a tail's row."""
    return places._owner


def fields_of(places: Named) -> Mapping[str, Field]:
    """The fields by name."""
    return places._fields


def named(owner: type[Step]) -> Named:
    """The positions of a step's words."""
    return Named(owner.__name__, owner, owner.layout.by_name.values())


def row(owner: type[Row]) -> Named:
    """The positions of the words of a tail's row, counted from the row's first."""
    names = owner.names()
    return Named(owner.__name__, None, (Field(name, INTEGER, i) for i, name in enumerate(names)))
