"""A cache for later starts: a bundle's signatures, and the first plan of each with its packed weights.

Parsing and planning take most of a start: reading the manifest 4 ms, importing every operator's rules 14, the plan
itself 2 for a small model, packing weights 100 for a large one. With a cached file, a start maps and binds its contents
instead; they are what reading and planning would give.

Files are stored in the cache folder, next to the kernels and under the same conditions (`lite_runtime.native.trust`):
files that others could have written are not read. They are written atomically and named by a digest of everything they
depend on: the bundle's contents (verified; their digests are checked at every load), the signature, the inputs' types,
the target and its tuning, the limit, and the identity of the runtime including its kernels. An incomplete file is
ignored. They are not part of a bundle: a cached program is trusted, a bundle never is. Only a runtime that was built as
a whole caches programs, because one whose kernels are compiled from adjacent source is being developed.
"""

from __future__ import annotations

import marshal
import mmap
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import prod
from typing import Any

import numpy as np

from lite_runtime import bundle
from lite_runtime._blake import blake2b
from lite_runtime.bundle.layout import table_digest
from lite_runtime.bundle.refusal import named
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Graph, Node, Spec, StateUse, Value, dtype_name, numpy_dtype, spec_of
from lite_runtime.native import build, trust
from lite_runtime.native.target import host
from lite_runtime.planning.program import Kernel, Plan, Step

__all__ = ["Later", "Origin", "Sketch", "plan", "read"]

_HEAD = struct.Struct("<8s16sQQQ")
"""Magic, BLAKE2b-128 of the text, bytes of the text (plain values as marshal writes them), bytes of the body, sum of
the body's 64-bit words.

The text determines which memory is accessed, so it has a cryptographic digest. For weights, a sum detects damage as
well, at ten times the speed: BLAKE2b takes 0.6 ms for resnet8's, of a start of 8.
"""
_MAGIC = b"MSKPRG01"
_ALIGN = 64
_HOW: Mapping[str, int] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_POPULATE, "prot": mmap.PROT_READ}
    if hasattr(mmap, "MAP_POPULATE")
    else {"access": mmap.ACCESS_READ}
)
"""How files are mapped; Linux reads them at once."""
MOST_BYTES, MOST_FILES = 1 << 29, 256
"""Greatest size of the folder's contents; the least recently used files are deleted first."""


class Origin:
    """The origin of a graph: a bundle's bytes, the signature, and what else decides its constants.

    `digest` is of this very file: a program refers to constants by their place in it, and two files of the same
    contents may differ in that, if one of them is signed.
    """

    def __init__(self, data: memoryview, signature: str, further: str = "") -> None:
        self.digest, self.data, self.signature = f"{table_digest(data)}{further}", data, signature


class _Place:
    """Location of a signature's program in the cache; `outputs` names the signature's outputs.

    `data` is the bundle: constants that kernels read directly from the bundle are not stored twice.
    """

    def __init__(self, path: str, data: memoryview, outputs: tuple[str, ...]) -> None:
        self.path, self.data, self.outputs = path, data, outputs

    def find(self) -> Plan | None:
        """The cached program; None if there is no complete one."""
        found = _load(self.path)
        return None if found is None else _decoded(*found, self.data)

    def keep(self, made: Plan) -> None:
        """Cache a plan if it can be cached and the folder is writable; otherwise does nothing."""
        if self._may_keep(made):
            _save(self.path, *_encoded(made, self.data))

    def _may_keep(self, made: Plan) -> bool:
        """Whether native steps alone compute every output, from inputs and constants of plain types. A function of this
        process has an address that is valid here only."""
        plain = all(array.dtype.kind in "biuf" for array in made.constants.values())
        whole = made.rest is None and not made.frontier and not made.slots
        here = "user.call" in made.kernels
        given = {*made.inputs, *made.outputs, *made.copies}
        return plain and whole and not here and given.issuperset(self.outputs) and all(step.end for step in made.steps)


def plan(
    origin: Origin,
    graph: Graph,
    given: Mapping[str, Spec],
    choices: Mapping[str, str],
    limits: tuple[int, int],
    make: Callable[[], Plan],
) -> Plan:
    """The native plan of a graph for inputs of these types: the cached one, or the result of `make`, which is cached.

    choices: choices among ways to compute steps; limits: greatest size of a plan in bytes, and turns of a loop. Both
    are part of the file's name.
    """
    here = _place(origin, graph, given, choices, limits)
    found = here.find() if here is not None else None
    if found is None:
        found = make()
        if here is not None:
            here.keep(found)
    return found


