"""Ways to damage a TensorFlow Lite file that keep it a flatbuffer: every field in place, and its parts moved about."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from random import Random
from typing import Any, NamedTuple

import ai_edge_litert.schema_py_generated as generated
import flatbuffers

from converter.frontends.tflite import schema
from converter.frontends.tflite.op import RULES

__all__ = ["spoil"]

_CODES = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q", "f4": "f", "f8": "d",
          "b": "B"}  # fmt: skip
_WHOLE = (0, 1, 2, 3, 4, 5, 7, 16, 255, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-8, 3e38, -3e38, *map(float, ("nan", "inf", "-inf")))
_TEXTS = (b"", b"x", b"serving_default", b"\x1b[31m", b"\xff\xfe", b"line\nline", b"Flex", b"name " * 300)
_UNIONS = {
    "builtin_options": schema.OPTIONS, "builtin_options2": schema.OPTIONS_2, "details": schema.DETAILS,
    "array_segments": schema.SPARSE_INDICES, "array_indices": schema.SPARSE_INDICES,
}  # fmt: skip


class Site(NamedTuple):
    """Where a file holds something: `kind` is a scalar's type, "length", "offset", "slot" (of a vtable) or "bytes"."""

    kind: str
    at: int
    field: str
    size: int = 0


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change of the file `data`."""
    if rng.random() < 0.25:
        try:
            return _rebuilt(rng, data)
        except (IndexError, struct.error, ValueError, TypeError, AttributeError, OverflowError, MemoryError):
            return data  # damaged before
    try:
        sites = _sites(data)
    except (IndexError, struct.error, RecursionError):
        return data
    if not sites:
        return data
    raw = bytearray(data)
    fields = sorted({(s.field, s.kind) for s in sites})
    chosen = rng.choice(fields)  # every field as often, however many tables have it
    _change(rng, raw, rng.choice([s for s in sites if (s.field, s.kind) == chosen]), sites)
    return bytes(raw)


# ---------------------------------------------------------------------------------------------------------- in place


@lru_cache(maxsize=2000)
def _sites(data: bytes) -> list[Site]:
    found: list[Site] = []
    _table(data, struct.unpack_from("<I", data, 0)[0], "Model", found, set())
    return found


def _table(data: bytes, at: int, name: str, found: list[Site], seen: set[int]) -> None:
    if at in seen or len(found) > 20_000:
        return
    seen.add(at)
    vtable = at - struct.unpack_from("<i", data, at)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    kind = 0
    for slot, field in enumerate(schema.TABLES.get(name, ())):
        place = vtable + 4 + 2 * slot
        if field is None or 4 + 2 * slot + 2 > size or not struct.unpack_from("<H", data, place)[0]:
            continue
        here = at + struct.unpack_from("<H", data, place)[0]
        title = f"{name}.{field.name}"
        found.append(Site("slot", place, title))
        if field.type in _CODES and not field.vector:
            found.append(Site(field.type, here, title))
            kind = data[here]
            continue
        target = here + struct.unpack_from("<I", data, here)[0]
        found.append(Site("offset", here, title))
        if not field.vector and field.type != "str":
            kinds = _UNIONS.get(field.name, ())
            inner = field.type if field.type != "union" else kinds[kind] if kind < len(kinds) else ""
            _table(data, target, inner, found, seen)
        else:
            _vector(data, target, field, title, found, seen)


def _vector(data: bytes, at: int, field: schema.Field, title: str, found: list[Site], seen: set[int]) -> None:
    count = struct.unpack_from("<I", data, at)[0]
    found.append(Site("length", at, title))
    if field.type == "str" or field.type == "u1":
        found.append(Site("bytes", at + 4, title, min(count, len(data) - at - 4)))
    elif field.type in _CODES:
        width = struct.calcsize("<" + _CODES[field.type])
        found += [Site(field.type, at + 4 + width * i, title) for i in range(min(count, 4096))]
    else:
        for i in range(min(count, 4096)):
            place = at + 4 + 4 * i
            found.append(Site("offset", place, f"{title}[]"))
            _table(data, place + struct.unpack_from("<I", data, place)[0], field.type, found, seen)


def _change(rng: Random, raw: bytearray, site: Site, sites: list[Site]) -> None:
    if site.at + 8 > len(raw):
        return
    if site.kind == "slot":
        struct.pack_into("<H", raw, site.at, rng.choice((0, 0, 4, 6, 8, 0xFFFF)))
    elif site.kind == "length":
        now = struct.unpack_from("<I", raw, site.at)[0]
        counts = (0, 1, max(now, 1) - 1, now + 1, now * 2, 2**31, 2**32 - 1)
        struct.pack_into("<I", raw, site.at, rng.choice(counts) % 2**32)
    elif site.kind == "offset":
        alike = [s for s in sites if s.kind == "offset" and (s.field == site.field or rng.random() < 0.02)]
        other = rng.choice(alike or [site])
        target = other.at + struct.unpack_from("<I", raw, other.at)[0]
        if rng.random() < 0.2:
            target = rng.choice((site.at, site.at + 4, rng.randrange(len(raw)), len(raw)))
        struct.pack_into("<I", raw, site.at, (target - site.at) % 2**32)
    elif site.kind == "bytes":
        _contents(rng, raw, site)
    elif site.kind in ("f4", "f8"):
        struct.pack_into("<" + _CODES[site.kind], raw, site.at, rng.choice(_REALS))
    else:
        code = "<" + _CODES[site.kind]
        small = rng.randrange(-3, 9) if rng.random() < 0.6 else rng.choice(_WHOLE) * rng.choice((1, 1, -1))
        bits = 8 * struct.calcsize(code)
        if site.kind in ("i1", "u1") and rng.random() < 0.5:
            small = rng.randrange(160)
        struct.pack_into(code.upper(), raw, site.at, small % 2**bits)


def _contents(rng: Random, raw: bytearray, site: Site) -> None:
    """Texts; and contents of buffers, which are axes, shapes, weights or packed options."""
    if not site.size:
        return
    if site.field.endswith(("name", "key", "code")) and rng.random() < 0.7:
        text = rng.choice(_TEXTS)[: site.size]
        raw[site.at : site.at + len(text)] = text
    elif site.size >= 4 and rng.random() < 0.6:
        at = site.at + 4 * rng.randrange(site.size // 4)
        if rng.random() < 0.7:
            struct.pack_into("<i", raw, at, rng.choice((*range(-3, 9), 255, 65536, 2**31 - 1, -(2**31))))
        else:
            struct.pack_into("<f", raw, at, rng.choice(_REALS))
    else:
        raw[site.at + rng.randrange(site.size)] = rng.randrange(256)


# --------------------------------------------------------------------------------------------------------- built anew


def _rebuilt(rng: Random, data: bytes) -> bytes:
    model = generated.ModelT.InitFromObj(generated.Model.GetRootAs(data, 0))
    rng.choice(_SPOILERS)(rng, model)
    packer = flatbuffers.Builder(1024)
    packer.Finish(model.Pack(packer), b"TFL3")
    return bytes(packer.Output())


def _graph(rng: Random, model: Any) -> Any:
    return rng.choice(model.subgraphs)


def _operators(rng: Random, model: Any) -> None:
    """An operator missing, twice, or earlier than its operands."""
    found = _graph(rng, model).operators
    at = rng.randrange(len(found))
    kind = rng.randrange(3)
    if kind == 0:
        del found[at]
    elif kind == 1:
        found.insert(rng.randrange(len(found) + 1), found[at])
    else:
        rng.shuffle(found)


def _operands(rng: Random, model: Any) -> None:
    """One operand or result more, less, or another."""
    graph = _graph(rng, model)
    operator = rng.choice(graph.operators)
    side = rng.choice(("inputs", "inputs", "outputs"))
    found = [int(i) for i in getattr(operator, side) if i is not None]
    at = rng.randrange(len(found) + 1)
    if rng.random() < 0.4:
        found.insert(at, rng.randrange(-1, len(graph.tensors)))
    elif rng.random() < 0.6:
        found = found[:at]
    elif found:
        found[min(at, len(found) - 1)] = rng.randrange(-1, len(graph.tensors))
    setattr(operator, side, found)


def _code(rng: Random, model: Any) -> None:
    """Another operator over the same operands."""
    code = rng.choice(model.operatorCodes)
    name = rng.choice(_names())
    number = getattr(generated.BuiltinOperator, name, generated.BuiltinOperator.CUSTOM)
    code.builtinCode, code.deprecatedBuiltinCode = number, min(number, 127)
    code.customCode = rng.choice((name.encode(), b"", b"FlexErf", b"a\x1b[2J")) if number == 32 else None


@cache
def _names() -> list[str]:
    return sorted({*RULES, *schema.BUILTINS})


def _shape(rng: Random, model: Any) -> None:
    tensor = rng.choice(_graph(rng, model).tensors)
    shape = [int(d) for d in (tensor.shape if tensor.shape is not None else ())]
    kind = rng.randrange(5)
    if kind == 0:
        shape.append(rng.choice((0, 1, 2, 2**31 - 1, -1)))
    elif kind == 1 and shape:
        del shape[rng.randrange(len(shape))]
    elif kind == 2 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((0, 1, 2, 7, 65536, 2**31 - 1, -1, -5))
    elif kind == 3:
        tensor.shapeSignature = [rng.choice((-1, 1, d)) for d in shape]
    else:
        shape = []
    tensor.shape = shape


def _tensor(rng: Random, model: Any) -> None:
    """Another type, buffer or quantisation; a variable; no rank."""
    tensor = rng.choice(_graph(rng, model).tensors)
    other = rng.choice(_graph(rng, model).tensors)
    kind = rng.randrange(7)
    if kind == 0:
        tensor.type = rng.randrange(24)
    elif kind == 1:
        tensor.buffer = rng.choice((0, other.buffer, len(model.buffers)))
    elif kind == 2:
        tensor.quantization = other.quantization
    elif kind == 3:
        tensor.isVariable = not tensor.isVariable
    elif kind == 4:
        tensor.hasRank, tensor.shape = False, []
    elif kind == 5:
        tensor.name = rng.choice((*_TEXTS, other.name))
    else:
        made = generated.QuantizationParametersT()
        count = rng.choice((1, 1, 2, 3, 40))
        made.scale = [rng.choice((0.1, 1.0, *_REALS[:8])) for _ in range(count)]
        made.zeroPoint = [rng.choice((0, 3, -128, 2**40)) for _ in range(rng.choice((count, count, 0, 1)))]
        made.quantizedDimension = rng.choice((0, 1, 3, -1, 9))
        tensor.quantization = made


def _signature(rng: Random, model: Any) -> None:
    """Signatures that name other tensors or subgraphs, twice, or nothing."""
    graph = _graph(rng, model)
    model.signatureDefs = model.signatureDefs or []
    for _ in range(rng.choice((1, 1, 2))):
        made = generated.SignatureDefT()
        made.signatureKey = rng.choice((b"predict", b"serving_default", b"", b"other", b"\x1b[1m"))
        made.subgraphIndex = rng.choice((0, 0, 1, len(model.subgraphs)))
        made.inputs = [_mapped(rng, graph, i) for i in graph.inputs]
        made.outputs = [_mapped(rng, graph, i) for i in graph.outputs]
        model.signatureDefs.append(made)


def _mapped(rng: Random, graph: Any, index: int) -> Any:
    made = generated.TensorMapT()
    made.name = rng.choice((b"a", b"b", b"", b"\x1b[1m", graph.tensors[index].name))
    made.tensorIndex = int(index) if rng.random() < 0.7 else rng.choice((0, 1, 7, 2**31))
    return made


def _ends(rng: Random, model: Any) -> None:
    graph = _graph(rng, model)
    side = rng.choice(("inputs", "outputs"))
    found = [int(i) for i in getattr(graph, side)]
    kind = rng.randrange(3)
    if kind == 0:
        found.append(rng.randrange(len(graph.tensors)))
    elif kind == 1 and found:
        del found[rng.randrange(len(found))]
    elif found:
        found[rng.randrange(len(found))] = rng.randrange(len(graph.tensors))
    setattr(graph, side, found)


def _calls(rng: Random, model: Any) -> None:
    """A subgraph twice, or a call of any subgraph, the calling one included."""
    if rng.random() < 0.3:
        model.subgraphs.append(_graph(rng, model))
        return
    graph = _graph(rng, model)
    code = generated.OperatorCodeT()
    code.builtinCode, code.deprecatedBuiltinCode, code.version = generated.BuiltinOperator.WHILE, 119, 1
    operator = rng.choice(graph.operators)
    operator.opcodeIndex = len(model.operatorCodes)
    operator.builtinOptions = generated.WhileOptionsT()
    operator.builtinOptionsType = generated.BuiltinOptions.WhileOptions
    operator.builtinOptions.condSubgraphIndex = rng.randrange(-1, len(model.subgraphs) + 1)
    operator.builtinOptions.bodySubgraphIndex = rng.randrange(-1, len(model.subgraphs) + 1)
    model.operatorCodes.append(code)


def _metadata(rng: Random, model: Any) -> None:
    made = generated.MetadataT()
    made.name = rng.choice((b"TFLITE_METADATA", b"min_runtime_version", b"x"))
    made.buffer = rng.randrange(len(model.buffers) + 1)
    model.metadata = [*(model.metadata or []), made]


_SPOILERS: tuple[Callable[[Random, Any], None], ...] = (
    *(_operators, _code, _code, _ends, _signature, _calls, _metadata),
    *(_operands,) * 4,
    *(_shape,) * 3,
    *(_tensor,) * 4,
)
