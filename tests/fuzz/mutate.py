"""Ways to damage a bundle: blindly, byte by byte, or knowing the format, with every digest corrected."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from lite_runtime import bundle
from lite_runtime.bundle.reading import unpacked
from lite_runtime.bundle.writing import assemble
from lite_runtime.graph import DTYPES
from lite_runtime.operators import OPERATORS, attributes

__all__ = ["mutate", "pack", "spoil_json", "unpack"]

_NUMBERS = (
    *(0, -1, 1, 2, 3, 7, 64, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**30),
    *(-2, -(2**31), -(2**63), -(2**63) - 1, 0.5, -0.0, 1e-45, 1e38, 1e308, -1e308),
)
_VALUES = (None, True, False, 0, 1.5, "", "x", [], {}, [[]], [0], ["x"], {"tensor": 0}, {"graph": {}}, {"float": "nan"})
_REALS = (0.0, -0.0, -0.1, 1.0, 1e-45, 1e-38, 2.0**-126, 2.0**-64, 2.0**64, 3e38, *map(float, ("nan", "inf", "-inf")))
_OPS = sorted(OPERATORS)
_TEXTS = sorted({choice for op in _OPS for attribute in attributes(op).values() for choice in attribute.choices})
_LAYOUTS = attributes("Conv")["layout"].choices
_SAME_SIZE = ({"float32", "int32", "uint32"}, {"float64", "int64", "uint64"}, {"int8", "uint8", "bool", "int4"})
_SAMPLES: dict[str, Callable[[Random], Any]] = {
    "i": lambda rng: rng.choice((0, 1, 2, 3, -1, -2, 5)),
    "f": lambda rng: rng.choice((0.0, 1.0, -1.0, 0.5, 1e-5, 1e30)),
    "s": lambda rng: rng.choice(_TEXTS),
    "I": lambda rng: [rng.randrange(-1, 4) for _ in range(rng.randrange(5))],
    "F": lambda rng: [rng.choice((0.0, 1.0, 2.5)) for _ in range(rng.randrange(5))],
    "S": lambda rng: [rng.choice(("Relu", "Tanh", "a", "")) for _ in range(rng.randrange(5))],
    "T": lambda rng: {"tensor": rng.randrange(12)},
    "G": lambda rng: {"graph": {}},
    "*": lambda rng: rng.choice(_VALUES),
}

Parts = list[tuple[str, bytes, int]]


def unpack(data: bytes) -> Parts:
    """A sound bundle's sections: name, contents (the manifest's and the golden arrays' uncompressed), flags."""
    held = bundle.read(data)
    contents = ((s, bytes(held.section(s.name))) for s in held.sections.values())
    return [(s.name, _UNPACK.get(s.name, bytes)(c), int(s.required)) for s, c in contents]


_UNPACK = {"manifest": unpacked, "golden": zlib.decompress}


def pack(parts: Parts) -> bytes:
    """A file of these sections with right offsets and digests, whatever they hold."""
    return assemble([(name, zlib.compress(c) if name == "golden" else c, flags) for name, c, flags in parts])


def mutate(rng: Random, seeds: list[bytes]) -> bytes:
    """One damaged file."""
    data = rng.choice(seeds)
    return _blind(rng, data, seeds) if rng.random() < 0.15 else _knowing(rng, data)


# -------------------------------------------------------------------------------------------------------------- blind


def _blind(rng: Random, data: bytes, seeds: list[bytes]) -> bytes:
    raw = bytearray(data)
    kind = rng.randrange(5)
    if kind == 0:
        _spoil_bytes(rng, raw, rng.randrange(1, 8))
    elif kind == 1:
        del raw[rng.randrange(len(raw)) :]
    elif kind == 2:
        raw += rng.randbytes(rng.randrange(1, 100))
    elif kind == 3:
        other = rng.choice(seeds)
        raw = raw[: rng.randrange(len(raw))] + other[rng.randrange(len(other)) :]
    else:
        _spoil_bytes(rng, raw, 2, min(len(raw), 400))
    return bytes(raw)