def _place(
    origin: Origin, graph: Graph, given: Mapping[str, Spec], choices: Mapping[str, str], limits: tuple[int, int]
) -> _Place | None:
    """Where the program of a graph for inputs of these types is cached; None if nothing is cached."""
    types = sorted((name, *spec) for name, spec in given.items())
    path = _path("program", origin.digest, origin.signature, types, sorted(choices.items()), limits, np.__version__)
    return _Place(path, origin.data, tuple(value.name for value in graph.outputs)) if path else None


# -- signatures --------------------------------------------------------------------------------------------------------


class Sketch:
    """A bundle that an earlier start verified: complete, but parsed only as far as running a cached program needs."""

    def __init__(
        self,
        file: bundle.File,
        signatures: Mapping[str, Graph],
        uses: Mapping[str, StateUse],
        specs: Mapping[str, Spec],
        whole: Callable[[], bundle.Bundle],
    ) -> None:
        """specs: of state. whole: reads the parts that are missing here."""
        self.digest, self.data, self.signatures, self.uses, self.specs = file.digest, file.data, signatures, uses, specs
        self._whole = whole

    @property
    def state(self) -> Mapping[str, Array]:
        """State as stored in the bundle."""
        return self._whole().state


class Later(Graph):
    """A graph whose nodes and constants are read when planning needs them."""

    def __init__(self, inputs: tuple[Value, ...], outputs: tuple[Value, ...], make: Callable[[], Graph]) -> None:
        self.__dict__.update(inputs=inputs, outputs=outputs, _make=make)

    def __getattr__(self, name: str) -> Any:
        if name not in self._fields:
            raise AttributeError(name)
        whole: Graph = self.__dict__["_make"]()
        self.__dict__.update(nodes=whole.nodes, constants=whole.constants, name=whole.name)
        return self.__dict__[name]


def read(source: bundle.Source) -> bundle.Bundle | Sketch:
    """A bundle, verified now, or verified by an earlier start, as the digest of its contents shows (checked now).

    Raises BundleError for a source that is not a bundle.
    """
    file = bundle.opened(source)
    path = _path("signatures", table_digest(file.data))
    found = _load(path) if path else None
    if found is not None:
        return _sketch(file, *found)
    where = repr(os.fspath(source)) if isinstance(source, str | os.PathLike) else ""
    held: bundle.Bundle = named(where, bundle.read, file) if where else bundle.read(file)
    if path:
        faces = {name: (graph.inputs, graph.outputs) for name, graph in held.signatures.items()}
        specs = {name: spec_of(array) for name, array in held.state.items()}
        _save(path, {"signatures": faces, "uses": held.uses, "state": specs}, ())
    return held


def _sketch(file: bundle.File, doc: Any, _: memoryview) -> Sketch:
    @cache
    def whole() -> bundle.Bundle:
        return bundle.read(file)

    def graph(name: str, inputs: Any, outputs: Any) -> Graph:
        made = tuple(Value(*v) for v in inputs), tuple(Value(*v) for v in outputs)
        return Later(*made, lambda: whole().signatures[name])

    signatures = {name: graph(name, *sides) for name, sides in doc["signatures"].items()}
    uses = {name: StateUse(*sides) for name, sides in doc["uses"].items()}
    return Sketch(file, signatures, uses, {name: Spec(*spec) for name, spec in doc["state"].items()}, whole)


# -- files -------------------------------------------------------------------------------------------------------------


def _path(*facts: Any) -> str:
    """The file name derived from these facts, this runtime and this target; "" if nothing is cached."""
    target, identity = host(), build.identity()
    if target is None or not identity:
        return ""
    name = blake2b(repr((*facts, target.name, identity, sys.version)).encode(), digest_size=16).hexdigest()
    return os.path.join(build.cache_folder(), "programs", name)


def _load(path: str) -> tuple[Any, memoryview] | None:
    """A file's plain values and the bytes after them; None if there is no complete and trusted file."""
    try:
        with trust.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            held = memoryview(mmap.mmap(file.fileno(), size, **_HOW))
        magic, digest, length, rest, total = _HEAD.unpack_from(held)
        text, body = held[_HEAD.size : _HEAD.size + length], held[_HEAD.size + length :]
        if magic != _MAGIC or _digest(text) != digest or len(body) != rest or _sum(body) != total:
            return None
        os.utime(path)
    except (OSError, ValueError, struct.error):
        return None
    except trust.TrustError as problem:
        trust.warn(problem, "the program is planned again")
        return None
    return marshal.loads(text), body


def _digest(text: bytes | memoryview) -> bytes:
    return blake2b(text, digest_size=16).digest()


