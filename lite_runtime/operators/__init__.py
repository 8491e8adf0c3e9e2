"""One record for every operator, from which the verifier, inference, planning, the converter and the trainer derive
their lists.

    OPERATORS["Relu"]               its record (see `record.Operator`)
    attributes("Relu")              the types and limits of its attributes
    having("elementwise", "exact")  the names of all operators with these traits
    find("com.microsoft", "Gelu")   the record for the name that a model uses in this domain
    require("Relu", "a gradient")   refuse a name without a record

A family of operators is a file. Files are imported one after the other until the requested name is found; `FAMILIES`
is ordered by how often models need them, so that a start imports few.
"""

from __future__ import annotations

from _thread import RLock
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module

from lite_runtime.operators.record import EPILOGUE, ONNX, OURS, RANGES, Attribute, Fused, Operator, Trait, parsed

__all__ = [
    "FAMILIES",
    "ONNX",
    "OPERATORS",
    "OURS",
    "RANGES",
    "Attribute",
    "Fused",
    "Operator",
    "Trait",
    "attributes",
    "epilogues",
    "family",
    "find",
    "having",
    "require",
]

FAMILIES = (
    *("elementwise", "activation", "movement", "linear", "reduce", "normalize", "integer", "indexing", "recurrent"),
    *("attention", "language", "vision", "random", "control", "losses", "gradients", "signal", "sequences", "strings"),
    "trees",
)
"""The files of records, ordered by how often models need them."""


class _Operators(Mapping[str, Operator]):
    """Name -> record. Families are imported one after the other until the name is found; by one thread at a time."""

    def __init__(self, families: Iterable[str]) -> None:
        self._known: dict[str, Operator] = {}
        self._unread = list(families)[::-1]
        self._lock = RLock()

    def _read(self, name: object = None) -> None:
        """Import families until the name is found, by default all."""
        with self._lock:
            while name not in self._known and self._unread:
                for record in family(self._unread[-1]):
                    if record.name in self._known:
                        raise ValueError(f"expected one record for {record.name}, got two")
                    self._known[record.name] = record
                self._unread.pop()

    def __getitem__(self, name: str) -> Operator:
        if name not in self._known:
            self._read(name)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._known:
            self._read(name)
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        self._read()
        return iter(self._known)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def family(name: str) -> tuple[Operator, ...]:
    """The records of one file of `FAMILIES`."""
    records: tuple[Operator, ...] = import_module(f"{__name__}.{name}").RECORDS
    return records


OPERATORS: Mapping[str, Operator] = _Operators(FAMILIES)
"""Every operator by name."""


@cache
def attributes(name: str) -> Mapping[str, Attribute]:
    """The attributes of an operator with a record, by name."""
    found = parsed(OPERATORS[name].attrs)
    for attribute, what in found.items():
        if what.choices == (EPILOGUE,):
            found[attribute] = what._replace(choices=("", *epilogues()))
    return found


@cache
def having(*traits: Trait) -> frozenset[str]:
    """The names of all operators that have every one of these traits."""
    return frozenset(name for name, record in OPERATORS.items() if all(trait in record.traits for trait in traits))


def find(domain: str, name: str) -> Operator | None:
    """The record for the name that a model uses in `domain`; None for operators of domains that no record names."""
    record = OPERATORS.get(name)
    if record is None:
        return None
    known = (record.domain, *record.also, *(() if record.domain in ONNX else (OURS,)))
    return record if ("" if domain == "ai.onnx" else domain) in known else None


def require(names: Iterable[str], what: str) -> None:
    """Raise LookupError for names without a record. `what`: what the names are registered for, used in the message."""
    unknown = sorted(name for name in names if name not in OPERATORS)
    if unknown:
        raise LookupError(
            f"{what}: expected names of operators, got {', '.join(unknown)}; records are in lite_runtime/operators/"
        )


_INFINITY = float("inf")
_BOUNDS = (("activation_min", "min", -_INFINITY), ("activation_max", "max", _INFINITY))
"""The parameters of Clip, which are inputs of the operator."""


@cache
def epilogues() -> Mapping[str, Fused]:
    """By its name in attribute `activation`, in the order of their numbers."""
    found = {"GeluTanh": Fused(10, "Gelu", form=(("approximate", "tanh"),))}
    for record in (*family("elementwise"), *family("activation")):
        if record.epilogue < 0:
            continue
        floats = ((name, a.default) for name, a in parsed(record.attrs).items() if a.default is not None)
        own = tuple((f"activation_{name}", name, default) for name, default in floats)
        found[record.name] = Fused(record.epilogue, record.name, _BOUNDS if record.name == "Clip" else own)
    return dict(sorted(found.items(), key=lambda item: item[1].code))
