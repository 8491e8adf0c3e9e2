"""The named lists of passes from a source's IR to the form that is lowered, and the driver that validates each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import onnx_ir as ir

from converter import frontends
from converter.errors import ConvertError
from converter.ir import build, shapes, spec
from converter.ir.upgrade import ahead, upgrade
from converter.passes import (
    bound_boxes,
    byte_activations,
    channels_last,
    cleanup,
    contrib,
    drop_expands,
    fold_affine,
    fold_pad,
    fuse_activation,
    fuse_bias,
    fuse_heads,
    fuse_patterns,
    fuse_residual,
    gemm_to_matmul,
    islands,
    linear_models,
    merge_siblings,
    movement,
    permute_weights,
    qlinear_to_qdq,
    resolve_pads,
    set_rows,
    simplify,
    sink_transposes,
    solve_reshapes,
    undo_dynamic,
    unroll,
    widen,
)
from converter.passes.integer import INTEGER_PASSES, ranges_by_row
from converter.passes.record import PassRecord
from converter.quantize.rounding import unpack

__all__ = [
    "INTEGER",
    "OF_TEXTS",
    "PASSES",
    "PLAIN",
    "PREPARE",
    "REST",
    "SHAPE",
    "STATIC",
    "TIDY",
    "WIDEN",
    "Pass",
    "Shapes",
    "optimize",
    "to_ir",
    "upgraded",
]

Shapes = Mapping[str, Sequence[int]]


class Pass(NamedTuple):
    """A pass: `run` edits the model in place and returns the number of rewrites."""

    name: str
    run: Callable[[ir.Model], int]


WIDEN: tuple[Pass, ...] = (Pass("widen halves", widen.run),)
"""For models that msedge runs, before all other passes; those exported as they are keep their types."""

PREPARE: tuple[Pass, ...] = (
    # constants and known shapes
    Pass("lift constants", cleanup.lift_constants),
    Pass("fold constants", cleanup.fold_constants),
    Pass("unroll", unroll.run),
    Pass("infer shapes", shapes.infer),
    Pass("solve reshapes", solve_reshapes.run),
    Pass("simplify", simplify.run),
    Pass("set rows", set_rows.run),
    Pass("fold constants again", cleanup.fold_constants),
    Pass("common subexpressions", cleanup.common_subexpressions),
    Pass("drop unused", cleanup.unused),
    # the source's operators, made explicit
    Pass("fuse patterns", fuse_patterns.run),
    Pass("drop pattern leftovers", cleanup.unused),
    Pass("simplify movement", movement.run),
    Pass("resolve pads", resolve_pads.run),
    Pass("fold pads", fold_pad.run),
    Pass("fold batch norm", fold_affine.run_standard),
)
"""Passes after which the model still has only ONNX's own operators (except Silu), the form to quantise and export."""

PLAIN: tuple[Pass, ...] = (
    Pass("sink the source's transposes", sink_transposes.run_standard),
    Pass("simplify what sank", movement.run),
    Pass("drop what sank", cleanup.unused),
)
"""Passes that remove the Transposes of a source whose layout is not ONNX's, with ONNX's own operators: for exports,
which other tools optimise and quantise."""

STATIC: tuple[Pass, ...] = (
    Pass("undo dynamic quantisation", undo_dynamic.run),
    Pass("unpack weights", unpack.run),
    Pass("drop what they needed", cleanup.unused),
    *PLAIN,
)
"""Passes before a static quantiser, which measures its own ranges: it would quantise both results if a Transpose stood
between a convolution and its activation (person detection: 27.9 dB; 33 dB without them)."""

SHAPE: tuple[Pass, ...] = (
    Pass("activations of 8 bits", byte_activations.run),
    Pass("integer products as contractions", qlinear_to_qdq.run),
    Pass("fuse heads", fuse_heads.run),
    Pass("drop heads' leftovers", cleanup.unused),
    Pass("gemm to matmul", gemm_to_matmul.run),
    Pass("fold affine", fold_affine.run),
    Pass("merge siblings", merge_siblings.run),
    Pass("fuse residual early", fuse_residual.run),
    Pass("fuse activation early", fuse_activation.run),
    # channels last
    Pass("drop expands", drop_expands.run),
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
)
"""Passes that give operators the form of the kernels: channels last, with bias, residual and activation."""