def _spoil_bytes(rng: Random, raw: bytearray, times: int, within: int | None = None) -> None:
    for _ in range(times if raw else 0):
        at = rng.randrange(within or len(raw))
        raw[at] = rng.choice((raw[at] ^ (1 << rng.randrange(8)), 0, 255, rng.randrange(256)))


# ------------------------------------------------------------------------------------------------------------- knowing


def _knowing(rng: Random, data: bytes) -> bytes:
    parts = unpack(data)
    spoilers = (_spoil_manifest,) * 10 + (_spoil_weights,) * 3 + (_spoil_table,)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        parts = rng.choice(spoilers)(rng, parts)
    return pack(parts)


def _spoil_table(rng: Random, parts: Parts) -> Parts:
    parts = list(parts)
    kind = rng.randrange(4)
    if kind == 0:
        rng.shuffle(parts)
    elif kind == 1 and len(parts) > 1:
        del parts[rng.randrange(len(parts))]
    elif kind == 2:
        name, content, flags = parts[0]
        parts[0] = (name, content[: rng.randrange(len(content) + 1)], flags)
    else:
        parts.append((f"more/{rng.randrange(10**6)}", rng.randbytes(20), rng.choice((0, 0, 1, 2))))
    return parts


def _spoil_weights(rng: Random, parts: Parts) -> Parts:
    """Other bytes, or other whole numbers where indices may be."""
    made = []
    for name, content, flags in parts:
        raw = bytearray(content)
        if name in ("weights", "golden") and raw:
            if rng.random() < 0.5:
                _spoil_bytes(rng, raw, rng.randrange(1, 12))
            for _ in range(rng.randrange(6)):
                value = int(rng.choice(_NUMBERS[:-6])) if rng.random() < 0.5 else rng.randrange(-3, 9)
                at = rng.randrange(0, max(len(raw) - 7, 1), 8)
                raw[at : at + 8] = (value % 2**64).to_bytes(8, "little")[: len(raw) - at]
        made.append((name, bytes(raw), flags))
    return made


def _spoil_manifest(rng: Random, parts: Parts) -> Parts:
    made = []
    for name, content, flags in parts:
        if name == "manifest":
            content = spoil_json(rng, content)
            if rng.random() < 0.1:
                content = _spoil_stream(rng, zlib.compress(content, rng.randrange(10)))
        made.append((name, content, flags))
    return made


def _spoil_stream(rng: Random, stream: bytes) -> bytes:
    """A compressed manifest whole, cut short, with bytes behind its end, or with some changed."""
    raw = bytearray(stream)
    kind = rng.randrange(4)
    if kind == 0:
        del raw[rng.randrange(1, len(raw)) :]
    elif kind == 1:
        raw += rng.randbytes(rng.randrange(1, 9))
    elif kind == 2:
        _spoil_bytes(rng, raw, rng.randrange(1, 8))
    return bytes(raw)


def spoil_json(rng: Random, content: bytes) -> bytes:
    """A manifest, of a bundle or a state file, with a few things in it changed; other bytes as they are."""
    try:
        doc = json.loads(content)
    except ValueError:
        return content
    try:
        for _ in range(rng.choice((1, 1, 2, 3))):
            spoil = _change_use if doc.get("uses") and rng.random() < 0.2 else rng.choice(_SPOILERS)
            spoil(rng, doc)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        pass  # an earlier change removed what this one needs; the damage so far stays
    return json.dumps(doc, separators=(",", ":"), ensure_ascii=rng.random() < 0.3).encode("utf-8", "replace")


Place = tuple[Any, Any]


def _places(value: Any) -> list[Place]:
    """Every (container, key) in a JSON value."""
    found: list[Place] = []
    heap = [value]
    while heap:
        inner = heap.pop()
        pairs = inner.items() if isinstance(inner, dict) else enumerate(inner) if isinstance(inner, list) else ()
        for key, item in pairs:
            found.append((inner, key))
            heap.append(item)
    return found


