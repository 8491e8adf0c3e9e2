"""Kernels' object files -> one WebAssembly module with the kernels that a model uses, and what they need.

This is not a general linker: it refuses, by name, symbols from outside and relocations that are not in its table.
Functions and data that no kernel in use reaches are left out. Memory: the stack from 0 up, as large as the deepest
chain of calls needs, then the data, then the *heap*, which the module's user may use. A stack that overflowed would
trap, as addresses below 0 are outside.

The module imports its memory as `env.memory`, and exports the functions of `entries` by their names (see
`kernels/walker.py`). With shared memory, every thread has an instance of its own: the module exports `stack`, the
global of the stack's end, which a thread sets to the end of a stack of its own, and imports `env.give_way`, a function
that threads call when they have waited for long. It has the place 0 in the table of functions, which is empty
otherwise; kernel i has the place i + 1. A custom section `msedge.kernels` names the kernels in this order, one a line;
`msedge.memory` has the bytes of the stack, and where the heap begins, as two decimal numbers with a space between.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from converter.ahead.wasm_object import (
    DATA,
    FUNCTION,
    GLOBAL,
    TABLE,
    Function,
    Object,
    Piece,
    Relocation,
    Segment,
    Symbol,
    read_object,
    read_sleb,
    sleb,
    uleb,
)
from lite_runtime.frozen import NamedTuple
from lite_runtime.native.build import BuildError

__all__ = ["ALONE", "KERNELS", "MEMORY", "TOGETHER", "link"]

KERNELS, MEMORY = "msedge.kernels", "msedge.memory"
"""Custom sections: the names of kernels; the sizes of the parts of memory."""
ALONE: Mapping[str, str] = {"run": "walker.alone"}
TOGETHER: Mapping[str, str] = {"lead": "walker.lead", "serve": "walker.serve"}
"""Entries of a module for one thread, and for several: functions by the names under which they are exported."""
_PAGE, _ALIGN, _MOST_PAGES = 1 << 16, 64, 1 << 16
_RESERVE = 1024
"""Bytes of stack beside the frames of functions."""
_I32, _FUNCREF, _NOTHING = b"\x7f", b"\x70", b"\x60\0\0"
"""Types: of values, and of a function without arguments or result."""
_FUNCTION_LEB, _TABLE_SLEB, _TABLE_I32, _DATA_LEB, _DATA_SLEB, _DATA_I32, _TYPE_LEB, _GLOBAL_LEB = range(8)
_TABLE_NUMBER = 20


class _Place(NamedTuple):
    """A function or a segment: the number of its object, and its number there."""

    object: int
    number: int


class _Module:
    """What is linked so far. `functions` and `segments` are in the order of the module; imported functions, of which
    there are `imported`, come first."""

    def __init__(self, objects: Sequence[Object], titles: Sequence[str], imported: int) -> None:
        self.objects, self.titles, self.imported = objects, titles, imported
        self.defined = {
            symbol.name: _Place(i, symbol.number)
            for i, obj in enumerate(objects)
            for symbol in obj.symbols
            if symbol.kind == FUNCTION and symbol.number >= 0
        }
        self.functions: dict[_Place, int] = {}
        self.segments: dict[_Place, int] = {}
        self.types: dict[bytes, int] = {}
        self.table: dict[_Place, int] = {}
        self._depths: dict[_Place, int] = {}

    def function(self, place: _Place) -> Function:
        """A function by its place."""
        return self.objects[place.object].functions[place.number]

    def segment(self, place: _Place) -> Segment:
        """A segment by its place."""
        return self.objects[place.object].segments[place.number]

    def root(self, name: str) -> _Place:
        """A function by its symbol, with everything that it reaches. Raises BuildError if there is none."""
        if name not in self.defined:
            raise BuildError(f"expected an object file with the function {name}, got none")
        self._reach(self.defined[name])
        return self.defined[name]

    def _reach(self, first: _Place) -> None:
        waiting: list[tuple[int, _Place]] = [(FUNCTION, first)]
        while waiting:
            kind, place = waiting.pop()
            there: dict[_Place, int] = self.functions if kind == FUNCTION else self.segments
            if place in there:
                continue
            there[place] = len(there) + (self.imported if kind == FUNCTION else 0)
            obj = self.objects[place.object]
            if kind == FUNCTION:
                self.type_of(obj, self.function(place).type)
            for relocation in (self.function(place) if kind == FUNCTION else self.segment(place)).body.relocations:
                if relocation.kind == _TYPE_LEB:
                    self.type_of(obj, relocation.number)
                    continue
                symbol = obj.symbols[relocation.number]
                if symbol.kind in (FUNCTION, DATA):
                    waiting.append((symbol.kind, self._place(place.object, symbol)))
                if relocation.kind in (_TABLE_SLEB, _TABLE_I32):
                    self.in_table(self._place(place.object, symbol))

    def lay_out(self, entries: Sequence[_Place]) -> tuple[int, int]:
        """Give segments their addresses; the sizes of the stack, and of stack and data. entries: call what is in the
        table."""
        below = max((self._depth(place) for place in self.table), default=0)
        stack = end = -(-(max(map(self._depth, entries)) + below + _RESERVE) // _ALIGN) * _ALIGN
        for place in self.segments:
            segment = self.segment(place)
            self.segments[place] = -(-end // segment.align) * segment.align
            end = self.segments[place] + len(segment.body.content)
        return stack, -(-end // _ALIGN) * _ALIGN

    def _depth(self, place: _Place) -> int:
        """Bytes of stack that a function and those that it calls by name need. Raises BuildError for recursion."""
        if place not in self._depths:
            self._depths[place] = -1
            body, obj = self.function(place).body, self.objects[place.object]
            called = {
                self._place(place.object, obj.symbols[r.number]) for r in body.relocations if r.kind == _FUNCTION_LEB
            }
            self._depths[place] = _frame(body, self.titles[place.object]) + max(map(self._depth, called), default=0)
        if self._depths[place] < 0:
            raise BuildError(f"{self.titles[place.object]} has a function that calls itself, which no kernel may")
        return self._depths[place]

    def _place(self, number: int, symbol: Symbol) -> _Place:
        if symbol.number < 0:
            raise BuildError(f"{self.titles[number]} needs {symbol.name}, which no kernel may")
        return _Place(number, symbol.number)

    def type_of(self, obj: Object, index: int) -> int:
        """The module's number of an object's type."""
        return self.types.setdefault(obj.types[index], len(self.types))

    def in_table(self, place: _Place) -> int:
        """A function's place in the table of functions."""
        return self.table.setdefault(place, len(self.table) + 1)

    def resolved(self, number: int, piece: Piece) -> bytes:
        """A piece's bytes with its relocations resolved; numbers in LEB128 become as short as possible."""
        out, at = bytearray(), 0
        for relocation in piece.relocations:
            encode, size = self._encoding(number, relocation)
            out += piece.content[at : relocation.offset]
            out += encode(self._value(number, relocation))
            at = relocation.offset + size
        return bytes(out + piece.content[at:])

    def _encoding(self, number: int, relocation: Relocation) -> tuple[Callable[[int], bytes], int]:
        if relocation.kind not in _ENCODINGS:
            raise BuildError(f"{self.titles[number]} has a relocation of the unknown kind {relocation.kind}")
        return _ENCODINGS[relocation.kind]

    def _value(self, number: int, relocation: Relocation) -> int:
        obj = self.objects[number]
        if relocation.kind == _TYPE_LEB:
            return self.type_of(obj, relocation.number)
        symbol = obj.symbols[relocation.number]
        if symbol.kind == GLOBAL:
            if symbol.name not in ("", "__stack_pointer"):
                raise BuildError(f"{self.titles[number]} needs the global {symbol.name}, which no kernel may")
            return 0
        if symbol.kind == TABLE:
            return 0
        place = self._place(number, symbol)
        if symbol.kind == DATA:
            return self.segments[place] + symbol.offset + relocation.addend
        return self.functions[place] if relocation.kind == _FUNCTION_LEB else self.table[place]


