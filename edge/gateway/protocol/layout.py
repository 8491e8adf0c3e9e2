"""The JSON of an inference request, validated against a signature: everything except the elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

from edge.gateway.errors import GatewayError
from edge.gateway.ports import Port, Ports
from edge.gateway.protocol.classification import classified
from edge.gateway.protocol.parameters import checked, checked_reserved, expect, natural, wrong

__all__ = ["LIMITS", "Layout", "Limits", "Part", "Shared", "Slice", "Wanted", "layout_of", "raw_layout"]

_LARGEST = 2**40
"""The largest number of elements of a tensor: more than any body can hold, and small enough for strides to fit easily
in 64 bits, even if another axis is 0."""
_RANK = 32
"""The largest number of axes of a tensor: NumPy's limit before version 2."""

_Ports: TypeAlias = Callable[[str], Ports]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request; beyond them it is refused with 413."""

    json: int = 64 << 20
    """Bytes of JSON."""
    items: int = 1 << 19
    """Brackets, braces and commas in JSON, without large arrays of numbers: each needs an object of up to 100 bytes,
    and all of them are created before anything else can run; 16 MB of `[],` take 370 MiB and 2.5 s."""
    strings: int = 1 << 18
    """Elements of a BYTES input: each is an object."""


LIMITS = Limits()


class Slice(NamedTuple):
    """A tensor's place in shared memory that the client has registered as `region`: `size` bytes from `offset` on."""

    region: str
    offset: int
    size: int


class Wanted(NamedTuple):
    """A requested output. binary: None means the request's default. classification: the number of largest elements to
    send as text; 0: the tensor itself is sent. region: where it is written instead of being sent."""

    name: str
    binary: bool | None
    classification: int
    region: Slice | None = None


class Part(NamedTuple):
    """An input. data: its value in the JSON; None: it is at `region`, or has `size` bytes, `at` bytes after the
    JSON."""

    port: Port
    shape: tuple[int, ...]
    data: Any
    at: int
    size: int
    region: Slice | None = None


class Shared(NamedTuple):
    """The tensors of a request that are in shared memory: inputs, and places of outputs by name."""

    inputs: list[tuple[Part, Slice]]
    outputs: dict[str, Slice]


@dataclass(slots=True)
class Layout:
    """A request without its elements. `binary`: the default for outputs; `total`: bytes after the JSON; `shared`: None
    if no tensor is in shared memory."""

    id: str
    parameters: Mapping[str, Any]
    signature: str
    ports: Ports
    parts: list[Part]
    total: int
    rows: int
    wanted: tuple[Wanted, ...] | None
    binary: bool
    shared: Shared | None = None


def layout_of(document: Any, ports: _Ports, limits: Limits) -> Layout:
    """The validated layout of a request's JSON. Raises GatewayError: 400, 413, 501, and what `ports` raises."""
    expect(type(document) is dict, "expected the request to be a JSON object")
    name, parameters = document.get("id", ""), document.get("parameters", {})
    expect(type(name) is str, "expected id to be a string")
    checked(parameters, "the request")
    checked_reserved(parameters)
    signature = parameters.get("signature", "predict")
    takes = ports(signature)
    parts, total = _parts(document.get("inputs"), takes, limits)
    binary = parameters.get("binary_data_output", False)
    wanted = _outputs(document.get("outputs"), takes)
    for output, own, count, region in wanted or [Wanted(n, None, 0) for n in takes.outputs]:
        sent = not count and region is None
        if takes.outputs[output].datatype == "BF16" and sent and not (binary if own is None else own):
            raise wrong(f"output {output!r} is BF16, which JSON cannot hold; request it with binary_data: true")
    rows = _rows(parts, takes)
    return Layout(name, parameters, signature, takes, parts, total, rows, wanted, binary, _shared(parts, wanted or ()))