def _sum(body: bytes | memoryview) -> int:
    """The sum of 64-bit words, the last one padded with zeros, modulo 2**64."""
    whole = len(body) // 8
    words = np.frombuffer(body, np.uint64, whole).sum() if whole else 0
    return (int(words) + int.from_bytes(body[8 * whole :], "little")) % (1 << 64)


def _save(path: str, values: Any, body: Sequence[bytes | memoryview]) -> None:
    """Write a file whose body begins at a multiple of 64 bytes; does nothing if the folder is not writable.

    `body`: parts in order, each padded with zeros to a whole word; they are not copied.
    """
    text = marshal.dumps(_plain(values))
    text += bytes(-(_HEAD.size + len(text)) % _ALIGN)
    size = sum(map(len, body))
    head = _HEAD.pack(_MAGIC, _digest(text), len(text), size, sum(map(_sum, body)) % (1 << 64))
    if size > MOST_BYTES:
        return
    folder = os.path.dirname(path)
    try:
        trust.make_folder(folder)
        _make_room(folder, len(head) + len(text) + size)
        trust.write(path, [head, text, *body])
    except trust.TrustError as problem:
        trust.warn(problem, "programs are planned again at each start")
    except (OSError, MsedgeError):
        return


def _plain(value: Any) -> Any:
    """Converts mappings to dictionaries, sequences to tuples, NumPy numbers to Python's: marshal supports no
    classes."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_plain(inner) for inner in value)
    return value.item() if isinstance(value, np.generic) else value


def _make_room(folder: str, nbytes: int) -> None:
    """Delete the least recently used files until another file of `nbytes` fits."""
    found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(folder)]
    total = sum(size for _, size, _ in found) + nbytes
    for count, (_, size, path) in zip(range(len(found), 0, -1), sorted(found), strict=True):
        if total <= MOST_BYTES and count < MOST_FILES:
            return
        with suppress(PermissionError):  # Windows deletes no file that a process has mapped
            os.unlink(path)
            total -= size


# -- plan <-> bytes ----------------------------------------------------------------------------------------------------


def _encoded(made: Plan, data: memoryview) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """A plan's plain values and the bytes of its arrays, each at a multiple of 64."""
    body: list[bytes | memoryview] = []
    end = 0
    bundle = np.frombuffer(data, np.uint8)

    def stored(array: Array) -> list[Any]:
        """[whether in the bundle, offset, dtype, shape]"""
        nonlocal end
        offset = _address(array) - _address(bundle)
        inside = 0 <= offset <= bundle.nbytes - array.nbytes and array.nbytes > 0
        if not inside:
            body.extend((np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, bytes(-array.nbytes % _ALIGN)))
            offset, end = end, end + array.nbytes + len(body[-1])
        return [inside, offset, dtype_name(array.dtype), array.shape]

    doc = vars(made) | {
        "program": made.program.tobytes(),
        "units": [[[node.op, node.outputs, node.name] for node in unit] for unit in made.units],
        "steps": [[step.begin, step.end] for step in made.steps],
        "where": {name: made.where[name] for name in (*made.inputs, *made.outputs, *made.copies)},
        "constants": [[base, *stored(array)] for base, array in made.constants.items()],
        "known": {},
        "extents": (),
    }
    return doc, body


def _decoded(doc: dict[str, Any], body: memoryview, data: memoryview) -> Plan:
    """The plan stored in a program file; its arrays are views of the file or of the bundle. Nodes have names only,
    enough to report what was computed."""

    def array(inside: bool, offset: int, dtype: str, shape: tuple[int, ...]) -> Array:
        count = prod(shape)
        if not count:
            return np.empty(shape, numpy_dtype(dtype))
        return np.frombuffer(data if inside else body, numpy_dtype(dtype), count, offset).reshape(shape)

    units = [tuple(Node(op, (), outputs, name=name) for op, outputs, name in unit) for unit in doc["units"]]
    records = tuple(Kernel(*row) for row in doc["records"])

    def step(begin: int, end: int) -> Step:
        inside = dict.fromkeys(record.unit for record in records if begin <= record.begin < end)
        return Step(tuple(node for unit in inside for node in units[unit]), begin, end)

    return Plan(
        program=np.frombuffer(doc["program"], np.int64),
        kernels=doc["kernels"],
        records=records,
        units=tuple(units),
        steps=tuple(step(*row) for row in doc["steps"]),
        where={name: (base, offset, Spec(*spec)) for name, (base, offset, spec) in doc["where"].items()},
        bases=doc["bases"],
        arena_bytes=doc["arena_bytes"],
        constants={base: array(*row) for base, *row in doc["constants"]},
        slots=doc["slots"],
        inputs=doc["inputs"],
        outputs=doc["outputs"],
        copies=doc["copies"],
        known=doc["known"],
        refusals=doc["refusals"],
    )


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