def _frame(body: Piece, title: str) -> int:
    """Bytes of stack that a function takes: it subtracts a constant from the stack's global once."""
    frame = 0
    for relocation in body.relocations:
        if relocation.kind != _GLOBAL_LEB or body.content[relocation.offset - 1] != _GLOBAL_GET:
            continue
        found = _TAKEN.match(body.content, relocation.offset + 5)
        if found is None or frame:
            raise BuildError(f"{title} has a function whose use of the stack is not constant, which no kernel may")
        frame = read_sleb(found[1]) + _ALIGN
    return frame


_GLOBAL_GET = 0x23
_N = rb"[\x80-\xff]*[\x00-\x7f]"
_TAKEN = re.compile(rb"(?:\x22%b(?:(?:\x21%b|\x1a)\x20%b)?)?\x41(%b)\x6b" % (_N, _N, _N, _N), re.DOTALL)
"""After the global's value: i32.const, i32.sub; where the frame is aligned, copies of the value to locals first."""


def _word(value: int) -> bytes:
    return value.to_bytes(4, "little")


_ENCODINGS: Mapping[int, tuple[Callable[[int], bytes], int]] = {
    _FUNCTION_LEB: (uleb, 5),
    _TABLE_SLEB: (sleb, 5),
    _TABLE_I32: (_word, 4),
    _DATA_LEB: (uleb, 5),
    _DATA_SLEB: (sleb, 5),
    _DATA_I32: (_word, 4),
    _TYPE_LEB: (uleb, 5),
    _GLOBAL_LEB: (uleb, 5),
    _TABLE_NUMBER: (uleb, 5),
}
"""Kinds of relocations: how the number is written, and the bytes that LLVM left for it."""