def raw_layout(size: int, takes: Ports) -> Layout:
    """The layout of a request that has only the bytes of the model's single input: `size` bytes. BYTES: one element.

    Raises GatewayError (400) if there is more than one input, or its shape does not follow from the size.
    """
    if len(takes.inputs) != 1:
        raise wrong(f"a header length of 0 needs a model with one input, this one has {len(takes.inputs)}")
    (port,) = takes.inputs.values()
    opened = sum(not isinstance(d, int) for d in port.shape or ())
    least = port.least
    if port.datatype == "BYTES":
        fits, shape = port.shape is not None and least == 1, (1,) * len(port.shape or ())
    else:
        row = least * port.itemsize
        many = size // row if row and opened else 1
        fits = port.shape is not None and opened <= 1 and many * row == size
        shape = tuple(d if isinstance(d, int) else many for d in port.shape or ())
    if not fits:
        what = f"input {port.name!r} is {port.datatype} {list(port.open)}"
        raise wrong(f"{what}: its shape does not follow from {size} bytes; send a JSON header with the shape")
    parts = [Part(port, shape, None, 0, size)]
    return Layout("", {}, "predict", takes, parts, size, _rows(parts, takes), None, True)


def _entries(listed: Any, where: str) -> Iterable[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, fields and parameters of every tensor in `inputs` or `outputs`."""
    expect(type(listed) is list, "expected %s to be a list of tensors", where)
    seen = set()
    for i, entry in enumerate(listed):
        expect(type(entry) is dict, "expected %s[%s] to be an object", where, i)
        name, parameters = entry.get("name"), entry.get("parameters", {})
        expect(type(name) is str, "expected %s[%s].name to be a string", where, i)
        checked(parameters, name)
        expect(name not in seen, "%s: %r is given twice", where, name)
        seen.add(name)
        yield name, entry, parameters


def _parts(listed: Any, takes: Ports, limits: Limits) -> tuple[list[Part], int]:
    expect(listed is not None, "expected inputs: a list of tensors with name, shape, datatype, and data")
    parts, total = [], 0
    for name, entry, parameters in _entries(listed, "inputs"):
        port = takes.inputs.get(name)
        if port is None:
            raise wrong(f"no input is named {name!r}; expected {_names(takes.inputs)}")
        datatype = entry.get("datatype")
        expect(datatype == port.datatype, "input %r is %s, got datatype %r", name, port.datatype, datatype)
        shape = _shape(entry.get("shape"), port)
        part = _part(port, shape, entry, parameters, total, limits)
        total += part.size
        parts.append(part)
    if len(parts) < len(takes.inputs):
        raise wrong(f"inputs: missing {_names(takes.inputs.keys() - {p.port.name for p in parts})}")
    return parts, total


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _shape(given: Any, port: Port) -> tuple[int, ...]:
    fits = type(given) is list and len(given) <= _RANK
    size = 1
    for d in given if fits else ():
        if type(d) is not int or d < 0:
            fits = False
            break
        size *= d or 1
    expect(fits, "input %r: expected shape to be a list of up to %s integers from 0 on", port.name, _RANK)
    expect(size <= _LARGEST, "input %r: its shape %s is too large", port.name, given)
    expected = port.shape
    if expected is not None:
        fits = len(given) == len(expected)
        for want, got in zip(expected, given, strict=False):
            fits = fits and (want == got or type(want) is not int)
        if not fits:
            raise wrong(f"input {port.name!r}: expected shape {list(port.open)} (-1: any size), got {given}")
    return tuple(given)


def _part(
    port: Port, shape: tuple[int, ...], entry: dict[str, Any], parameters: dict[str, Any], at: int, limits: Limits
) -> Part:
    count, size, data = prod(shape), parameters.get("binary_data_size"), entry.get("data")
    if port.datatype == "BYTES" and count > limits.strings:
        raise GatewayError(413, f"input {port.name!r}: expected at most {limits.strings} BYTES elements, got {count}")
    region = _region(parameters, f"input {port.name!r}")
    if region is not None:
        expect(size is None and data is None, "input %r: expected no data and no binary_data_size beside"
               " shared_memory_region", port.name)  # fmt: skip
        _check_size(port, shape, region.size, "shared_memory_byte_size")
        return Part(port, shape, None, at, 0, region)
    if (size is None) == (data is None):
        both = "both" if data is not None else "neither"
        raise wrong(f"input {port.name!r}: expected either data or parameters.binary_data_size, got {both}")
    if size is None:
        return Part(port, shape, data, at, 0)
    expect(natural(size), "input %r: expected binary_data_size to be an integer from 0 on, got %r", port.name, size)
    _check_size(port, shape, size, "binary_data_size")
    return Part(port, shape, None, at, size)


def _check_size(port: Port, shape: tuple[int, ...], size: int, said: str) -> None:
    wanted = prod(shape) * port.itemsize
    if port.itemsize and size != wanted:
        raise wrong(f"input {port.name!r}: {port.datatype} {list(shape)} takes {wanted} bytes, {said} says {size}")


def _shared(parts: Iterable[Part], wanted: Iterable[Wanted]) -> Shared | None:
    inputs = [(part, part.region) for part in parts if part.region is not None]
    outputs = {output.name: output.region for output in wanted if output.region is not None}
    return Shared(inputs, outputs) if inputs or outputs else None


def _region(parameters: Mapping[str, Any], whose: str) -> Slice | None:
    """A tensor's place in shared memory; None if it has none."""
    name, size = parameters.get("shared_memory_region"), parameters.get("shared_memory_byte_size")
    offset = parameters.get("shared_memory_offset", 0)
    if name is None:
        expect(size is None and offset == 0, "%s: expected shared_memory_region beside shared_memory_byte_size", whose)
        return None
    expect(type(name) is str, "%s: expected shared_memory_region to be a string, got %r", whose, name)
    if not isinstance(size, int) or not natural(size):
        raise wrong(f"{whose}: expected shared_memory_byte_size to be an integer from 0 on, got {size!r}")
    expect(natural(offset), "%s: expected shared_memory_offset to be an integer from 0 on, got %r", whose, offset)
    return Slice(name, offset, size)


def _outputs(listed: Any, takes: Ports) -> tuple[Wanted, ...] | None:
    """None, all of them, also for an empty list."""
    wanted = []
    for name, _, parameters in () if listed is None else _entries(listed, "outputs"):
        port = takes.outputs.get(name)
        if port is None:
            raise wrong(f"no output is named {name!r}; expected {_names(takes.outputs)}")
        binary, count = parameters.get("binary_data"), parameters.get("classification", 0)
        expect(binary is None or type(binary) is bool, "output %r: expected binary_data to be true or false", name)
        expect(natural(count), "output %r: expected classification to be an integer from 0 on, got %r", name, count)
        region = _region(parameters, f"output {name!r}")
        if count:
            classified(port)
            expect(region is None, "output %r: expected either classification or shared_memory_region, got both", name)
        wanted.append(Wanted(name, binary, count, region))
    return tuple(wanted) or None


def _rows(parts: list[Part], takes: Ports) -> int:
    """The number of rows. Checks that axes with the same name have the same size, and that there is at least one row.
    Raises GatewayError (400)."""
    sizes: dict[str, int] = {}
    for part in parts:
        for name, size in zip(part.port.shape or (), part.shape, strict=False):
            if type(name) is str and sizes.setdefault(name, size) != size:
                where = f"input {part.port.name!r}, shape {list(part.shape)}"
                raise wrong(f"{where}: expected {name} to be {sizes[name]}, as in another input, got {size}")
    if not takes.batched or not parts:
        return 1
    rows = parts[0].shape[0]
    expect(rows > 0, "input %r: expected at least one row, got shape %s", parts[0].port.name, list(parts[0].shape))
    return rows