def _graphs(doc: Any) -> list[dict[str, Any]]:
    """The graphs of a manifest, nested ones too."""
    held = [c[k] for c, k in _places(doc) if isinstance(c[k], dict) and "nodes" in c[k]]
    return [graph for graph in held if graph["nodes"]]


def _any_value(rng: Random, doc: Any) -> None:
    holder, key = rng.choice(_places(doc))
    old = holder[key]
    if isinstance(old, int | float) and rng.random() < 0.7:
        near = (old + 1, old - 1, old * 2, -old)
        holder[key] = rng.choice(_NUMBERS if rng.random() < 0.5 else near)
    else:
        holder[key] = json.loads(json.dumps(rng.choice(_VALUES)))


def _swap(rng: Random, doc: Any) -> None:
    """Two values of one type change places."""
    places = _places(doc)
    holder, key = rng.choice(places)
    same = [(h, k) for h, k in places if type(h[k]) is type(holder[key]) and not isinstance(h[k], list | dict)]
    if same:
        other, place = rng.choice(same)
        holder[key], other[place] = other[place], holder[key]


def _resize(rng: Random, doc: Any) -> None:
    """A list or object loses, doubles, moves or renames an item."""
    holder, key = rng.choice(_places(doc))
    kind = rng.randrange(3)
    if isinstance(holder, dict):
        value = holder.pop(key)
        if kind:
            holder[rng.choice((f"{key}x", key * 2, ""))] = value
        if kind == 2:
            holder[key] = value
    elif kind == 0:
        del holder[key]
    elif kind == 1:
        holder.insert(key, holder[rng.randrange(len(holder))])
    else:
        rng.shuffle(holder)


def _rename_op(rng: Random, doc: Any) -> None:
    """A node becomes another operator, half of the time one that takes as many operands."""
    graph = rng.choice(_graphs(doc))
    node = rng.choice(graph["nodes"])
    alike = [op for op, row in ((op, OPERATORS[op]) for op in _OPS)
             if row.inputs[0] <= len(node[1]) <= row.inputs[1] and row.outputs[0] <= len(node[2])]
    node[0] = rng.choice(alike if alike and rng.random() < 0.8 else _OPS)
    if rng.random() < 0.6:
        graph["attrs"].append(_sample_attrs(rng, node[0]))
        node[3] = len(graph["attrs"]) - 1


def _sample_attrs(rng: Random, op: str) -> dict[str, Any]:
    schema = attributes(op)
    return {name: _sample(rng, op, name) for name, row in schema.items() if row.required or rng.random() < 0.3}


def _sample(rng: Random, op: str, name: str) -> Any:
    choices = attributes(op)[name].choices if name != "layout" else _LAYOUTS  # also where a number is wanted
    if choices and rng.random() < 0.8:
        return rng.choice(choices)
    return _SAMPLES[attributes(op)[name].kind](rng)


def _change_attr(rng: Random, doc: Any) -> None:
    """A node gets another value for an attribute its operator has, or loses one."""
    graph = rng.choice(_graphs(doc))
    node = rng.choice(graph["nodes"])
    row = dict(graph["attrs"][node[3]])
    name = rng.choice(sorted(set(attributes(node[0])) | set(row)))
    if name in row and rng.random() < 0.2:
        del row[name]
    else:
        row[name] = _nudged(rng, row[name]) if name in row and rng.random() < 0.5 else _sample(rng, node[0], name)
    graph["attrs"].append(row)
    node[3] = len(graph["attrs"]) - 1


def _nudged(rng: Random, value: Any) -> Any:
    if isinstance(value, list) and value:
        value = list(value)
        at = rng.randrange(len(value))
        value[at] = _nudged(rng, value[at])
        return value
    if isinstance(value, int | float):
        return rng.choice((value + 1, value - 1, 0, -value, value * 1000, rng.choice(_NUMBERS)))
    return value


