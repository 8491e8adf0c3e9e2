"""Options of custom operators: a FlexBuffers map, read with every offset checked and a bounded amount of work.

Values become None, bool, int, float, str, bytes, list and dict. See google.github.io/flatbuffers, "FlexBuffers".
"""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["mapping"]

_VALUES_LIMIT, _DEPTH_LIMIT = 100_000, 32
_KEY, _STRING, _INDIRECT_INT, _INDIRECT_UINT, _INDIRECT_FLOAT, _MAP, _VECTOR = 4, 5, 6, 7, 8, 9, 10
_TYPED_FIRST, _TYPED_LAST = 11, 15  # vectors of int, uint, float, key, string
_FIXED_FIRST, _FIXED_LAST = 16, 24  # 2, 3 or 4 of int, uint, float
_BLOB, _BOOL, _BOOLS = 25, 26, 36
_FORMATS = {
    "i": {1: "<b", 2: "<h", 4: "<i", 8: "<q"},
    "u": {1: "<B", 2: "<H", 4: "<I", 8: "<Q"},
    "f": {2: "<e", 4: "<f", 8: "<d"},
}
_INLINE = {1: "i", 2: "u", 3: "f", _BOOL: "u"}
_INDIRECT = {_INDIRECT_INT: "i", _INDIRECT_UINT: "u", _INDIRECT_FLOAT: "f"}


def mapping(data: memoryview | bytes) -> dict[str, Any]:
    """The map in `data`, or an empty one if it is not a map: custom options may be bytes of any other kind."""
    try:
        found = _Reader(bytes(data)).root()
    except _Malformed:
        return {}
    return found if isinstance(found, dict) else {}


class _Malformed(Exception):
    pass


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._left = data, _VALUES_LIMIT

    def root(self) -> Any:
        if len(self._data) < 3:
            raise _Malformed
        width, packed = self._data[-1], self._data[-2]
        return self._value(len(self._data) - 2 - width, width, packed, 0)

    def _number(self, at: int, width: int, kind: str) -> Any:
        code = _FORMATS[kind].get(width)
        if code is None or at < 0 or at + width > len(self._data):
            raise _Malformed
        return struct.unpack_from(code, self._data, at)[0]

    def _value(self, at: int, parent: int, packed: int, depth: int) -> Any:
        """The value whose slot of `parent` bytes is at `at`; `packed` is its type and the width behind its offset."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_LIMIT:
            raise _Malformed
        kind, width = packed >> 2, 1 << (packed & 3)
        if kind == 0:
            return None
        if kind in _INLINE:
            number = self._number(at, parent, _INLINE[kind])
            return bool(number) if kind == _BOOL else number
        target = at - int(self._number(at, parent, "u"))
        if kind in _INDIRECT:
            return self._number(target, width, _INDIRECT[kind])
        if kind == _KEY:
            return self._key(target)
        if kind in (_STRING, _BLOB):
            found = self._bytes(target, width)
            return found if kind == _BLOB else _text(found)
        if kind == _MAP:
            return self._map(target, width, depth)
        if kind == _VECTOR:
            return self._vector(target, width, self._length(target, width), depth)
        return self._typed(kind, target, width, depth)

    def _typed(self, kind: int, target: int, width: int, depth: int) -> list[Any]:
        if kind == _BOOLS:
            element, count = _BOOL, self._length(target, width)
        elif _TYPED_FIRST <= kind <= _TYPED_LAST:
            element, count = kind - _TYPED_FIRST + 1, self._length(target, width)
        elif _FIXED_FIRST <= kind <= _FIXED_LAST:
            element, count = (kind - _FIXED_FIRST) % 3 + 1, (kind - _FIXED_FIRST) // 3 + 2
        else:
            raise _Malformed
        return [self._value(target + i * width, width, element << 2, depth + 1) for i in range(count)]

    def _length(self, target: int, width: int) -> int:
        count = int(self._number(target - width, width, "u"))
        if count * width > len(self._data):
            raise _Malformed
        return count

    def _vector(self, target: int, width: int, count: int, depth: int) -> list[Any]:
        kinds = target + count * width
        if target < 0 or kinds + count > len(self._data):
            raise _Malformed
        return [self._value(target + i * width, width, self._data[kinds + i], depth + 1) for i in range(count)]

    def _map(self, target: int, width: int, depth: int) -> dict[str, Any]:
        keys_at = target - 3 * width
        keys = keys_at - int(self._number(keys_at, width, "u"))
        keys_width = int(self._number(target - 2 * width, width, "u"))
        count = self._length(target, width)
        if self._length(keys, keys_width) != count:
            raise _Malformed
        places = (keys + i * keys_width for i in range(count))
        names = [self._key(place - int(self._number(place, keys_width, "u"))) for place in places]
        return dict(zip(names, self._vector(target, width, count, depth), strict=True))

    def _key(self, at: int) -> str:
        end = self._data.find(b"\0", at) if 0 <= at < len(self._data) else -1
        if end < 0:
            raise _Malformed
        self._left -= (end - at) // 8
        return _text(self._data[at:end])

    def _bytes(self, target: int, width: int) -> bytes:
        count = int(self._number(target - width, width, "u"))
        if target < 0 or target + count > len(self._data):
            raise _Malformed
        self._left -= count // 8
        return self._data[target : target + count]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Malformed from None
