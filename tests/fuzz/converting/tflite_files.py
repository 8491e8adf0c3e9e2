"""Ways to damage a TensorFlow Lite file that keep it a flatbuffer: every field in place, and its parts moved about."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import ai_edge_litert.schema_py_generated as generated
import flatbuffers

from converter.frontends.tflite import schema
from converter.frontends.tflite.op import RULES
from tests.fuzz.converting import flat_files
from tests.fuzz.converting.flat_files import REALS, TEXTS

__all__ = ["spoil"]

_UNIONS = {
    "builtin_options": schema.OPTIONS, "builtin_options2": schema.OPTIONS_2, "details": schema.DETAILS,
    "array_segments": schema.SPARSE_INDICES, "array_indices": schema.SPARSE_INDICES,
}  # fmt: skip
_LAYOUT = flat_files.Layout("Model", schema.TABLES, _UNIONS, ("name", "key", "code"))


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change of the file `data`."""
    if rng.random() < 0.25:
        try:
            return _rebuilt(rng, data)
        except (IndexError, struct.error, ValueError, TypeError, AttributeError, OverflowError, MemoryError):
            return data  # damaged before
    return flat_files.spoil(rng, data, _LAYOUT)


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
        tensor.name = rng.choice((*TEXTS, other.name))
    else:
        made = generated.QuantizationParametersT()
        count = rng.choice((1, 1, 2, 3, 40))
        made.scale = [rng.choice((0.1, 1.0, *REALS[:8])) for _ in range(count)]
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
