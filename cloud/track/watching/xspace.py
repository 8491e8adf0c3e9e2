"""From the file of a profile (`xplane.pb`): what every instruction of a compiled program was traced from.

JAX reads such a file's events, but not the programs in it. Their messages are read here as far as needed; the numbers
of fields are those of `tsl/profiler/protobuf/xplane.proto` and `xla/service/hlo.proto`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from cloud.errors import TrackError

__all__ = ["written_as"]

_PLANES, _PLANE_NAME, _EVENT_KINDS, _VALUE, _KIND_STATS, _BYTES = 1, 2, 4, 2, 5, 6
_MODULE, _MODULE_NAME, _COMPUTATIONS = 1, 1, 3
_COMPUTATION_ID, _INSTRUCTIONS = 5, 2
_NAME, _METADATA, _ID, _OPERANDS, _CALLED, _OP_NAME = 1, 7, 35, 36, 38, 2
_STEPS = 8
"""How far an instruction without a name of its own is followed to one that has one."""

Message = Mapping[int, Sequence[int | bytes]]


class _Instruction(NamedTuple):
    name: str
    said: str
    operands: Sequence[int]
    called: Sequence[int]


def written_as(data: bytes) -> dict[str, dict[str, str]]:
    """{program: {instruction: "jit(step)/jvp(Conv 'stem')/conv_general_dilated"}}.

    An instruction that the compiler added (a copy, a fusion) gets the name of the last one inside it, or of what it
    reads. Raises TrackError for a damaged file.
    """
    found: dict[str, dict[str, str]] = {}
    for plane in _parts(_message(data), _PLANES):
        if b"/host:metadata" not in plane.get(_PLANE_NAME, ()):
            continue
        for entry in _parts(plane, _EVENT_KINDS):
            for kind in _parts(entry, _VALUE):
                for stat in _parts(kind, _KIND_STATS):
                    for program in _parts(stat, _BYTES):
                        for module in _parts(program, _MODULE):
                            found[_text(module, _MODULE_NAME)] = _names(module)
    return found


def _names(module: Message) -> dict[str, str]:
    instructions: dict[int, _Instruction] = {}
    inside: dict[int, list[int]] = {}
    for computation in _parts(module, _COMPUTATIONS):
        numbers = inside.setdefault(_whole(computation, _COMPUTATION_ID), [])
        for one in _parts(computation, _INSTRUCTIONS):
            said = next((_text(metadata, _OP_NAME) for metadata in _parts(one, _METADATA)), "")
            number = _whole(one, _ID)
            made = _Instruction(_text(one, _NAME), said, _wholes(one, _OPERANDS), _wholes(one, _CALLED))
            instructions[number] = made
            numbers.append(number)

    def name(number: int, left: int) -> str:
        one = instructions.get(number)
        if one is None or one.said or not left:
            return one.said if one is not None else ""
        within = (n for called in one.called for n in reversed(inside.get(called, ())))
        return next((said for n in (*within, *one.operands) if (said := name(n, left - 1))), "")

    return {one.name: name(number, _STEPS) for number, one in instructions.items()}


def _message(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a message by number: whole numbers, or bytes."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        kind, value = key & 7, 0
        if kind == 0:
            value, at = _number(data, at)
            found.setdefault(key >> 3, []).append(value)
            continue
        size, at = _number(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(data):
            raise TrackError(f"a profile is damaged at byte {at} of a message of {len(data)}; take another one")
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length number, and where the next field begins."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
    raise TrackError(f"a profile is damaged at byte {at} of a message of {len(data)}; take another one")


def _parts(message: Message, field: int) -> Iterator[dict[int, list[int | bytes]]]:
    return (_message(part) for part in message.get(field, ()) if isinstance(part, bytes))


def _text(message: Message, field: int) -> str:
    return next((v.decode(errors="replace") for v in message.get(field, ()) if isinstance(v, bytes)), "")


def _whole(message: Message, field: int) -> int:
    return next((v for v in message.get(field, ()) if isinstance(v, int)), 0)


def _wholes(message: Message, field: int) -> list[int]:
    """Repeated numbers, packed or not."""
    found: list[int] = []
    for value in message.get(field, ()):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            number, at = _number(value, at)
            found.append(number)
    return found
