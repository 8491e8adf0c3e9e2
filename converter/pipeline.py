"""From a source to a bundle: the named list of steps, and the driver that checks the model before and after each."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from math import prod
from typing import Any, Literal, NamedTuple

import onnx
import onnx_ir as ir

from converter import golden
from converter.errors import ConvertError
from converter.frontends import onnx as frontend
from converter.ir import build, shapes, spec
from converter.ir.upgrade import upgrade
from converter.lowering import halve_weights, lower, unsupported
from converter.passes import (
    channels_last,
    cleanup,
    fold_affine,
    fold_pad,
    fuse_activation,
    fuse_bias,
    fuse_heads,
    fuse_patterns,
    fuse_residual,
    gemm_to_matmul,
    islands,
    movement,
    permute_weights,
    resolve_pads,
    simplify,
    sink_transposes,
    solve_reshapes,
)
from converter.report import PassRecord, Report
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.errors import BundleError
from lite_runtime.graph import Graph

__all__ = ["PASSES", "QUANTIZE", "Conversion", "Pass", "Quantize", "convert", "optimize", "to_ir"]

Quantize = Literal["none", "fp16"]
QUANTIZE: tuple[Quantize, ...] = ("none", "fp16")
Shapes = Mapping[str, Sequence[int]]


class Pass(NamedTuple):
    """A step of the pipeline: `run` edits the model in place and returns how many rewrites it made."""

    name: str
    run: Callable[[ir.Model], int]


PASSES: tuple[Pass, ...] = (
    # what is known already
    Pass("lift constants", cleanup.lift_constants),
    Pass("fold constants", cleanup.fold_constants),
    Pass("infer shapes", shapes.infer),
    Pass("solve reshapes", solve_reshapes.run),
    Pass("simplify", simplify.run),
    Pass("fold constants again", cleanup.fold_constants),
    Pass("common subexpressions", cleanup.common_subexpressions),
    Pass("drop unused", cleanup.unused),
    # what the source means
    Pass("fuse patterns", fuse_patterns.run),
    Pass("fuse heads", fuse_heads.run),
    Pass("drop pattern leftovers", cleanup.unused),
    Pass("simplify movement", movement.run),
    Pass("resolve pads", resolve_pads.run),
    Pass("fold pads", fold_pad.run),
    Pass("gemm to matmul", gemm_to_matmul.run),
    Pass("fold batch norm and affine", fold_affine.run),
    Pass("fuse residual early", fuse_residual.run),
    Pass("fuse activation early", fuse_activation.run),
    # channels last
    Pass("channels last", channels_last.run),
    Pass("sink transposes", sink_transposes.run),
    Pass("turn islands back", islands.run),
    Pass("permute weights", permute_weights.run),
    Pass("drop moved", cleanup.unused),
    # fewer, larger operators
    Pass("simplify results", simplify.run),
    Pass("simplify movement again", movement.run),
    Pass("fold affine again", fold_affine.run),
    Pass("fuse bias", fuse_bias.run),
    Pass("fuse residual", fuse_residual.run),
    Pass("fuse activation", fuse_activation.run),
    # leave no litter
    Pass("simplify at last", simplify.run),
    Pass("common subexpressions again", cleanup.common_subexpressions),
    Pass("share constants", cleanup.share_constants),
    Pass("drop unused at last", cleanup.unused),
)


@dataclass(frozen=True)
class Conversion:
    """A finished bundle and what was done to get it."""

    bundle: bytes
    report: Report


def to_ir(source: frontend.Source, *, input_shapes: Shapes | None = None) -> ir.Model:
    """The source as IR: functions inlined, nodes of the pinned opset, shapes inferred. Raises ConvertError."""
    model = frontend.load(source)
    shapes.override(model, input_shapes or {})
    spec.check(model, "as loaded", upgraded=False)
    model.graph.meta["msedge.source_opset"] = model.graph.opset_imports.get("", 0)
    with _named("reading shapes"):
        shapes.infer(model, declared=False)
    with _named("upgrade"):
        upgrade(model)
        build.adopt(model)
        shapes.infer(model)
    spec.check(model, "after the upgrade")
    return model


_FOREIGN = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError)


@contextmanager
def _named(step: str) -> Iterator[None]:
    """Errors of a step carry its name. Operand values no rule foresees may trip a step: still one clear error."""
    try:
        yield
    except ConvertError as error:
        raise ConvertError(f"pass {step!r}: {error}") from error
    except _FOREIGN as error:
        raise ConvertError(
            f"pass {step!r} cannot handle this model ({type(error).__name__}: {error}); check it with onnx.checker, "
            "and if it is valid, report this as a bug of msedge"
        ) from error


def optimize(model: ir.Model, passes: Sequence[Pass] = PASSES) -> list[PassRecord]:
    """Run `passes` in place, the spec after each; an error names the pass."""
    spec.check(model, "before the first pass")
    build.adopt(model)
    records = []
    for step in passes:
        start = time.perf_counter()
        with _named(step.name):
            rewrites = step.run(model)
        if rewrites:
            spec.check(model, f"after pass {step.name!r}")
        records.append(PassRecord(step.name, rewrites, time.perf_counter() - start))
    return records


def convert(
    source: frontend.Source,
    *,
    output: str | os.PathLike[str] | None = None,
    quantize: Quantize = "none",
    input_shapes: Shapes | None = None,
) -> Conversion:
    """Convert `source` to a bundle, written to `output` unless it is None.

    `quantize`: "none" keeps weights as they are, "fp16" stores large float32 weights in half precision.
    Raises ConvertError for a broken source, UnsupportedOpError (a ConvertError) listing all operators the runtime
    lacks.
    """
    if quantize not in QUANTIZE:
        raise ConvertError(f"expected quantize to be one of {', '.join(QUANTIZE)}, got {quantize!r}")
    start = time.perf_counter()
    model = to_ir(source, input_shapes=input_shapes)
    report = _describe(source, model, quantize)
    missing = list(unsupported(model))
    if missing:
        lower(model)
    report.passes = optimize(model)
    graph = lower(model)
    if quantize == "fp16":
        halved = halve_weights(graph)
        graph, report.halved, report.kept_float32 = halved.graph, halved.stored, halved.overflowed
    example, report.golden = golden.sample(graph, multiply_adds(model))
    data = _write(output, graph, report, {} if example is None else {"predict": example})
    _measure(report, graph, data)
    report.seconds = time.perf_counter() - start
    return Conversion(data, report)


def _write(
    output: str | os.PathLike[str] | None, graph: Graph, report: Report, examples: Mapping[str, golden.Sample]
) -> bytes:
    try:
        data = bundle.write(None, {"predict": graph}, provenance=_provenance(report), golden=examples)
    except BundleError as error:
        raise ConvertError(f"the converted model is no valid bundle: {error}; this is a bug in msedge") from error
    if output is not None:
        write_atomically(output, data, ConvertError)
    return data


def _describe(source: frontend.Source, model: ir.Model, quantize: Quantize) -> Report:
    data = _source_bytes(source)
    return Report(
        source=os.path.basename(os.fspath(source)) if isinstance(source, str | os.PathLike) else type(source).__name__,
        source_digest=hashlib.blake2b(data, digest_size=32).hexdigest(),
        source_bytes=len(data) + sum(_external_bytes(g) for g in build.graphs(model)),
        source_opset=model.graph.meta.get("msedge.source_opset", 0),
        quantize=quantize,
        ops_before=_count(node.op_type for node in build.nodes(model)),
    )


def _source_bytes(source: frontend.Source) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, onnx.ModelProto):
        return bytes(source.SerializeToString(deterministic=True))
    if isinstance(source, ir.Model):
        return bytes(ir.serde.serialize_model(source).SerializeToString(deterministic=True))
    with open(source, "rb") as file:
        return file.read()


def _external_bytes(graph: ir.Graph) -> int:
    tensors = (v.const_value for v in graph.initializers.values())
    return sum(t.nbytes for t in tensors if isinstance(t, ir.ExternalTensor))


def _count(ops: Any) -> dict[str, int]:
    return dict(sorted(Counter(ops).items()))


def _provenance(report: Report) -> dict[str, Any]:
    return {
        "source": report.source,
        "source_digest": report.source_digest,
        "source_opset": report.source_opset,
        "converter": _version(),
        "options": {"quantize": report.quantize},
    }


def _version() -> str:
    try:
        return metadata.version("msedge")
    except metadata.PackageNotFoundError:
        return "unknown"


def _measure(report: Report, graph: Graph, data: bytes) -> None:
    report.bundle_bytes = len(data)
    sizes: Counter[str] = Counter()
    for array in graph.constants.values():
        sizes[str(array.dtype)] += array.nbytes
    report.weight_bytes = dict(sorted(sizes.items()))
    report.ops_after = _count(node.op for node in graph.walk())
    native = _native_ops()
    slow = [node.op for node in graph.walk() if node.op not in native]
    report.reference, report.native = len(slow), sum(report.ops_after.values()) - len(slow)
    report.reference_ops = _count(slow)


def _native_ops() -> frozenset[str]:
    from lite_runtime import ops  # noqa: F401
    from lite_runtime.ops.registry import BINDS

    return frozenset(BINDS)


_CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


def multiply_adds(model: ir.Model) -> int:
    """An estimate of one run's multiply-adds: contractions exactly, other operators one per result; symbols count 1."""
    total = 0
    for node in build.nodes(model):
        size = sum(_elements(v) for v in node.outputs)
        if node.op_type in _CONTRACTIONS and len(node.inputs) > 1:
            weight = build.dims(node.inputs[1]) or (1,)
            depth = _elements(node.inputs[1]) // max(1, _filters(node, weight))
            if node.op_type == "ConvTranspose":
                size = _elements(node.inputs[0])
            size *= max(1, depth)
        total += size
    return total


def _filters(node: ir.Node, weight: Sequence[int | str | None]) -> int:
    axis = 0 if node.op_type in ("Conv", "ConvTranspose") else -1
    found = weight[axis]
    return found if isinstance(found, int) else 1


def _elements(value: ir.Value | None) -> int:
    return prod(d if isinstance(d, int) else 1 for d in build.dims(value) or ())