def _rewire(rng: Random, doc: Any) -> None:
    """A node reads another tensor, one more, one less, or none in an operand's place."""
    graph = rng.choice(_graphs(doc))
    at = rng.randrange(len(graph["nodes"]))
    node = graph["nodes"][at]
    before = [name for n in graph["nodes"][:at] for name in n[2] if name]
    names = [*before, *graph["constants"], *(v[0] for v in graph["inputs"]), ""]
    kind = rng.randrange(4)
    if kind == 0 or not node[1]:
        node[1].append(rng.choice(names))
    elif kind == 1:
        node[1].pop()
    else:
        node[1][rng.randrange(len(node[1]))] = rng.choice(names)


def _change_value(rng: Random, doc: Any) -> None:
    """A graph's input or output is declared with another dtype or shape."""
    graph = rng.choice(_graphs(doc))
    value = rng.choice(graph["inputs"] + graph["outputs"])
    if rng.random() < 0.3:
        value[1] = rng.choice(DTYPES)
    else:
        value[2] = _other_shape(rng, value[2] or [])


def _other_shape(rng: Random, shape: list[Any]) -> list[Any]:
    shape = list(shape)
    kind = rng.randrange(4)
    if kind == 0 or not shape:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((1, 2, "N", None)))
    elif kind == 1:
        shape.pop(rng.randrange(len(shape)))
    elif kind == 2:
        shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 3, 17, 1000, "N", None, 2**31, 2**40, -1))
    else:
        rng.shuffle(shape)
    return shape


def _change_tensor(rng: Random, doc: Any) -> None:
    """A stored tensor is read with another shape of as many bytes, another dtype, or from another place."""
    rows = doc["tensors"]["weights"]
    row, other = rng.choice(rows), rng.choice(rows)
    kind = rng.randrange(5)
    if kind == 0:
        rng.shuffle(row[1])
    elif kind == 1:
        row[1] = rng.choice(([], [1], [1, *row[1]], [*row[1], 1], _merged(row[1])))
    elif kind == 2:
        sizes = [group for group in _SAME_SIZE if row[0] in group]
        row[0] = rng.choice(sorted(sizes[0]) if sizes else DTYPES)
    elif kind == 3:
        row[2:] = other[2:]
    else:
        row[:] = list(other)


def _change_content(rng: Random, doc: Any) -> None:
    """One element, or all, of a small tensor in the manifest become a number that scales and zero points rarely are."""
    row = rng.choice([row for row in doc["tensors"]["weights"] if len(row) == 3 and row[2] and row[0] in _NUMBERS_HELD])
    array = np.frombuffer(base64.b64decode(row[2]), row[0]).copy()
    if array.dtype.kind in "iu":
        ends = np.iinfo(array.dtype)
        value: float = rng.choice((ends.min, ends.max, ends.min + 1, ends.max // 2, 0, 1, ends.max - 1))
    else:
        value = rng.choice(_REALS)
    if rng.random() < 0.5:
        array[...] = value
    else:
        array[rng.randrange(array.size)] = value
    row[2] = base64.b64encode(array.tobytes()).decode("ascii")


_NUMBERS_HELD = ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64")


def _change_use(rng: Random, doc: Any) -> None:
    """A signature reads or writes other state, more of it or less; or state begins as another array."""
    signature = rng.choice(sorted(doc["uses"]))
    graph, side = doc["signatures"][signature], rng.randrange(2)
    used = doc["uses"][signature][side]
    kind = rng.randrange(4)
    if kind == 0:
        doc["state"][rng.choice(sorted(doc["state"]))] = rng.randrange(len(doc["tensors"]["weights"]))
    elif kind == 1 and used:
        del used[rng.choice(sorted(used))]
    else:
        used[rng.choice(graph[("inputs", "outputs")[side]])[0]] = rng.choice(sorted(doc["state"]))


def _merged(shape: list[int]) -> list[int]:
    return [shape[0] * shape[1], *shape[2:]] if len(shape) > 1 else [*shape, 1, 1]


_SPOILERS = (
    *(_any_value,) * 3,
    *(_swap,) * 2,
    *(_resize,) * 2,
    *(_rename_op,) * 4,
    *(_change_attr,) * 5,
    *(_rewire,) * 4,
    *(_change_value,) * 2,
    *(_change_tensor,) * 4,
    *(_change_content,) * 4,
)