def link(
    files: Mapping[str, bytes], kernels: Sequence[str], entries: Mapping[str, str] = ALONE, *, shared: bool = False
) -> bytes:
    """A module of kernels named FAMILY.KERNEL. files: object files by family, with those of `entries`, which are
    exported. shared: its memory is shared with other threads.

    Raises BuildError for a file that is no object, for a kernel that is missing, and for anything from outside.
    """
    titles = list(files)
    module = _Module([read_object(files[title], title) for title in titles], titles, imported=int(shared))
    roots = {name: module.root(function) for name, function in entries.items()}
    for name in kernels:
        module.in_table(module.root(name))
    stack, heap = module.lay_out(list(roots.values()))
    bodies = [_sized(module.resolved(place.object, module.function(place).body)) for place in module.functions]
    kinds = [uleb(module.type_of(module.objects[p.object], module.function(p).type)) for p in module.functions]
    segments = []
    for place, at in module.segments.items():
        content = module.resolved(place.object, module.segment(place).body)
        if content.strip(b"\0"):
            segments.append(b"\0\x41" + sleb(at) + b"\x0b" + _sized(content))
    table = [uleb(0)] * shared + [uleb(module.functions[place]) for place in module.table]
    places = uleb(1 + len(module.table))
    pages = uleb(-(-heap // _PAGE))
    limits = b"\3" + pages + uleb(_MOST_PAGES) if shared else b"\0" + pages
    exports = [(name, b"\0" + uleb(module.functions[place])) for name, place in roots.items()]
    imports = [("memory", b"\2" + limits)]
    if shared:
        exports.append(("stack", b"\3\0"))
        imports.append(("give_way", b"\0" + uleb(module.types.setdefault(_NOTHING, len(module.types)))))
    sections = [
        (1, _vector(list(module.types))),
        (2, _vector([_sized(b"env") + _sized(name.encode()) + what for name, what in imports])),
        (3, _vector(kinds)),
        (4, _vector([_FUNCREF + b"\1" + 2 * places])),
        (6, _vector([_I32 + b"\1\x41" + sleb(stack) + b"\x0b"])),
        (7, _vector([_sized(name.encode()) + what for name, what in exports])),
        (9, _vector([b"\0\x41" + sleb(int(not shared)) + b"\x0b" + _vector(table)])),
        (10, _vector(bodies)),
        (11, _vector(segments)),
        (0, _sized(KERNELS.encode()) + "\n".join(kernels).encode()),
        (0, _sized(MEMORY.encode()) + f"{stack} {heap}".encode()),
    ]
    return b"\0asm\1\0\0\0" + b"".join(bytes([kind]) + _sized(content) for kind, content in sections)


def _sized(content: bytes) -> bytes:
    return uleb(len(content)) + content


def _vector(items: Sequence[bytes]) -> bytes:
    return uleb(len(items)) + b"".join(items)