TIDY: tuple[Pass, ...] = (
    Pass("bound boxes", bound_boxes.run),
    Pass("simplify at last", simplify.run),
    Pass("common subexpressions again", cleanup.common_subexpressions),
    Pass("share constants", cleanup.share_constants),
    Pass("drop unused at last", cleanup.unused),
)
"""Passes that remove unused values."""

INTEGER: tuple[Pass, ...] = tuple(Pass(*step) for step in INTEGER_PASSES)
"""Passes that convert quantised operators to integer operators."""

REST: tuple[Pass, ...] = (*SHAPE, *INTEGER, *TIDY)
"""The passes from the form that is quantised and exported to the form that is lowered."""

OF_TEXTS: tuple[Pass, ...] = (*REST, Pass("ranges by row", ranges_by_row.run))
"""The same for embedding models, where the result of a text must not depend on the texts beside it."""

PASSES: tuple[Pass, ...] = (*PREPARE, *REST)
"""The passes from IR as loaded to the form that is lowered."""


def to_ir(source: frontends.Source, *, input_shapes: Shapes | None = None) -> ir.Model:
    """The source as IR: functions inlined, nodes of the pinned opset, shapes inferred. Raises ConvertError.

    For a source with several signatures: "predict", or the first.
    """
    models = frontends.load(source).models
    return upgraded(models.get("predict") or next(iter(models.values())), input_shapes)


def upgraded(model: ir.Model, input_shapes: Shapes | None = None) -> ir.Model:
    """Bring a frontend's model to the pinned opset and infer shapes: changed in place and returned."""
    shapes.override(model, input_shapes or {})
    spec.check(model, "as loaded", upgraded=False)
    model.graph.meta["msedge.source_opset"] = model.graph.opset_imports.get("", 0)
    with _named("reading shapes"):
        shapes.infer(model, declared=False)
    with _named("upgrade"):
        doubtful = ahead(model)
        upgrade(model)
        build.adopt(model)
        shapes.infer(model, declared=not doubtful)
        foreign = False
        while contrib.run(model):
            foreign = True
            shapes.infer(model)
        if foreign:  # ONNX's inference, which knows their replacements only, has not checked what was declared
            shapes.check_types(model)
        if qlinear_to_qdq.run(model):
            shapes.infer(model)
        while linear_models.run(model):  # an operator's operand may get its type from one that is replaced before it
            shapes.infer(model)
    spec.check(model, "after the upgrade")
    return model


_FOREIGN = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError)


@contextmanager
def _named(step: str) -> Iterator[None]:
    """Errors of a pass carry its name. Unforeseen operand values may make a pass fail: also one clear error."""
    try:
        yield
    except ConvertError as error:
        raise ConvertError(f"pass {step!r}: {error}") from error
    except _FOREIGN as error:
        raise ConvertError(
            f"pass {step!r} cannot handle this model ({type(error).__name__}: {error}); check it with onnx.checker, "
            "and if it is valid, report this as a bug of msedge"
        ) from error


def optimize(model: ir.Model, passes: Sequence[Pass] = PASSES, *, checked: bool = True) -> list[PassRecord]:
    """Run `passes` in place and check the spec after each; an error names the pass.

    `checked=False` checks before the first and after the last pass only: for copies that a quantiser tries out by the
    dozen, where the checks in between took a fifth of the time.
    """
    spec.check(model, "before the first pass")
    build.adopt(model)
    records = []
    for step in passes:
        start = time.perf_counter()
        with _named(step.name):
            rewrites = step.run(model)
        if rewrites and checked:
            spec.check(model, f"after pass {step.name!r}")
        records.append(PassRecord(step.name, rewrites, time.perf_counter() - start))
    if not checked:
        spec.check(model, "after the last pass")
    return records
